"""What a recorded day brings beside its jobs, in small: leaders that were gone, agents that began anew, lost disks."""

from __future__ import annotations

from commands.policy import DEFAULT
from events.ids import NodeId
from events.job import EndReason, JobState
from replay.engine import run
from replay.outcome import Outcome
from replay.scenario import Anew, Silence, TakenOver
from tests.replay.fleets import at, comes, scenario, second, silent

N0 = NodeId("n0")


def starts(outcome: Outcome) -> list[int]:
    """Of each attempt, in order."""
    return [second(row.granted_at) for row in outcome.stretches]


def test_between_two_leaders_nothing_starts() -> None:
    """What comes meanwhile starts with the next leader, once the node is confirmed."""
    gone = TakenOver(gone_at=at(10), at=at(40), confirmed=((at(45), N0),))
    jobs = [comes(5, "before", 600), comes(20, "meanwhile", 60)]
    assert starts(run(scenario(1, jobs, taken_over=(gone,)))) == [5, 45]


def test_how_long_a_node_was_silent_a_new_leader_does_not_know() -> None:
    """It listens from when it begins: the node is lost so much later."""
    lost_s = DEFAULT.node_lost_s
    job = comes(0, "a", 3_600, gpus_per_replica=8)
    one = run(scenario(1, [job], silences=(silent(0, 10, None),), end_at=at(3_000)))
    over = TakenOver(gone_at=at(40), at=at(50), confirmed=())
    other = run(scenario(1, [job], silences=(silent(0, 10, None),), taken_over=(over,), end_at=at(3_000)))
    stopped = [[row.reason for row in outcome.stretches] for outcome in (one, other)]
    assert stopped == [[EndReason.NODE_LOST]] * 2
    assert one.jobs[0].state is None
    waits = [outcome.jobs[0].waited_s for outcome in (one, other)]
    assert waits[0] - waits[1] == 40, f"lost after {lost_s} s of silence, counted from 50 in place of 10"


def test_nothing_is_granted_on_a_node_whose_agent_begins_anew() -> None:
    """Until it is confirmed; what runs there goes on."""
    anew = Anew(node_id=N0, at=at(10), confirmed_at=at(60))
    jobs = [comes(0, "runs", 600), comes(20, "waits", 60)]
    outcome = run(scenario(1, jobs, anew=(anew,)))
    assert starts(outcome) == [0, 60]
    assert [job.state for job in outcome.jobs] == [JobState.SUCCEEDED] * 2
    assert [second(job.ended_at) for job in outcome.jobs] == [600, 120]


def test_with_a_new_disk_it_has_nothing() -> None:
    """What ran there is lost with it, and starts again."""
    anew = Anew(node_id=N0, at=at(100), confirmed_at=at(100), new_disk=True)
    outcome = run(scenario(1, [comes(0, "a", 600, gpus_per_replica=8)], anew=(anew,)))
    assert starts(outcome) == [0, 100]
    assert (outcome.jobs[0].faults, outcome.jobs[0].lost_gpu_s) == (1, 800)
    assert second(outcome.jobs[0].ended_at) == 700


def test_a_node_that_comes_back_may_have_to_be_confirmed_first() -> None:
    """To a leader that does not know yet what runs there."""
    over = TakenOver(gone_at=at(20), at=at(30), confirmed=((at(90), N0),))
    away = Silence(node_id=N0, at=at(10), until=at(60), confirmed=False)
    outcome = run(scenario(1, [comes(40, "a", 60)], silences=(away,), taken_over=(over,)))
    assert starts(outcome) == [90]
