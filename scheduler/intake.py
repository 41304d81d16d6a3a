"""The commands log, taken in strict order, one commit a command (P-13), and a poisonous one found out (P-7).

Before a batch is decided the epoch row says which commands it holds. If that mark is left behind, the process died
in the batch: the next leader takes those commands one by one, each under a mark of its own while it is decided. A
command that leaves such a mark behind has ended two leaderships, and is refused by the third.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from commands.decide import decide_command
from commands.messages import CommandRecord, NoCommand, decode_command, unread
from events.envelope import Input
from events.ids import Principal
from events.leadership import CommandUnreadable, InputRefused
from events.log import Raw
from scheduler.ports import Deposed, UnknownOutcome
from scheduler.takeover import SCHEDULER
from scheduler.writer import Poison, Writer

if TYPE_CHECKING:
    from scheduler.leader import Leader, World

_log = structlog.get_logger(__name__)

COMMANDS_A_ROUND = 64
WAITING_MAX = 4_096
ENDED_TWO = "deciding it ended two leaderships"
"""Why a command is refused on the word of the epoch row alone."""


class Intake:
    """Commands between the log and the leader."""

    def __init__(self, leader: "Leader", writer: Writer, world: "World") -> None:
        self._leader = leader
        self._writer = writer
        self._world = world
        self._waiting: deque[Raw] = deque()
        self._room = asyncio.Event()
        self._suspects = writer.tenure.suspects
        self._marked = self._suspects is not None
        if self._suspects is not None and self._suspects[1] <= writer.state.meta.command_position:
            self._suspects = None  # they were taken after all: what ended that leadership came later

    def waiting(self) -> bool:
        return bool(self._waiting)

    async def read(self, wake: asyncio.Event) -> None:
        """Follow the commands log from where it was taken to. Runs beside the leader's loop; raises LogUnusable."""
        position = self._writer.state.meta.command_position
        async for batch in self._world.commands.follow(position):
            self._waiting.extend(batch)
            wake.set()
            while len(self._waiting) > WAITING_MAX:
                self._room.clear()
                await self._room.wait()

    async def take(self) -> None:
        """Take the commands that wait, at most a round's worth."""
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), COMMANDS_A_ROUND))]
        self._room.set()
        if batch:
            await self._mark_batch(batch)
        elif self._marked and self._suspects is None:
            self._marked = False
            await self._mark(None, None, exact=False)
        for raw in batch:
            await self._take_one(raw)

    async def _take_one(self, raw: Raw) -> None:
        if self._is_suspect(raw.offset):
            await self._take_suspect(raw)
        else:
            await self._decide(raw)

    async def _take_suspect(self, raw: Raw) -> None:
        """One alone, marked while it is decided; refused if its own mark was left behind once before."""
        if raw.offset == self._writer.tenure.refuse:
            await self._refuse(raw, ENDED_TWO)
        else:
            await self._mark(raw.offset, raw.offset, exact=True)
            await self._decide(raw, self._unmark)
        assert self._suspects is not None
        if raw.offset >= self._suspects[1]:
            self._suspects = None

    def _is_suspect(self, offset: int) -> bool:
        return self._suspects is not None and self._suspects[0] <= offset <= self._suspects[1]

    async def _unmark(self) -> None:
        """It was decided without harm: an outage from here on is not the command's doing."""
        await self._mark(None, None, exact=True)

    async def _decide(self, raw: Raw, when_tried: Callable[[], Awaitable[None]] | None = None) -> None:
        assert raw.offset == self._writer.state.meta.command_position + 1, "commands are taken in strict order"
        self._world.measures.commands.inc()
        record, why = _read(raw)
        if record is None:
            unreadable = CommandUnreadable(why=why)
            await self._leader.make(self._input(raw, None), SCHEDULER, lambda draft: draft.add(unreadable))
            return
        try:
            await self._leader.make(
                self._input(raw, record),
                record.principal,
                lambda draft: decide_command(draft, record),
                when_tried=when_tried,
            )
        except Poison as poison:
            await self._refuse(raw, str(poison))

    async def _refuse(self, raw: Raw, why: str) -> None:
        """Passed over, on record: a poisonous command stops nobody else (C-46)."""
        _log.error("command.poisonous", position=raw.offset, why=why)
        record, _ = _read(raw)
        made_by = self._input(raw, record)
        refused = InputRefused(input=made_by.id, why=why[:300])
        actor = record.principal if record is not None else Principal("unknown")
        await self._leader.make(made_by, actor, lambda draft: draft.add(refused))

    def _input(self, raw: Raw, record: CommandRecord | None) -> Input:
        body: Any = orjson.loads(raw.value) if record is not None else unread(raw.value)
        name = record.id if record is not None else f"unreadable-{raw.offset}"
        return Input(kind="command", id=name, body=body, position=raw.offset, log_id=self._world.command_log_id)

    async def _mark_batch(self, batch: list[Raw]) -> None:
        if self._suspects is None:
            self._marked = True
            await self._mark(batch[0].offset, batch[-1].offset, exact=False)

    async def _mark(self, first: int | None, last: int | None, *, exact: bool) -> None:
        try:
            await self._world.leadership.mark_taking(self._writer.tenure, first, last, exact=exact)
        except (Deposed, UnknownOutcome) as error:
            self._world.leave(f"marking: {error}")


def _read(raw: Raw) -> tuple[CommandRecord | None, str]:
    """The command; else why it is none."""
    try:
        return decode_command(raw.value), ""
    except NoCommand as error:
        return None, str(error)
