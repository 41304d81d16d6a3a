"""The plan: what to start, stop, grow and hold now. A cycle is four named steps on one Trial.

1. what room was made for starts first (pledges), 2. reservations that stand are kept, 3. the queue is walked in order:
each job starts, or room is made for it, or the first blocked one of its type and pool has nodes held, 4. elastic jobs
grow onto what nobody could use. The order matters: a pledge must not lose its GPUs to the walk, nor a reservation to a
job behind it, nor a queued job to growth.

Nothing is kept that the state would not give again: memories of failures only save work (P-23, C-70).
"""

from collections.abc import Iterable

from commands.changed import News, by_table, only_saved
from commands.evolve.fair import advance_s
from commands.plan import Plan, Resize
from commands.policy import Preset
from commands.state import Change, State
from events.ids import Instant, JobId
from events.preemption import PledgeEnd
from scheduler.planning import elastic, reserve
from scheduler.planning.capacity import Capacity
from scheduler.planning.failures import Memory
from scheduler.planning.forecast import Forecast
from scheduler.planning.last import nothing_more
from scheduler.planning.order import FairShares
from scheduler.planning.pledges import Pledges
from scheduler.planning.pools import Pools
from scheduler.planning.presets import Plain, plan_plainly
from scheduler.planning.queue import Queue
from scheduler.planning.quota import Shares
from scheduler.planning.sure import RowFailed
from scheduler.planning.trial import HeldBits, Trial
from scheduler.planning.turns import Turns
from scheduler.planning.used_up import HopeAfterAll
from scheduler.planning.victims import VictimIndex
from scheduler.planning.walk import walk


class Planner:
    """The indices of one state, in step with accepted commits. Two planners of equal states plan alike."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.capacity = Capacity.of(state)
        self.pools = Pools(state)
        self.queue = Queue(state)
        self.shares = Shares(state)
        self.fair = FairShares(state)
        self.forecast = Forecast(state)
        self.victims = VictimIndex(state, self.shares)
        self.memory = Memory()
        self.pledges = Pledges(state)
        self._held: HeldBits = {}
        self._plain: Plain | None = None
        """While a preset is in force."""

    def feed(self, changes: Iterable[Change]) -> None:
        """Follow the changes of an accepted commit."""
        self.follow(by_table(changes))

    def follow(self, news: News) -> None:
        """The same, where the changes were parted already. Between tables order is no matter, as indices look things up
        in the state as it is now."""
        if "jobs" in news:
            jobs = [change for change in news["jobs"] if not self._only_saved(change)]
            news = {**news, "jobs": jobs}
            if not jobs:
                del news["jobs"]
        if not news:
            return
        self.capacity.follow(self.state, news)
        self.forecast.follow(news)
        self.pools.follow(news)
        self.queue.follow(news)
        self.shares.follow(news)
        self.victims.follow(news)
        self.memory.follow(news)
        self.pledges.follow(news)
        if self._plain is not None:
            self._plain.endings.follow(news)
        for table in ("fair_use", "quotas"):
            for change in news.get(table, ()):
                self.fair.changed(change.key[0])
        if "policies" in news:
            self.fair.forget()
            self._plain = self.queue.moved = None
        if "pools" in news:
            for line in self.queue.lines.values():
                line.charge = 0

    def _only_saved(self, change: Change) -> bool:
        """A job's newer checkpoint says how much is lost with it, and nothing else."""
        if change.old is None or change.new is None or not only_saved(change.old, change.new):
            return False
        self.victims.saved(change.new)
        return True

    def plan(self, now: Instant, ranks_max: int = 4_000) -> Plan:
        """What to do at `now`. Ends after about `ranks_max` ranks, so that a commit stays small."""
        if self._nobody_waits(now):
            return Plan(n=self.state.meta.n)
        try:
            if self.state.policy.preset is Preset.DEFAULT:
                return self._cycle(now, ranks_max)
            self._plain = self._plain or Plain(self)
            return plan_plainly(self, self._plain, now, ranks_max)
        finally:
            self._undo()

    def _cycle(self, now: Instant, ranks_max: int) -> Plan:
        """By rows of starts where it can be; by one at a time where a bug is met in a row, so that it is known whose
        job it is. Without those that are without hope, unless what the others were given might help them. Three times
        at most: each time one of the two is left out for good."""
        trial = self.trial(now)
        while True:
            try:
                return Cycle(self, trial, ranks_max).run()
            except (RowFailed, HopeAfterAll) as again:
                self._undo()
                in_rows = trial.in_rows and not isinstance(again, RowFailed)
                leaves_out = trial.leaves_out and not isinstance(again, HopeAfterAll)
                trial = self.trial(now)
                trial.in_rows, trial.leaves_out = in_rows, leaves_out

    def _undo(self) -> None:
        self.capacity.undo()
        self.shares.undo()
        self.victims.undo()

    def _nobody_waits(self, now: Instant) -> bool:
        """Is there nobody in the queue, nothing held or pledged, and nobody who could grow? Then no step finds anything
        to do."""
        state = self.state
        if state.pledges.rows or state.reservations.rows or self.victims.elastic:
            return False
        self.queue.begin(now)
        return not len(self.queue)

    def trial(self, now: Instant) -> Trial:
        """The ground for one cycle, or for one question."""
        return Trial(
            state=self.state, now=now, capacity=self.capacity, shares=self.shares, pools=self.pools, held=self._held
        )


class Cycle:
    """One run of the steps."""

    def __init__(self, planner: Planner, trial: Trial, ranks_max: int) -> None:
        self._planner = planner
        self._trial = trial
        self._turns = Turns(planner, trial, ranks_max)
        self._pledges_over: list[tuple[JobId, PledgeEnd]] = []
        self._resizes: list[Resize] = []
        self._tries = 0
        self._cut = False

    def run(self) -> Plan:
        """The steps, in order."""
        self._planner.queue.begin(self._trial.now)
        self._planner.fair.begin(self._trial.now)
        self._start_pledged()
        self._keep_reservations()
        self._walk_queue()
        self._grow()
        turns = self._turns
        ends_quietly = not (self._resizes or self._cut)
        return Plan(
            n=self._trial.state.meta.n,
            last=ends_quietly and nothing_more(self._planner, self._trial, turns, over=self._pledges_over),
            poisoned=tuple(turns.poisoned),
            pledges_over=tuple(self._pledges_over),
            holds_over=tuple(turns.holds_over),
            resizes=tuple(self._resizes),
            placements=tuple(turns.placements),
            rooms=tuple(turns.rooms),
            holds=tuple(turns.holds),
            tries=self._tries,
        )

    def _start_pledged(self) -> None:
        placements, over = self._planner.pledges.settle(self._trial)
        self._pledges_over += over
        self._turns.placements += placements
        for placement in placements:
            job, pledge = self._trial.state.jobs[placement.job_id], self._trial.state.pledges[placement.job_id]
            gpu_s = pledge.gpus * advance_s(job, self._trial.policy.fair_advance_s)
            self._planner.fair.grant(pledge.team, pledge.gpu_type, gpu_s)

    def _keep_reservations(self) -> None:
        self._turns.holds_over += reserve.keep(self._trial)

    def _walk_queue(self) -> None:
        self._tries, self._cut = walk(self._planner, self._trial, self._turns)

    def _grow(self) -> None:
        if not self._tries:
            self._resizes += elastic.grow(self._trial, self._planner.victims.elastic)
