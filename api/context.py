"""Everything an api process is given, and what it makes of it. No globals: all of it hangs on the app."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from api.auth import Tokens
from api.settings import ApiSettings
from events.ids import ClusterId, Instant, LeaseId, NodeId
from events.log import CommandLog, EventLog


class TailRefused(Exception):
    """Nobody can be asked for that log now: no leader, or no session with the agent. Says why."""


class LogTail(Protocol):
    """The way to the leader, which asks the agent of a lease to stream its log to an api (DESIGN 6)."""

    async def request(
        self, lease_id: LeaseId, node_id: NodeId, *, url: str, token: str, follow: bool, from_byte: int
    ) -> None:
        """Have the agent of that node POST the log to `url` with `token` as bearer token. Raises TailRefused."""
        ...


def now_ms() -> Instant:
    """The wall clock: shown, and never reckoned with."""
    return Instant(time.time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """What wiring constructs. The logs are not opened yet: the app opens and closes them.

    `postgres_dsn`: of the database with the schemas `read` and `control`. `tail` None: logs of tasks are not served.
    """

    cluster: ClusterId
    events: EventLog
    commands: CommandLog
    postgres_dsn: str
    tokens: Tokens
    settings: ApiSettings = field(default_factory=ApiSettings)
    tail: LogTail | None = None
    now: Callable[[], Instant] = now_ms
    random: Callable[[int], bytes] = secrets.token_bytes
