"""Where a replay's work comes from, as it is asked for."""

from __future__ import annotations

import argparse

import pytest

from replay.traces.rows import BadOption
from signalboxd.replay_source import OF_SOURCE, add_arguments, source


def asked(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fleet")
    add_arguments(parser)
    return parser.parse_args(line.split())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--generated 1 --from 2026-07-01", "from: '2026-07-01': is for recorded days, and this is a generated day"),
        ("--generated 1 --window 0..5", "window: '0..5': is for a trace, and this is a generated day"),
        ("--trace t.csv --fleet 8x8 --no-again", "again: 'False': is for recorded days, and this is a trace"),
        ("--trace t.csv --fleet 8x8 --load 0.5", "load: '0.5': is for a generated day, and this is a trace"),
        ("--file log --borrow-percent 5", "borrow-percent: '5': is for a trace, and this is recorded days"),
        ("--generated 1 --fleet 20001x8", "fleet: '20001x8': a generated day's is as 3000x8, of at most"),
        ("--trace t.csv --fleet 20001x8", "fleet: '20001x8': 20001 nodes, and at most 20000 can be"),
    ],
)
async def test_what_would_be_of_no_effect_is_refused(line: str, says: str) -> None:
    """An option of another source, or a fleet that is too large, with its name, its value and the limit."""
    with pytest.raises(BadOption) as refused:
        await source(asked(line))
    assert str(refused.value).startswith(says)


def test_each_option_of_one_source_is_one() -> None:
    """The table names nothing that is not there."""
    known = {word for action in argparse_actions() for word in action}
    assert {f"--{option.replace('_', '-')}" for options in OF_SOURCE.values() for option in options} <= known


def argparse_actions() -> list[list[str]]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return [list(action.option_strings) for action in parser._actions]
