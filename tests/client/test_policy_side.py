"""Arrays, dependencies, quotas in percent and the policy, from the command line and the SDK: what is sent for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from signalbox import Client

from tests.client.command import Command
from tests.client.scripted import Answer, ScriptedApi

TOLD = Answer(status=202, json={"job_id": "j_9", "state": "QUEUED", "seq": 7})


def job_file(tmp_path: Path, more: str = "") -> str:
    """A job that says as little as it may."""
    path = tmp_path / "job.yaml"
    path.write_text(f"command: [python, train.py]\n{more}")
    return str(path)


def sent(api: ScriptedApi) -> dict[str, Any]:
    """The body of the last submission."""
    body: dict[str, Any] = api.requests("POST", "/v1/jobs")[-1].body
    return body


def test_an_array_can_be_given_beside_the_file(api: ScriptedApi, command: Command, tmp_path: Path) -> None:
    """As it is written; it replaces the file's."""
    api.on("POST", "/v1/jobs", TOLD)
    assert command("submit", job_file(tmp_path), "--array", "0-9%2").returncode == 0
    assert sent(api)["array"] == "0-9%2"
    assert command("submit", job_file(tmp_path, "array: 0-3\n"), "--array", "5").returncode == 0
    assert sent(api)["array"] == "5"
    assert command("submit", job_file(tmp_path, "array: 0-3\n")).returncode == 0
    assert sent(api)["array"] == "0-3"


def test_an_array_is_not_waited_for_with_its_output(api: ScriptedApi, command: Command, tmp_path: Path) -> None:
    """It has many: wrong usage, and nothing is sent."""
    ran = command("submit", job_file(tmp_path), "--array", "0-9", "--wait")
    assert (ran.returncode, api.asked) == (2, [])
    assert "--wait" in ran.stderr


def test_jobs_to_wait_for_add_to_the_files(api: ScriptedApi, command: Command, tmp_path: Path) -> None:
    """Each with when; a file without any sends none."""
    api.on("POST", "/v1/jobs", TOLD)
    file = job_file(tmp_path, "depends_on: [{job: j_1}]\n")
    assert command("submit", file, "--after-ok", "j_2", "--after-any", "j_3", "--after-ok", "j_4").returncode == 0
    assert sent(api)["depends_on"] == [
        {"job": "j_1"},
        {"job": "j_2", "when": "after_ok"},
        {"job": "j_4", "when": "after_ok"},
        {"job": "j_3", "when": "after_any"},
    ]
    assert command("submit", job_file(tmp_path)).returncode == 0
    assert "depends_on" not in sent(api)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("-g 16", {"guaranteed": 16, "borrow_limit": 0}),
        ("-g 25%", {"guaranteed_percent": 25, "borrow_limit": 0}),
        ("-g 0 -b 100%", {"guaranteed": 0, "borrow_limit_percent": 100}),
    ],
)
def test_a_quota_is_in_gpus_or_in_percent(api: ScriptedApi, command: Command, words: str, line: dict[str, int]) -> None:
    """Each figure as it was given."""
    api.on("PUT", "/v1/teams/red/quota", TOLD)
    assert command("quota", "set", "red", "h100", *words.split()).returncode == 0
    assert api.requests("PUT", "/v1/teams/red/quota")[0].body == {"h100": line}


@pytest.mark.parametrize("given", ["many", "-1", "1.5", "25%%", "", "٣"])
def test_a_quota_that_is_no_figure_is_wrong_usage(api: ScriptedApi, command: Command, given: str) -> None:
    """The option is named, and nothing is sent."""
    ran = command("quota", "set", "red", "h100", f"--guaranteed={given}")
    assert (ran.returncode, api.asked) == (2, [])
    assert "--guaranteed" in ran.stderr


def test_a_quota_shows_how_it_was_set(api: ScriptedApi, command: Command) -> None:
    """GPUs, and the percentage where it was one."""
    line = {"guaranteed": 16, "borrow_limit": 8, "in_use": 0, "borrowed": 0, "guaranteed_percent": 25}
    api.on("GET", "/v1/teams/red/quota", Answer(json={"h100": line}))
    shown = command("quota", "red").stdout.splitlines()[1]
    assert shown.split() == ["h100", "16", "(25%)", "8", "0", "0"]


def test_a_policy_is_put_in_force_with_its_reason(api: ScriptedApi, command: Command, tmp_path: Path) -> None:
    """The file is the policy, or has it under `policy`; a reason goes beside it."""
    api.on("PUT", "/v1/policy", TOLD)
    bare, whole = tmp_path / "bare.yaml", tmp_path / "whole.yaml"
    bare.write_text("grace_s_max: 120\n")
    whole.write_text("policy: {grace_s_max: 90}\n")
    for words in ([str(bare)], [str(bare), "--reason", "calmer"], [str(whole), "-r", "calmer"]):
        assert command("policy", "set", *words).returncode == 0
    assert [asked.body for asked in api.requests("PUT", "/v1/policy")] == [
        {"grace_s_max": 120},
        {"policy": {"grace_s_max": 120}, "reason": "calmer"},
        {"policy": {"grace_s_max": 90}, "reason": "calmer"},
    ]


def test_the_file_that_was_replayed_is_put_in_force(api: ScriptedApi, command: Command, tmp_path: Path) -> None:
    """TOML by its ending, as `signalboxd replay` has it."""
    api.on("PUT", "/v1/policy", TOLD)
    path = tmp_path / "four-hours.toml"
    path.write_text("borrow_runtime_max_s = 14400\n")
    assert command("policy", "set", str(path)).returncode == 0
    assert [asked.body for asked in api.requests("PUT", "/v1/policy")] == [{"borrow_runtime_max_s": 14400}]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("bad.toml", "grace_s_max = \n", "is no TOML: "),
        ("bad.yaml", "[1, 2", "is no YAML: "),
        ("bare.yaml", "grace_s_max = 120", "holds no policy: it has to be one mapping of fields to values"),
    ],
)
def test_a_file_that_is_no_policy_is_not_sent(
    api: ScriptedApi, command: Command, tmp_path: Path, *, name: str, text: str, why: str
) -> None:
    """Exit code 2, and what is wrong with the file, by its name."""
    (tmp_path / name).write_text(text)
    done = command("policy", "set", str(tmp_path / name))
    assert done.returncode == 2
    assert f"{name} {why}" in done.stderr
    assert api.requests("PUT", "/v1/policy") == []


def test_show_tells_what_is_reserved_and_for_whom_it_was_stopped(api: ScriptedApi, command: Command) -> None:
    """Nodes and start while it waits; the job and the rule that stopped it; how far an array is."""
    job = {
        "job_id": "j_1",
        "state": "QUEUED",
        "reservation": {"nodes": ["n-1", "n-2"], "start_at": "2026-12-01T00:00:00Z"},
        "preempted_by": {"job_id": "j_7", "rule": "reclaim", "attempt": 1, "at": "2026-11-30T00:00:00Z"},
        "spec": {"elastic": {"min_replicas": 1, "max_replicas": 3}},
        "array": {"elements": "0-9%2", "waiting": 7, "running": 2, "succeeded": 1, "failed": 0},
    }
    api.on("GET", "/v1/jobs/j_1", Answer(json=job))
    api.on("GET", "/v1/jobs/j_1/events", Answer(json={"events": [], "cursor": None}))
    said = {
        line.rsplit("  ", 1)[0].strip(): line.rsplit("  ", 1)[1] for line in command("show", "j_1").stdout.splitlines()
    }
    assert said["reserved"] == "n-1, n-2"
    assert said["preempted for"] == "j_7 (reclaim)"
    assert said["elastic"] == "1 to 3 replicas"
    assert said["array"] == "0-9%2 (7 waiting, 2 running, 1 succeeded)"


def test_the_sdk_lists_elements_and_attempts(api: ScriptedApi, client: Client) -> None:
    """By the array's id, and by the job's."""
    api.on("GET", "/v1/jobs", Answer(json={"jobs": [{"job_id": "j_1_0"}], "cursor": None}))
    assert [job.id for job in client.jobs(array="j_1")] == ["j_1_0"]
    assert api.requests("GET", "/v1/jobs")[0].query["array"] == "j_1"
    attempts = [{"attempt": 1, "preempted_by": "j_7"}]
    api.on("GET", "/v1/jobs/j_1/attempts", Answer(json={"attempts": attempts, "cursor": None}))
    assert client.attempts("j_1") == attempts
