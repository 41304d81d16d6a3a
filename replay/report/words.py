"""Figures as people read them: durations, amounts, shares, signs. Plain text; the page escapes it."""

from datetime import UTC, datetime

from events.ids import Instant
from replay.report.keys import Difference, Figure, Unit

NONE = "–"
MINUS = "−"
CALENDAR_FROM = Instant(946_684_800_000)
"""Instants before the year 2000 are those of a trace that counts from 0: they are shown as time since its start."""


def duration(seconds: float | None) -> str:
    """`48 s`, `12.5 min`, `3.1 h`, `4.2 d`: three figures at most."""
    if seconds is None:
        return NONE
    if seconds < 0:
        return MINUS + duration(-seconds)
    for unit, length, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{number(seconds / length)} {unit}"
    return f"{number(seconds / 86400)} d"


def number(value: float | None) -> str:
    """Whole from 100 on, else with one decimal that is not 0, two below a tenth; thousands by commas."""
    if value is None:
        return NONE
    if value < 0:
        return MINUS + number(-value)
    if value and value < 0.1:
        return f"{value:.2f}"
    return f"{value:,.0f}" if value >= 99.95 else f"{value:,.1f}".removesuffix(".0")


def percent(share: float | None) -> str:
    """A share of 1 in percent."""
    if share is None:
        return NONE
    return f"{number(round(share * 100, 1))}%"


def dollars(amount: float | None) -> str:
    if amount is None:
        return NONE
    return f"{MINUS if amount < 0 else ''}${abs(amount):,.0f}"


def size_name(band: str) -> str:
    """A size band as people write it: `≤ 4`, `5-8`, `> 512`."""
    return band.replace("<=", "≤ ").replace(">", "> ")


def plural(count: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def instant(at: Instant | None, start_at: Instant) -> str:
    """`2025-03-01 14:05` UTC; or `4.2 d` after the start where the trace has no calendar."""
    if at is None:
        return NONE
    if start_at < CALENDAR_FROM:
        return f"{duration((at - start_at) / 1000)} after the start"
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def value(figure: Figure) -> str:
    """A figure in its unit."""
    return amount(figure.value, figure.unit)


def amount(of: float | None, unit: Unit) -> str:
    """A value in its unit."""
    if of is None:
        return NONE
    match unit:
        case Unit.SECONDS:
            return duration(of)
        case Unit.SHARE:
            return percent(of)
        case Unit.TIMES:
            return f"{of:.2f}" if of < 10 else number(of)
        case Unit.GPU_HOURS:
            return f"{number(of)} GPU-h"
        case Unit.DOLLARS:
            return dollars(of)
        case Unit.COUNT:
            return f"{of:,.0f}"


def change(of: Difference) -> str:
    """The change with its sign, and as a share of the other's figure where that says something."""
    if of.change is None:
        return NONE
    if of.change == 0:
        return "±0"
    unit = of.figure.unit
    size = f"{abs(of.change) * 100:.1f} points" if unit is Unit.SHARE else amount(abs(of.change), unit)
    signed = f"{'+' if of.change > 0 else MINUS}{size}"
    return signed if of.share is None else f"{signed} ({_percent_change(of.share)})"


def _percent_change(share: float) -> str:
    """`−34%`; from tenfold on `× 12`, which people grasp better than +1100%."""
    if share >= 9:
        return f"× {number(share + 1)}"
    size = abs(share) * 100
    # Not all of it is gone, and not nothing: no rounding to either.
    digits = 1 if 99.5 <= size < 100 or size < 0.5 else 0
    return f"{'+' if share > 0 else MINUS}{min(size, 99.9) if size < 100 else size:.{digits}f}%"
