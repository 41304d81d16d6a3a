"""Identifiers and instants. Opaque strings and integers that must not be mixed up.

Only names live here; whoever makes an id passes it in (the core draws nothing at random).
"""

from typing import NewType

ClusterId = NewType("ClusterId", str)
JobId = NewType("JobId", str)
"""`j_` + 10 base-32 digits of milliseconds + 10 random ones: opaque, sorts by time of submission."""
LeaseId = NewType("LeaseId", str)
"""Derived: `lease_id(job, attempt, rank)`."""
NodeId = NewType("NodeId", str)
NodeIndex = NewType("NodeIndex", int)
"""A node's place in its cluster's state: dense, given at first registration, never reused."""
BlockId = NewType("BlockId", str)
TeamId = NewType("TeamId", str)
GpuType = NewType("GpuType", str)
CommandId = NewType("CommandId", str)
Principal = NewType("Principal", str)
"""Who acts: `user:ada`, `node:n-0412`, `scheduler`."""
LogId = NewType("LogId", str)
"""Random value in the first record of a log: tells a log from one created anew under its name (P-4)."""
Nonce = NewType("Nonce", str)
Epoch = NewType("Epoch", int)
Instant = NewType("Instant", int)
"""Milliseconds since 1970-01-01 UTC."""
GpuMask = NewType("GpuMask", int)
"""Bit i set = the GPU in slot i of the node."""


def element_id(array: JobId, index: int) -> JobId:
    """The job that element `index` of an array becomes when it is granted."""
    return JobId(f"{array}_{index}")


def array_named(job: str) -> JobId | None:
    """The array of which a job with such an id would be an element; None where it has no such form."""
    array, _, index = job.rpartition("_")
    return JobId(array) if "_" in array and index.isdecimal() else None


def lease_id(job: JobId, attempt: int, rank: int) -> LeaseId:
    """The lease of one rank of one attempt; unique for ever, since attempts of a job are numbered."""
    return LeaseId(f"{job}.{attempt}.{rank}")


def parse_lease_id(lease: LeaseId) -> tuple[JobId, int, int]:
    """(job, attempt, rank) of a lease id. Raises ValueError where it is not one."""
    job, attempt, rank = lease.rsplit(".", 2)
    return JobId(job), int(attempt), int(rank)
