"""The wire form of what people ask for, and its translation into the core's values.

Strict: a bool is no number, an unknown field is an error, nothing is coerced. What a schema cannot say (credentials,
odd characters, fields that contradict one another) is in api.spec.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.times import DURATION_PATTERN, TIME_PATTERN
from events.job import DependsWhen, Overlap, PriorityClass, Span

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
JOB_ID_PATTERN = r"^j_[0-9A-Za-z]{1,40}(_[0-9]{1,9})?$"
ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
LABEL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"
ARRAY_PATTERN = r"^[0-9]{1,9}(-[0-9]{1,9})?(%[0-9]{1,9})?$"
RUNTIME_PATTERN = r"^([1-9][0-9]{0,8}[smhd]|unlimited)$"
URI_PATTERN = r"^([a-z][a-z0-9+.-]*://[^\s]+|/[^\s]*)$"
WORKDIR_PATTERN = r"^/"
FORMS = {
    DURATION_PATTERN: "a positive duration with a unit: 90s, 30m, 72h or 3d",
    RUNTIME_PATTERN: "a positive duration with a unit: 90s, 30m, 72h or 3d; or unlimited",
    TIME_PATTERN: "an RFC 3339 time with a zone: 2026-10-04T00:00:00Z",
    ARRAY_PATTERN: "a range and how many at a time: 0-999%16",
    URI_PATTERN: "a URI as s3://bucket/prefix, or an absolute path",
    JOB_ID_PATTERN: "the id of a job: j_...",
    WORKDIR_PATTERN: "an absolute path",
}
"""Patterns in words."""
GPUS_MAX = 1_000_000
ENV_MAX = 256
LABELS_MAX = 64
COMMAND_MAX = 1024
ARGUMENT_MAX = 32_768
ENV_VALUE_MAX = 32_768
LABEL_VALUE_MAX = 255
NAME_MAX = 128
DEPENDENCIES_MAX = 100
REASON_MAX = 500

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
JobRef = Annotated[str, Field(pattern=JOB_ID_PATTERN)]
Duration = Annotated[str, Field(pattern=DURATION_PATTERN, examples=["72h"])]
Count = Annotated[int, Field(ge=1, le=65_536)]
Labels = Annotated[dict[str, str], Field(max_length=LABELS_MAX)]
Reason = Annotated[str, Field(min_length=1, max_length=REASON_MAX)]
Class = Annotated[PriorityClass, Field(strict=False)]


class Strict(BaseModel):
    """No coercion, no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TopologyIn(Strict):
    """Placement hints; strict unless `strict` is false."""

    pack: Annotated[Span, Field(strict=False)] | None = None
    spread: Annotated[Span, Field(strict=False)] | None = None
    max_blocks: Annotated[int, Field(ge=1, le=10_000)] | None = None
    strict: bool = True


class CheckpointIn(Strict):
    """How the job saves its work. `uri`: a prefix, below which each lease writes."""

    preemptible: bool = True
    grace_seconds: Annotated[int, Field(ge=0, le=3600)] = 60
    interval: Duration = "30m"
    uri: Annotated[str, Field(max_length=1024, pattern=URI_PATTERN)] | None = None


class ElasticIn(Strict):
    """The range of replicas within which the job may run."""

    min_replicas: Count
    max_replicas: Count


class DataIn(Strict):
    """Where the data is, and how much of it."""

    cluster: Name
    size_gb: Annotated[int, Field(ge=0, le=10_000_000)]


class DependencyIn(Strict):
    """Wait for another job's end."""

    job: JobRef
    when: Annotated[DependsWhen, Field(strict=False)] = DependsWhen.AFTER_OK


class JobSubmission(Strict):
    """A job to run: `replicas` x `gpus_per_replica` GPUs at once, for at most `max_runtime`."""

    team: Name
    gpu_type: Name
    command: Annotated[
        list[Annotated[str, Field(max_length=ARGUMENT_MAX)]], Field(min_length=1, max_length=COMMAND_MAX)
    ]
    max_runtime: Annotated[str, Field(pattern=RUNTIME_PATTERN, examples=["72h"])]
    replicas: Count = 1
    gpus_per_replica: Annotated[int, Field(ge=1, le=1024)] = 1
    priority_class: Class = PriorityClass.RESEARCH
    image: Annotated[str, Field(max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]*$")] | None = None
    env: Annotated[dict[str, str], Field(max_length=ENV_MAX)] = {}
    secrets: Annotated[dict[str, str], Field(max_length=ENV_MAX)] = {}
    gpu_memory_gb_min: Annotated[int, Field(ge=0, le=100_000)] = 0
    topology: TopologyIn = TopologyIn()
    checkpoint: CheckpointIn = CheckpointIn()
    elastic: ElasticIn | None = None
    deadline: Annotated[str, Field(pattern=TIME_PATTERN)] | None = None
    data: DataIn | None = None
    name: Annotated[str, Field(max_length=NAME_MAX)] = ""
    labels: Labels = {}
    cluster: Name | None = None
    workdir: Annotated[str, Field(max_length=4096, pattern=WORKDIR_PATTERN)] | None = None
    interactive: bool = False
    overlap: Annotated[Overlap, Field(strict=False)] = Overlap.ALLOWED
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    array: Annotated[str, Field(pattern=ARRAY_PATTERN, examples=["0-999%16"])] | None = None
    depends_on: Annotated[list[DependencyIn], Field(max_length=DEPENDENCIES_MAX)] = []


class JobChange(Strict):
    """New class or labels of a waiting job; what is absent stays."""

    priority_class: Class | None = None
    labels: Labels | None = None


class Extension(Strict):
    """More run time."""

    by: Duration


class DrainIn(Strict):
    """Why the node is drained; `now`: stop what runs there, with grace."""

    reason: Reason
    now: bool = False


class ReasonIn(Strict):
    """Why."""

    reason: Reason


Gpus = Annotated[int, Field(ge=0, le=GPUS_MAX)]
Percent = Annotated[int, Field(ge=0, le=100)]


class QuotaLineIn(Strict):
    """What a team is guaranteed of a type, and may borrow beyond: each in GPUs, or in percent of the registered GPUs
    outside pools, resolved when it is set."""

    guaranteed: Gpus | None = None
    borrow_limit: Gpus | None = None
    guaranteed_percent: Percent | None = None
    borrow_limit_percent: Percent | None = None


class QuotaIn(BaseModel):
    """Quotas by GPU type; types that are not named stay as they are. `classes`: what the team may use."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    __pydantic_extra__: dict[str, QuotaLineIn] = Field(init=False)

    classes: Annotated[list[Class], Field(max_length=4)] | None = None
    reason: Annotated[str, Field(max_length=REASON_MAX)] = ""


class PolicyIn(Strict):
    """The whole new policy: what is absent gets its default."""

    policy: dict[str, Any]
    reason: Annotated[str, Field(max_length=REASON_MAX)] = ""
