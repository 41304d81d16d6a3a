"""Answer a command: which case it is, whether its key was used before, and the refusal as an event (I-7)."""

from typing import assert_never

from commands.decide.attempts import Draft
from commands.decide.cluster import ease_silence, set_policy, set_quota
from commands.decide.following import follow
from commands.decide.jobs import cancel, change, extend, hold, release, requeue, submit
from commands.decide.nodes import drain, remove, undrain, wipe
from commands.messages import (
    CancelJob,
    ChangeJob,
    CommandRecord,
    DrainNode,
    EaseSilence,
    ExtendJob,
    HoldJob,
    ReleaseJob,
    RemoveNode,
    RequeueJob,
    SetPolicy,
    SetQuota,
    SubmitJob,
    UndrainNode,
    WipeNode,
)
from commands.refusal import Refusal, RefusalCode
from events.envelope import Event
from events.leadership import CommandDone, CommandRefused, CommandRepeated


def decide_command(draft: Draft, record: CommandRecord) -> None:
    """The facts that answer a command, added to `draft`: at least one (I-7)."""
    used = draft.state.keys.get(record.key)
    if used is not None:
        draft.add(_repeat(record, used.body, used.job_id, used.seq))
    elif (refusal := _decide(draft, record)) is not None:
        draft.add(refused(refusal))
    elif not draft.events:
        draft.add(CommandDone())
    else:
        follow(draft)


def refused(refusal: Refusal) -> CommandRefused:
    return CommandRefused(code=refusal.code, field=refusal.field, value=refusal.value[:200], limit=refusal.limit[:500])


def _repeat(record: CommandRecord, body: str, job_id: str, seq: int) -> Event:
    """The same key with the same body is the same request; with another it is a mistake (R-2)."""
    if body == record.body:
        return CommandRepeated(job_id=job_id, seq=seq)
    return refused(Refusal(RefusalCode.KEY_CONFLICT, "Idempotency-Key", "", "used before with another request"))


def _decide(draft: Draft, record: CommandRecord) -> Refusal | None:
    """One case a command. Guards add nothing before they refuse, so that a refusal has no other facts beside it."""
    command = record.command
    match command:
        case SubmitJob():
            return submit(draft, command, record.principal)
        case CancelJob():
            return cancel(draft, command)
        case HoldJob():
            return hold(draft, command)
        case ReleaseJob():
            return release(draft, command)
        case ExtendJob():
            return extend(draft, command)
        case RequeueJob():
            return requeue(draft, command)
        case ChangeJob():
            return change(draft, command)
        case SetQuota():
            return set_quota(draft, command)
        case SetPolicy():
            return set_policy(draft, command)
        case DrainNode():
            return drain(draft, command)
        case UndrainNode():
            return undrain(draft, command)
        case WipeNode():
            return wipe(draft, command)
        case RemoveNode():
            return remove(draft, command)
        case EaseSilence():
            return ease_silence(draft)
        case _:
            assert_never(command)
