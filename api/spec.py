"""A submission into a JobSpec: the rules that a schema cannot state, each fault as a FieldError.

Reads no clock: the same body is valid today and at a retry tomorrow (R-2).
"""

from collections.abc import Iterator
from typing import Any

from api import schemas
from api.credentials import names_credential
from api.problems import FieldError, Problem
from api.schemas import JobSubmission
from api.texts import credential_fault, form_fault, name_fault, prose_fault
from api.times import parse_duration, parse_time
from api.validation import field_name, invalid, try_model
from events.ids import ClusterId, GpuType, Instant, JobId, TeamId
from events.job import ArrayRange, CheckpointPlan, DataLocation, Dependency, Elastic, JobSpec, PriorityClass, Topology

RUNTIME_MAX_S = 366 * 86400
ARRAY_MAX = 50_000
SECRET_REF_PATTERN = r"(?:env:[A-Za-z_][A-Za-z0-9_]{0,127}|[a-z][a-z0-9-]{0,15}:[A-Za-z0-9._/@:#-]{1,256})"
UNLIMITED = "unlimited"


def read_submission(body: dict[str, Any], cluster: ClusterId) -> JobSpec:
    """The spec that a body asks for. Raises Problem naming every bad field."""
    wire, errors = try_model(JobSubmission, body)
    if wire is None:
        errors.extend(_credentials_only(body, errors))
        raise invalid(errors)
    errors = [*_text_faults(wire), *_rule_faults(wire, cluster)]
    if errors:
        raise invalid(errors)
    return _spec(wire)


def labels_faults(labels: dict[str, str]) -> Iterator[FieldError]:
    """Labels with odd names or values."""
    for key, value in labels.items():
        field = f"labels.{field_name(key)}"
        if fault := form_fault(field, key, schemas.LABEL_PATTERN):
            yield fault
        elif len(value) > schemas.LABEL_VALUE_MAX:
            limit = f"at most {schemas.LABEL_VALUE_MAX}"
            yield FieldError(field, None, limit, f"is too long: {limit}")
        elif fault := name_fault(field, value):
            yield fault


def _credentials_only(body: dict[str, Any], known: list[FieldError]) -> Iterator[FieldError]:
    """Also a body with other faults is told of credentials in it."""
    env = body.get("env")
    if isinstance(env, dict):
        named = {error.field for error in known}
        faults = _env_faults({key: value for key, value in env.items() if isinstance(value, str)})
        yield from (fault for fault in faults if fault.field not in named)


def _text_faults(wire: JobSubmission) -> Iterator[FieldError]:
    for place, argument in enumerate(wire.command):
        if fault := prose_fault(f"command[{place}]", argument):
            yield fault
    if not wire.command[0].strip():
        yield FieldError("command[0]", "", "a program", "has to name a program")
    yield from _env_faults(wire.env)
    yield from _secret_faults(wire.secrets)
    yield from labels_faults(wire.labels)
    for field, text in (("name", wire.name), ("workdir", wire.workdir), ("checkpoint.uri", wire.checkpoint.uri)):
        if text is not None and (fault := name_fault(field, text)):
            yield fault
    if wire.image is not None and (fault := credential_fault("image", wire.image)):
        yield fault


def _env_faults(env: dict[str, str]) -> Iterator[FieldError]:
    for key, value in env.items():
        field = f"env.{field_name(key)}"
        if fault := form_fault(field, key, schemas.ENV_NAME_PATTERN):
            yield fault
        elif len(value) > schemas.ENV_VALUE_MAX:
            yield FieldError(field, None, f"at most {schemas.ENV_VALUE_MAX}", "is too long")
        elif fault := prose_fault(field, value):
            yield fault
        elif names_credential(key, value):
            message = "is named like a credential: it would be public; name a reference in `secrets`"
            yield FieldError(field, None, "no credentials", message)


def _secret_faults(secrets: dict[str, str]) -> Iterator[FieldError]:
    for key, reference in secrets.items():
        field = f"secrets.{field_name(key)}"
        if (fault := form_fault(field, key, schemas.ENV_NAME_PATTERN)) or (fault := credential_fault(field, reference)):
            yield fault
        elif form_fault(field, reference, SECRET_REF_PATTERN):
            yield FieldError(field, None, "a reference", "has to be a reference as env:NAME, never the secret itself")


def _rule_faults(wire: JobSubmission, cluster: ClusterId) -> Iterator[FieldError]:
    yield from _time_faults(wire)
    if wire.cluster is not None and wire.cluster != cluster:
        yield FieldError("cluster", wire.cluster, cluster, f"is not served here: this is {cluster}")
    if wire.workdir is not None and ".." in wire.workdir.split("/"):
        yield FieldError("workdir", wire.workdir, "no ..", "may not hold ..")
    if wire.elastic is not None:
        low, high = wire.elastic.min_replicas, wire.elastic.max_replicas
        if low > high:
            yield FieldError("elastic.min_replicas", low, f"at most {high}", "is above elastic.max_replicas")
        elif not low <= wire.replicas <= high:
            yield FieldError("replicas", wire.replicas, f"{low} to {high}", "is outside the elastic range")
    if wire.array is not None:
        yield from _array_faults(wire.array)
    seen: set[str] = set()
    for place, dependency in enumerate(wire.depends_on):
        if dependency.job in seen:
            yield FieldError(f"depends_on[{place}].job", dependency.job, "each job once", "is named twice")
        seen.add(dependency.job)


def _time_faults(wire: JobSubmission) -> Iterator[FieldError]:
    if wire.max_runtime == UNLIMITED:
        if wire.priority_class is not PriorityClass.PROD_SERVING:
            limit = "a duration"
            yield FieldError("max_runtime", UNLIMITED, limit, "may be unlimited for prod-serving only")
    elif parse_duration(wire.max_runtime) > RUNTIME_MAX_S:
        yield FieldError("max_runtime", wire.max_runtime, "at most 366d", "is longer than 366d")
    if parse_duration(wire.checkpoint.interval) > RUNTIME_MAX_S:
        yield FieldError("checkpoint.interval", wire.checkpoint.interval, "at most 366d", "is longer than 366d")
    if wire.deadline is not None:
        try:
            parse_time(wire.deadline)
        except ValueError as error:
            yield FieldError("deadline", wire.deadline, "a time with a zone", f"is not {error}"[:200])


def _array_faults(text: str) -> Iterator[FieldError]:
    array = _array(text)
    count = array.last - array.first + 1
    if count < 1:
        yield FieldError("array", text, "first-last", "ends before it begins")
    elif count > ARRAY_MAX:
        yield FieldError("array", text, f"at most {ARRAY_MAX} elements", f"has {count} elements")
    if array.throttle == 0:
        yield FieldError("array", text, "at least %1", "lets nothing run: %0")


def _array(text: str) -> ArrayRange:
    """ "0-999%16" -> the range; "7" is 7-7."""
    span, _, throttle = text.partition("%")
    first, _, last = span.partition("-")
    return ArrayRange(first=int(first), last=int(last or first), throttle=int(throttle) if throttle else None)


def _spec(wire: JobSubmission) -> JobSpec:
    limited = wire.max_runtime != UNLIMITED
    elastic, place = wire.elastic, wire.data
    return JobSpec(
        team=TeamId(wire.team),
        command=tuple(wire.command),
        gpu_type=GpuType(wire.gpu_type),
        max_runtime_s=parse_duration(wire.max_runtime) if limited else None,
        replicas=wire.replicas,
        gpus_per_replica=wire.gpus_per_replica,
        priority_class=wire.priority_class,
        image=wire.image,
        env=wire.env,
        secrets=wire.secrets,
        gpu_memory_gb_min=wire.gpu_memory_gb_min,
        topology=Topology(
            pack=wire.topology.pack,
            spread=wire.topology.spread,
            max_blocks=wire.topology.max_blocks,
            strict=wire.topology.strict,
        ),
        checkpoint=CheckpointPlan(
            preemptible=wire.checkpoint.preemptible,
            grace_s=wire.checkpoint.grace_seconds,
            interval_s=parse_duration(wire.checkpoint.interval),
            uri=wire.checkpoint.uri,
        ),
        elastic=Elastic(min_replicas=elastic.min_replicas, max_replicas=elastic.max_replicas) if elastic else None,
        deadline_at=Instant(parse_time(wire.deadline)) if wire.deadline else None,
        data=DataLocation(cluster=place.cluster, size_gb=place.size_gb) if place else None,
        name=wire.name,
        labels=wire.labels,
        workdir=wire.workdir,
        interactive=wire.interactive,
        overlap=wire.overlap,
        retries=wire.retries,
        array=_array(wire.array) if wire.array else None,
        depends_on=tuple(Dependency(job=JobId(each.job), when=each.when) for each in wire.depends_on),
    )


def read_change(body: dict[str, Any]) -> schemas.JobChange:
    """A PATCH of a waiting job. Raises Problem; an empty one too, since it would change nothing."""
    wire, errors = try_model(schemas.JobChange, body)
    if wire is not None:
        errors = list(labels_faults(wire.labels or {}))
        if wire.priority_class is None and wire.labels is None:
            raise Problem("invalid", "nothing to change: give priority_class or labels")
    if wire is None or errors:
        raise invalid(errors)
    return wire
