"""The network between everybody: who can reach whom, requests to servers, and ordered streams as of TCP.

A blocked path delays what is under way; a stream that finds it blocked for long is reset at both ends. A stream that
ends delivers what was sent before its end, unless its receiver has closed it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.faults import Fate, Faults
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.waiting import pause

RESET_S = 25.0
"""A path that is blocked for so long breaks the streams on it."""

END = object()
"""The end of a stream, behind all that was sent on it."""


class Network:
    """Paths, by the names of their two ends."""

    def __init__(self, loop: VirtualLoop, faults: Faults) -> None:
        self.loop = loop
        self.faults = faults
        self._blocked: dict[frozenset[str], None] = {}
        self._waiting: list[tuple[frozenset[str], Callable[[], None]]] = []

    def block(self, one: str, other: str) -> None:
        """Nothing passes between the two."""
        self._blocked[frozenset((one, other))] = None

    def open(self, one: str, other: str) -> None:
        """All passes again, what was under way too."""
        path = frozenset((one, other))
        self._blocked.pop(path, None)
        ready = [told for waits_for, told in self._waiting if waits_for == path]
        self._waiting = [(waits_for, told) for waits_for, told in self._waiting if waits_for != path]
        for told in ready:
            self.loop.call_outside(self.faults.latency(), told)

    def open_all(self) -> None:
        """Every path is whole."""
        for path in list(self._blocked):
            one, other = sorted(path)
            self.open(one, other)

    def is_blocked(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._blocked

    def when_open(self, one: str, other: str, told: Callable[[], None]) -> None:
        """Call back once the path is whole; at once if it is."""
        if self.is_blocked(one, other):
            self._waiting.append((frozenset((one, other)), told))
        else:
            told()

    async def request(self, process: Process, name: str, server: str, run: Callable[[], Any]) -> Any:
        """Have `run` executed at a server, once or as its fate has it, whatever becomes of the process. Gates:
        NAME.before it is sent, NAME.sent, NAME.acked once the answer is here."""
        await self.faults.gate(process, f"{name}.before")
        fate = self.faults.fate(process, name)
        trip = self.loop.task_outside(self._trip(process.name, server, run, fate))
        await self.faults.gate(process, f"{name}.sent")
        value, error = await asyncio.shield(trip)
        await self.faults.gate(process, f"{name}.acked")
        if error is not None:
            raise error
        return value

    async def _trip(self, client: str, server: str, run: Callable[[], Any], fate: Fate) -> tuple[Any, Exception | None]:
        await pause(fate.hold_s)
        await self._path(client, server)
        answer: tuple[Any, Exception | None] = (None, None)
        if not fate.lost:
            try:
                answer = (run(), None)
            except Exception as error:
                answer = (None, error)
            if fate.again_s == 0.0:
                _quietly(run)
            elif fate.again_s is not None:
                self.loop.call_outside(fate.again_s, _quietly, run)
        if fate.mute:
            await self.loop.create_future()
        await pause(fate.answer_s)
        await self._path(client, server)
        return answer

    async def _path(self, one: str, other: str) -> None:
        while self.is_blocked(one, other):
            clear = asyncio.Event()
            self.when_open(one, other, clear.set)
            await clear.wait()


def _quietly(run: Callable[[], Any]) -> None:
    """What comes doubled has nobody who hears its answer."""
    try:
        run()
    except Exception:
        return


class Pipe:
    """One direction of a stream."""

    def __init__(self, network: Network, ends: tuple[str, str], deliver: Callable[[Any], None]) -> None:
        self._network = network
        self._ends = ends
        self._deliver = deliver
        self._sent: deque[tuple[float, Any]] = deque()
        self._last = 0.0
        self._busy = False
        self.closed = False

    def push(self, item: Any) -> None:
        """Send it, after all that was sent before."""
        if self.closed:
            return
        self._last = max(self._last, self._network.loop.now + self._network.faults.latency())
        self._sent.append((self._last, item))
        self._arm()

    def close(self) -> None:
        """The receiver wants no more, also not of what is under way."""
        self.closed = True
        self._sent.clear()

    def _arm(self) -> None:
        if self._busy or not self._sent:
            return
        self._busy = True
        self._network.loop.call_outside(max(0.0, self._sent[0][0] - self._network.loop.now), self._arrive)

    def _arrive(self) -> None:
        self._busy = False
        if not self._sent:
            return
        if self._network.is_blocked(*self._ends):
            self._busy = True
            head = self._sent[0]
            self._network.loop.call_outside(RESET_S, self._reset_if_stuck, head)
            self._network.when_open(*self._ends, self._arrive)
            return
        self._deliver(self._sent.popleft()[1])
        self._arm()

    def _reset_if_stuck(self, head: tuple[float, Any]) -> None:
        if self._sent and self._sent[0] is head and self._network.is_blocked(*self._ends):
            self._sent.clear()
            self._deliver(END)
            self.closed = True
