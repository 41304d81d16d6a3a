"""Run benchmarks by name, all of them without one: `python -m bench [NAME ...]`. Exits with 1 if a target is missed."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import orjson

from bench.figure import Figure

_NO_BENCH = {"figure", "__main__"}


def names() -> list[str]:
    """The benchmarks there are."""
    found = {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}
    return sorted(name for name in found - _NO_BENCH if not name.startswith("_"))


def figures(name: str) -> Iterator[Figure]:
    """Run one benchmark."""
    made = importlib.import_module(f"bench.{name}").main()
    yield from asyncio.run(made) if inspect.iscoroutine(made) else made


def main(wanted: list[str]) -> int:
    """Print the figures of the benchmarks that are wanted; the exit status."""
    if unknown := set(wanted) - set(names()):
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    all_met = True
    for name in wanted or names():
        for figure in figures(name):
            sys.stdout.buffer.write(orjson.dumps(asdict(figure) | {"met": figure.met}) + b"\n")
            sys.stdout.flush()
            all_met = all_met and figure.met
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
