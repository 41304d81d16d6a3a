"""A scenario in virtual time: what happens, in its order; the core in the middle, model agents around it.

At one instant: first what ends, then what comes, in order; then time is looked at, and it is planned until quiet. The
next instant is that of the next thing that happens, or at which time alone could change something (moments).
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from commands.messages import Command, QuotaLine, SetPolicy, SetQuota, SubmitJob
from commands.policy import DEFAULT
from commands.reports import FromNode, Tick
from events.checkpoint import CheckpointRecorded, CheckpointRefused
from events.envelope import Event
from events.gang import GangResized, GangRunning
from events.ids import ClusterId, Instant, NodeId, NodeIndex, Principal, TeamId
from events.leadership import CommandRefused
from events.task import ReportDropped, TaskStarted
from replay.collecting import collecting_rarely
from replay.engine.agents import OFF
from replay.engine.core import Core
from replay.engine.models import Models
from replay.engine.moments import SECOND_MS, Moments, moments, plans_now, silences
from replay.engine.recorder import Recorder
from replay.engine.scripted import ScriptedAgents
from replay.outcome import Outcome
from replay.scenario import Anew, Arrival, Scenario, Silence, TeamQuota

MESSAGES_A_COMMIT = 256
SAVES_TOGETHER_MS = 60_000
"""Saves of an interval are taken together for so long, unless something else happens."""
CLUSTER = ClusterId("replay")
STANDSTILL_MS = 86_400_000
"""Where nothing is to come any more, and nothing has changed for so long, nothing will."""
QUIET = {CheckpointRecorded, CheckpointRefused, ReportDropped, TaskStarted}
"""Facts that let nothing fit that did not: they do not count in what the planner remembers (turns.Memory)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a replay is: `part` of its submissions, in thousandths."""

    at: Instant
    part: int
    ended: int
    waiting: int


Told = Callable[[Progress], None]


def run(
    scenario: Scenario,
    policy_name: str = "",
    *,
    models: Models = OFF,
    sample_s: int = 900,
    look_s: int | None = None,
    progress: Told | None = None,
) -> Outcome:
    """Let the production core schedule the scenario. `sample_s`: interval of the samples. `look_s`: run cycles so often
    even where nothing can have changed, as the leader does each second. ValueError: the scenario's nodes, quotas or
    policy cannot be set up, and which."""
    with collecting_rarely():
        return Replay(scenario, models=models, sample_s=sample_s, look_s=look_s).run(policy_name, progress)


class Replay:
    """One scenario, and how far it is."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        models: Models = OFF,
        sample_s: int = 900,
        look_s: int | None = None,
        lead: Callable[[ClusterId, Instant], Core] = Core,
    ) -> None:
        self.scenario = scenario
        self.core = lead(CLUSTER, scenario.start_at)
        self.agents = ScriptedAgents(self.core.state, lambda: self.core.now, self._at, models=models)
        self.recorder = Recorder(self.core, self.agents.saved_at, sample_s=sample_s)
        self._look_ms = None if look_s is None else look_s * SECOND_MS
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._arrived = 0
        self._commanded = 0
        self._to_plan = False
        self._grew_smaller = False
        self._noticed: list[Tick] = []
        self._moments: Moments | None = None
        """None: to be reckoned anew."""
        self._changed_at = self.core.now
        self.core.watchers += [self.agents.see, self._see]
        self._boot()

    # Setting up

    def _boot(self) -> None:
        scenario, core = self.scenario, self.core
        nodes = [self.agents.register(said) for said in scenario.nodes]
        self._hear(nodes)
        if scenario.policy != DEFAULT:
            self._must(SetPolicy(policy=scenario.policy.model_dump(mode="json")), "policy")
        for command in _quotas(scenario.quotas):
            self._must(command, f"quota of {command.team}")
        for silence in scenario.silences:
            self._plan_silence(silence)
        self._plan_recorded()
        core.plan()

    def _plan_recorded(self) -> None:
        """What else a recorded day brings."""
        agents = self.agents
        for joined in self.scenario.joined:
            self._at(joined.at, lambda node=joined.node: agents.said.append(agents.register(node)))  # type: ignore[misc]
        for noticed in self.scenario.noticed:
            self._at(noticed.at, lambda tick=noticed.tick: self._noticed.append(tick))  # type: ignore[misc]
        for anew in self.scenario.anew:
            self._plan_anew(anew)
        for other in self.scenario.taken_over:
            self._at(other.at, self._take_over)
            for at, node_id in other.confirmed:
                self._at(at, lambda node_id=node_id: self._registers(node_id))  # type: ignore[misc]

    def _take_over(self) -> None:
        """Another leader listens from now on: how long nodes were silent before, it does not know (P-20)."""
        self.agents.silent = dict.fromkeys(self.agents.silent, self.core.now)
        self.core.take_over()

    def _plan_anew(self, anew: Anew) -> None:
        """Unless the node cannot be heard, its agent registers; the node is confirmed then, or when it was."""
        outstanding = anew.confirmed_at != anew.at
        self._at(anew.at, lambda: self._registers_anew(anew, outstanding))
        if outstanding and anew.confirmed_at is not None:
            self._at(anew.confirmed_at, lambda: self._registers(anew.node_id))

    def _registers_anew(self, anew: Anew, outstanding: bool) -> None:
        index = self.core.state.node_index[anew.node_id]
        if index not in self.agents.silent:
            self.agents.begin_anew(index, outstanding=outstanding, new_disk=anew.new_disk)

    def _registers(self, node_id: NodeId) -> None:
        """It is confirmed; where it has fallen silent meanwhile, on what it said before."""
        index = self.core.state.node_index[node_id]
        if index not in self.agents.silent:
            self.agents.register_again(index)
        else:
            self._noticed.append(Tick(confirmed=(index,)))

    def _must(self, command: Command, what: str) -> None:
        for event in self.core.command(command):
            if isinstance(event, CommandRefused):
                raise ValueError(f"{what}: {event.field} {event.value}: {event.code}, {event.limit}")

    def _plan_silence(self, silence: Silence) -> None:
        known = [node.node_id for node in (*self.scenario.nodes, *(joined.node for joined in self.scenario.joined))]
        if silence.node_id not in known:
            raise ValueError(f"silences: there is no node {silence.node_id}")
        index = NodeIndex(known.index(silence.node_id))
        self._at(silence.at, lambda: self._hearing(lambda: self.agents.fall_silent(index)))
        if silence.until is not None:
            self._at(silence.until, lambda: self._hearing(lambda: self._comes_back(index, silence)))

    def _comes_back(self, index: NodeIndex, silence: Silence) -> None:
        self.agents.come_back(index, wiped=silence.wiped, outstanding=not silence.confirmed)

    def _hearing(self, change: Callable[[], None]) -> None:
        change()
        self._moments = None

    # Time goes on

    def run(self, policy_name: str, progress: Told | None = None) -> Outcome:
        """All of it."""
        end_at = self.scenario.end_at
        told = -1
        while (at := self._next()) is not None and (end_at is None or at <= end_at):
            self.recorder.until(at)
            self._saves(at)
            self.core.now = at
            self._instant()
            part = 1000 * self._arrived // max(1, len(self.scenario.arrivals))
            if progress is not None and part != told:
                told = part
                progress(self._progress(part))
        if end_at is not None:
            self.recorder.until(end_at)
            self._saves(end_at)
            self.core.now = end_at
        return self.recorder.outcome(self.scenario, policy_name)

    def _progress(self, part: int) -> Progress:
        ended = len(self.core.state.ended)
        return Progress(at=self.core.now, part=part, ended=ended, waiting=len(self.core.planner.queue))

    def _next(self) -> Instant | None:
        """When something happens next; None: nothing will any more, or all jobs have ended."""
        core, times = self.core, self._to_come()
        if self._arrived == len(self.scenario.arrivals) and not core.state.jobs.rows:
            return None
        if not times and core.now - self._changed_at > STANDSTILL_MS:
            return None
        if (moment := self._moment()) is not None:
            times.append(moment)
        if self._grew_smaller:
            times.append(core.now + SECOND_MS)
        if self._look_ms is not None and times:
            times.append((core.now // self._look_ms + 1) * self._look_ms)
        return Instant(max(core.now, min(times))) if times else None

    def _moment(self) -> Instant | None:
        """When time alone could change something next."""
        if self._moments is None:
            self._moments = moments(self.core, self.agents)
        return self._moments.next_at

    def _to_come(self) -> list[int]:
        """When what is known to come comes."""
        scenario = self.scenario
        times = [self._agenda[0][0]] if self._agenda else []
        if self._arrived < len(scenario.arrivals):
            times.append(scenario.arrivals[self._arrived].at)
        if self._commanded < len(scenario.commands):
            times.append(scenario.commands[self._commanded].at)
        return times

    def _saves(self, until: Instant) -> None:
        """What saves each interval did so until then: so that what happens then sees the newest checkpoints."""
        core, agents = self.core, self.agents
        while (first := agents.saves_at()) is not None and first <= until:
            core.now = agents.save_until(Instant(min(until, first + SAVES_TOGETHER_MS)))
            self._hear_all()

    def _instant(self) -> None:
        """What happens now, until nothing more does."""
        known = self._moments
        plans = known is not None and plans_now(self.core, known)
        self._to_plan = plans or self._grew_smaller or self._look_ms is not None
        if self._to_plan or (known is not None and known.is_over(self.core.now)):
            self._moments = None
        self._grew_smaller = False
        while True:
            self._ends()
            self._comes()
            if self._led(self.core.now):
                self._leads()
            if not self._agenda or self._agenda[0][0] > self.core.now:
                return

    def _led(self, now: Instant) -> bool:
        """Does somebody lead? Between two recorded leaders nobody looks, or plans."""
        return not any(other.gone_at <= now < other.at for other in self.scenario.taken_over)

    def _leads(self) -> None:
        self._looks()
        if self._to_plan:
            self._to_plan = False
            self.core.plan()
            self._to_plan = False

    def _ends(self) -> None:
        """What agents do, and say."""
        agenda, now, agents = self._agenda, self.core.now, self.agents
        while agenda and agenda[0][0] <= now:
            heappop(agenda)[2]()
        self._hear_all()
        orders, agents.orders = agents.orders, []
        for order in orders:
            self.core.command(order)

    def _hear_all(self) -> None:
        """What agents said since they were last heard."""
        said, self.agents.said = self.agents.said, []
        self._hear(said)

    def _hear(self, said: list[FromNode]) -> None:
        for first in range(0, len(said), MESSAGES_A_COMMIT):
            self.core.hear(said[first : first + MESSAGES_A_COMMIT])

    def _comes(self) -> None:
        """Commands and submissions of now, in the order of their times; commands first."""
        scenario, now = self.scenario, self.core.now
        while self._commanded < len(scenario.commands) and scenario.commands[self._commanded].at <= now:
            self._commanded += 1
            self.core.command(scenario.commands[self._commanded - 1].command)
        while self._arrived < len(scenario.arrivals) and scenario.arrivals[self._arrived].at <= now:
            self._arrived += 1
            self._submit(scenario.arrivals[self._arrived - 1])

    def _submit(self, arrival: Arrival) -> None:
        self.agents.work[arrival.job_id] = arrival.work
        self.agents.work |= arrival.elements
        self.recorder.arrives(arrival)
        principal = Principal(f"user:{arrival.user or arrival.spec.team}")
        for event in self.core.command(SubmitJob(job_id=arrival.job_id, spec=arrival.spec), principal):
            if isinstance(event, CommandRefused):
                self.recorder.refused(arrival, event.code)

    def _looks(self) -> None:
        """At the time: silence, limits, what follows from ends."""
        core, noticed, self._noticed = self.core, self._noticed, []
        due = tuple(core.timers.due(core.now))
        if not (due or noticed or self.agents.silent or core.state.follow_ups):
            return
        core.tick(
            Tick(
                silent=tuple(silences(core, self.agents)),
                missing=tuple(lease for tick in noticed for lease in tick.missing),
                faults=tuple(fault for tick in noticed for fault in tick.faults),
                confirmed=tuple(index for tick in noticed for index in tick.confirmed),
                due=due,
            )
        )

    def _at(self, at: Instant, action: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._agenda, (at, self._count, action))

    def _see(self, events: tuple[Event, ...]) -> None:
        """Does it have to be planned again?"""
        for event in events:
            if type(event) not in QUIET and (not isinstance(event, GangRunning) or self._may_grow(event)):
                self._to_plan = True
                self._moments = None
                self._changed_at = self.core.now
            if isinstance(event, GangResized) and event.stopped:
                self._grew_smaller = True

    def _may_grow(self, event: GangRunning) -> bool:
        """A gang that runs may grow, if it is elastic. To others it shows in the order of victims alone."""
        return (event.job_id, event.attempt) in self.core.planner.victims.elastic


def _quotas(lines: tuple[TeamQuota, ...]) -> list[SetQuota]:
    """One command a team, in the order in which teams come."""
    teams: dict[TeamId, list[TeamQuota]] = {}
    for line in lines:
        teams.setdefault(line.team, []).append(line)
    return [
        SetQuota(
            team=team,
            lines=tuple(
                QuotaLine(gpu_type=line.gpu_type, guaranteed=line.guaranteed, borrow_limit=line.borrow_limit)
                for line in own
            ),
            classes=own[0].classes,
        )
        for team, own in teams.items()
    ]
