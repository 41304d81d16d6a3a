"""What each fact means: the only place where the state changes. A file per subject; one function per event type.

`begin`, then `evolve` for each event, then `finish`: the same three calls fold a commit of the log and try out one
that is being made, so that a trial and a replay cannot differ.
"""

from commands.evolve.fold import begin, evolve, evolve_all, finish, fold_commit, fold_term

__all__ = ["begin", "evolve", "evolve_all", "finish", "fold_commit", "fold_term"]
