"""What a new leader looks at before it leads: the noted head, and the commands log (P-5, P-13)."""

from dataclasses import replace

import pytest

from commands.entities import Meta
from events import codec
from events.ids import ClusterId, Epoch, Instant, LogId, Nonce
from events.log import LogUnusable
from events.memory import MemoryCommandLog, MemoryEventLog, MemoryStore
from scheduler.ports import Tenure
from scheduler.takeover import check_commands, check_noted_head

EU = ClusterId("eu")
TENURE = Tenure(epoch=Epoch(2), nonce=Nonce("b"), holder="b", at=Instant(0))


async def test_a_log_that_has_the_noted_record_may_be_led_on() -> None:
    """And so may one of which nothing was noted yet."""
    log = MemoryEventLog(MemoryStore(), EU)
    log_id = await log.open(create=True)
    place = await log.append(b"noted", 1)
    await check_noted_head(log, TENURE)
    await check_noted_head(log, replace(TENURE, head=(log_id, place, 1, codec.digest(b"noted"))))


async def test_a_log_without_the_noted_record_is_not_led_on() -> None:
    """Neither where it is shorter, nor where another record stands there; the operator is told what to say."""
    log = MemoryEventLog(MemoryStore(), EU)
    log_id = await log.open(create=True)
    place = await log.append(b"another", 1)
    for offset in (place, place + 1):
        noted = replace(TENURE, head=(log_id, offset, 1, codec.digest(b"noted")))
        with pytest.raises(LogUnusable, match="signalboxd log restored"):
            await check_noted_head(log, noted)


async def test_commands_are_taken_on_only_from_the_log_they_were_taken_from() -> None:
    """Another log of that name, a shorter one, and one with another command at the last place are found out."""
    log = MemoryCommandLog(MemoryStore(), EU)
    log_id = await log.open(create=True)
    place = await log.append(b"no command of ours")
    taken = Meta(command_position=place, command_id=f"unreadable-{place}", command_log=log_id)
    await check_commands(log, log_id, Meta())
    await check_commands(log, log_id, taken)
    with pytest.raises(LogUnusable, match="were taken from"):
        await check_commands(log, LogId("another"), taken)
    with pytest.raises(LogUnusable, match="truncated"):
        await check_commands(log, log_id, replace(taken, command_position=place + 1))
