"""What stands in one cell, or a few, of a row: small parse functions, of which the tables of columns are made.

Each takes the cells of its column as text and returns one value, or raises Unfit with the reason.
"""

import math
import re
from datetime import UTC, datetime

from replay.traces.rows import Ended, Why

ENDS = {
    "COMPLETED": Ended.COMPLETED,
    "COMPLETING": Ended.COMPLETED,
    "PASS": Ended.COMPLETED,
    "SUCCEEDED": Ended.COMPLETED,
    "TERMINATED": Ended.COMPLETED,
    "FAILED": Ended.FAILED,
    "NODE_FAIL": Ended.FAILED,
    "BOOT_FAIL": Ended.FAILED,
    "OUT_OF_MEMORY": Ended.FAILED,
    "CANCELLED": Ended.CANCELLED,
    "KILLED": Ended.CANCELLED,
    "DEADLINE": Ended.TIMED_OUT,
    "TIMEOUT": Ended.TIMED_OUT,
    "TIMED_OUT": Ended.TIMED_OUT,
}
"""Words of all formats; other words are UNKNOWN."""

NOTHING = frozenset({"", "None", "none", "null", "Unknown", "unknown", "N/A", "nan", "NaN"})
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:\.\d+)?")
_TRES_GPUS = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d{1,9})(?=,|$)")
_DIGITS_MAX = 15
"""More of them are no figure of a job, and Python would refuse thousands."""


class Unfit(Exception):
    """Cells that make a row unusable."""

    def __init__(self, why: Why, value: object) -> None:
        super().__init__(why, value)
        self.why = why
        self.value = str(value)


def text(cell: str) -> str:
    """As it stands; nothing where it says that there is nothing."""
    return "" if cell in NOTHING else cell


def name(cell: str) -> str:
    """A text that must be there."""
    if cell in NOTHING:
        raise Unfit(Why.EMPTY, cell)
    return cell


def digits(cell: str) -> bool:
    """Nothing but digits, and not too many."""
    return len(cell) <= _DIGITS_MAX and cell.isdecimal()


def number(cell: str) -> float:
    """A number, of which fractions may be meant."""
    if cell in NOTHING:
        raise Unfit(Why.EMPTY, cell)
    try:
        value = float(cell)
    except ValueError:
        raise Unfit(Why.UNREADABLE, cell) from None
    if not abs(value) < 10**_DIGITS_MAX:
        raise Unfit(Why.UNREADABLE, cell)
    return value


def whole(cell: str) -> int:
    """A whole number, also as `8.0`."""
    if digits(cell):
        return int(cell)
    value = number(cell)
    if value != int(value):
        raise Unfit(Why.UNREADABLE, cell)
    return int(value)


def whole_or_none(cell: str) -> int | None:
    """A whole number where there is one; none below 0 (SWF's -1)."""
    if cell in NOTHING:
        return None
    value = whole(cell)
    return None if value < 0 else value


def seconds(cell: str) -> int:
    """Seconds, fractions cut off, not below 0."""
    if digits(cell):
        return int(cell)
    value = number(cell)
    if value < 0:
        raise Unfit(Why.EMPTY if value == -1 else Why.BACKWARDS, cell)
    return int(value)


def seconds_or_none(cell: str) -> int | None:
    """Seconds where they are known."""
    if cell in NOTHING:
        return None
    value = number(cell)
    return None if value < 0 else int(value)


def gpus(cell: str) -> int:
    """A number of GPUs, at least one."""
    count = whole(cell)
    if count < 1:
        raise Unfit(Why.NO_GPUS, cell)
    return count


def times(count: str, each: str) -> int:
    """`count` workers of `each` GPUs; a part of a GPU is a whole one for each of them."""
    return gpus(str(whole(count) * math.ceil(number(each))))


def stamp(cell: str) -> int:
    """A date and time as seconds since 1970; UTC where it names no zone. Whole seconds since 1970 are taken too."""
    if cell in NOTHING:
        raise Unfit(Why.EMPTY, cell)
    if digits(cell):
        return int(cell)
    try:
        at = datetime.fromisoformat(cell)
    except ValueError:
        raise Unfit(Why.UNREADABLE, cell) from None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp())


def ran(start: str, end: str) -> int:
    """From a start to an end, dates or seconds."""
    return _from_to(begun(start), _ended(end))


def waited(submit: str, start: str) -> int | None:
    """From the submission to the start; None where it is not known, or is before the submission."""
    if start in NOTHING or submit in NOTHING:
        return None
    wait_s = _instant(start) - _instant(submit)
    return None if wait_s < 0 else wait_s


def begun(cell: str) -> int:
    """When it started: a row without that never ran."""
    if cell in NOTHING:
        raise Unfit(Why.NEVER_RAN, cell)
    return _instant(cell)


def _ended(cell: str) -> int:
    if cell in NOTHING:
        raise Unfit(Why.NOT_ENDED, cell)
    return _instant(cell)


def _from_to(start: int, end: int) -> int:
    if end < start:
        raise Unfit(Why.BACKWARDS, end - start)
    return end - start


def _instant(cell: str) -> int:
    """Seconds, or a date."""
    return int(number(cell)) if cell.replace(".", "", 1).isdecimal() else stamp(cell)


def clock_or_none(cell: str) -> int | None:
    """Slurm's `[days-][hours:]minutes:seconds`, in seconds; None for UNLIMITED and Partition_Limit."""
    if cell in NOTHING or cell in ("UNLIMITED", "Partition_Limit"):
        return None
    if (found := _CLOCK.fullmatch(cell)) is None:
        raise Unfit(Why.UNREADABLE, cell)
    days, hours, minutes, secs = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + secs


def slurm_limit(clock: str, minutes: str) -> int | None:
    """Timelimit, or where that is not there TimelimitRaw, which is in minutes."""
    if clock:
        return clock_or_none(clock)
    return int(minutes) * 60 if digits(minutes) else None


def slurm_job(cell: str) -> str:
    """An id of a job; steps (`123.batch`, `123.0`) are none."""
    if "." in name(cell):
        raise Unfit(Why.NOT_A_JOB, cell)
    return cell


def tres_gpus(allocated: str, asked: str) -> int:
    """GPUs of a list of trackable resources: `gres/gpu=8`, or where there is only that the sum of `gres/gpu:TYPE=8`."""
    found: list[tuple[str, str]] = _TRES_GPUS.findall(allocated or asked)
    plain = [int(count) for kind, count in found if not kind]
    return gpus(str(plain[0] if plain else sum(int(count) for _, count in found)))


def tres_type(allocated: str, asked: str) -> str:
    """The type of such a list, where it names one; several are divided by `|`."""
    found: list[tuple[str, str]] = _TRES_GPUS.findall(allocated or asked)
    return "|".join(sorted({kind for kind, _ in found if kind}))


def ended(cell: str) -> Ended:
    """How it ended: the first word of `CANCELLED by 1234` counts."""
    words = cell.split()
    return ENDS.get(words[0].rstrip("+").upper(), Ended.UNKNOWN) if words else Ended.UNKNOWN


def iterations(count: str, each_s: str) -> int:
    """`count` iterations of `each_s` seconds."""
    return seconds(str(whole(count) * number(each_s)))


def has_fraction(cell: str) -> bool:
    """Is it no whole number?"""
    try:
        return not float(cell).is_integer()
    except ValueError:
        return False
