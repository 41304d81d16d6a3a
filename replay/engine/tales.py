"""What is known so far of one job, one attempt, one victim: open rows of an Outcome."""

from commands.entities import Attempt, AttemptKey
from commands.rows import maker
from events.ids import Instant, JobId
from events.job import EndReason, JobState
from events.preemption import PreemptionRule
from replay.outcome import Displacement, JobOutcome, Stretch
from replay.scenario import Arrival

_job_outcome, _stretch = maker(JobOutcome), maker(Stretch)


class AttemptTale:
    """An attempt from its grant on. GPU-ms are of charged GPUs, as they were at each time; `gpu_ms` from the grant,
    `ran_gpu_ms` from running on. `whole`: its job came to its own end with it."""

    __slots__ = (
        "_charged",
        "_ran_from",
        "_saved",
        "_since",
        "_stopped",
        "blocks",
        "borrowed",
        "gpu_ms",
        "gpus",
        "granted_at",
        "kept_gpu_ms",
        "key",
        "lost_gpu_ms",
        "nodes",
        "of",
        "reason",
        "released_at",
        "running_at",
        "whole",
    )

    def __init__(self, attempt: Attempt, *, nodes: int, blocks: int, borrowed: bool) -> None:
        self.of = (attempt.team, attempt.gpu_type)
        self.key: AttemptKey = attempt.key
        self.gpus = self._charged = attempt.charged
        self.nodes, self.blocks, self.borrowed = nodes, blocks, borrowed
        self.granted_at = self._since = attempt.granted_at
        self.running_at: Instant | None = None
        self.released_at: Instant | None = None
        self.reason: EndReason | None = None
        self.whole = False
        self.gpu_ms = self.kept_gpu_ms = self.lost_gpu_ms = 0
        self._ran_from = self._saved = 0
        self._stopped: int | None = None

    def charge(self, now: Instant, gpus: int) -> None:
        """So many GPUs are charged from now on."""
        self.gpu_ms += self._charged * (now - self._since)
        self._since, self._charged = now, gpus

    def runs(self, now: Instant) -> None:
        self.charge(now, self._charged)
        self.running_at = now
        self._ran_from = self._saved = self.gpu_ms

    def saved(self, at: Instant) -> None:
        """A checkpoint was accepted: of all that was done when it was written, or was until it was told to stop."""
        done = self.gpu_ms + self._charged * max(0, at - self._since)
        self._saved = done if self._stopped is None else self._stopped

    def stops(self, now: Instant, reason: EndReason) -> None:
        """It was told to."""
        self.charge(now, self._charged)
        self.reason, self._stopped = reason, self.gpu_ms

    def ends(self, now: Instant) -> None:
        """Its last lease ended."""
        self.charge(now, 0)
        self.released_at = now
        self.reason = self.reason or EndReason.COMPLETED
        self._share_out(self.gpu_ms if self.whole else self._saved)

    def goes_on(self, now: Instant) -> None:
        """The replay ends, and it does not."""
        self.charge(now, self._charged)
        self._share_out(self.gpu_ms if self.reason is None or self.whole else self._saved)

    def _share_out(self, kept_until: int) -> None:
        if self.running_at is not None:
            self.kept_gpu_ms = kept_until - self._ran_from
            self.lost_gpu_ms = self.gpu_ms - kept_until

    def row(self) -> Stretch:
        return _stretch(
            job_id=self.key[0],
            attempt=self.key[1],
            team=self.of[0],
            gpu_type=self.of[1],
            gpus=self.gpus,
            nodes=self.nodes,
            blocks=self.blocks,
            granted_at=self.granted_at,
            running_at=self.running_at,
            released_at=self.released_at,
            reason=self.reason,
            borrowed=self.borrowed,
            gpu_ms=self.gpu_ms,
        )


class JobTale:
    """A job from its submission on. `attempt`: number of its newest. `elements`: that were made of it, if an array."""

    __slots__ = (
        "arrival",
        "attempt",
        "charged",
        "elements",
        "ended_at",
        "faults",
        "first_start_at",
        "job_id",
        "kept_gpu_ms",
        "lost_gpu_ms",
        "preemptions",
        "reason",
        "refused",
        "state",
        "submitted_at",
        "waited_ms",
    )

    def __init__(self, arrival: Arrival, submitted_at: Instant, job_id: JobId | None = None) -> None:
        self.arrival = arrival
        self.job_id = job_id or arrival.job_id
        self.submitted_at = submitted_at
        self.first_start_at: Instant | None = None
        self.ended_at: Instant | None = None
        self.state: JobState | None = None
        self.reason: EndReason | None = None
        self.refused = ""
        self.attempt = self.charged = self.elements = 0
        self.waited_ms = self.preemptions = self.faults = 0
        self.kept_gpu_ms = self.lost_gpu_ms = 0

    def granted(self, tale: AttemptTale) -> None:
        self.attempt = tale.key[1]
        if self.first_start_at is None:
            self.first_start_at, self.charged = tale.granted_at, tale.gpus

    def rejected(self, code: str, now: Instant) -> None:
        self.refused, self.state, self.ended_at = code, JobState.REJECTED, now

    def row(self, now: Instant) -> JobOutcome:
        spec = self.arrival.spec
        started = self.first_start_at if self.first_start_at is not None else self.ended_at or now
        return _job_outcome(
            job_id=self.job_id,
            team=spec.team,
            user=self.arrival.user,
            name=spec.name,
            priority_class=spec.priority_class,
            gpu_type=spec.gpu_type,
            gpus=spec.gpus,
            charged=self.charged,
            submitted_at=self.submitted_at,
            first_start_at=self.first_start_at,
            ended_at=self.ended_at,
            state=self.state,
            reason=self.reason,
            waited_s=self.waited_ms // 1000,
            first_wait_s=(started - self.submitted_at) // 1000,
            run_s=self.arrival.work.run_s,
            kept_gpu_s=self.kept_gpu_ms // 1000,
            lost_gpu_s=self.lost_gpu_ms // 1000,
            preemptions=self.preemptions,
            faults=self.faults,
            refused=self.refused,
        )


class Victim:
    """One victim of one order."""

    __slots__ = ("freed_at", "gpus", "key", "lost_gpu_s", "of", "ordered_at", "rule", "started_at", "team")

    def __init__(self, attempt: Attempt, preemptor: JobTale, rule: PreemptionRule, now: Instant) -> None:
        self.key = attempt.key
        self.team = attempt.team
        self.gpus = attempt.charged
        self.of = preemptor
        self.rule = rule
        self.ordered_at = now
        self.freed_at: Instant | None = None
        self.started_at: Instant | None = None
        self.lost_gpu_s = 0

    def row(self) -> Displacement:
        return Displacement(
            victim=self.key[0],
            victim_attempt=self.key[1],
            victim_team=self.team,
            preemptor=self.of.job_id,
            preemptor_team=self.of.arrival.spec.team,
            rule=self.rule,
            gpus=self.gpus,
            lost_gpu_s=self.lost_gpu_s,
            ordered_at=self.ordered_at,
            freed_at=self.freed_at,
            started_at=self.started_at,
        )
