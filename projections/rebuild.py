"""Make the tables anew from the log (R-80). Touches schema `read` only: what is in `control` and `log` cannot be
derived, and stays.
"""

from collections.abc import Callable, Sequence

from events.chain import Head
from events.log import EventLog
from projections.database import READ_LOCK, Connection, connect, recreate
from projections.rows import FOLDED
from projections.worker import resumed

Progress = Callable[[str, int, int, int], None]
"""(cluster, offset in the tables, offset of the log's end when it began, seq in the tables)."""


class RebuildRefused(Exception):
    """Nothing was touched; says what has to be done first."""


async def rebuild(dsn: str, logs: Sequence[EventLog], progress: Progress | None = None) -> None:
    """Drop schema `read` and fold every given log from its first record; the logs are open already.

    All clusters of the database at once, since they share the schema. Meanwhile readers see tables that are empty or
    behind; projectors wait. Cut off half-way, the projectors do the rest. Raises RebuildRefused, and as
    worker.Projector.catch_up.
    """
    connection = await connect(dsn, "signalbox-rebuild")
    try:
        if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", READ_LOCK):
            raise RebuildRefused("a projector or another rebuild is at work in this database: stop it first")
        if strangers := await _clusters(connection) - {log.cluster for log in logs}:
            raise RebuildRefused(f"their tables would be lost: {', '.join(sorted(strangers))}")
        await recreate(connection)
        for log in logs:
            end = await log.end()

            def tell(head: Head, cluster: str = log.cluster, end: int = end) -> None:
                if progress is not None:
                    progress(cluster, head.offset, end, head.seq)

            projector = await resumed(log, connection, tell)
            await projector.catch_up()
        for cls in FOLDED:
            await connection.execute(f"ANALYZE read.{cls.TABLE}")
    finally:
        await connection.close()


async def _clusters(connection: Connection) -> set[str]:
    if await connection.fetchval("SELECT to_regclass('read.positions')") is None:
        return set()
    return {record["cluster"] for record in await connection.fetch("SELECT cluster FROM read.positions")}
