"""The figures of parts of an outcome: of each class, size, team, type and rule; and how two outcomes differ in them.

Pure. A detail is a figure as those of keys.py, of one part. Parts that only one of two outcomes has are left out of
their differences.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from replay.report.fairness import TeamShare
from replay.report.fleet import StrandedRow, Use
from replay.report.keys import Better, Difference, Figure, Part, Unit, difference
from replay.report.losses import HOUR_S, Reclaims
from replay.report.waits import WaitRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """`by`: what kind of part (`class`, `size`, `team`, `type`, `rule`, `stranded`); `value`: which one."""

    by: str
    value: str
    figure: Figure

    @property
    def key(self) -> tuple[str, str, str]:
        return self.by, self.value, self.figure.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailDifference:
    """A figure of a part under the first policy next to the other's."""

    detail: Detail
    difference: Difference


def wait_details(rows: Iterable[WaitRow]) -> Iterator[Detail]:
    """Waits and slowdown."""
    for row in rows:
        for name in ("mean", "p50", "p95", "p99", "max"):
            yield _detail(
                (row.by, row.value), f"wait_{name}_s", getattr(row.wait, name), part=Part.WAITING, unit=Unit.SECONDS
            )
            yield _detail(
                (row.by, row.value),
                f"first_wait_{name}_s",
                getattr(row.first_wait, name),
                part=Part.WAITING,
                unit=Unit.SECONDS,
            )
            yield _detail(
                (row.by, row.value), f"slowdown_{name}", getattr(row.slowdown, name), part=Part.WAITING, unit=Unit.TIMES
            )


def share_details(rows: Iterable[TeamShare]) -> Iterator[Detail]:
    """Delivered of entitled, and what was short at the time."""
    for row in rows:
        yield _detail(
            ("team", row.team),
            "delivered_of_entitled",
            row.ratio,
            part=Part.FAIRNESS,
            unit=Unit.SHARE,
            better=Better.HIGHER,
        )
        yield _detail(
            ("team", row.team), "shortfall_gpu_h", row.shortfall_gpu_s / HOUR_S, part=Part.FAIRNESS, unit=Unit.GPU_HOURS
        )


def use_details(uses: dict[str, Use]) -> Iterator[Detail]:
    """Allocated of healthy, by GPU type."""
    for name, use in uses.items():
        yield _detail(
            ("type", name), "utilisation", use.utilisation, part=Part.FLEET, unit=Unit.SHARE, better=Better.HIGHER
        )


def reclaim_details(rows: Iterable[Reclaims]) -> Iterator[Detail]:
    """From the order to the start, by rule."""
    for row in rows:
        for name in ("mean", "p50", "p95", "p99", "max"):
            yield _detail(
                ("rule", row.rule),
                f"made_room_{name}_s",
                getattr(row.seconds, name),
                part=Part.LOSSES,
                unit=Unit.SECONDS,
            )


def stranded_details(rows: Iterable[StrandedRow]) -> Iterator[Detail]:
    """GPUs stranded, by type and size of job."""
    for row in rows:
        yield _detail(
            ("stranded", f"{row.gpu_type} {row.size}"), "stranded_gpus", row.stranded, part=Part.FLEET, unit=Unit.TIMES
        )


def detail_differences(first: Iterable[Detail], other: Iterable[Detail]) -> list[DetailDifference]:
    """Every figure of a part that both have."""
    values = {detail.key: detail.figure.value for detail in other}
    return [
        DetailDifference(detail=detail, difference=difference(detail.figure, values[detail.key]))
        for detail in first
        if detail.key in values
    ]


def _detail(of: tuple[str, str], name: str, value: float | None, **rest: Any) -> Detail:
    by, which = of
    figure = Figure(name=name, label=name, value=value, **{"better": Better.LOWER, **rest})
    return Detail(by=str(by), value=str(which), figure=figure)
