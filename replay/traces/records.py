"""Files into records: a header, and a row of cells for each job. Five shapes of file, one function each; plain or gzip.

What the cells mean is the formats' business (replay.traces.formats).
"""

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter, ValidationError

from replay.traces.columns import Cells, Records
from replay.traces.jobs import PaiTask, PhillyJob
from replay.traces.rows import BadTrace

GZIP = b"\x1f\x8b"
PEEK_CHARS = 1 << 16
JOB_TABLE, TASK_TABLE = "pai_job_table.csv", "pai_task_table.csv"
JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK_COLUMNS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
SWF_FIELDS = (
    "job",
    "submit",
    "wait",
    "run",
    "allocated_procs",
    "cpu_time",
    "memory",
    "requested_procs",
    "requested_time",
    "requested_memory",
    "status",
    "user",
    "group",
    "application",
    "queue",
    "partition",
    "preceding_job",
    "think_time",
)
"""The fields of a line of the Standard Workload Format 2.2, in order; a file has no line that names them."""
PHILLY_HEADER = ("jobid", "vc", "user", "status", "submitted_time", "attempts")
PAI_HEADER = ("job_name", "user", "status", "start_time", "tasks")

_philly_jobs: TypeAdapter[list[PhillyJob]] = TypeAdapter(list[PhillyJob])
_UNIX_START = re.compile(r"^;\s*UnixStartTime:\s*(\d{1,15})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """A file's header and rows. `zero_at_s`: what its times count from, in seconds since 1970, where it says so."""

    header: tuple[str, ...]
    records: Records
    zero_at_s: int | None = None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a file can be wrong with, said in one way."""
    try:
        yield
    except FileNotFoundError:
        raise BadTrace(f"{path}: there is no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadTrace(f"{path}: the gzip file is damaged or cut off: {error}") from None
    except UnicodeDecodeError as error:
        raise BadTrace(f"{path}: not a text in UTF-8 (byte {error.start})") from None
    except csv.Error as error:
        raise BadTrace(f"{path}: not readable as CSV: {error}") from None
    except OSError as error:
        raise BadTrace(f"{path}: cannot be read: {error.strerror or error}") from None


def opened(path: Path) -> IO[str]:
    """The file as text; gzip by what is in it, whatever it is called."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
    if packed:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def peek(path: Path) -> str:
    """How the file begins."""
    with opened(path) as file:
        return file.read(PEEK_CHARS)


def cells_of(line: str, divider: str) -> tuple[str, ...]:
    """The cells of one line, without spaces around them."""
    return tuple(cell.strip() for cell in next(csv.reader([line], delimiter=divider), []))


def from_csv(path: Path) -> Source:
    """Comma-separated, with a header."""
    return _divided(path, ",")


def from_bars(path: Path) -> Source:
    """Divided by `|`, with a header: sacct --parsable2, or --parsable with a bar at the end."""
    return _divided(path, "|")


def _divided(path: Path, divider: str) -> Source:
    lines = _lines(path)
    header = cells_of(next(lines, ""), divider)
    if divider == ",":
        rows = csv.reader(lines, skipinitialspace=True)
    else:
        rows = csv.reader(lines, delimiter=divider, quoting=csv.QUOTE_NONE)
    return Source(header, (row for row in rows if row))


def _lines(path: Path) -> Iterator[str]:
    with opened(path) as file:
        yield from file


def from_swf(path: Path) -> Source:
    """Lines of 18 figures with spaces between; comments begin with a semicolon, and may say when time 0 was."""
    found = _UNIX_START.search(peek(path))
    rows = (line.split() for line in _lines(path) if not line.startswith(";"))
    return Source(SWF_FIELDS, (row for row in rows if row), int(found[1]) if found else None)


def from_philly(path: Path) -> Source:
    """A JSON list of jobs, each with its attempts."""
    with opened(path) as file:
        text = file.read()
    try:
        jobs = _philly_jobs.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BadTrace(f"{path}: {place}: {first['msg']}") from None
    return Source(PHILLY_HEADER, (_philly_cells(job) for job in jobs))


def _philly_cells(job: PhillyJob) -> Cells:
    texts = [job.jobid, job.vc or "", job.user or "", job.status or "", job.submitted_time or ""]
    return [*texts, job.attempts]


def from_pai(folder: Path) -> Source:
    """The tables of jobs and of tasks, joined by job_name; with the line of names or, as published, without."""
    tasks: dict[str, list[PaiTask]] = {}
    for row in _table(folder / TASK_TABLE, TASK_COLUMNS):
        name, _, count, _, start, end, _, _, gpus, gpu_type = row
        tasks.setdefault(name, []).append(PaiTask(count, start, end, gpus, gpu_type))
    return Source(PAI_HEADER, _joined(_table(folder / JOB_TABLE, JOB_COLUMNS), tasks))


def _joined(jobs: Iterator[Sequence[str]], tasks: dict[str, list[PaiTask]]) -> Records:
    """Each job with its tasks; tasks of which there is no job come last, as jobs that were never submitted."""
    known = set()
    for name, _, user, status, start, _ in jobs:
        known.add(name)
        yield [name, user, status, start, tasks.get(name, [])]
    for name in tasks:
        if name not in known:
            yield [name, "", "", "", tasks[name]]


def _table(path: Path, columns: Sequence[str]) -> Iterator[Sequence[str]]:
    """Rows of a table of PAI's."""
    with reading(path):
        for number, row in enumerate(csv.reader(_lines(path)), 1):
            if number == 1 and tuple(row) == tuple(columns):
                continue
            if len(row) != len(columns):
                raise BadTrace(f"{path}, line {number}: {len(row)} cells, not {len(columns)}: {', '.join(columns)}")
            yield row


SHAPES: dict[str, Callable[[Path], Source]] = {
    "csv": from_csv,
    "bars": from_bars,
    "swf": from_swf,
    "philly": from_philly,
    "pai": from_pai,
}
"""How each shape of file is read."""
