"""The rows of an Outcome, folded from accepted commits as they come. It decides nothing, and asks no policy.

Work of an attempt is kept up to its last accepted checkpoint; one that is written after SIGTERM keeps what was done
until then. What a job's own end brings (success, its exit code, its limit, a cancel) keeps all. The rest is lost.
"""

from collections.abc import Callable
from typing import Any

from commands.changed import News
from commands.decide.attempts import FAULTS
from commands.entities import AttemptKey, Job
from commands.rows import maker
from events.checkpoint import CheckpointRecorded
from events.envelope import Event
from events.gang import GangAllocated, GangEnding, GangReleased, GangRunning
from events.ids import Instant, JobId
from events.job import EndReason, JobElementMade, JobFinished, JobQueued, JobRejected, JobState, QueueReason
from events.preemption import PledgeEnd, PreemptionEnded, PreemptionOrdered
from replay.engine.core import Core
from replay.engine.meters import Meters
from replay.engine.tales import AttemptTale, JobTale, Victim
from replay.outcome import Outcome, Sample, TeamSample
from replay.scenario import Arrival, Scenario
from scheduler.planning.fragmentation import stranded

_team_sample = maker(TeamSample)
NOT_ITS_OWN = {*FAULTS, EndReason.NO_PROGRESS}


class Recorder:
    """What one replay came to so far."""

    def __init__(self, core: Core, saved_at: Callable[[JobId], Instant], *, sample_s: int = 900) -> None:
        self._core = core
        self._saved_at = saved_at
        """When a job wrote its newest checkpoint."""
        self._meters = Meters(core.state)
        self._sample_ms = sample_s * 1000
        self._sampled_at = core.now
        self._jobs: dict[JobId, JobTale] = {}
        self._open: dict[AttemptKey, AttemptTale] = {}
        self._attempts: list[AttemptTale] = []
        self._victims: list[Victim] = []
        self._victim_of: dict[AttemptKey, Victim] = {}
        self._ordered: dict[JobId, list[Victim]] = {}
        self._samples: list[Sample] = []
        self._team_samples: list[TeamSample] = []
        self._events = 0
        core.followers.append(self.follow)

    # What comes

    def arrives(self, arrival: Arrival) -> None:
        """A job is about to be submitted."""
        self._jobs[arrival.job_id] = JobTale(arrival, self._core.now)

    def refused(self, arrival: Arrival, code: str) -> None:
        """Its submission was."""
        self._jobs[arrival.job_id].rejected(code, self._core.now)

    def follow(self, events: tuple[Event, ...], news: News) -> None:
        """A commit was accepted now."""
        self._events += len(events)
        for event in events:
            fold = _FOLDS.get(type(event))
            if fold is not None:
                fold(self, event)
        now = self._core.now
        for _, key, old, new in news.get("attempts", ()):
            if new is not None and (old is None or old.charged != new.charged):
                self._open[key].charge(now, new.charged)
        for _, key, old, new in news.get("jobs", ()):
            if new is None:
                self._gone(self._jobs[key], old)
        self._meters.follow(now, news)

    def _gone(self, tale: JobTale, job: Job) -> None:
        """The job ended, and holds nothing any more."""
        tale.waited_ms = job.waited_ms
        if job.waits_since is not None and tale.ended_at is not None:
            tale.waited_ms += max(0, tale.ended_at - job.waits_since)

    def _element(self, event: JobElementMade) -> None:
        array = self._jobs[event.array]
        array.elements += 1
        self._jobs[event.job_id] = JobTale(array.arrival, array.submitted_at, job_id=event.job_id)

    def _job_rejected(self, event: JobRejected) -> None:
        self._jobs[event.job_id].rejected(event.code, self._core.now)

    def _queued(self, event: JobQueued) -> None:
        self._jobs[event.job_id].preemptions += event.reason is QueueReason.PREEMPTED

    def _finished(self, event: JobFinished) -> None:
        tale = self._jobs[event.job_id]
        tale.ended_at, tale.state, tale.reason = self._core.now, event.state, event.reason
        attempt = self._open.get((event.job_id, tale.attempt))
        if attempt is not None:
            attempt.whole = event.state is JobState.SUCCEEDED or event.reason not in NOT_ITS_OWN

    def _allocated(self, event: GangAllocated) -> None:
        state, job = self._core.state, self._jobs[event.job_id]
        attempt = state.attempts[event.job_id, event.attempt]
        nodes = {index for index, _ in event.ranks}
        tale = AttemptTale(
            attempt,
            nodes=len(nodes),
            blocks=len({state.nodes[index].block for index in nodes}),
            borrowed=attempt.key in self._core.planner.shares.borrowed((attempt.team, attempt.gpu_type)),
        )
        self._open[attempt.key] = tale
        self._attempts.append(tale)
        job.granted(tale)

    def _running(self, event: GangRunning) -> None:
        self._open[event.job_id, event.attempt].runs(self._core.now)

    def _checkpoint(self, event: CheckpointRecorded) -> None:
        self._open[event.job_id, event.attempt].saved(self._saved_at(event.job_id))

    def _ending(self, event: GangEnding) -> None:
        self._open[event.job_id, event.attempt].stops(self._core.now, event.reason)
        self._jobs[event.job_id].faults += event.reason in FAULTS

    def _released(self, event: GangReleased) -> None:
        key, now = (event.job_id, event.attempt), self._core.now
        tale = self._open.pop(key)
        tale.ends(now)
        job = self._jobs[event.job_id]
        job.kept_gpu_ms += tale.kept_gpu_ms
        job.lost_gpu_ms += tale.lost_gpu_ms
        victim = self._victim_of.pop(key, None)
        if victim is not None:
            victim.freed_at, victim.lost_gpu_s = now, tale.lost_gpu_ms // 1000

    def _preempted(self, event: PreemptionOrdered) -> None:
        attempts, preemptor = self._core.state.attempts, self._jobs[event.job_id]
        made = [Victim(attempts[key], preemptor, event.rule, self._core.now) for key in event.victims]
        self._victims += made
        self._ordered[event.job_id] = made
        self._victim_of |= {victim.key: victim for victim in made}

    def _pledge_over(self, event: PreemptionEnded) -> None:
        for victim in self._ordered.pop(event.job_id, []):
            victim.started_at = self._core.now if event.because is PledgeEnd.STARTED else None

    # Samples

    def until(self, at: Instant) -> None:
        """Nothing more happens before `at`: take the samples that are due."""
        while (due := Instant(self._sampled_at + self._sample_ms)) <= at:
            self._sample(due)

    def _sample(self, at: Instant) -> None:
        seconds, self._sampled_at = (at - self._sampled_at) // 1000, at
        left: dict[str, dict[int, int]] = {}
        for line in stranded(self._core.planner.capacity):
            sizes = left.setdefault(line.gpu_type, {})
            sizes[line.size] = sizes.get(line.size, 0) + line.stranded
        for gpu_type, fleet in sorted(self._meters.types.items()):
            fleet.waiting.take(at)
            self._samples.append(
                Sample(
                    at=at,
                    gpu_type=gpu_type,
                    seconds=seconds,
                    healthy_gpu_s=fleet.healthy.take(at),
                    allocated_gpu_s=fleet.allocated.take(at),
                    held_gpu_s=fleet.held.take(at),
                    waiting_jobs=fleet.jobs,
                    waiting_gpus=fleet.waiting.rate,
                    stranded=left.get(gpu_type, {}),
                )
            )
        for (team, gpu_type), own in sorted(self._meters.teams.items()):
            self._team_samples.append(
                _team_sample(
                    at=at,
                    team=team,
                    gpu_type=gpu_type,
                    guaranteed=own.guaranteed,
                    delivered_gpu_s=own.delivered.take(at),
                    entitled_gpu_s=own.entitled.take(at),
                    demand_gpu_s=own.demand.take(at),
                )
            )

    # The end

    def outcome(self, scenario: Scenario, policy_name: str) -> Outcome:
        """All rows, as of now: what runs is kept so far, what waits has waited until now."""
        core, now = self._core, self._core.now
        if now > self._sampled_at:
            self._sample(now)
        for key, tale in self._open.items():
            tale.goes_on(now)
            self._jobs[key[0]].kept_gpu_ms += tale.kept_gpu_ms
            self._jobs[key[0]].lost_gpu_ms += tale.lost_gpu_ms
        for job_id, job in core.state.jobs.rows.items():
            since = job.waits_since if job.waits_since is not None else now
            self._jobs[job_id].waited_ms = job.waited_ms + max(0, now - since)
        tales = sorted(self._jobs.values(), key=lambda tale: (tale.submitted_at, tale.job_id))
        rows = sorted(self._attempts, key=lambda tale: (tale.granted_at, tale.key))
        victims = sorted(self._victims, key=lambda victim: (victim.ordered_at, victim.key))
        return Outcome(
            scenario=scenario.name,
            policy_name=policy_name,
            gpus=scenario.gpus,
            start_at=scenario.start_at,
            end_at=now,
            jobs=tuple(tale.row(now) for tale in tales if not tale.elements),
            stretches=tuple(tale.row() for tale in rows),
            displacements=tuple(victim.row() for victim in victims),
            samples=tuple(self._samples),
            team_samples=tuple(self._team_samples),
            cycles=core.cycles,
            commits=core.commits,
            events=self._events,
        )


_FOLDS: dict[type, Callable[[Recorder, Any], None]] = {
    JobElementMade: Recorder._element,
    JobRejected: Recorder._job_rejected,
    JobQueued: Recorder._queued,
    JobFinished: Recorder._finished,
    GangAllocated: Recorder._allocated,
    GangRunning: Recorder._running,
    CheckpointRecorded: Recorder._checkpoint,
    GangEnding: Recorder._ending,
    GangReleased: Recorder._released,
    PreemptionOrdered: Recorder._preempted,
    PreemptionEnded: Recorder._pledge_over,
}
