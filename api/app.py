"""The app: its routes, its error answers, and the parts that live as long as it does."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.answers import AnswerBook
from api.bindings import Bindings
from api.context import ApiContext
from api.feed import Feed
from api.follower import Follower
from api.gate import Gate
from api.mirror import Mirror
from api.openapi import describe, query_names
from api.problems import FieldError, Problem, response
from api.rate import Rates
from api.reads import Reads
from api.routes import events, fleet, health, jobs, logs, nodes
from api.services import Services
from api.submit import Commands
from api.tails import Tails
from api.validation import ERRORS_MAX, field_error, invalid
from events.log import LogUnavailable
from projections import queries
from projections.moves import Moves
from scheduler.claims import PostgresSnapshots
from scheduler.ports import Snapshots

_log = structlog.get_logger()
_START_WAIT_S = 10.0
_RETRY_S = 0.5
_PURGE_S = 24 * 3600.0
_REPEATABLE = {"state", "label", "type"}
"""Query parameters that may be given more than once."""


def create_app(context: ApiContext) -> FastAPI:
    """The app over `context`; its lifespan opens and closes what it names."""
    app = FastAPI(
        title="Signalbox",
        version="1",
        description="Shared GPU clusters: submit, look, follow. Errors are RFC 9457 problem documents.",
        lifespan=lambda app: _lifespan(app, context),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(_known_query)],
    )
    for routes in (jobs, logs, nodes, fleet, events, health):
        app.include_router(routes.router)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(Gate, settings=context.settings)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    app.state.query_names = query_names(app)
    return app


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return response(error)


async def _not_valid(_: Request, error: Exception) -> Response:
    """Parameters that do not validate: 422, or 404 for an id in the path that cannot be one."""
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    if any(detail["loc"][0] == "path" for detail in details):
        return response(Problem("not_found", "no id has this form"))
    faults = []
    for detail in details[:ERRORS_MAX]:
        given = {"ctx": {}, "input": None, **detail, "loc": tuple(detail["loc"][1:])}
        faults.append(field_error(given))  # type: ignore[arg-type]
    return response(invalid(faults))


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    return response(Problem(code, headers=dict(error.headers or {})))


async def _known_query(request: Request) -> None:
    """Refuse query parameters that the endpoint does not take, or takes once. Raises Problem (422)."""
    if not request.url.query:
        return
    key = (request.method, getattr(request.scope.get("route"), "path", ""))
    known = request.app.state.query_names.get(key, frozenset())
    given = [name for name, _ in request.query_params.multi_items()]
    faults = []
    for name in sorted(set(given)):
        shown = name if name.isidentifier() and len(name) <= 40 else "(a name that is not shown)"
        if name not in known:
            limit = ", ".join(sorted(known)) or "none"
            faults.append(FieldError(shown, None, limit, "is not a parameter here"))
        elif given.count(name) > 1 and name not in _REPEATABLE:
            faults.append(FieldError(shown, None, "once", "is given more than once"))
    if faults:
        raise invalid(faults)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI, context: ApiContext) -> AsyncIterator[None]:
    """Start, and serve after a while even if the logs or the database are not there yet: then all answers are 503."""
    task = asyncio.create_task(_live(app, context), name="api")
    ready: asyncio.Event = asyncio.Event()
    app.state.ready = ready
    waits = asyncio.ensure_future(ready.wait())
    await asyncio.wait({task, waits}, timeout=_START_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()
    if task.done():
        task.result()
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _live(app: FastAPI, context: ApiContext) -> None:
    """Make the parts, run the follower, and let go of everything at the end."""
    async with contextlib.AsyncExitStack() as stack:
        pool = await _pool(context)
        stack.push_async_callback(_close_pool, pool)
        await _open_commands(context)
        stack.push_async_callback(context.commands.close)
        stack.push_async_callback(context.events.close)
        moves = await stack.enter_async_context(Moves(pool, context.postgres_dsn))
        snapshots = PostgresSnapshots(context.postgres_dsn, context.cluster, f"api-{os.getpid()}")
        stack.push_async_callback(snapshots.close)
        made = _services(context, pool, moves, snapshots)
        stack.callback(made.feed.stop)
        app.state.services = made
        purging = asyncio.create_task(_purge(Bindings(pool, context.settings.key_days)), name="api-purge")
        stack.push_async_callback(_end, purging)
        mirroring = asyncio.create_task(_mirror(made), name="api-mirror")
        stack.push_async_callback(_end, mirroring)
        following = asyncio.create_task(_follow(made, app.state.ready), name="api-follower")
        stack.push_async_callback(_end, following)
        await following
        made.feed.stop()
        await asyncio.Event().wait()  # reading goes on; readyz and every write say what is wrong


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})


async def _mirror(made: Services) -> None:
    """As soon as the log is open."""
    await made.follower.begun.wait()
    await made.mirror.run()


async def _follow(made: Services, ready: asyncio.Event) -> None:
    begun = asyncio.create_task(made.follower.begun.wait())
    begun.add_done_callback(lambda _: ready.set())
    try:
        await made.follower.run(made.reads.head)
    finally:
        begun.cancel()


def _services(context: ApiContext, pool: Any, moves: Moves, snapshots: Snapshots) -> Services:
    settings = context.settings
    mirror = Mirror(context.cluster, context.events, snapshots)
    reads = Reads(pool, moves, context.cluster, context.now, mirror=mirror)
    feed = Feed(context.events, reads, settings.feed_ring_events, settings.feed_batch_s)
    book = AnswerBook(settings.waiting_max)
    follower = Follower(context.events, feed.begin, [feed.take, book.take])
    return Services(
        context=context,
        commands=Commands(context, follower, book, Bindings(pool, settings.key_days)),
        mirror=mirror,
        reads=reads,
        feed=feed,
        follower=follower,
        tails=Tails(context.tail, settings.tail_url, settings.tail_wait_s),
        rates=Rates(settings.rate_per_s, settings.rate_burst),
    )


async def _pool(context: ApiContext) -> Any:
    """The one pool; tries again while the database is not there."""
    while True:
        try:
            return await queries.pool(context.postgres_dsn, size_max=context.settings.pool_size)
        except (OSError, asyncpg.PostgresError, TimeoutError) as error:
            _log.warning("database_unavailable", why=f"{type(error).__name__}: {error}")
            await asyncio.sleep(_RETRY_S)


async def _close_pool(pool: Any) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(pool.close(), 2.0)
    pool.terminate()


async def _open_commands(context: ApiContext) -> None:
    while True:
        try:
            await context.commands.open()
            return
        except (LogUnavailable, OSError) as error:
            _log.warning("commands_log_unavailable", why=str(error))
            await asyncio.sleep(_RETRY_S)


async def _purge(bindings: Bindings) -> None:
    """Once a day forget keys that are free again; that it fails once does not matter."""
    while True:
        await asyncio.sleep(_PURGE_S)
        with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await bindings.purge()
