"""From a checked command to its answer: bind, append, wait for the commit that names it.

A command that was appended is durable: whatever happens afterwards, a retry with the same key finds its answer.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import orjson

from api import metrics
from api.answers import Answer, AnswerBook
from api.auth import Caller
from api.bindings import Binding, Bindings
from api.context import ApiContext
from api.follower import Follower
from api.idempotency import body_digest, key_digest, new_command_id, new_job_id
from api.problems import FieldError, Problem, shown
from api.times import format_time, spoken_durations
from commands.messages import Command, CommandRecord, SubmitJob, encode_command
from commands.refusal import RefusalCode
from events.ids import CommandId, JobId
from events.job import JobSpec
from events.log import AppendRefused, LogUnavailable, LogUnusable, UnknownOutcome

PROBLEM_OF_REFUSAL = {
    RefusalCode.UNKNOWN_JOB: "unknown_job",
    RefusalCode.UNKNOWN_NODE: "unknown_node",
    RefusalCode.UNKNOWN_TEAM: "unknown_team",
    RefusalCode.JOB_ENDED: "conflict",
    RefusalCode.WRONG_STATE: "conflict",
    RefusalCode.NODE_NOT_LOST: "conflict",
    RefusalCode.JOB_EXISTS: "conflict",
    RefusalCode.PROMISED: "conflict",
    RefusalCode.KEY_CONFLICT: "key_conflict",
    RefusalCode.QUEUE_FULL: "queue_full",
}
"""All other refusals are `refused` (422)."""

_WORDS = {
    RefusalCode.UNKNOWN_JOB: "there is no such job",
    RefusalCode.UNKNOWN_NODE: "there is no such node",
    RefusalCode.UNKNOWN_TEAM: "there is no such team",
    RefusalCode.JOB_ENDED: "it has ended",
    RefusalCode.WRONG_STATE: "the present state does not allow this",
    RefusalCode.NODE_NOT_LOST: "the node is not lost",
    RefusalCode.JOB_EXISTS: "there is a job with this id already",
    RefusalCode.PROMISED: "another job is to start on its nodes before it would end",
    RefusalCode.KEY_CONFLICT: "the idempotency key was used before with another request",
    RefusalCode.QUEUE_FULL: "the team has too many queued jobs",
    RefusalCode.OVER_INVENTORY: "the guarantees would exceed the registered GPUs",
    RefusalCode.BAD_POLICY: "the policy is not valid",
    RefusalCode.UNKNOWN_GPU_TYPE: "the cluster has no such GPU type",
    RefusalCode.NO_QUOTA: "the team has no quota for this GPU type",
    RefusalCode.OVER_CLUSTER: "more GPUs than the cluster has",
    RefusalCode.OVER_QUOTA: "more GPUs than the team's guarantee and borrow limit",
    RefusalCode.OVER_GUARANTEE: "never preempted, it starts only inside the team's guarantee, which is smaller",
    RefusalCode.BORROWS_TOO_LONG: "beyond the team's guarantee only jobs that are over sooner start",
    RefusalCode.OVER_NODE: "more GPUs on a node than any node has",
    RefusalCode.GPU_MEMORY: "no GPU of this type has so much memory",
    RefusalCode.HINT_IMPOSSIBLE: "no hardware can meet the topology hint",
    RefusalCode.IMAGE_NOT_ALLOWED: "the image is outside the allowed registries",
    RefusalCode.NO_MAX_RUNTIME: "max_runtime is needed",
    RefusalCode.MAX_RUNTIME_TOO_LONG: "max_runtime is longer than allowed",
    RefusalCode.CLASS_NOT_ALLOWED: "the team may not use this class",
    RefusalCode.UNKNOWN_DEPENDENCY: "depends on a job that is not known",
    RefusalCode.ARRAY_TOO_LARGE: "more elements than an array may have",
    RefusalCode.NOT_SUPPORTED: "is not supported",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a command. `answer` None: it is durable, and not answered yet.

    `repeated`: job id and seq of the first answer to this key.
    """

    command_id: CommandId
    answer: Answer | None
    repeated: tuple[str, int] | None = None

    @property
    def seq(self) -> int | None:
        """The seq to read one's own write by."""
        if self.repeated is not None:
            return self.repeated[1]
        return self.answer.seq if self.answer else None

    def told(self) -> dict[str, Any]:
        """What is said of it: DONE with its seq, or SUBMITTED: durable, and not answered yet."""
        state = "SUBMITTED" if self.answer is None else "DONE"
        return {"state": state, "seq": self.seq, "command_id": self.command_id}


class Commands:
    """The write side of the api."""

    def __init__(self, context: ApiContext, follower: Follower, book: AnswerBook, bindings: Bindings) -> None:
        self._context = context
        self._follower = follower
        self._book = book
        self._bindings = bindings

    async def submit(self, caller: Caller, key: str, spec: JobSpec) -> tuple[JobId, Outcome]:
        """Have a job submitted under the id that its key is bound to. Raises Problem."""
        context = self._context
        drawn = new_job_id(context.now(), context.random)
        digest, body = key_digest(caller.principal, key), body_digest(SubmitJob(job_id=drawn, spec=spec))
        wanted = Binding(digest=digest, cluster=context.cluster, job_id=drawn, body=body)
        self._check_size(SubmitJob(job_id=drawn, spec=spec))
        bound = await self._bindings.bind(wanted)
        outcome = await self._ask(caller, digest, body, SubmitJob(job_id=bound.job_id, spec=spec))
        if outcome.answer is not None and (rejected := outcome.answer.first("job.rejected")):
            raise rejection(rejected)
        return bound.job_id, outcome

    async def ask(self, caller: Caller, key: str, command: Command) -> Outcome:
        """Have any other command carried out. Raises Problem where it is refused."""
        self._check_size(command)
        return await self._ask(caller, key_digest(caller.principal, key), body_digest(command), command)

    async def _ask(self, caller: Caller, key: str, body: str, command: Command) -> Outcome:
        if self._follower.failed is not None:
            raise Problem("unavailable", "the events log is not the one that was read before: an operator has to look")
        context = self._context
        record = CommandRecord(
            id=new_command_id(context.now(), context.random),
            principal=caller.principal,
            key=key,
            body=body,
            sent_at=context.now(),
            command=command,
        )
        waiter = self._book.expect(record.id)
        metrics.WAITING.set(len(self._book))
        began = time.perf_counter()
        try:
            known = await self._append(encode_command(record))
            answer = None
            if waiter is not None:
                done, _ = await asyncio.wait({waiter}, timeout=context.settings.answer_wait_s)
                answer = waiter.result() if done else None
        finally:
            self._book.forget(record.id)
        told = "answered" if answer is not None else "unanswered" if known else "unknown"
        metrics.COMMANDS.labels(command.type, told).inc()
        if answer is not None:
            metrics.ANSWER_SECONDS.observe(time.perf_counter() - began)
        if answer is None and not known:
            raise Problem(
                "outcome_unknown",
                "the command may or may not have been stored: send it again with the same key",
                headers={"retry-after": "1"},
            )
        return _outcome(record.id, answer)

    async def _append(self, raw: bytes) -> bool:
        """Store a command. False: it may be stored or not; the answer will tell, or a retry with the same key."""
        try:
            await self._context.commands.append(raw)
        except UnknownOutcome:
            return False
        except AppendRefused as error:
            raise Problem("body_too_large", f"the command is too large: {error}") from None
        except (LogUnavailable, LogUnusable, OSError):
            raise Problem(
                "unavailable", "the commands log does not answer: nothing was changed", headers={"retry-after": "1"}
            ) from None
        return True

    def _check_size(self, command: Command) -> None:
        size, limit = len(orjson.dumps(command)), self._context.settings.command_bytes_max
        if size > limit:
            raise Problem("body_too_large", f"the command takes {size} bytes, at most {limit} are allowed", limit=limit)


def _outcome(command_id: CommandId, answer: Answer | None) -> Outcome:
    """Sort out an answer. Raises Problem for a refusal."""
    if answer is None:
        return Outcome(command_id=command_id, answer=None)
    if refused := answer.first("command.refused"):
        raise refusal(refused)
    if answer.first("input.refused") or answer.first("command.unreadable"):
        raise Problem("undecidable", "the scheduler could not decide this command; it is on record", seq=answer.seq)
    if repeated := answer.first("command.repeated"):
        return Outcome(command_id=command_id, answer=answer, repeated=(repeated["job_id"], repeated["seq"]))
    return Outcome(command_id=command_id, answer=answer)


def refusal(body: dict[str, Any]) -> Problem:
    """command.refused as a problem. A code that this build does not know is `refused`."""
    body = _spoken(body)
    code, known = body["code"], _code(body["code"])
    name = PROBLEM_OF_REFUSAL.get(known, "refused") if known else "refused"
    words = _WORDS.get(known, code) if known else code
    if known is RefusalCode.PROMISED:
        body = {**body, "value": f"promised to {body['value']}", "limit": format_time(int(body["limit"]))}
    headers = {"retry-after": "60"} if name == "queue_full" else {}
    detail = f"{words}: {shown(body['value'])}" if known is RefusalCode.JOB_ENDED else _sentence(words, body)
    return Problem(name, detail, errors=_field_errors(body, words), headers=headers, reason=code)


def rejection(body: dict[str, Any]) -> Problem:
    """job.rejected as a problem: the job is there, and has ended."""
    body = _spoken(body)
    known = _code(body["code"])
    words = _WORDS.get(known, body["code"]) if known else body["code"]
    figures = {name: shown(body[name]) for name in ("field", "value", "limit")}
    return Problem(
        "rejected",
        _sentence(words, body),
        errors=_field_errors(body, words),
        reason=body["code"],
        job_id=body["job_id"],
        state="REJECTED",
        **figures,
    )


def _spoken(body: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run time as people write it."""
    timed = body["code"] in (RefusalCode.MAX_RUNTIME_TOO_LONG, RefusalCode.NO_MAX_RUNTIME)
    return body | spoken_durations({name: body.get(name) for name in ("value", "limit")}) if timed else body


def _code(text: str) -> RefusalCode | None:
    try:
        return RefusalCode(text)
    except ValueError:
        return None


def _sentence(words: str, body: dict[str, Any]) -> str:
    told = f"{body.get('field')}: {words}" if body.get("field") else words
    if body.get("limit"):
        told += f" (limit {shown(body['limit'])})"
    return told


def _field_errors(body: dict[str, Any], words: str) -> list[FieldError]:
    if not body.get("field"):
        return []
    return [FieldError(body["field"], shown(body.get("value", "")), shown(body.get("limit", "")), words)]
