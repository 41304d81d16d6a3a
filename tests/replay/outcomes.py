"""Rows of outcomes for tests of the report, with what a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from events.ids import GpuType, Instant, JobId, TeamId
from events.job import EndReason, JobState, PriorityClass
from events.preemption import PreemptionRule
from replay.outcome import Displacement, JobOutcome, Outcome, Sample, Stretch, TeamSample

H100, L40S = GpuType("h100"), GpuType("l40s")
RED, BLUE = TeamId("red"), TeamId("blue")
HOUR_S = 3600
NOON = Instant(1_760_000_400_000)
"""Some moment of 2025: the start of every outcome here that says nothing else."""


def at(seconds: float) -> Instant:
    """So many seconds after the start."""
    return Instant(NOON + round(seconds * 1000))


def job(name: str, /, **fields: Any) -> JobOutcome:
    """One job: of one GPU and 100 s, come at the start, started at once, ended well."""
    first = fields.get("first_start_at", NOON)
    given: dict[str, Any] = {
        "job_id": JobId(f"j_{name}"),
        "team": RED,
        "user": "user:ada",
        "name": name,
        "priority_class": PriorityClass.RESEARCH,
        "gpu_type": H100,
        "gpus": 1,
        "charged": fields.get("gpus", 1) if first is not None else 0,
        "submitted_at": NOON,
        "first_start_at": NOON,
        "ended_at": at(100),
        "state": JobState.SUCCEEDED,
        "reason": EndReason.COMPLETED,
        "waited_s": 0,
        "first_wait_s": 0,
        "run_s": 100,
        "kept_gpu_s": 100,
        "lost_gpu_s": 0,
        "preemptions": 0,
        "faults": 0,
    }
    return JobOutcome(**(given | fields))


def waiting(name: str, waited_s: int, /, **fields: Any) -> JobOutcome:
    """A job that waited so long for its first start, and then ran for 100 s."""
    given: dict[str, Any] = {
        "waited_s": waited_s,
        "first_wait_s": waited_s,
        "first_start_at": at(waited_s),
        "ended_at": at(waited_s + 100),
    }
    return job(name, **(given | fields))


def stretch(name: str, granted_s: float, released_s: float | None, **fields: Any) -> Stretch:
    """One attempt of a job, from second to second."""
    given: dict[str, Any] = {
        "job_id": JobId(f"j_{name}"),
        "attempt": 1,
        "team": RED,
        "gpu_type": H100,
        "gpus": 1,
        "nodes": 1,
        "blocks": 1,
        "granted_at": at(granted_s),
        "running_at": at(granted_s),
        "released_at": None if released_s is None else at(released_s),
        "reason": EndReason.COMPLETED,
        "borrowed": False,
    }
    return Stretch(**(given | fields))


def displacement(victim: str, preemptor: str, ordered_s: float = 0, **fields: Any) -> Displacement:
    """A reclaim of red's one GPU for blue, with a start 20 s later."""
    given: dict[str, Any] = {
        "victim": JobId(f"j_{victim}"),
        "victim_attempt": 1,
        "victim_team": RED,
        "preemptor": JobId(f"j_{preemptor}"),
        "preemptor_team": BLUE,
        "rule": PreemptionRule.RECLAIM,
        "gpus": 1,
        "lost_gpu_s": 0,
        "ordered_at": at(ordered_s),
        "freed_at": at(ordered_s + 20),
        "started_at": at(ordered_s + 20),
    }
    return Displacement(**(given | fields))


def sample(end_s: int, allocated: int = 0, healthy: int = 8, **fields: Any) -> Sample:
    """A fleet of 8 over the 100 s before `end_s`; `allocated`, `healthy`: GPUs; `held`: too."""
    seconds = fields.pop("seconds", 100)
    given: dict[str, Any] = {
        "at": at(end_s),
        "gpu_type": H100,
        "seconds": seconds,
        "healthy_gpu_s": healthy * seconds,
        "allocated_gpu_s": allocated * seconds,
        "held_gpu_s": fields.pop("held", 0) * seconds,
        "waiting_jobs": 0,
        "waiting_gpus": 0,
    }
    return Sample(**(given | fields))


def team_sample(end_s: int, team: TeamId, delivered: int, entitled: int, **fields: Any) -> TeamSample:
    """A team over the 100 s before `end_s`, in GPUs; it asks for what it is entitled to or gets."""
    given: dict[str, Any] = {
        "at": at(end_s),
        "team": team,
        "gpu_type": H100,
        "guaranteed": entitled,
        "delivered_gpu_s": delivered * 100,
        "entitled_gpu_s": entitled * 100,
        "demand_gpu_s": max(delivered, entitled) * 100,
    }
    return TeamSample(**(given | fields))


def outcome(policy_name: str, jobs: Sequence[JobOutcome], **fields: Any) -> Outcome:
    """An outcome of these jobs; their stretches are made of their first starts where none are given."""
    starts = [
        stretch(
            one.job_id.removeprefix("j_"),
            (one.first_start_at - NOON) / 1000,
            None if one.ended_at is None else (one.ended_at - NOON) / 1000,
            team=one.team,
            gpus=one.gpus,
            gpu_type=one.gpu_type,
        )
        for one in jobs
        if one.first_start_at is not None
    ]
    given: dict[str, Any] = {
        "scenario": "a small day",
        "gpus": 8,
        "start_at": NOON,
        "end_at": at(100_000),
        "jobs": tuple(jobs),
        "stretches": tuple(starts),
        "displacements": (),
        "samples": (),
        "team_samples": (),
    }
    return Outcome(policy_name=policy_name, **(given | fields))
