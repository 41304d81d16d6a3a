"""Looking for cycles of references: rarely, where millions of rows come and go. It changes no value."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 100_000
"""New objects, less those that are gone again, between two looks for cycles."""


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """What is let go is free at once by its reference counts; to look for cycles among all rows of a state after each
    700 new ones only takes time."""
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
