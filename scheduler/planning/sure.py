"""Starts that are sure before a place is looked for: jobs of one rank, while there is room for more than there are.

Wherever a rank of up to n GPUs goes, it takes the room of one rank of n at most. So as long as fewer start than ranks
of n would fit, each finds a place, and whose turn is next depends on no place. A row of such turns is found first, and
then places for all of it, one after the other, as each turn by itself would have found them (fit.find_many).
"""

from typing import TYPE_CHECKING

from commands.plan import Ranks
from events.ids import JobId
from events.job import JobSpec
from scheduler.planning.fit import find_many
from scheduler.planning.queue import Line, NodesAsked
from scheduler.planning.trial import Trial

if TYPE_CHECKING:
    from scheduler.planning.plan import Planner
    from scheduler.planning.turns import Turns

ROW_MIN = 16
"""Ranks for which there has to be room: for fewer it is as quick to look for each by itself."""
ANY_WIDTH = 1 << 30


class RowFailed(Exception):
    """A bug was met in a row, where nobody can say whose job it was: each has to have a turn by itself (C-46)."""


class Row:
    """Turns in a row that are starts: counted at once for their teams, and not placed yet."""

    def __init__(self, planner: "Planner", trial: Trial, turns: "Turns") -> None:
        self._trial = trial
        self._turns = turns
        self._may_begin = trial.in_rows and not planner.pools.sets_apart
        self._nodes: NodesAsked | None = None
        self._each = self._left = 0
        """On such nodes the next `_left` are sure to fit, if none of them asks for more GPUs than that."""
        self._scarce: dict[NodesAsked, int] = {}
        """GPUs of a rank from which up there is room for a few at most."""
        self._specs: list[tuple[JobSpec, int]] = []
        """What they ask for, from which place in the row on."""
        self._jobs: list[JobId] = []
        self._until: list[int] = []

    def join(self, line: Line, job_id: JobId) -> bool:
        """Is the job's turn sure to be a start? Then it is the next of the row."""
        trial, each = self._trial, line.each
        standing = trial.shares.standing(line.share)
        if each > standing.room or (line.alone and each > standing.covered_room):
            return False
        if not line.single or job_id in trial.state.pledges.rows:
            return False
        if (each > self._each or line.nodes != self._nodes or not self._left) and not self._begin(line):
            return False
        try:
            job = trial.state.jobs.rows[job_id]
            self._until.append(self._turns.count(job, standing, gpus=each, ranks=1))
        except Exception as error:
            raise RowFailed from error
        if not self._specs or self._specs[-1][0].gpus_per_replica != each:
            self._specs.append((line.spec, len(self._jobs)))
        self._jobs.append(job_id)
        self._left -= 1
        return True

    def _begin(self, line: Line) -> bool:
        """A new row, for ranks as wide as there is room for some of. Is the next of the line one of them?"""
        nodes = line.nodes
        if not self._may_begin or self._trial.reservations or line.each >= self._scarce.get(nodes, ANY_WIDTH):
            return False
        self.place()
        each, left = self._trial.capacity.widest(*nodes, ROW_MIN)
        self._scarce[nodes] = each + 1
        if line.each > each:
            return False
        self._nodes, self._each, self._left = nodes, each, left
        return True

    def place(self) -> None:
        """The row, which is of one type, ends: places for all of it. From now on they are starts like others."""
        self._left = 0
        if not self._jobs:
            return
        try:
            ranks = self._places()
            assert len(ranks) == len(self._jobs), "one that is sure to fit does not"
        except Exception as error:
            raise RowFailed from error
        self._turns.started(self._specs[0][0].gpu_type, self._jobs, self._until, ranks)
        self._specs.clear()
        self._jobs, self._until = [], []

    def _places(self) -> list[Ranks]:
        found: list[Ranks] = []
        ends = [*(first for _, first in self._specs[1:]), len(self._jobs)]
        for (spec, first), end in zip(self._specs, ends, strict=True):
            found += find_many(self._trial.state, self._trial.capacity, spec, end - first)
        return found
