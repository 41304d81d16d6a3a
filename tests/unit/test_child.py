"""Ports for child processes."""

from __future__ import annotations

from signalboxd.child import free_port


def test_no_port_is_given_twice() -> None:
    """What asks for several before any of them is listened on has as many: of 500 draws alone, five would meet."""
    assert len({free_port() for _ in range(500)}) == 500
