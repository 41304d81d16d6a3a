"""What people are told: failures, places, holds, limits, and slips of theirs."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import signalbox
from signalbox import Client, Profile
from signalbox.cli.timeline import fields_of, moment
from signalbox.shapes import Job, failure

from tests.client.command import Command
from tests.client.scripted import Answer, ScriptedApi

TAKEN = Answer(status=202, json={"job_id": "j_1", "state": "QUEUED", "queue_position": 1, "seq": 4})
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def ended(rank: int, end: str, detail: str, attempt: int = 1) -> dict[str, Any]:
    """A task.ended of a job's timeline."""
    body = {"attempt": attempt, "rank": rank, "end": end, "detail": detail}
    return {"seq": 9, "at": "2026-11-30T00:00:03.000Z", "type": "task.ended", "job_id": "j_1", "body": body}


def job(state: str, **more: Any) -> Answer:
    """The job at a moment."""
    return Answer(json={"job_id": "j_1", "state": state, "attempt": 1, **more})


def backoff(ahead: int = 0, soon_s: int = 59) -> dict[str, Any]:
    """Why a job waits that is to be tried again."""
    until = (datetime.now(UTC) + timedelta(seconds=soon_s)).isoformat()
    return {"reasons": [{"code": "backoff", "until": until}, {"code": "queued", "ahead": ahead}]}


def test_a_countdown_is_one_line(api: ScriptedApi, command: Command) -> None:
    """What changes with the clock alone is told once; the place in the queue is not told twice."""
    waiting = backoff()
    queued = job("QUEUED", queue_position=1, waiting=waiting)
    api.on("POST", "/v1/jobs", TAKEN)
    api.on("GET", "/v1/jobs/j_1", *[queued] * 8, job("CANCELLED"))
    ran = command("run", "--", "true")
    told = [line for line in ran.stderr.splitlines() if "QUEUED" in line]
    assert told[0] == "signalbox: j_1 QUEUED, position 1"
    assert len(told) == 2
    assert "tried again in" in told[1]
    assert "first in the queue" not in ran.stderr


@pytest.mark.parametrize("words", [("run", "--", "trian"), ("submit", "job.json", "--wait")])
def test_a_job_that_cannot_start_says_why(
    api: ScriptedApi, command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The failed rank's own words come at each failed attempt and with the end."""
    (tmp_path / "job.json").write_text('{"command": ["trian"]}')
    api.on("POST", "/v1/jobs", TAKEN)
    again = {"queue_reason": "start_failed", **backoff()}
    api.on("GET", "/v1/jobs/j_1", job("QUEUED", attempt=2, waiting=again))
    api.on("GET", "/v1/jobs/j_1", job("FAILED", attempt=2, end_reason="start_failed"))
    told = [ended(0, "start_failed", "no such file: trian"), ended(1, "start_failed", "no folder /x", 2)]
    api.on("GET", "/v1/jobs/j_1/events", Answer(json={"events": told, "cursor": None}))
    ran = command(*words)
    assert ran.returncode == 1
    assert "signalbox: attempt 1 failed: no such file: trian\n" in ran.stderr
    assert ran.stderr.splitlines()[-1] == "signalbox: j_1 FAILED, start failed: rank 1: no folder /x"


def test_the_rank_that_failed_is_told_not_those_stopped_for_it() -> None:
    """Causes before consequences, the newest attempt before older ones, and nothing where nothing is known."""
    events = [ended(0, "stopped", "stopped"), ended(2, "start_failed", "no GPU"), ended(1, "lost", "gone", 0)]
    assert failure(events) == "rank 2: no GPU"
    assert failure(events, 3) == failure([]) == ""


def test_a_rejected_job_says_which_field(api: ScriptedApi, command: Command) -> None:
    """The end of a rejected job has the code, the field and the limit."""
    api.on("POST", "/v1/jobs", TAKEN)
    why = {"code": "too_large", "field": "replicas", "value": "99", "limit": "16"}
    api.on("GET", "/v1/jobs/j_1", job("REJECTED", rejection=why))
    assert "REJECTED: too large, replicas: 99, limit 16" in command("run", "--", "true").stderr


def test_show_tells_what_runs_and_when(api: ScriptedApi, command: Command) -> None:
    """Command, workdir, max runtime, limit and failure; the timeline in UTC with offsets, without command.done."""
    spec = {"command": ["python", "a b.py"], "workdir": "/srv/x"}
    limit = (datetime.now(UTC) + timedelta(hours=1, minutes=30)).isoformat()
    api.on("GET", "/v1/jobs/j_1", job("RUNNING", spec=spec, max_runtime="2h", limit_at=limit))
    first = {"seq": 1, "at": "2026-11-30T00:00:00.500Z", "type": "job.submitted", "body": {}}
    done = {**first, "seq": 2, "type": "command.done"}
    events = [first, done, ended(0, "start_failed", "no such file")]
    api.on("GET", "/v1/jobs/j_1/events", Answer(json={"events": events, "cursor": None}))
    said = command("show", "j_1").stdout
    for words in ("python 'a b.py'", "/srv/x", "2h", "UTC (in 1h", "no such file", "00:00:03", "+2.5s"):
        assert words in said
    assert "command.done" not in said
    assert "command.done" in command("show", "j_1", "--json").stdout


def test_a_moment_is_absolute_and_relative() -> None:
    """Today has no date; other days do."""
    event = {"at": "2026-11-30T11:00:05.000Z"}
    assert moment(event, NOW - timedelta(hours=2), NOW) == {"clock": "11:00:05", "offset": "+1h"}
    assert moment(event, NOW, NOW + timedelta(days=1))["clock"] == "2026-11-30 11:00:05"


def test_fields_have_an_order_and_long_lists_a_length() -> None:
    """The order does not depend on where an event comes from; nodes are counted."""
    body = {"z": 1, "rank": 2, "a": 3, "attempt": 1}
    assert fields_of({"body": body}) == fields_of({"body": dict(reversed(body.items()))}) == "attempt=1 rank=2 a=3 z=1"
    assert fields_of({"body": {"nodes": [1, 2, 3]}}) == "nodes=3"


def test_attempts_are_named_as_leases_are() -> None:
    """Whom a preemption stops, and whose end it awaits."""
    body = {"rule": "reclaim", "victims": [["j_a", 1], ["j_b", 3]], "awaited": []}
    assert fields_of({"body": body}) == "rule=reclaim victims=j_a.1,j_b.3"
    assert fields_of({"body": {"victims": [["j_a", 1]] * 20}}) == "victims=20"


def test_held_jobs_stand_below_the_queue(api: ScriptedApi, command: Command) -> None:
    """`queue` and `top` list what is held, and what waits for others: neither has a place in the queue."""
    after = {"reasons": [{"code": "dependencies", "jobs": ["j_1"]}]}
    listed = [
        {"job_id": "j_2", "state": "QUEUED", "held": True},
        {"job_id": "j_3", "state": "QUEUED"},
        {"job_id": "j_4", "state": "QUEUED", "waiting": after},
    ]
    api.on("GET", "/v1/queue", Answer(json={"queue": [{"job_id": "j_1", "queue_position": 1}], "cursor": None}))
    api.on("GET", "/v1/jobs", Answer(json={"jobs": listed, "cursor": None}))
    api.on("GET", "/v1/cluster", Answer(json={"cluster": "c"}))
    rows = command("queue").stdout.splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [["1", "j_1"], ["held", "j_2"], ["after", "j_4"]]
    held, dependent = (asked.query for asked in api.requests("GET", "/v1/jobs"))
    assert (held["state"], held["held"]) == ("QUEUED", "true")
    assert (dependent["state"], dependent["dependent"]) == ("QUEUED", "true")
    assert "1 waiting, 1 held, 1 after others" in command("top").stdout


@pytest.mark.parametrize("words", ["run --time @ -- true", "extend j_1 @"])
def test_a_bad_duration_is_the_same_everywhere(api: ScriptedApi, command: Command, words: str) -> None:
    """`--time` and `extend` refuse alike, before anything is sent."""
    ran = command(*("2 hours" if word == "@" else word for word in words.split()))
    assert (ran.returncode, api.asked) == (2, [])
    assert "'2 hours' is no duration" in " ".join(ran.stderr.split())


@pytest.mark.parametrize("words", ["run --team @ -- true", "queue --team @", "events -t @", "quota @", "run -C @ -- x"])
def test_an_empty_option_is_refused(api: ScriptedApi, command: Command, words: str) -> None:
    """An unset shell variable is no way to ask for the default."""
    ran = command(*("" if word == "@" else word for word in words.split()))
    assert (ran.returncode, api.asked) == (2, [])


def test_a_mistyped_command_gets_a_suggestion(command: Command) -> None:
    """`canel` is asked about."""
    assert "Did you mean 'cancel'" in command("canel", "j_1").stderr


def test_a_folder_that_is_not_here_is_warned_of(api: ScriptedApi, command: Command) -> None:
    """The job is submitted all the same: its node may have it. A container's folder is not looked for."""
    api.on("POST", "/v1/jobs", TAKEN)
    assert "no folder /nonexistent here" in command("run", "-d", "-C", "/nonexistent", "--", "true").stderr
    assert command("run", "-d", "-C", "/nonexistent", "--image", "x", "--", "true").stderr == ""


@pytest.mark.parametrize(
    ("more", "where"), [({}, "."), ({"workdir": "./src"}, "src"), ({"workdir": "/abs"}, "/abs"), ({"image": "x"}, None)]
)
def test_a_files_workdir_is_the_files(
    api: ScriptedApi, command: Command, tmp_path: Path, more: dict[str, str], where: str | None
) -> None:
    """Relative to the file's folder, and that folder by default; a container's own with an image."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.json").write_text(json.dumps({"command": ["true"], **more}))
    api.on("POST", "/v1/jobs", TAKEN)
    command("submit", "jobs/job.json")
    sent = api.requests("POST", "/v1/jobs")[0].body.get("workdir")
    assert sent == (None if where is None else str((tmp_path / "jobs" / where).resolve()))


def test_the_sdk_fills_in_the_profile(api: ScriptedApi) -> None:
    """`submit` from Python has the defaults of the command line; what is stated stays."""
    api.on("POST", "/v1/jobs", TAKEN)
    with Client(Profile(address=api.address, team="a", gpu_type="h100", max_runtime="1h")) as client:
        client.submit({"command": ["true"], "max_runtime": "2h"})
    sent = api.requests("POST", "/v1/jobs")[0].body
    assert sent == {"team": "a", "gpu_type": "h100", "max_runtime": "2h", "command": ["true"]}


def test_public_names_are_listed() -> None:
    """dir() has what __all__ has, and all of it can be had."""
    assert dir(signalbox) == sorted(signalbox.__all__)
    assert all(getattr(signalbox, name) is not None for name in signalbox.__all__)


def test_nobody_there_is_told_at_once(command: Command) -> None:
    """One note while it is tried again, however often that is."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        ran = command("queue", SIGNALBOX_ADDRESS=address, SIGNALBOX_PATIENCE="1.5")
    assert ran.returncode == 4
    first = f"signalbox: no answer from {address}, trying for 1.5 s; is `./dev up` running?"
    assert ran.stderr.splitlines()[0] == first
    assert ran.stderr.count("no answer") == 1


def feed(api: ScriptedApi, head: int = 30) -> None:
    """A feed of `head` events, every third of them of another type."""

    def stored(asked: Any) -> Answer:
        names = {seq: "job.held" if seq % 3 else "job.queued" for seq in range(int(asked.query["after"]) + 1, head + 1)}
        kept = [seq for seq, name in names.items() if asked.query.get("type") in (None, name)]
        lines = [json.dumps({"seq": seq, "type": names[seq], "body": {}}).encode() + b"\n" for seq in kept]
        return Answer(chunks=lines or [b"\n"])

    api.on("GET", "/v1/cluster", Answer(json={"seq": head}))
    api.on("GET", "/v1/events", stored)


@pytest.mark.parametrize(
    ("words", "seqs"),
    [
        ("", range(1, 31)),
        ("--from start", range(1, 31)),
        ("--from 28", range(28, 31)),
        ("--after 28", range(29, 31)),
        ("--tail 2", (29, 30)),
        ("--tail 0", ()),
        ("--tail 4 --type job.queued", (21, 24, 27, 30)),
        ("--tail 50 --type job.queued", range(3, 31, 3)),
    ],
)
def test_events_begin_where_asked(api: ScriptedApi, command: Command, words: str, seqs: Any) -> None:
    """From the start, from an event on, or the last few, also of those that a filter leaves."""
    feed(api)
    told = command("events", "--json", *words.split()).stdout.splitlines()
    assert [json.loads(line)["seq"] for line in told] == list(seqs)


def test_following_begins_near_the_end(api: ScriptedApi, command: Command) -> None:
    """As `tail -f`: the last ten, then what comes."""
    feed(api)
    following = command.start("events", "--follow", "--json")
    try:
        assert following.stdout is not None
        assert [json.loads(following.stdout.readline())["seq"] for _ in range(10)] == list(range(21, 31))
    finally:
        following.kill()
        following.communicate()
    assert command("events", "--from", "3", "--tail", "2").returncode == 2


def test_an_array_at_its_throttle_has_no_place(api: ScriptedApi, command: Command) -> None:
    """In the queue's list the word stands where others have their place, and the throttle where they have a reason."""
    reason = {
        "code": "throttled",
        "running": 2,
        "throttle": 2,
        "text": "2 elements are running, and no more than 2 may",
    }
    array = {"job_id": "j_1", "state": "QUEUED", "queue_position": None, "waiting": {"reasons": [reason]}}
    api.on("GET", "/v1/queue", Answer(json={"queue": [array], "length": 1, "cursor": None}))
    api.on("GET", "/v1/jobs", Answer(json={"jobs": [], "cursor": None}))
    _, line = command("queue").stdout.splitlines()[:2]
    assert line.split()[:2] == ["throttled", "j_1"]
    assert "2 elements are running" in line


def test_a_figure_that_moves_with_the_clock_is_no_news() -> None:
    """Who follows a job is told when a reason changes, not each second anew."""

    def waits(**figures: object) -> tuple[str, ...]:
        return Job.from_wire({"job_id": "j_1", "waiting": {"reasons": [{"code": "reserved", **figures}]}}).waits_for

    assert waits(nodes=3, ends_at="10:00", text="until 10:00") == waits(nodes=3, ends_at="10:01", text="until 10:01")
    assert waits(nodes=3, ends_at="10:00", text="") != waits(nodes=2, ends_at="10:00", text="")
    assert waits(nodes=3, text="a") != waits(nodes=3, text="b")
