"""The report as JSON: every figure of the page, under the names of keys.py, for programs. The rows are in Parquet."""

from dataclasses import asdict
from typing import Any

import orjson

from replay.report.headline import headline
from replay.report.keys import Difference
from replay.report.movers import Mover
from replay.report.notes import Notes, parameters
from replay.report.reasons import sentence
from replay.report.study import Pair, Portrait, Study

VERSION = 1
"""Of this format: it grows by new keys; another number means that a key has another meaning."""


def as_json(study: Study, notes: Notes) -> bytes:
    """The same bytes for the same study and notes."""
    return orjson.dumps(record(study, notes), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)


def record(study: Study, notes: Notes) -> dict[str, Any]:
    """Plain values."""
    return {
        "version": VERSION,
        "scenario": study.first.outcome.scenario,
        "headline": headline(study),
        "policies": [_portrait(one) for one in study.portraits],
        "comparisons": [_pair(pair) for pair in study.pairs],
        "made": {
            "source": notes.source,
            "command": notes.command,
            "seed": notes.seed,
            "unusable": dict(notes.unusable),
            "exceptions": list(notes.exceptions),
            "models": list(notes.models),
            "dollars_per_gpu_hour": {"other": study.rates.other, **study.rates.of_type},
            "parameters": dict(parameters(notes.policies)),
        },
    }


def _portrait(one: Portrait) -> dict[str, Any]:
    outcome = one.outcome
    return {
        "policy": one.label,
        "scenario": outcome.scenario,
        "gpus": outcome.gpus,
        "start_at": outcome.start_at,
        "end_at": outcome.end_at,
        "cycles": outcome.cycles,
        "commits": outcome.commits,
        "events": outcome.events,
        "figures": {figure.name: figure.value for figure in one.figures},
        "waits": [asdict(row) for row in one.waits],
        "longest_waits": [{"job_id": job.job_id, "team": job.team, "waited_s": job.waited_s} for job in one.longest],
        "ends": _ends(one),
        "use": {name: asdict(use) | {"utilisation": use.utilisation} for name, use in one.uses.items()},
        "over_time": [asdict(moment) for moment in one.moments],
        "stranded": [asdict(row) for row in one.stranded],
        "teams": [asdict(share) | {"ratio": share.ratio} for share in one.shares],
        "fairness_over_time": {"ends": one.course_ends, "teams": {line.team: line.ratios for line in one.courses}},
        "losses": asdict(one.losses),
        "team_losses": [asdict(row) for row in one.team_losses],
        "reclaims": [asdict(row) for row in one.reclaims],
        "lost_over_time": [{"end": end, "victims": count, "gpu_s": gpu_s} for end, count, gpu_s in one.lost],
        "wait_curves": one.wait_curves,
    }


def _ends(one: Portrait) -> dict[str, Any]:
    ended = [{"state": state, "reason": why, "jobs": count} for (state, why), count in one.ends.ended.items()]
    return {
        "submitted": one.ends.submitted,
        "refused": one.ends.refused,
        "ended": ended,
        "running": one.ends.running,
        "waiting": one.ends.waiting,
    }


def _pair(pair: Pair) -> dict[str, Any]:
    moves = pair.moves
    return {
        "policy": pair.first.label,
        "against": pair.other.label,
        "differences": {one.figure.name: _difference(one) for one in pair.differences},
        "details": [
            {"by": one.detail.by, "value": one.detail.value, "figure": one.detail.figure.name}
            | _difference(one.difference)
            for one in pair.details
        ],
        "jobs": {
            "gained": moves.gained,
            "lost": moves.lost,
            "same": moves.same,
            "incomparable": moves.incomparable,
            "absent": moves.absent,
            "gained_s": moves.gained_s,
            "lost_s": moves.lost_s,
        },
        "winners": [_mover(one, worse=pair.other.label, better=pair.first.label) for one in moves.winners],
        "losers": [_mover(one, worse=pair.first.label, better=pair.other.label) for one in moves.losers],
    }


def _difference(one: Difference) -> dict[str, Any]:
    return {
        "first": one.figure.value,
        "other": one.other,
        "change": one.change,
        "share": one.share,
        "better": str(one.figure.better),
        "verdict": str(one.verdict),
    }


def _mover(one: Mover, *, worse: str, better: str) -> dict[str, Any]:
    return {
        "job_id": one.first.job_id,
        "name": one.first.name,
        "team": one.first.team,
        "priority_class": one.first.priority_class,
        "gpus": one.first.gpus,
        "seconds": one.seconds,
        "at_least": one.at_least,
        "sentence": sentence(one.reason, worse, better),
        "reason": asdict(one.reason),
    }
