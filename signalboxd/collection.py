"""How often a scheduler looks for garbage that refers to itself.

What it holds is a million small rows without cycles, and what it lets go is free at once by its reference counts.
Python's own rhythm, a look after each 700 new objects and ever again at all of them, would take as long as the
decisions themselves. Cycles come from exceptions and tasks: some in a second, and small. (A whole state is one, by its
tables; a process has one for as long as it lives.)
"""

import gc

NEW_OBJECTS = 500_000
"""New objects, less those that are gone again, between two looks at the young ones: more than the largest decision
makes, and some 50 MB at most."""


def collect_rarely() -> None:
    """What is there now is never looked at again; what comes, seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 20, 20)
