"""`run` and `submit --wait`: the job's output, its progress, Ctrl-C, and its exit code as ours."""

from __future__ import annotations

import json
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.client.command import Command
from tests.client.scripted import Answer, Asked, ScriptedApi, problem
from tests.servers.waiting import WITHIN_S, until

TAKEN = Answer(status=202, json={"job_id": "j_1", "state": "QUEUED", "queue_position": 2, "seq": 4})


def job(state: str, **more: Any) -> Answer:
    """The job at a moment."""
    began = None if state == "QUEUED" else "2026-11-30T00:00:00.000Z"
    spec = {"replicas": more.pop("replicas", 1), "gpus_per_replica": 1}
    return Answer(json={"job_id": "j_1", "state": state, "attempt": 1, "started_at": began, "spec": spec, **more})


def test_run_is_like_running_it_here(api: ScriptedApi, command: Command, tmp_path: Path) -> None:
    """stdout is the job's output to the byte, stderr its progress, and the exit code its own."""
    api.on("POST", "/v1/jobs", TAKEN)
    waiting = {"reasons": [{"code": "queued", "ahead": 1}]}
    api.on("GET", "/v1/jobs/j_1", job("QUEUED", queue_position=2, waiting=waiting), job("RUNNING"))
    api.on("GET", "/v1/jobs/j_1", job("RUNNING"), job("FAILED", exit_code=7, end_reason="nonzero_exit"))
    late = problem(409, "log-not-there", "There is no log of that rank")
    api.on("GET", "/v1/jobs/j_1/logs", late, Answer(chunks=[b"step 1\n", b"no end"]))
    ran = command(
        "run", "--gpus", "4", "--time", "2h", "--env", "A=b=c", "--env", "HERE", "--", "train", "--x", HERE="h"
    )
    assert (ran.returncode, ran.stdout) == (7, "step 1\nno end")
    assert ran.stderr.splitlines()[0] == "signalbox: j_1 QUEUED, position 2"
    assert ran.stderr.count("QUEUED") == 1, "its place is told once"
    assert "j_1 FAILED, exit code 7, nonzero exit" in ran.stderr.splitlines()[-1]
    (sent,) = api.requests("POST", "/v1/jobs")
    assert sent.body == {
        "team": "research",
        "gpu_type": "h100",
        "max_runtime": "2h",
        "command": ["train", "--x"],
        "replicas": 1,
        "gpus_per_replica": 4,
        "env": {"A": "b=c", "HERE": "h"},
        "workdir": str(tmp_path),
    }


def test_ranks_are_told_apart_by_whole_lines(api: ScriptedApi, command: Command) -> None:
    """With several replicas each line stands behind its rank, and lines of different ranks never mix."""

    def relay(asked: Asked) -> Answer:
        rank = asked.query["rank"].encode()
        return Answer(chunks=[b"he", b"llo " + rank + b"\nlast " + rank])

    api.on("POST", "/v1/jobs", TAKEN)
    api.on("GET", "/v1/jobs/j_1", job("RUNNING", replicas=2), job("SUCCEEDED", replicas=2, exit_code=0))
    api.on("GET", "/v1/jobs/j_1/logs", relay)
    ran = command("run", "--replicas", "2", "--", "true")
    assert ran.returncode == 0
    assert sorted(ran.stdout.splitlines()) == ["[0] hello 0", "[0] last 0", "[1] hello 1", "[1] last 1"]


def test_with_json_stdout_is_the_ended_job(api: ScriptedApi, command: Command) -> None:
    """The output goes to stderr then, so that a program can read stdout."""
    api.on("POST", "/v1/jobs", TAKEN)
    api.on("GET", "/v1/jobs/j_1", job("SUCCEEDED", exit_code=0))
    api.on("GET", "/v1/jobs/j_1/logs", Answer(chunks=[b"step 1\n"]))
    ran = command("run", "--json", "--", "true")
    assert (ran.returncode, json.loads(ran.stdout)["state"]) == (0, "SUCCEEDED")
    assert "step 1\n" in ran.stderr


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (job("SUCCEEDED", exit_code=0), 0),
        (job("FAILED", exit_code=137), 137),
        (job("FAILED", exit_code=None), 1),
        (job("TIMED_OUT", exit_code=143), 124),
        (job("CANCELLED", exit_code=143), 130),
        (job("REJECTED"), 3),
    ],
)
def test_waiting_ends_as_the_job_did(
    api: ScriptedApi, command: Command, tmp_path: Path, end: Answer, code: int
) -> None:
    """`submit --wait` exits with the job's code, or with the one that stands for how it ended."""
    (tmp_path / "job.json").write_text('{"command": ["true"]}')
    api.on("POST", "/v1/jobs", TAKEN)
    api.on("GET", "/v1/jobs/j_1", end)
    ran = command("submit", "job.json", "--wait")
    assert (ran.returncode, ran.stdout) == (code, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_the_job_and_waits_for_its_end(
    api: ScriptedApi, command: Command, number: signal.Signals
) -> None:
    """Ctrl-C, and a CI that gives up, leave no job behind; what the job still says in its grace is shown."""
    looks = count()

    def state(asked: Asked) -> Answer:
        if not api.requests("DELETE", "/v1/jobs/j_1"):
            return job("RUNNING")
        return job("CANCELLED") if next(looks) > 1 else job("CANCELLING")

    def relay(asked: Asked) -> Answer:
        until(lambda: api.requests("DELETE", "/v1/jobs/j_1"))
        return Answer(chunks=[b"saving\n"[int(asked.query.get("from_byte", 0)) :]])

    api.on("POST", "/v1/jobs", TAKEN)
    api.on("GET", "/v1/jobs/j_1", state)
    api.on("GET", "/v1/jobs/j_1/logs", relay)
    api.on("DELETE", "/v1/jobs/j_1", Answer(status=202, json={"state": "CANCELLING"}))
    running = command.start("run", "--", "true")
    until(lambda: api.requests("GET", "/v1/jobs/j_1/logs"))
    running.send_signal(number)
    out, err = running.communicate(timeout=WITHIN_S)
    assert (running.returncode, out) == (130, "saving\n"), err
    assert len(api.requests("DELETE", "/v1/jobs/j_1")) == 1
    assert "cancelling j_1" in err


def test_an_interrupt_leaves_a_job_that_is_only_waited_for(api: ScriptedApi, command: Command, tmp_path: Path) -> None:
    """`submit --wait` is a look at the job: leaving it does not cancel it."""
    (tmp_path / "job.json").write_text('{"command": ["true"]}')
    api.on("POST", "/v1/jobs", TAKEN)
    api.on("GET", "/v1/jobs/j_1", job("RUNNING"))
    waiting = command.start("submit", "job.json", "--wait")
    until(lambda: api.requests("GET", "/v1/jobs/j_1"))
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=WITHIN_S)
    assert waiting.returncode == 130
    assert "left j_1 as it is" in err
    assert api.requests("DELETE", "/v1/jobs/j_1") == []


def test_a_preempted_job_goes_on_in_its_next_attempt(api: ScriptedApi, command: Command) -> None:
    """The output of both attempts is shown, once each, and `run` waits through the preemption."""
    looks = count()

    def state(asked: Asked) -> Answer:
        streamed = {request.query["attempt"] for request in api.requests("GET", "/v1/jobs/j_1/logs")}
        if not streamed:
            return job("RUNNING")
        if "2" in streamed:
            return job("SUCCEEDED", attempt=2, exit_code=0)
        return job("QUEUED" if next(looks) < 2 else "RUNNING", attempt=2)

    def relay(asked: Asked) -> Answer:
        return Answer(chunks=[b"attempt " + asked.query["attempt"].encode() + b"\n"])

    api.on("POST", "/v1/jobs", TAKEN)
    api.on("GET", "/v1/jobs/j_1", state)
    api.on("GET", "/v1/jobs/j_1/logs", relay)
    ran = command("run", "--", "true")
    assert (ran.returncode, ran.stdout) == (0, "attempt 1\nattempt 2\n")


def test_detached_it_prints_the_id(api: ScriptedApi, command: Command) -> None:
    """`run --detach` prints the id alone, for scripts."""
    api.on("POST", "/v1/jobs", TAKEN)
    ran = command("run", "--detach", "--gpus", "16", "--image", "registry/llm", "--", "true")
    assert (ran.returncode, ran.stdout) == (0, "j_1\n")
    body = api.requests("POST", "/v1/jobs")[0].body
    assert (body["replicas"], body["gpus_per_replica"], "workdir" in body) == (2, 8, False)
