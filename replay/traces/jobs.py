"""Jobs of which a source has several parts: Philly's attempts and PAI's tasks. What they come to as one job.

These are the parse functions of the columns that hold all parts of a job.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from replay.traces import cells
from replay.traces.cells import Unfit
from replay.traces.rows import Why


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of an attempt, and the GPUs that it used there."""

    gpus: tuple[str, ...]
    ip: str = ""


@dataclass(frozen=True, slots=True)
class PhillyAttempt:
    """One attempt, as Philly's log has it."""

    start_time: str | None = None
    end_time: str | None = None
    detail: tuple[Machine, ...] = ()

    @property
    def gpus(self) -> int:
        return sum(len(machine.gpus) for machine in self.detail)

    @property
    def started(self) -> str:
        return self.start_time or ""

    @property
    def ended(self) -> str:
        return self.end_time or ""

    @property
    def timed(self) -> bool:
        """Has it a start and an end?"""
        return self.started not in cells.NOTHING and self.ended not in cells.NOTHING


@dataclass(frozen=True, slots=True)
class PhillyJob:
    """One job, as Philly's log has it."""

    jobid: str = ""
    submitted_time: str | None = None
    attempts: tuple[PhillyAttempt, ...] = ()
    vc: str | None = None
    user: str | None = None
    status: str | None = None


@dataclass(frozen=True, slots=True)
class PaiTask:
    """One line of PAI's table of tasks: `plan_gpu` is in percent of a GPU, for each instance."""

    inst_num: str
    start_time: str
    end_time: str
    plan_gpu: str
    gpu_type: str

    @property
    def percent(self) -> float:
        return cells.number(self.plan_gpu) if self.plan_gpu not in cells.NOTHING else 0.0

    @property
    def gpus(self) -> int:
        """Whole ones: a part of a GPU is one for each instance."""
        return cells.whole(self.inst_num) * math.ceil(self.percent / 100)


def most_gpus(attempts: Sequence[PhillyAttempt]) -> int:
    """GPUs of the attempt that had the most."""
    if not attempts:
        raise Unfit(Why.NEVER_RAN, "no attempts")
    return cells.gpus(str(max(each.gpus for each in attempts)))


def machines_of(attempts: Sequence[PhillyAttempt]) -> int | None:
    """Machines of the attempt that had the most GPUs."""
    return len(max(attempts, key=lambda each: each.gpus).detail) if attempts else None


def philly_ran(attempts: Sequence[PhillyAttempt]) -> int:
    """All attempts together. One without a start or end is left out; without an end of the last the job still ran."""
    if not attempts:
        raise Unfit(Why.NEVER_RAN, "no attempts")
    if attempts[-1].ended in cells.NOTHING:
        raise Unfit(Why.NOT_ENDED, attempts[-1].ended)
    timed = [each for each in attempts if each.timed]
    if not timed:
        raise Unfit(Why.NEVER_RAN, attempts[-1].started)
    return sum(cells.ran(each.started, each.ended) for each in timed)


def philly_waited(submitted: str, attempts: Sequence[PhillyAttempt]) -> int | None:
    """Up to the first attempt."""
    return cells.waited(submitted, attempts[0].started) if attempts else None


def attempts_left_out(attempts: Sequence[PhillyAttempt]) -> bool:
    """Was one left out?"""
    return not all(each.timed for each in attempts)


def tasks_gpus(tasks: Sequence[PaiTask]) -> int:
    """All instances of all tasks together."""
    return cells.gpus(str(sum(each.gpus for each in tasks)))


def shared_tasks(tasks: Sequence[PaiTask]) -> bool:
    """Does an instance ask for a part of a GPU?"""
    return any(each.percent % 100 for each in tasks)


def tasks_ran(tasks: Sequence[PaiTask]) -> int:
    """From the first start of a task with GPUs to the last end of one."""
    with_gpus = [each for each in tasks if each.percent > 0]
    if not with_gpus:
        raise Unfit(Why.NO_GPUS, f"{len(tasks)} tasks")
    start = min(with_gpus, key=lambda each: cells.begun(each.start_time)).start_time
    return max(cells.ran(start, each.end_time) for each in with_gpus)


def tasks_waited(submitted: str, tasks: Sequence[PaiTask]) -> int | None:
    """Up to the first start of a task with GPUs."""
    waits = [cells.waited(submitted, each.start_time) for each in tasks if each.percent > 0]
    return min((wait for wait in waits if wait is not None), default=None)


def tasks_type(tasks: Sequence[PaiTask]) -> str:
    """The type of the tasks with GPUs; several are divided by `|`."""
    return "|".join(sorted({each.gpu_type for each in tasks if each.percent > 0} - cells.NOTHING))
