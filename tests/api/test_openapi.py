"""The API keeps to its own description, whatever is sent."""

import asyncio
import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import content_type_conformance, status_code_conformance

from api.main import configured
from api.settings import ApiSettings
from tests.api.site import Site, site, token_of
from tests.servers.waiting import until

HONEST = {"not_yet", "unavailable", "outcome_unknown"}
"""Codes of 5xx answers that say what is missing; any other 5xx is an error of ours."""


async def test_every_operation_documents_its_problems(api: Site) -> None:
    """Under problem+json, with the schema of a problem."""
    document = (await api.client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status in ("401", "422", "429", "500"):
                content = operation["responses"][status]["content"]
                assert list(content) == ["application/problem+json"], (method, path)
    assert "env" in document["components"]["schemas"]["JobSubmission"]["properties"]


async def _serve(dsn: str, taken: socket.socket, stop: threading.Event) -> None:
    limits = ApiSettings(min_seq_wait_s=0.01, rate_per_s=1e6, rate_burst=1e6, position_wait_s=0.2, answer_wait_s=1.0)
    async with site(dsn, limits) as api:
        server = uvicorn.Server(configured(api.app, "127.0.0.1", 0))
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        with contextlib.suppress(AttributeError):
            server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        serving = asyncio.create_task(server.serve(sockets=[taken]))
        await asyncio.to_thread(stop.wait)
        server.should_exit = True
        await serving


@pytest.fixture
def described(postgres_dsn: str) -> Iterator[Any]:
    """The description of an api that is served over HTTP by a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, stop = taken.getsockname()[1], threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(_serve(postgres_dsn, taken, stop)))
        thread.start()
        try:
            until(lambda: _answers(port), what="the api answers")
            yield schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
        finally:
            stop.set()
            thread.join()


def _answers(port: int) -> bool:
    import httpx

    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def no_error_of_ours(_: Any, response: Any, case: Any) -> None:
    """A 5xx says honestly what is missing."""
    if response.status_code >= 500:
        assert response.json()["code"] in HONEST, (case.method, case.path, response.content)


def test_nothing_that_is_sent_makes_an_undocumented_answer(described: Any) -> None:
    """Of all that the description allows, and much that it does not; each answer is of a documented status and type."""
    seen, statuses = set(), Counter[int]()
    for result in described.get_all_operations():
        operation = result.ok()
        seen.add(operation.path)
        for mode in GenerationMode:
            _try_out(operation.as_strategy(generation_mode=mode), statuses)
    assert {"/v1/jobs", "/v1/jobs/{job_id}:hold", "/v1/events", "/v1/policy"} <= seen
    assert {200, 202, 400, 404, 422} <= set(statuses), statuses


def _try_out(cases: Any, statuses: Counter[int]) -> None:
    @settings(
        max_examples=15,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(case=cases)
    def check(case: Any) -> None:
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {token_of('root')}"}
        if case.path == "/v1/events":
            case.query = {**(case.query or {}), "follow": "false"}
        answer = case.call_and_validate(checks=[no_error_of_ours, status_code_conformance, content_type_conformance])
        statuses[answer.status_code] += 1

    with contextlib.suppress(Unsatisfiable):  # an operation without parameters cannot be called wrongly
        check()
