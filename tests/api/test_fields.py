"""Every bad field of a submission is refused by name, and what is secret is not repeated."""

from typing import Any

import pytest

from api.credentials import looks_like_credential
from api.problems import Problem
from api.spec import read_submission
from api.strict_json import parse_object
from events.ids import ClusterId
from tests.api.site import JOB, Site

BIG = 10**30
AWS = "AKIA" + "ABCDEFGHIJKLMNOP"
GITHUB = "ghp_" + "a1B2c3D4" * 5
JWT = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0" + ".c2lnbmF0dXJl"
PEM = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIE"
AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY"
MINIMAL = {"team", "command", "gpu_type", "max_runtime"}


def _each(field: str, *values: Any) -> list[tuple[dict[str, Any], str]]:
    return [({field: value}, field) for value in values]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"team": None}, "team"),
    ({"team": ""}, "team"),
    ({"team": "a b"}, "team"),
    ({"team": "x" * 64}, "team"),
    ({"team": "té"}, "team"),
    ({"team": "a\x00"}, "team"),
    ({"team": 5}, "team"),
    ({"command": []}, "command"),
    ({"command": "train"}, "command"),
    ({"command": [""]}, "command[0]"),
    ({"command": ["  "]}, "command[0]"),
    ({"command": ["a", 1]}, "command[1]"),
    ({"command": ["a", "b\x00c"]}, "command[1]"),
    ({"command": ["a", "b\x1b[2Jc"]}, "command[1]"),
    ({"command": ["a", "\u202eevil"]}, "command[1]"),
    ({"command": ["a"] * 1025}, "command"),
    ({"command": ["a", "b" * 32769]}, "command[1]"),
    ({"command": ["a", f"--key={GITHUB}"]}, "command[1]"),
    ({"command": ["sh", "-c", "API_KEY=abcdef123 run"]}, "command[2]"),
    ({"gpu_type": None}, "gpu_type"),
    ({"gpu_type": "h 100"}, "gpu_type"),
    ({"gpu_type": ["h100"]}, "gpu_type"),
    ({"max_runtime": None}, "max_runtime"),
    ({"max_runtime": "72"}, "max_runtime"),
    ({"max_runtime": 72}, "max_runtime"),
    ({"max_runtime": "0s"}, "max_runtime"),
    ({"max_runtime": "-1h"}, "max_runtime"),
    ({"max_runtime": "1.5h"}, "max_runtime"),
    ({"max_runtime": "1h "}, "max_runtime"),
    ({"max_runtime": "1h\n"}, "max_runtime"),
    ({"max_runtime": "١h"}, "max_runtime"),
    ({"max_runtime": "1w"}, "max_runtime"),
    ({"max_runtime": "367d"}, "max_runtime"),
    ({"max_runtime": "999999999d"}, "max_runtime"),
    ({"max_runtime": "unlimited"}, "max_runtime"),
    ({"max_runtime": "unlimited", "priority_class": "prod-batch"}, "max_runtime"),
    *_each("replicas", 0, -1, 65537, BIG, 1.0, 1.5, True, "1", [], {}),
    *_each("gpus_per_replica", 0, -8, 1025, BIG, False, "8"),
    *_each("gpu_memory_gb_min", -1, 100_001, True, "80"),
    *_each("retries", -1, 1001, True, 0.5),
    *_each("priority_class", "urgent", "RESEARCH", "", 1, []),
    ({"image": ""}, "image"),
    ({"image": "a b"}, "image"),
    ({"image": "-rf"}, "image"),
    ({"image": "x" * 513}, "image"),
    ({"image": "registry/x\u200b:1"}, "image"),
    ({"env": []}, "env"),
    ({"env": {"A": 1}}, "env.A"),
    ({"env": {"A": True}}, "env.A"),
    ({"env": {"1A": "x"}}, "env.1A"),
    ({"env": {"A-B": "x"}}, "env.A-B"),
    ({"env": {"A=B": "x"}}, "env.(a name that is not shown)"),
    ({"env": {"": "x"}}, "env.(a name that is not shown)"),
    ({"env": {"A\x00": "x"}}, "env.(a name that is not shown)"),
    ({"env": {"A": "x\x00"}}, "env.A"),
    ({"env": {"A": "x" * 32769}}, "env.A"),
    ({"env": {f"A{number}": "x" for number in range(257)}}, "env"),
    ({"env": {"AWS_SECRET_ACCESS_KEY": "hunter22"}}, "env.AWS_SECRET_ACCESS_KEY"),
    ({"env": {"DB_PASSWORD": "hunter2"}}, "env.DB_PASSWORD"),
    ({"env": {"HF_TOKEN": "abcd1234efgh"}}, "env.HF_TOKEN"),
    ({"env": {"wandb_api_key": "0123456789abcdef"}}, "env.wandb_api_key"),
    ({"env": {"A": AWS}}, "env.A"),
    ({"env": {"A": AWS_SECRET}}, "env.A"),
    ({"env": {"A": GITHUB}}, "env.A"),
    ({"env": {"A": JWT}}, "env.A"),
    ({"env": {"A": PEM}}, "env.A"),
    ({"env": {"A": "postgres://me:hunter2@db/x"}}, "env.A"),
    ({"env": {GITHUB: "x"}}, "env.(a name that is not shown)"),
    ({"secrets": {"HF_TOKEN": "abcd1234efgh"}}, "secrets.HF_TOKEN"),
    ({"secrets": {"HF_TOKEN": GITHUB}}, "secrets.HF_TOKEN"),
    ({"secrets": {"A B": "env:A"}}, "secrets.(a name that is not shown)"),
    ({"secrets": {"A": 5}}, "secrets.A"),
    ({"topology": {"max_blocks": 0}}, "topology.max_blocks"),
    ({"topology": {"max_blocks": True}}, "topology.max_blocks"),
    ({"topology": {"max_blocks": 10_001}}, "topology.max_blocks"),
    ({"topology": {"pack": "galaxy"}}, "topology.pack"),
    ({"topology": {"spread": 1}}, "topology.spread"),
    ({"topology": {"strict": "yes"}}, "topology.strict"),
    ({"topology": {"rail": "1"}}, "topology.rail"),
    ({"topology": "block"}, "topology"),
    ({"checkpoint": {"grace_seconds": -1}}, "checkpoint.grace_seconds"),
    ({"checkpoint": {"grace_seconds": 3601}}, "checkpoint.grace_seconds"),
    ({"checkpoint": {"interval": "30"}}, "checkpoint.interval"),
    ({"checkpoint": {"interval": "400d"}}, "checkpoint.interval"),
    ({"checkpoint": {"preemptible": 1}}, "checkpoint.preemptible"),
    ({"checkpoint": {"uri": "ckpt"}}, "checkpoint.uri"),
    ({"checkpoint": {"uri": "s3://a b"}}, "checkpoint.uri"),
    ({"checkpoint": {"uri": "s3://me:hunter2@host/x"}}, "checkpoint.uri"),
    ({"elastic": {"min_replicas": 1}}, "elastic.max_replicas"),
    ({"elastic": {"min_replicas": 4, "max_replicas": 2}}, "elastic.min_replicas"),
    ({"elastic": {"min_replicas": 2, "max_replicas": 4}, "replicas": 8}, "replicas"),
    ({"elastic": {"min_replicas": 0, "max_replicas": 4}}, "elastic.min_replicas"),
    ({"deadline": "tomorrow"}, "deadline"),
    ({"deadline": "2026-10-04"}, "deadline"),
    ({"deadline": "2026-10-04T00:00:00"}, "deadline"),
    ({"deadline": "2026-13-04T00:00:00Z"}, "deadline"),
    ({"deadline": "2026-02-30T00:00:00Z"}, "deadline"),
    ({"deadline": "9999-12-31T23:59:59Z"}, "deadline"),
    ({"deadline": "0001-01-01T00:00:00Z"}, "deadline"),
    ({"deadline": "2026-10-04T00:00:00+99:99"}, "deadline"),
    ({"deadline": 1759536000}, "deadline"),
    ({"data": {"cluster": "eu-1"}}, "data.size_gb"),
    ({"data": {"cluster": "eu 1", "size_gb": 1}}, "data.cluster"),
    ({"data": {"cluster": "eu-1", "size_gb": -1}}, "data.size_gb"),
    ({"name": "x" * 129}, "name"),
    ({"name": "a\nb"}, "name"),
    ({"name": "a\u200bb"}, "name"),
    ({"name": "a\u202eb"}, "name"),
    ({"name": "\ufffe"}, "name"),
    ({"name": GITHUB}, "name"),
    ({"labels": {"": "x"}}, "labels.(a name that is not shown)"),
    ({"labels": {"a b": "x"}}, "labels.(a name that is not shown)"),
    ({"labels": {"a": "x" * 256}}, "labels.a"),
    ({"labels": {"a": "\x00"}}, "labels.a"),
    ({"labels": {"a": 1}}, "labels.a"),
    ({"labels": {f"a{number}": "x" for number in range(65)}}, "labels"),
    ({"cluster": "us-1"}, "cluster"),
    ({"cluster": ""}, "cluster"),
    ({"workdir": "relative"}, "workdir"),
    ({"workdir": "/a/../b"}, "workdir"),
    ({"workdir": "/a\x00"}, "workdir"),
    ({"workdir": "/" + "x" * 4096}, "workdir"),
    ({"interactive": "yes"}, "interactive"),
    ({"interactive": 1}, "interactive"),
    ({"overlap": "maybe"}, "overlap"),
    ({"overlap": True}, "overlap"),
    ({"array": "0-"}, "array"),
    ({"array": "5-1"}, "array"),
    ({"array": "0-50000"}, "array"),
    ({"array": "0-999%0"}, "array"),
    ({"array": "0-9999999999"}, "array"),
    ({"array": "1,3"}, "array"),
    ({"array": [0, 9]}, "array"),
    ({"depends_on": [{"job": "nope"}]}, "depends_on[0].job"),
    ({"depends_on": [{"when": "after_ok"}]}, "depends_on[0].job"),
    ({"depends_on": [{"job": "j_A", "when": "before"}]}, "depends_on[0].when"),
    ({"depends_on": [{"job": "j_A"}, {"job": "j_A"}]}, "depends_on[1].job"),
    ({"depends_on": [{"job": "j_A"}] * 101}, "depends_on"),
    ({"depends_on": {"job": "j_A"}}, "depends_on"),
    ({"priority": "high"}, "priority"),
    ({"env ": {}}, "(a name that is not shown)"),
    ({GITHUB: 1}, "(a name that is not shown)"),
]
SECRETS = (AWS, AWS_SECRET, GITHUB, JWT, "MIIE", "hunter2", "abcd1234efgh", "0123456789abcdef", "abcdef123")


def _faults(changes: dict[str, Any]) -> Problem:
    body = {**JOB, **changes}
    body = {name: value for name, value in body.items() if value is not None or name not in MINIMAL}
    with pytest.raises(Problem) as raised:
        read_submission(body, ClusterId("eu-1"))
    return raised.value


@pytest.mark.parametrize(
    ("changes", "field"), BAD, ids=lambda value: str(value)[:40].encode("ascii", "replace").decode()
)
def test_a_bad_field_is_named(changes: dict[str, Any], field: str) -> None:
    """The client's own name of it, a limit and a message; 422."""
    problem = _faults(changes)
    assert problem.status == 422
    assert field in [error.field for error in problem.errors]
    assert all(error.message and error.limit for error in problem.errors)


@pytest.mark.parametrize("changes", [changes for changes, _ in BAD if any(s in str(changes) for s in SECRETS)])
async def test_no_secret_is_repeated(api: Site, changes: dict[str, Any]) -> None:
    """Neither in a value nor in a name, message or detail; and no command is written."""
    before = await api.leader._commands.end()
    answer = await api.submit(**changes)
    assert answer.status_code == 422
    assert not [secret for secret in SECRETS if secret in answer.text]
    assert await api.leader._commands.end() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": 2}, "is not a field here: did you mean gpus_per_replica?"),
        ({"comand": []}, "is not a field here: did you mean command?"),
        ({"max-runtime": "1h"}, "is not a field here: did you mean max_runtime?"),
        ({"topology": {"max_block": 1}}, "is not a field here: did you mean max_blocks?"),
        ({"depends_on": [{"job": "j_A", "whn": "x"}]}, "is not a field here: did you mean when?"),
        ({"zzz": 1}, "is not a field here"),
        ({GITHUB: 1}, "is not a field here"),
        ({"workdir": "here"}, "has to be an absolute path"),
    ],
    ids=str,
)
def test_a_fault_says_what_was_meant(changes: dict[str, Any], message: str) -> None:
    """An unknown field is answered with the nearest one of the same object; a pattern with what it stands for."""
    assert [error.message for error in _faults(changes).errors] == [message]


def test_all_faults_are_told_at_once() -> None:
    """So that a client need not try again for each."""
    problem = _faults({"replicas": 0, "retries": -1, "env": {"A": "x", "DB_PASSWORD": "hunter2"}})
    assert {error.field for error in problem.errors} == {"replicas", "retries", "env.DB_PASSWORD"}


GOOD: list[dict[str, Any]] = [
    {"max_runtime": "unlimited", "priority_class": "prod-serving"},
    {"command": ["sh", "-c", "set -e\n\tpython train.py --tokenizer=gpt2 --token-budget 10\n"]},
    {"env": {"TOKENIZERS_PARALLELISM": "false", "PAD_TOKEN": "<pad>", "MAX_TOKEN": "512", "NCCL_DEBUG": "INFO"}},
    {"env": {"AWS_SHARED_CREDENTIALS_FILE": "/run/creds", "HF_TOKEN": "env:HF_TOKEN", "HF_HUB_TOKEN": "$HF_TOKEN"}},
    {"env": {"SHA": "0123456789abcdef0123456789abcdef01234567"}},
    {"name": "große Fahrt 7", "labels": {"run/e": "naïve ✓"}},
    {"array": "7"},
    {"deadline": "2026-10-04t00:00:00.123456789+02:00"},
    {"secrets": {"HF_TOKEN": "env:HF_TOKEN", "KEY": "file:/run/secrets/key"}},
]


@pytest.mark.parametrize("changes", GOOD, ids=str)
def test_what_people_really_write_is_taken(changes: dict[str, Any]) -> None:
    """The net for credentials and odd characters does not catch ordinary work."""
    assert read_submission({**JOB, **changes}, ClusterId("eu-1")).team == "pretrain"


BAD_JSON = [
    b"",
    b"   ",
    b"{",
    b"[]",
    b'"x"',
    b"null",
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": 1, "a": 2}',
    b'{"a": {"b": 1, "b": 2}}',
    b'{"a": "\xff"}',
    b'{"a": "\\ud800"}',
    b"\xef\xbb\xbf{}",
    b'{"a": ' + b"[" * 20 + b"]" * 20 + b"}",
    b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a": ' + b"9" * 5000 + b"}",
    b"{} {}",
    b"{'a': 1}",
    b'{"a": 1,}',
    b'{"a\x01": 1}',
]


@pytest.mark.parametrize("raw", BAD_JSON, ids=lambda raw: repr(raw[:24]))
def test_what_is_no_plain_json_object_is_refused(raw: bytes) -> None:
    """400, saying why."""
    with pytest.raises(Problem) as raised:
        parse_object(raw)
    assert raised.value.status == 400
    assert raised.value.detail


LONG = 1_000_000
HOSTILE = [
    "x" * LONG,
    "a:" * (LONG // 2),
    "://a:" * (LONG // 5),
    "eyJ-" * (LONG // 4),
    "password" * (LONG // 8),
    "-----BEGIN " * (LONG // 11),
    "bearer " * (LONG // 7),
    "sk-proj-" * (LONG // 8),
    "api_key     " * (LONG // 12),
    " " * LONG,
]


@pytest.mark.timeout(100)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
def test_the_search_for_credentials_takes_linear_time(text: str) -> None:
    """A megabyte of anything is looked through once. Looked through again from each of its characters, it would take
    an hour and not a quarter of a second, and all else would wait."""
    assert looks_like_credential(text) is text.startswith("sk-proj-")
