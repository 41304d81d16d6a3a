"""From "--gpus 16" to replicas and GPUs of each. Pure."""

from __future__ import annotations

NODE_GPUS = 8
"""A gang of more is made of replicas of so many, where nothing else is said."""


def gang(gpus: int | None, replicas: int | None, per_replica: int | None) -> tuple[int, int]:
    """(replicas, gpus_per_replica) for what was asked: `gpus` are those of the whole job.

    Up to 8 GPUs go on one node unless replicas say otherwise. Raises ValueError where the figures contradict.
    """
    if gpus is None:
        return replicas or 1, per_replica or 1
    if per_replica is None:
        per_replica = _shared(gpus, replicas) if replicas else min(gpus, NODE_GPUS)
    made = replicas or gpus // per_replica
    if made * per_replica != gpus:
        raise ValueError(
            f"--gpus {gpus} is not {made} x {per_replica}: give --replicas and --gpus-per-replica that multiply to it"
        )
    return made, per_replica


def _shared(gpus: int, replicas: int) -> int:
    if gpus % replicas:
        raise ValueError(f"--gpus {gpus} cannot be shared evenly by --replicas {replicas}")
    return gpus // replicas
