"""The walk over the queue: whose turn it is, again and again, until nobody is left (R-20, R-21, R-24).

Two heaps: in each team its shapes, in the order of the team (with deadlines); over all the teams, each at the turn of
its first. What a team is given (a grant raises its share, or uses up its guarantee) moves that team alone. A shape that
does not fit is left out for the rest of the cycle, but for a job of it that has nodes held: that one may fit where the
others do not. Shapes that are without hope from the start get no turn at all (used_up).
"""

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import TYPE_CHECKING

from commands.shape import least_charge
from events.ids import GpuType, JobId, TeamId
from scheduler.planning.order import NEVER, EntryKey, Turn, turn
from scheduler.planning.queue import Line
from scheduler.planning.sure import Row
from scheduler.planning.trial import Trial
from scheduler.planning.used_up import Chances, LeftOut, borrows

if TYPE_CHECKING:
    from scheduler.planning.plan import Planner
    from scheduler.planning.turns import Turns

Head = tuple[bool, int, EntryKey, JobId, int, Line, bool]
"""(borrowing, class rank, the entry, its job, its place in the line, that line, it is the last to be tried of it)."""


def walk(planner: "Planner", trial: Trial, turns: "Turns") -> tuple[int, bool]:
    """Let each job have its turn. Returns the failed tries, and whether some had no turn as there were too many. Raises
    HopeAfterAll: some were left out who should not have been (trial.leaves_out)."""
    walker = _Walk(planner, trial, turns)
    walker.run()
    walker.left_out.check()
    return walker.tries, walker.cut


class _Walk:
    def __init__(self, planner: "Planner", trial: Trial, turns: "Turns") -> None:
        self._planner = planner
        self._trial = trial
        self._turns = turns
        self._row = Row(planner, trial, turns)
        self._now = trial.now
        self._ease_percent = trial.policy.ease_per_hour_percent
        self._pledges = trial.state.pledges.rows
        self._heads: dict[TeamId, list[Head]] = {}
        self._least: dict[GpuType, int] = {}
        """GPUs of a rank that asks for the fewest, of each type that something waits for."""
        self._asked: dict[GpuType, int] = {}
        self.tries = 0
        self.cut = False
        self.left_out = LeftOut(planner, trial, turns)
        waiting, shapes = self._by_type()
        self._left = allowances(trial.policy.failed_tries_max, shapes)
        self._holders = self._places_of_holders()
        self._leaves_out = trial.leaves_out and self._may_leave_out(shapes)
        for gpu_type, lines in waiting.items():
            self._begin(gpu_type, lines)

    def _by_type(self) -> tuple[dict[GpuType, list[Line]], dict[TeamId, int]]:
        """The lines of each type, and how many each team has."""
        waiting: dict[GpuType, list[Line]] = {}
        shapes: dict[TeamId, int] = {}
        for line in self._planner.queue.lines.values():
            if not line.charge:
                line.charge = least_charge(self._trial.state, line.spec)
            waiting.setdefault(line.gpu_type, []).append(line)
            shapes[line.team] = shapes.get(line.team, 0) + 1
        return waiting, shapes

    def _begin(self, gpu_type: GpuType, lines: list[Line]) -> None:
        """Those who may get a turn on a type: not who is without hope; where it is used up, only jobs that have nodes
        held."""
        self._asked[gpu_type] = self._turns.given
        chances = Chances(self._planner, self._trial, gpu_type)
        if chances.used_up(lines):
            lines = self._without(lines, set(lines))
        elif self._leaves_out and (out := chances.without_hope(filter(self._may_go, lines))):
            lines = self._without(lines, out)
            self.left_out.begin(gpu_type)
        if lines:
            self._least[gpu_type] = min([line.each for line in lines])
        for line in lines:
            self._heads.setdefault(line.team, []).append(self._head(line, self._past_pledged(line, 0)))

    def _without(self, lines: list[Line], out: set[Line]) -> list[Line]:
        """Those that are not left out, but for jobs that have nodes held. What is left out counts as tried."""
        out = out.difference([line for line, _ in self._holders])
        self.tries += sum([self._would_be_tried(line, 0) for line in out])
        return [line for line in lines if line not in out]

    def _may_leave_out(self, shapes: dict[TeamId, int]) -> bool:
        """Does it make no difference to others whether a turn that gives nothing is given? It does where turns are
        counted out: a team with all its shapes has one to spare, for a job that has nodes held."""
        teams = [line.team for line, _ in self._holders]
        enough = sum(shapes.values()) + len(shapes) <= self._trial.policy.failed_tries_max
        return enough and len(set(teams)) == len(teams)

    def _may_go(self, line: Line) -> bool:
        """May the line be left out? Not where its first has a deadline: the team's next waits for its turn then."""
        return line.entries[self._past_pledged(line, 0) if self._pledges else 0][0][2] == NEVER

    def run(self) -> None:
        """Best turn first."""
        turns = self._turns
        teams = self._in_order()
        while teams and turns.ranks_left > 0:
            team = teams[0][1]
            heads = self._heads[team]
            line = heads[0][5]
            if self._row.join(line, heads[0][3]):
                self._go_on(heads)
            else:
                self._row.place()
                if not self._serve(team, heads) and self._drop_used_up(line.gpu_type):
                    teams = self._in_order()
                    continue
            self._refresh(heads)
            if heads:
                heapreplace(teams, (self._turn(heads[0]), team))
            else:
                heappop(teams)
        self._row.place()

    def _in_order(self) -> list[tuple[Turn, TeamId]]:
        """The teams that have somebody left, as a heap of heaps."""
        teams: list[tuple[Turn, TeamId]] = []
        for team, heads in self._heads.items():
            heapify(heads)
            self._refresh(heads)
            if heads:
                teams.append((self._turn(heads[0]), team))
        heapify(teams)
        return teams

    def _drop_used_up(self, gpu_type: GpuType) -> bool:
        """Once a type is used up nobody else waits for a turn on it but jobs that have nodes held. Is it? That is asked
        when a turn gives nothing, and something was given since it was asked before."""
        if self._asked.get(gpu_type) == self._turns.given:
            return False
        self._asked[gpu_type] = self._turns.given
        if self._trial.capacity.most_free(gpu_type) >= self._least[gpu_type]:
            return False
        lines = [head[5] for heads in self._heads.values() for head in heads if head[5].gpu_type == gpu_type]
        if not lines or not Chances(self._planner, self._trial, gpu_type).used_up(lines):
            return False
        holders = {line for line, _ in self._holders}
        for heads in self._heads.values():
            out = [head for head in heads if head[5].gpu_type == gpu_type and head[5] not in holders]
            if out:
                self.tries += sum([self._would_be_tried(head[5], head[4]) for head in out])
                heads[:] = [head for head in heads if head[5].gpu_type != gpu_type or head[5] in holders]
        return True

    def _would_be_tried(self, line: Line, place: int) -> bool:
        """Is anybody in the line, from that place on, who is not about to start anyway?"""
        pledges, entries = self._pledges, line.entries
        if not pledges or entries[place][1] not in pledges:
            return True
        return any(job_id not in pledges for _, job_id in islice(entries, place, None))

    def _past_pledged(self, line: Line, place: int) -> int:
        """From that place on the first whose turn matters: that of a job with a pledge, which is about to start anyway,
        does nothing. Two have theirs even so: the last of a line, as the line is until then among those that wait; and
        who has a deadline, as the team's next may have been submitted before, and would go before other teams'."""
        pledges, entries = self._pledges, line.entries
        last = len(entries) - 1
        while place < last and entries[place][1] in pledges and entries[place][0][2] == NEVER:
            place += 1
        return place

    def _head(self, line: Line, place: int, last: bool = False) -> Head:
        key, job_id = line.entries[place]
        return (borrows(self._trial, line), line.class_rank, key, job_id, place, line, last)

    def _refresh(self, heads: list[Head]) -> None:
        """Whether the first of a team is covered may have changed; then it may be the first no more."""
        while heads:
            head = heads[0]
            borrowing = borrows(self._trial, head[5])
            if borrowing == head[0]:
                return
            heapreplace(heads, (borrowing, *head[1:]))

    def _turn(self, head: Head) -> Turn:
        """The turn of a team's first. Among teams a deadline says nothing."""
        share = self._planner.fair.share(head[5].team)
        return turn(not head[0], head[1], head[2], share, self._now, self._ease_percent)

    def _serve(self, team: TeamId, heads: list[Head]) -> bool:
        """The turn of a team's first. False: it came to nothing."""
        _, _, _, job_id, place, line, _ = heads[0]
        if self._turns.take(line, job_id):
            self._go_on(heads)
            return True
        self.tries += 1
        self._left[team] -= 1
        holder = self._holder_after(line, place) if self._holders else None
        if self._left[team] <= 0:
            self.cut = self.cut or len(heads) > 1
            heads.clear()
        elif holder is not None:
            heapreplace(heads, self._head(line, holder, True))
        else:
            heappop(heads)
        return False

    def _go_on(self, heads: list[Head]) -> None:
        """The first has had its turn: after it comes the next of its line, or the next element of its array."""
        borrowing, class_rank, _, job_id, place, line, last = heads[0]
        after = place if self._turns.elements and self._turns.elements_left(job_id) else place + 1
        if self._pledges and place < after < len(line.entries):
            after = self._past_pledged(line, after)
        if after < len(line.entries) and not (last and after > place):
            key, job_id = line.entries[after]  # whether it borrows is seen once it is the first (_refresh)
            heapreplace(heads, (borrowing, class_rank, key, job_id, after, line, last))
        else:
            heappop(heads)

    def _holder_after(self, line: Line, place: int) -> int | None:
        """The next job of the line that has nodes held."""
        for held, at in self._holders:
            if held is line and at > place:
                return at
        return None

    def _places_of_holders(self) -> list[tuple[Line, int]]:
        """Where in their lines the jobs stand that have nodes held."""
        places: list[tuple[Line, int]] = []
        for held in self._trial.reservations.values():
            known = self._planner.queue.entry(held.job_id)
            if known is not None:
                line = self._planner.queue.lines[known[0]]
                places.append((line, bisect_left(line.entries, known[1])))
        return sorted(places, key=lambda found: found[1])


def allowances(tries_max: int, shapes: dict[TeamId, int]) -> dict[TeamId, int]:
    """Failed tries of a cycle, shared out among the teams with queued work (R-24, C-72): what one team has no shapes
    for is the others'. Each has one at least."""
    if sum(shapes.values()) + len(shapes) <= tries_max:
        return {team: count + 1 for team, count in shapes.items()}
    left, found = tries_max, {}
    for number, team in enumerate(_fewest_first(shapes)):
        each = max(1, left // (len(shapes) - number))
        found[team] = min(each, shapes[team] + 1)
        left -= found[team]
    return found


def _fewest_first(shapes: dict[TeamId, int]) -> Iterable[TeamId]:
    return sorted(shapes, key=lambda team: (shapes[team], team))
