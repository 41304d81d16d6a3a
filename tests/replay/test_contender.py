"""What a replay may be told to try: words, files of a policy, files of several things; and what is none of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commands.messages import SetPolicy
from commands.policy import DEFAULT, Preset
from events.ids import Instant
from events.job import JobState
from replay import generated
from replay.contender import BadContender, Contender, contender, under
from replay.engine.models import Models
from replay.scenario import Arrival, Joined, TakenOver, Timed
from replay.whatif import compare
from tests.replay.fleets import comes, scenario

SMALL = generated.day(1, generated.Fleet(nodes=4, nodes_in_block=2), jobs=30, giants=1, teams=3, length_s=3600)


def test_a_word_is_a_preset_or_what_was_recorded() -> None:
    """`fifo` keeps what was recorded but for the planner; `default` is the policy as it comes."""
    recorded = DEFAULT.model_copy(update={"grace_s_max": 100})
    assert contender("fifo", recorded).policy == recorded.model_copy(update={"preset": Preset.FIFO})
    assert contender("default", recorded).policy == DEFAULT
    assert contender("recorded", recorded).policy is None


def test_a_file_says_what_differs(tmp_path: Path) -> None:
    """Parameters alone, in JSON; or with a name, quotas and a fleet, in TOML. The rest stays as recorded."""
    plain = tmp_path / "calm.json"
    plain.write_text('{"preemptions_max": 1}')
    assert contender(str(plain), DEFAULT).name == "calm"
    assert contender(str(plain), DEFAULT).policy == DEFAULT.model_copy(update={"preemptions_max": 1})
    whole = tmp_path / "x.toml"
    line = '{team = "a", gpu_type = "h100", guaranteed = 8, borrow_limit = 0}'
    whole.write_text(f'name = "small"\nfleet = "2x8"\nquotas = [{line}]\n[policy]\npreset = "easy"\n')
    made = contender(str(whole), DEFAULT)
    assert (made.name, made.policy and made.policy.preset) == ("small", Preset.EASY)
    assert made.nodes is not None
    assert len(made.nodes) == 2
    assert made.quotas is not None
    assert made.quotas[0].guaranteed == 8


LINE = '{"team": "a", "gpu_type": "h100", "guaranteed": 8, "borrow_limit": 0}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"preemptions_max": 0}', "policy.preemptions_max: 0: Input should be greater than or equal to 1"),
        ('{"no_such": 1}', "policy.no_such: 1: Extra inputs are not permitted"),
        ('{"policy": 7}', "policy: has to be an object of parameters, or a preset"),
        ('{"preemptions_max": "2"}', "policy.preemptions_max: 2: Input should be a valid integer"),
        ('{"preemptions_max": true}', "policy.preemptions_max: True: Input should be a valid integer"),
        ('{"quotas": [{"team": "a"}]}', "quotas.0.gpu_type: Field required"),
        (f'{{"quotas": [{LINE}, {LINE}]}}', "quotas: a h100 is there twice"),
        ("[1]", "has to be an object of parameters"),
        ("{", "is neither JSON nor"),
    ],
)
def test_what_is_no_contender_is_refused_by_its_field(tmp_path: Path, text: str, said: str) -> None:
    """The file, the field, the value and what it may be."""
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(BadContender, match=r"bad\.json") as refused:
        contender(str(path), DEFAULT)
    assert said in str(refused.value)
    with pytest.raises(BadContender, match="No such file"):
        contender(str(tmp_path / "none"), DEFAULT)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 20_000, "is neither JSON nor"),
        ("queued_jobs_max = nan", "policy.queued_jobs_max: nan: "),
        ("queued_jobs_max = 2026-01-01", "policy.queued_jobs_max: 2026-01-01: "),
    ],
    ids=["too deep", "not a number", "a date"],
)
def test_toml_can_say_what_json_cannot(tmp_path: Path, text: str, said: str) -> None:
    """And is refused as well."""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(BadContender, match=r"bad\.toml") as refused:
        contender(str(path), DEFAULT)
    assert said in str(refused.value)


def test_recorded_changes_of_what_is_tried_are_left_out() -> None:
    """Under another policy the day's own changes of the policy do not count; under the recorded one they do."""
    set_then = SetPolicy(policy=DEFAULT.model_dump(mode="json") | {"grace_s_max": 100})
    change = Timed(at=Instant(SMALL.start_at + 1000), command=set_then)
    day = replace(SMALL, commands=(change,))
    assert under(day, contender("default", DEFAULT)).commands == ()
    assert under(day, contender("recorded", DEFAULT)).commands == (change,)
    (changed,) = under(day, contender("fifo", DEFAULT)).commands
    assert changed.command == replace(set_then, policy=set_then.policy | {"preset": "fifo"})


def test_a_recorded_day_refuses_what_its_policy_refuses() -> None:
    """Bounds on what may be submitted are not widened for it, as they are for a trace, which was never refused."""
    tight = DEFAULT.model_copy(update={"max_runtime_max_s": 60})
    assert under(replace(SMALL, policy=tight), contender("recorded", tight)).policy.max_runtime_max_s > 60
    assert under(replace(SMALL, policy=tight, refuses=True), contender("recorded", tight)).policy == tight


def test_on_another_fleet_recorded_nodes_do_not_come_and_go(tmp_path: Path) -> None:
    """What was recorded of other nodes is not true of these."""
    path = tmp_path / "more.toml"
    path.write_text('fleet = "2x8"\n')
    joined = Joined(at=SMALL.start_at, node=SMALL.nodes[0])
    over = TakenOver(gone_at=SMALL.start_at, at=Instant(SMALL.start_at + 1), confirmed=())
    made = under(replace(SMALL, joined=(joined,), taken_over=(over,)), contender(str(path), DEFAULT))
    assert (len(made.nodes), made.joined, made.taken_over) == (2, (), ())


def test_processes_side_by_side_give_what_one_gives() -> None:
    """The same outcomes in the same order, however many processes work."""
    both = [contender(word, DEFAULT) for word in ("default", "skip")]
    assert compare(SMALL, both, models=Models(), jobs=2) == compare(SMALL, both, models=Models(), jobs=1)


class TestTooLong:
    """A row with a wrong date makes a scenario of decades, which nobody would wait for."""

    @pytest.mark.parametrize("far", [comes(10**10, "far", 60), comes(0, "far", 10**10)], ids=["comes", "runs"])
    def test_it_is_refused_with_the_job(self, far: Arrival) -> None:
        """Before anything is replayed, and with what may be done about it."""
        what = scenario(1, sorted([comes(0, "near", 60), far], key=lambda each: each.at))
        with pytest.raises(ValueError, match=r"sample: 900 s: job far ends after 115740 days.*at most 200000"):
            compare(what, [Contender(name="recorded")], models=Models())

    def test_samples_may_be_further_apart(self) -> None:
        """Then it can be: time in which nothing happens costs nothing else."""
        (outcome,) = compare(
            scenario(1, [comes(0, "near", 60), comes(10**10, "far", 60)]),
            [Contender(name="recorded")],
            models=Models(),
            sample_s=10**9,
        )
        assert [job.state for job in outcome.jobs] == [JobState.SUCCEEDED] * 2
