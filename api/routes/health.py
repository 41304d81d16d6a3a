"""Health, readiness and metrics."""

from typing import Any

from fastapi import APIRouter, Depends, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from api import metrics
from api.problems import Problem
from api.reply import reply
from api.services import Parts, authenticated
from events.log import LogUnavailable, LogUnusable

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> Response:
    """The process answers."""
    return reply({"status": "ok"})


@router.get("/readyz")
async def readyz(parts: Parts) -> Response:
    """It can do its work: both logs are there, and the read models keep up."""
    settings, follower = parts.context.settings, parts.follower
    if follower.failed is not None or not follower.begun.is_set():
        raise Problem("unavailable", "the events log cannot be read", failed=follower.failed)
    try:
        await parts.context.commands.end()
    except (LogUnavailable, LogUnusable, OSError):
        raise Problem("unavailable", "the commands log does not answer") from None
    head = await parts.reads.head()
    lag_ms = max(0, follower.head.at - head.at) if head.seq < follower.head.seq else 0
    state: dict[str, Any] = {"log_seq": follower.head.seq, "projected_seq": head.seq, "lag_s": lag_ms / 1000}
    if lag_ms > settings.ready_lag_s * 1000:
        raise Problem("unavailable", "the read models are behind", **state)
    return reply({"status": "ready", **state})


async def _allowed(request: Request, parts: Parts) -> None:
    if not parts.context.settings.metrics_open:
        await authenticated(request, parts, None)


@router.get(
    "/metrics",
    dependencies=[Depends(_allowed)],
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"}},
)
async def read_metrics(parts: Parts) -> Response:
    """What is counted, for Prometheus."""
    metrics.LOG_SEQ.labels(parts.context.cluster).set(parts.follower.head.seq)
    return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})
