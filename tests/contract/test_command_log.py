"""What every commands log promises: many writers, one order, nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio

import pytest

from events.envelope import RECORD_BYTES_MAX
from events.log import AppendRefused, CommandLog, LogUnusable, UnknownOutcome, read_log_id
from tests.contract.places import Opened, Place
from tests.servers.waiting import WITHIN_S


async def everything(log: CommandLog) -> list[bytes]:
    """The value of each record, genesis included, by offset."""
    values: list[bytes] = []
    while batch := await log.read(len(values) - 1, 50):
        assert [raw.offset for raw in batch] == list(range(len(values), len(values) + len(batch)))
        values += [raw.value for raw in batch]
    return values


async def test_a_log_that_was_never_made_does_not_open(place: Place) -> None:
    """Without `create`, a log that is not there is unusable, not empty."""
    log = place.commands()
    with pytest.raises(LogUnusable):
        await log.open()
    await log.close()


async def test_both_logs_of_a_cluster_are_told_apart(opened: Opened) -> None:
    """Events and commands have ids of their own, which each process finds again."""
    events, commands = await opened.events(), await opened.commands()
    assert await read_log_id(events) != await read_log_id(commands)
    assert await read_log_id(commands) == await read_log_id(await opened.commands())


async def test_concurrent_writers_get_the_true_place_of_each_command(opened: Opened) -> None:
    """Whatever the order in which they land, each writer learns where its own command is, and none is lost or twice."""
    writers = [await opened.commands() for _ in range(4)]

    async def write(name: int, log: CommandLog, first: int) -> dict[int, bytes]:
        values = [b"%d-%d" % (name, number) for number in range(first, first + 25)]
        return {await log.append(value): value for value in values}

    answers = await asyncio.gather(*(write(name, log, first) for name, log in enumerate(writers) for first in (0, 100)))
    acknowledged = {offset: value for answer in answers for offset, value in answer.items()}
    found = await everything(writers[0])
    assert {offset: found[offset] for offset in acknowledged} == acknowledged
    assert len(acknowledged) == 200
    assert sorted(found[-200:]) == sorted(acknowledged.values())


async def test_a_follower_sees_one_gapless_sequence_while_many_write(opened: Opened) -> None:
    """Readers never see a later command before an earlier one, however the writers' transactions overlap (P-6)."""
    reader, *writers = [await opened.commands() for _ in range(4)]
    last = await reader.end() + 60

    async def take() -> list[int]:
        seen: list[int] = []
        async for batch in reader.follow(-1):
            seen += [raw.offset for raw in batch]
            if seen[-1] >= last:
                return seen
        raise AssertionError("the follower ended")

    follower = asyncio.create_task(take())
    await asyncio.gather(*(log.append(b"c%d" % number) for number in range(20) for log in writers))
    assert await asyncio.wait_for(follower, WITHIN_S) == list(range(last + 1))


async def test_any_bytes_are_a_command(opened: Opened) -> None:
    """The log does not read what it keeps: whoever takes commands judges them."""
    log = await opened.commands()
    values = [b"", b"\x00\xff", b"not json", b'{"kind":"genesis"}']
    offsets = [await log.append(value) for value in values]
    assert [(await log.read(offset - 1, 1))[0].value for offset in offsets] == values


async def test_an_unknown_outcome_does_not_end_the_writer(opened: Opened) -> None:
    """The next command goes through, and each acknowledged one is where it was said to be."""
    log = await opened.commands()
    first = await log.append(b"first")
    try:
        await log.append(b"unsure", timeout_s=0.0)
    except UnknownOutcome:
        pass
    second = await log.append(b"second")
    found = await everything(log)
    assert (found[first], found[second]) == (b"first", b"second")
    assert found.count(b"unsure") <= 1


async def test_a_command_that_is_too_large_is_refused(opened: Opened) -> None:
    """512 KiB is taken, one byte more is not, and is not in the log."""
    log = await opened.commands()
    offset = await log.append(b"c" * RECORD_BYTES_MAX)
    with pytest.raises(AppendRefused):
        await log.append(b"c" * (RECORD_BYTES_MAX + 1))
    assert await log.end() == offset


async def test_a_log_that_was_made_anew_has_another_id(opened: Opened) -> None:
    """A position in the old log can be told from one in the new (P-13 names the log with each position)."""
    before = await read_log_id(await opened.commands())
    await opened.close()
    await opened.place.empty()
    assert await read_log_id(await opened.commands()) not in (before, None)


async def test_reading_beyond_the_end_is_an_error(opened: Opened) -> None:
    """A position past the end is of another log, or of more of this one."""
    log = await opened.commands()
    with pytest.raises(LogUnusable):
        await log.read(await log.end() + 1, 1)
