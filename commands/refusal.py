"""Refusals: values, not exceptions. A code and the figures; sentences are made at the edge."""

from dataclasses import dataclass
from enum import StrEnum


class RefusalCode(StrEnum):
    """Why a command changes nothing, or a job can never run. Stable: clients compare them."""

    # can never run: the job is REJECTED
    UNKNOWN_TEAM = "unknown_team"
    UNKNOWN_GPU_TYPE = "unknown_gpu_type"
    NO_QUOTA = "no_quota"
    OVER_CLUSTER = "over_cluster"
    OVER_QUOTA = "over_quota"
    OVER_GUARANTEE = "over_guarantee"
    """It starts only inside its team's guarantee (R-40), and that is smaller."""
    BORROWS_TOO_LONG = "borrows_too_long"
    """It could only borrow, and runs for longer than GPUs are lent for: `limit` is for how long they are."""
    OVER_NODE = "over_node"
    GPU_MEMORY = "gpu_memory"
    HINT_IMPOSSIBLE = "hint_impossible"
    IMAGE_NOT_ALLOWED = "image_not_allowed"
    NO_MAX_RUNTIME = "no_max_runtime"
    MAX_RUNTIME_TOO_LONG = "max_runtime_too_long"
    CLASS_NOT_ALLOWED = "class_not_allowed"
    UNKNOWN_DEPENDENCY = "unknown_dependency"
    ARRAY_TOO_LARGE = "array_too_large"
    NOT_SUPPORTED = "not_supported"
    # changes nothing
    QUEUE_FULL = "queue_full"
    KEY_CONFLICT = "key_conflict"
    UNKNOWN_JOB = "unknown_job"
    JOB_ENDED = "job_ended"
    WRONG_STATE = "wrong_state"
    UNKNOWN_NODE = "unknown_node"
    NODE_NOT_LOST = "node_not_lost"
    OVER_INVENTORY = "over_inventory"
    BAD_POLICY = "bad_policy"
    PROMISED = "promised"
    """An extension beyond the moment at which another job is to start on the same nodes: `value` is that job."""
    JOB_EXISTS = "job_exists"


@dataclass(frozen=True, slots=True)
class Refusal:
    """`field` as the client named it, `value` as it was (never a secret), `limit` that it broke."""

    code: RefusalCode
    field: str = ""
    value: str = ""
    limit: str = ""
