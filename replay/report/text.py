"""The main figures as lines for a terminal: each policy in a column, the differences are the page's."""

from collections.abc import Iterator

from replay.report.keys import Unit
from replay.report.study import Study

_SCALES = {Unit.SHARE: (100.0, "%"), Unit.DOLLARS: (1.0, "$"), Unit.GPU_HOURS: (1.0, "GPU-h"), Unit.SECONDS: (1.0, "s")}


def lines(study: Study) -> Iterator[str]:
    """A head, then one line for each figure."""
    portraits = study.portraits
    yield " " * 58 + "".join(f"{one.label[:15]:>16}" for one in portraits)
    for place, figure in enumerate(portraits[0].figures):
        scale, unit = _SCALES.get(figure.unit, (1.0, ""))
        values = [one.figures[place].value for one in portraits]
        places = 0 if figure.unit is Unit.COUNT else 1
        cells = "".join(f"{'-' if value is None else f'{value * scale:,.{places}f}':>16}" for value in values)
        yield f"{figure.label[:50]:<51}{unit:<7}{cells}"
