"""Exit codes: one table, for errors and for how jobs end."""

from __future__ import annotations

from signalbox.errors import NoProfile, Refused, SignalboxError, Unreachable
from signalbox.shapes import Job

OK = 0
USAGE = 2
REFUSED = 3
UNREACHABLE = 4
FAULT = 5
TIMED_OUT = 124
INTERRUPTED = 130

TABLE = """Exit codes: 0 done; 2 wrong usage, file or profile; 3 refused (the reason is on stderr); 4 not reachable;
5 error of the service; 130 interrupted. run and submit --wait: the job's own exit code; 124 its max runtime was up;
130 it was cancelled; 3 it was rejected."""


def of_error(error: SignalboxError) -> int:
    """The exit code for an error."""
    match error:
        case NoProfile():
            return USAGE
        case Unreachable():
            return UNREACHABLE
        case Refused():
            return REFUSED
        case _:
            return FAULT


def of_job(job: Job) -> int:
    """The exit code that stands for a job's end: its own where it has one."""
    if job.state == "SUCCEEDED":
        return job.exit_code or OK
    if job.state == "TIMED_OUT":
        return TIMED_OUT
    if job.state == "CANCELLED":
        return INTERRUPTED
    if job.state == "REJECTED":
        return REFUSED
    return job.exit_code or 1
