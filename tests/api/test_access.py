"""Who may do what."""

import hashlib
from typing import Any

import orjson
import pytest

from api.auth import BadTokenFile, parse_tokens
from tests.api.site import Site

WRITES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/jobs", {"team": "pretrain"}),
    ("DELETE", "/v1/jobs/{job}", None),
    ("PATCH", "/v1/jobs/{job}", {"labels": {"a": "b"}}),
    ("POST", "/v1/jobs/{job}:hold", None),
    ("POST", "/v1/jobs/{job}:release", None),
    ("POST", "/v1/jobs/{job}:requeue", None),
    ("POST", "/v1/jobs/{job}:extend", {"by": "1h"}),
]
OPERATIONS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/nodes/n-3:drain", {"reason": "x"}),
    ("POST", "/v1/nodes/n-3:undrain", None),
    ("POST", "/v1/nodes/n-3:wiped", {"reason": "x"}),
    ("POST", "/v1/nodes/n-9:remove", {"reason": "x"}),
    ("POST", "/v1/cluster:ease-silence", {"reason": "x"}),
]
ADMINISTRATION: list[tuple[str, str, Any]] = [
    ("PUT", "/v1/teams/vision/quota", {"h100": {"guaranteed": 1, "borrow_limit": 0}}),
    ("PUT", "/v1/policy", {"policy": {}}),
]
READS = [
    *("/v1/jobs", "/v1/jobs/{job}", "/v1/jobs/{job}/events", "/v1/jobs/{job}/checkpoints", "/v1/jobs/{job}/why"),
    *("/v1/jobs/{job}/attempts", "/v1/nodes", "/v1/nodes/n-0", "/v1/teams/pretrain/quota", "/v1/queue", "/v1/cluster"),
    *("/v1/policy", "/v1/events", "/v1/shares"),
]


async def test_reading_is_for_every_person_and_no_agent(api: Site) -> None:
    """Also what other teams do."""
    job = (await api.submitted())["job_id"]
    for path in READS:
        for who, status in (("ada", 200), ("bob", 200), ("olga", 200), ("aud", 200), ("node:n-0", 403)):
            answer = await api.get(path.format(job=job), who=who)
            assert answer.status_code == status, (path, who, answer.text)


async def test_a_job_is_changed_by_its_team_operators_and_admins_alone(api: Site) -> None:
    """Others are told 403, and nothing is appended."""
    job = (await api.submitted())["job_id"]
    for method, path, body in WRITES[1:]:
        for who in ("bob", "aud", "node:n-0"):
            answer = await api.request(method, path.format(job=job), who=who, json=body)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (path, who)
    for who in ("ada", "olga", "root"):
        assert (await api.request("POST", f"/v1/jobs/{job}:hold", who=who)).status_code == 202


@pytest.mark.parametrize(("operations", "allowed"), [(OPERATIONS, {"olga", "root"}), (ADMINISTRATION, {"root"})])
async def test_operating_needs_the_role(api: Site, operations: list[tuple[str, str, Any]], allowed: set[str]) -> None:
    """Operators for nodes, admins for quotas and policy."""
    for method, path, body in operations:
        for who in ("ada", "bob", "olga", "root", "aud", "node:n-0"):
            answer = await api.request(method, path, who=who, json=body)
            assert (answer.status_code == 403) == (who not in allowed), (path, who, answer.text)


async def test_the_audit_is_for_auditors_and_admins(api: Site) -> None:
    """It finds who did what."""
    await api.submitted()
    for who, status in (("ada", 403), ("olga", 403), ("aud", 200), ("root", 200)):
        assert (await api.get("/v1/audit", who=who)).status_code == status
    found = (await api.get("/v1/audit?actor=user:ada&type=job.submitted", who="aud")).json()["events"]
    assert [(event["actor"], event["type"]) for event in found] == [("user:ada", "job.submitted")]
    assert (await api.get("/v1/audit?gpu=1", who="aud")).status_code == 422
    assert (await api.get("/v1/audit?from=2026-01-01T00:00:00Z&to=yesterday", who="aud")).status_code == 422


async def test_a_submitter_submits_for_its_teams_and_classes(api: Site) -> None:
    """The token says which."""
    assert (await api.submit(who="ada", team="vision")).status_code == 403
    assert (await api.submit(who="bob", team="vision")).status_code == 202
    answer = await api.submit(who="bob", team="vision", priority_class="preemptible")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (403, "priority_class")
    assert (await api.submit(who="aud")).status_code == 403


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "Bearer wrong",
        "Bearer " + "x" * 5000,
        "token-of-ada",
        "Bearer \xff",
    ],
)
async def test_who_is_not_known_is_told_401_and_how(api: Site, header: str | None) -> None:
    """On every endpoint but health; with a challenge."""
    headers = {} if header is None else {b"authorization": header.encode("latin-1")}
    for path in ("/v1/jobs", "/v1/events", "/v1/audit", "/metrics"):
        answer = await api.client.get(path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    posted = await api.client.post("/v1/jobs", headers=headers, content=b"not json")
    assert posted.status_code == 401
    assert (await api.client.get("/healthz")).status_code == 200


HASH = hashlib.sha256(b"x").hexdigest()


@pytest.mark.parametrize(
    "entries",
    [
        {},
        [{"name": "a"}],
        [{"name": "a", "sha256": "x", "roles": ["admin"]}],
        [{"name": "a", "sha256": HASH, "roles": []}],
        [{"name": "a", "sha256": HASH, "roles": ["king"]}],
        [{"name": "a", "sha256": HASH, "roles": ["admin"], "teams": "all"}],
        [{"name": "a", "sha256": HASH, "roles": ["admin"], "token": "x"}],
        [{"name": "a", "sha256": HASH, "roles": ["admin"]}, {"name": "b", "sha256": HASH, "roles": ["admin"]}],
    ],
)
def test_a_bad_token_file_is_refused_without_showing_hashes(entries: Any) -> None:
    """At start, so that nobody finds out later who may do what."""
    with pytest.raises(BadTokenFile) as raised:
        parse_tokens(orjson.dumps(entries))
    assert HASH not in str(raised.value)
