"""What-if replays from a notebook: `signalbox.what_if("policy.toml", generated=7)` gives DataFrames.

The production scheduler replays, so it has to be installed here: `signalboxd replay` runs as a process of its own, and
what it writes is read. Needs pandas and pyarrow (`pip install 'signalbox-client[frames]'`) for the DataFrames alone.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from signalbox.errors import SignalboxError

KINDS = ("jobs", "stretches", "displacements", "samples", "team_samples", "figures")
TRIED = "tried"
"""Name of a policy that is given as a mapping."""

Policy = str | Path | Mapping[str, Any]
"""A word (`recorded`, `default`, `fifo`, `skip`, `easy`), a file's name, or parameters, as `{"preset": "easy"}`."""


class ReplayFailed(SignalboxError):
    """`signalboxd replay` did not come to its end; `detail` is what it said: field, value, and limit."""


@dataclass(frozen=True)
class WhatIf:
    """What a replay came to: `folder` has the page, the record and the rows. Each DataFrame has the name of the policy
    as its first column; columns are as docs/replay-report.md has them."""

    folder: Path

    @property
    def page(self) -> Path:
        """The report, for people: one file, no network."""
        return self.folder / "index.html"

    @cached_property
    def record(self) -> dict[str, Any]:
        """All figures of the report by name, with how it was made and where it departs from what was recorded."""
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_bytes())
        return found

    @cached_property
    def exceptions(self) -> tuple[str, ...]:
        """Where the replay departs from what was recorded, and other limits, a sentence each."""
        return tuple(self.record["made"]["exceptions"])

    @cached_property
    def jobs(self) -> Any:
        """A row a job and policy: when it came, started and ended, what it waited, kept and lost."""
        return self.frame("jobs")

    @cached_property
    def stretches(self) -> Any:
        """A row an attempt and policy: from grant to release."""
        return self.frame("stretches")

    @cached_property
    def displacements(self) -> Any:
        """A row a preempted attempt and policy: for whom, by which rule, and what was lost."""
        return self.frame("displacements")

    @cached_property
    def samples(self) -> Any:
        """A row an interval, GPU type and policy: how the fleet was used."""
        return self.frame("samples")

    @cached_property
    def team_samples(self) -> Any:
        """A row an interval, team, GPU type and policy: delivered, entitled, demanded."""
        return self.frame("team_samples")

    @cached_property
    def figures(self) -> Any:
        """A row a key figure and policy."""
        return self.frame("figures")

    def frame(self, kind: str) -> Any:
        """The rows of one of KINDS. Raises ValueError for another; ImportError, saying what to install."""
        if kind not in KINDS:
            raise ValueError(f"kind: {kind!r}: has to be one of {', '.join(KINDS)}")
        try:
            import_module("pyarrow")
            pandas = import_module("pandas")
        except ImportError:
            raise ImportError("a DataFrame needs pandas and pyarrow: pip install 'signalbox-client[frames]'") from None
        return pandas.read_parquet(self.folder / f"{kind}.parquet")


def what_if(
    policy: Policy,
    *,
    against: Policy | Sequence[Policy] | None = None,
    site: Path | str | None = None,
    file: Path | str | None = None,
    trace: Path | str | None = None,
    generated: int | None = None,
    first: str | None = None,
    last: str | None = None,
    options: Mapping[str, object] | None = None,
    folder: Path | str | None = None,
    told: Callable[[str], None] | None = None,
) -> WhatIf:
    """Let the production scheduler schedule that work again under `policy`, and compare it with `against` (None: what
    was recorded).

    The work is that of one of: the log of the cluster of a `site` file, an exported log in a `file`, a `trace`, a
    `generated` day by its seed. `first`, `last`: of recorded days, as "2026-07-01". `options`: any other option of
    `signalboxd replay`, as `{"fleet": "64x8", "jobs": 2}`. `folder`: where the report goes (None: a new one, which
    stays). `told`: each line that says how far it is. Raises ReplayFailed.
    """
    home = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="what-if-"))
    home.mkdir(parents=True, exist_ok=True)
    compared = [] if against is None else [against] if isinstance(against, str | Path | Mapping) else list(against)
    words = ["--policy", _given(policy, home, TRIED)]
    for place, other in enumerate(compared):
        words += ["--against", _given(other, home, f"against-{place + 1}")]
    source = {"site": site, "file": file, "trace": trace, "generated": generated, "from": first, "to": last}
    words += [*_options(source), *_options(options or {}), "--out", str(home)]
    _run([*_program(), "replay", *words], told)
    return WhatIf(home)


def _given(policy: Policy, home: Path, name: str) -> str:
    """As the command line has it; parameters go into a file."""
    if not isinstance(policy, Mapping):
        return str(policy)
    path = home / f"{name}.json"
    path.write_text(json.dumps({"name": name, "policy": dict(policy)}))
    return str(path)


def _options(given: Mapping[str, object]) -> Iterator[str]:
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            yield option
        elif value is not None and value is not False:
            yield f"{option}={value}"


def _program() -> list[str]:
    """The service program: that of this environment, or else of the path."""
    beside = Path(sys.executable).with_name("signalboxd")
    found = str(beside) if beside.exists() else shutil.which("signalboxd")
    if found is None:
        raise ReplayFailed("signalboxd is not installed here", detail="replays are run by the scheduler's own program")
    return [found]


def _run(command: Sequence[str], told: Callable[[str], None] | None) -> None:
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line.rstrip())
            if told is not None:
                told(said[-1])
    if process.returncode:
        raise ReplayFailed(f"the replay ended with {process.returncode}", detail="\n".join(said[-5:]))
