"""The command line: exit codes, what goes to which stream, and tables that fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.client.command import Command
from tests.client.scripted import Answer, Asked, ScriptedApi, problem

JOB = {
    "job_id": "j_1",
    "state": "QUEUED",
    "team": "research",
    "name": "llm\x1b[31m",
    "priority_class": "research",
    "gpu_type": "h100",
    "gpus": 16,
    "attempt": 1,
    "queue_position": 3,
    "submitted_at": "2026-11-30T00:00:00.000Z",
    "waiting": {"reasons": [{"code": "queued", "ahead": 2}, {"code": "shape", "nodes": 16}]},
    "spec": {"replicas": 2, "gpus_per_replica": 8},
}
EVENT = {"seq": 5, "at": "2026-11-30T00:00:00.000Z", "type": "job.queued", "job_id": "j_1", "body": {"attempt": 1}}
NODE = {
    "node_id": "n-1",
    "state": "up",
    "gpu_type": "h100",
    "gpu_count": 8,
    "gpus_used": 6,
    "block": "b1",
    "jobs": ["j_1"],
}
CLUSTER = {"cluster": "eu-1", "leader": {"holder": "s-1", "epoch": 4}, "gpu_types": {"h100": {"gpu_type": "h100"}}}
READS = {
    "/v1/queue": {"queue": [JOB], "length": 1, "cursor": None},
    "/v1/jobs": {"jobs": [{**JOB, "state": "FAILED", "exit_code": 3}], "cursor": None},
    "/v1/jobs/j_1": JOB,
    "/v1/jobs/j_1/events": {"events": [EVENT], "cursor": None},
    "/v1/jobs/j_1/why": {"state": "QUEUED", "reasons": JOB["waiting"]["reasons"]},  # type: ignore[index]
    "/v1/nodes": {"nodes": [NODE], "cursor": None},
    "/v1/teams/research/quota": {"h100": {"guaranteed": 8, "borrow_limit": 4, "in_use": 6, "borrowed": 0}},
    "/v1/shares": {
        "seq": 5,
        "shares": [
            {"team": "research", "gpu_type": "h100", "guaranteed": 8, "in_use": 12, "covered": 8, "borrowed": 4}
            | {"pledged": 0, "waiting": 3, "entitled": 8, "used_gpu_hours": 21.5, "share": 1.25},
        ],
    },
    "/v1/policy": {
        "version": 1,
        "policy": {"grace_s_max": 240},
        "history": [{"version": 1, "reason": "calmer", "changed": {"grace_s_max": {"from": 60, "to": 240}}}],
    },
    "/v1/cluster": CLUSTER,
    "/v1/audit": {"events": [EVENT], "cursor": None},
}
COMMANDS = {
    "queue": "2 ahead in the queue; shape (nodes: 16)",
    "history": "FAILED",
    "show j_1": "job.queued",
    "why j_1": "2 ahead in the queue",
    "nodes": "6/8",
    "quota": "GUARANTEED",
    "quota research": "GUARANTEED",
    "shares": "1.25",
    "shares research": "USED GPU-H",
    "policy": "grace_s_max",
    "policy --version 1": "grace_s_max",
    "policy history": "grace_s_max: 60 -> 240",
    "history --array j_1": "FAILED",
    "top": "leader s-1 (epoch 4)",
    "audit": "job.queued",
    "cancel j_1": "j_1 CANCELLED",
    "hold j_1": "j_1 CANCELLED",
    "release j_1": "j_1 CANCELLED",
    "requeue j_1": "j_1 CANCELLED",
    "extend j_1 4h": "j_1 CANCELLED",
    "change j_1 --class preemptible": "j_1 CANCELLED",
    "drain n-1 --reason xid79": "n-1 drained",
    "undrain n-1": "n-1 back in service",
    "quota set research h100 --guaranteed 8": "research h100: guaranteed 8",
    "quota set research h100 --guaranteed 25%": "research h100: guaranteed 25%",
    "events": "job.queued",
    "logs j_1": "step 1",
    "version": "signalbox 0",
}
"""Every command, and what its human form has to say."""


def everything(api: ScriptedApi) -> None:
    """Script an answer to each request that COMMANDS makes."""
    for path, body in READS.items():
        api.on("GET", path, Answer(json=body))
    done = Answer(status=202, json={"job_id": "j_1", "state": "CANCELLED", "seq": 6})
    for verb in ("hold", "release", "extend", "requeue"):
        api.on("POST", f"/v1/jobs/j_1:{verb}", done)
    api.on("DELETE", "/v1/jobs/j_1", done)
    api.on("PATCH", "/v1/jobs/j_1", done)
    told = Answer(status=202, json={"state": "DONE", "seq": 7})
    api.on("POST", "/v1/nodes/n-1:drain", told)
    api.on("POST", "/v1/nodes/n-1:undrain", told)
    api.on("PUT", "/v1/teams/research/quota", told)
    api.on("GET", "/v1/jobs/j_1/logs", Answer(chunks=[b"step 1\n", b"step 2\n"]))
    line = json.dumps(EVENT).encode() + b"\n"
    api.on("GET", "/v1/events", lambda asked: Answer(chunks=[line] if int(asked.query["after"]) < 5 else [b"\n"]))


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_speaks_to_people_and_in_json(api: ScriptedApi, command: Command, words: str) -> None:
    """Each command exits with 0 and says its thing; with --json stdout is JSON lines and nothing else."""
    everything(api)
    human = command(*words.split())
    assert (human.returncode, human.stderr) == (0, "")
    assert COMMANDS[words] in human.stdout
    assert "\x1b" not in human.stdout, "no colour and no control character without a terminal"
    machine = command(*words.split(), "--json")
    assert (machine.returncode, machine.stderr) == (0, "")
    assert [json.loads(line) for line in machine.stdout.splitlines()]


def test_why_of_a_job_that_waits_for_nothing_says_its_state(api: ScriptedApi, command: Command) -> None:
    """A job that runs or has ended has no reasons: the sentence says what it is instead."""
    api.on("GET", "/v1/jobs/j_1/why", Answer(json={"state": "SUCCEEDED", "reasons": []}))
    assert command("why", "j_1").stdout == "It is SUCCEEDED, and waits for nothing.\n"
    api.on("GET", "/v1/jobs/j_2/why", Answer(json={"state": "SUBMITTED", "reasons": []}))
    assert command("why", "j_2").stdout == "It is SUBMITTED; nothing is known that it waits for.\n"


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (problem(404, "unknown-job", "There is no such job"), 3, "There is no such job"),
        (problem(401, "unauthenticated", "A valid bearer token is needed"), 3, "bearer token"),
        (problem(500, "internal", "An error on our side"), 5, "An error on our side"),
        (Answer(chunks=[b"<html>"]), 5, "no JSON"),
        (Answer(drop=True), 4, "not reachable"),
    ],
)
def test_errors_have_exit_codes_and_words(
    api: ScriptedApi, command: Command, answer: Answer, code: int, words: str
) -> None:
    """3 refused, 4 not reachable, 5 error of the service; the words on stderr, nothing on stdout."""
    api.on("GET", "/v1/jobs/j_1", answer)
    ran = command("show", "j_1", "--json")
    assert (ran.returncode, ran.stdout) == (code, "")
    assert words in ran.stderr


@pytest.mark.parametrize(
    "words",
    [
        "shout j_1",
        "show",
        "extend j_1 forever",
        "run --gpus 12 -- true",
        "run --gpus 3 --replicas 2 -- true",
        "run --env NOT_SET_HERE -- true",
        "change j_1",
        "submit nowhere.yaml",
        "--profile nowhere queue",
    ],
)
def test_wrong_usage_is_2_and_asks_nothing(api: ScriptedApi, command: Command, words: str) -> None:
    """What is wrong on this side is told with exit code 2, before anything is sent."""
    ran = command(*words.split())
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr != ""
    assert api.asked == []


def test_without_a_profile_it_says_what_to_write(command: Command, tmp_path: Path) -> None:
    """A new user learns which file is missing and what belongs in it."""
    ran = command("queue", SIGNALBOX_PROFILE=str(tmp_path / "none.toml"))
    assert ran.returncode == 2
    assert f"Write {tmp_path / 'none.toml'}" in ran.stderr


def test_a_field_at_fault_is_named_with_its_limit(api: ScriptedApi, command: Command) -> None:
    """The API's words reach the user: title, field, value, limit."""
    fault = {"field": "gpus_per_replica", "value": 64, "limit": "at most 8", "message": "more than any node has"}
    api.on("POST", "/v1/jobs", problem(422, "rejected", "The job can never run here", fault))
    ran = command("run", "--gpus-per-replica", "64", "--", "true")
    assert ran.returncode == 3
    assert ran.stderr == (
        "signalbox: The job can never run here\n"
        "  gpus_per_replica: more than any node has (value: 64, limit: at most 8)\n"
    )


def test_one_refusal_does_not_spare_the_others(api: ScriptedApi, command: Command) -> None:
    """`cancel A B C` asks for all of them; the refused one is told, and decides the exit code."""
    for name in ("j_1", "j_3"):
        api.on("DELETE", f"/v1/jobs/{name}", Answer(status=202, json={"state": "CANCELLED"}))
    api.on("DELETE", "/v1/jobs/j_2", problem(409, "conflict", "The request does not fit the present state"))
    ran = command("cancel", "j_1", "j_2", "j_3")
    assert (ran.returncode, ran.stdout) == (3, "j_1 CANCELLED\nj_3 CANCELLED\n")
    assert "j_2: The request does not fit" in ran.stderr


def test_files_are_submitted_as_they_were_meant(api: ScriptedApi, command: Command, tmp_path: Path) -> None:
    """Texts stay texts (010, on, a date), numbers are numbers, and the profile fills in what the file leaves out."""
    (tmp_path / "job.yaml").write_text(
        "command: [python, train.py, 3, 1e3]\nreplicas: 2\nenv: {A: 010, B: on, C: ~}\ndeadline: 2026-12-01T00:00:00Z\n"
        "max_runtime: 90m\ntopology: {pack: block}\n"
    )
    api.on("POST", "/v1/jobs", Answer(status=202, json={"job_id": "j_1", "state": "QUEUED", "queue_position": 1}))
    ran = command("submit", "job.yaml", "--key", "k-1")
    assert (ran.returncode, ran.stdout) == (0, "j_1 QUEUED, position 1\n")
    (sent,) = api.requests("POST", "/v1/jobs")
    assert sent.headers["idempotency-key"] == "k-1"
    assert sent.body == {
        "team": "research",
        "gpu_type": "h100",
        "max_runtime": "90m",
        "command": ["python", "train.py", "3", "1e3"],
        "replicas": 2,
        "env": {"A": "010", "B": "on", "C": None},
        "deadline": "2026-12-01T00:00:00Z",
        "topology": {"pack": "block"},
        "workdir": str(tmp_path),
    }


@pytest.mark.parametrize("text", ["a: [", "- a", "just text", "a: !!python/object:os.system {}"])
def test_a_file_that_is_no_job_is_wrong_usage(api: ScriptedApi, command: Command, text: str) -> None:
    """Broken YAML, a list, a text, and what would run code: exit code 2, and nothing is sent."""
    ran = command("submit", "-", stdin=text)
    assert (ran.returncode, ran.stdout, api.asked) == (2, "", [])
    assert "stdin" in ran.stderr


def test_a_lost_answer_tells_the_key_to_try_again_with(api: ScriptedApi, command: Command) -> None:
    """Where it is not known whether the job exists, the user learns how to submit it without doubling it."""
    api.on("POST", "/v1/jobs", Answer(drop=True))
    ran = command("run", "--", "true")
    assert ran.returncode == 4
    key = api.requests("POST", "/v1/jobs")[0].headers["idempotency-key"]
    assert f"--key {key}" in ran.stderr


def test_history_asks_for_ends(api: ScriptedApi, command: Command) -> None:
    """Without --state only ended jobs are listed, and no more than asked for."""

    def listed(asked: Asked) -> Answer:
        return Answer(json={"jobs": [{**JOB, "job_id": f"j_{n}", "state": "FAILED"} for n in range(3)], "cursor": "c"})

    api.on("GET", "/v1/jobs", listed)
    ran = command("history", "-n", "2", "--json")
    assert [row["job_id"] for row in json.loads(ran.stdout)] == ["j_0", "j_1"]
    assert api.asked[0].query["state"] == "CANCELLED,FAILED,REJECTED,SUCCEEDED,TIMED_OUT"
    assert len(api.asked) == 1
