"""An event loop whose time jumps to the next timer, and processes within it that stop and die as real ones do.

Every callback belongs to the process in whose context it was scheduled. One that falls due while its process is
frozen (SIGSTOP) waits until it is thawed, and time goes on; a dead process runs nothing more but the unwinding of its
tasks. Nothing here depends on an address or on a clock: the same program gives the same run.
"""

import asyncio
import contextvars
import random
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, NoReturn

TURNS_MAX = 200_000
"""So many turns of the loop without time going on are a livelock."""
TURN_S = 1e-6
"""What a turn of the loop takes: without it a wait for less than a float can tell would never end."""

_THREAD: ContextVar["Thread | None"] = ContextVar("simulated_thread", default=None)


class Hang(AssertionError):
    """Nothing is ready, and nothing will be; or something is ready for ever."""


class ProcessEnded(BaseException):
    """Unwinds whatever runs in a process that has come to its end. No code of ours may catch it."""


class Thread:
    """What runs one thing at a time within a process. `parked`: what fell due while it was frozen."""

    def __init__(self, process: "Process", name: str) -> None:
        self.process = process
        self.name = name
        self.frozen = False
        self.parked: list[_Entry] = []


class _Entry:
    """One callback of a process."""

    __slots__ = ("args", "callback", "context", "handle", "thread", "timed")

    def __init__(
        self,
        thread: Thread,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        timed: bool,
    ) -> None:
        self.thread = thread
        self.callback = callback
        self.args = args
        self.context = context
        self.timed = timed
        self.handle: asyncio.Handle | None = None

    def run(self) -> None:
        if self.thread.frozen:
            self.thread.parked.append(self)
        elif not (self.timed and self.thread.process.dead):
            self.callback(*self.args)


class _Selector:
    """Stands where a real loop asks the system for news: there is none, so time goes to the next timer."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Hang("nothing is ready, and no timer is set")
        self._turns = 0 if timeout else self._turns + 1
        if self._turns > TURNS_MAX:
            raise Hang(f"{TURNS_MAX} turns of the loop at {self._loop.time():.3f} s")
        self._loop.now += timeout or TURN_S
        return []


class VirtualLoop(BaseEventLoop):
    """The loop. `now`: seconds since the world began."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _Selector(self)
        self._clock_resolution = 1e-6
        self.outside = contextvars.copy_context()
        self._outside_tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self.is_closed():  # what the collector finds after the end
            return asyncio.Handle(callback, args, self, context)
        thread = _thread_of(context)
        if thread is None:
            return super().call_soon(callback, *args, context=context)
        entry = _Entry(thread, callback, args, context, timed=False)
        entry.handle = super().call_soon(entry.run, context=context)
        return entry.handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        thread = _thread_of(context)
        if thread is None:
            return super().call_at(when, callback, *args, context=context)
        entry = _Entry(thread, callback, args, context, timed=True)
        handle = super().call_at(when, entry.run, context=context)
        entry.handle = handle
        return handle

    def call_outside(self, delay_s: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call it later whatever becomes of the process that asks: the network, a server, an operator."""
        return super().call_at(self.now + delay_s, callback, *args, context=self.outside.copy())

    def task_outside(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """A task that belongs to no process. It is kept, also where nobody waits for it any more."""
        if len(self._outside_tasks) > 256:
            self._outside_tasks = [task for task in self._outside_tasks if not task.done()]
        self._outside_tasks.append(self.create_task(work, context=self.outside.copy()))
        return self._outside_tasks[-1]

    def again(self, entry: _Entry) -> None:
        """Run what was parked."""
        if entry.handle is None or not entry.handle.cancelled():
            super().call_soon(entry.run, context=entry.context)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """There is nobody to wake."""


def current_process() -> "Process | None":
    """The process whose code runs now."""
    thread = _THREAD.get()
    return thread.process if thread is not None else None


def _thread_of(context: Context | None) -> Thread | None:
    return _THREAD.get() if context is None else context.get(_THREAD)


def _make_task(
    loop: VirtualLoop, work: Coroutine[Any, Any, Any], context: Context | None = None
) -> "asyncio.Task[Any]":
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    if (thread := _thread_of(context)) is not None:
        thread.process.owns(task)
    return task


class Process:
    """A process: its tasks, in threads that are frozen and thawed together, and its end."""

    def __init__(self, loop: VirtualLoop, name: str, chance: random.Random) -> None:
        self.loop = loop
        self.name = name
        self.dead = False
        self.why = ""
        self.on_end: list[Callable[[], None]] = []
        self._chance = chance
        self._threads: dict[str, Thread] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._frozen_until = 0.0

    @property
    def frozen(self) -> bool:
        return any(thread.frozen for thread in self._threads.values())

    def context(self, thread: str = "main") -> Context:
        """A context in which whatever is scheduled belongs to this process."""
        context = self.loop.outside.copy()
        context.run(_THREAD.set, self._threads.setdefault(thread, Thread(self, thread)))
        return context

    def spawn(self, work: Coroutine[Any, Any, Any], thread: str = "main") -> "asyncio.Task[Any]":
        """Run it as a task of this process."""
        return self.loop.create_task(work, context=self.context(thread))

    def owns(self, task: "asyncio.Task[Any]") -> None:
        """Note a task, to end it with the process."""
        if len(self._tasks) > 64:
            self._tasks = [known for known in self._tasks if not known.done()]
        self._tasks.append(task)

    def freeze(self, for_s: float) -> None:
        """SIGSTOP: nothing of it runs until it is thawed. Its threads wake in no fixed order."""
        if self.dead:
            return
        self._frozen_until = max(self._frozen_until, self.loop.now + for_s)
        for thread in self._threads.values():
            if not thread.frozen:
                thread.frozen = True
                self.loop.call_outside(for_s + self._chance.random() * 0.05, self._thaw, thread)

    def _thaw(self, thread: Thread) -> None:
        if self.loop.now < self._frozen_until and not self.dead:
            self.loop.call_outside(self._frozen_until - self.loop.now, self._thaw, thread)
            return
        thread.frozen = False
        parked, thread.parked = thread.parked, []
        for entry in parked:
            self.loop.again(entry)

    def end(self, why: str) -> None:
        """kill -9, or os._exit: nothing of it has any effect from here on."""
        if self.dead:
            return
        self.dead, self.why = True, why
        for told in self.on_end:
            told()
        for thread in self._threads.values():
            self._thaw(thread)
        current = asyncio.current_task(self.loop)
        for task in self._tasks:
            if task is not current and not task.done():
                task.cancel()

    def leave(self, why: str) -> NoReturn:
        """scheduler.ports.Exit."""
        self.end(why)
        raise ProcessEnded(why)

    def alive(self) -> None:
        """Every port asks this first: what unwinds in a dead process reaches nothing outside."""
        if self.dead:
            raise ProcessEnded(self.why)

    def left(self) -> list["asyncio.Task[Any]"]:
        """Tasks that have not ended."""
        return [task for task in self._tasks if not task.done()]
