"""A rank's output reaches an api: over a real socket, while it grows, over rotations."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.shim_log import OutputLog
from agent.tail import HttpTails, SimulatedTails, output, read_log
from events.ids import Epoch, LeaseId
from scheduler.link import TailLog
from tests.servers.waiting import until_async


class Kept:
    """Output in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.more = True

    def log_directory(self, lease: LeaseId) -> Path | None:
        return self.directory if lease == "j_1.1.0" else None

    def running(self, lease: LeaseId) -> bool:
        return self.more


class Api:
    """Takes one request at a time and keeps what it was sent."""

    def __init__(self) -> None:
        self.head = b""
        self.body = b""
        self.whole = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = await reader.readuntil(b"\r\n\r\n")
        while size := int(await reader.readline(), 16):
            self.body += (await reader.readexactly(size + 2))[:-2]
        self.whole = True
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()


@pytest.fixture
async def api() -> AsyncIterator[tuple[Api, str]]:
    """An api and its address."""
    api = Api()
    async with await asyncio.start_server(api.serve, "127.0.0.1", 0) as server:
        yield api, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/tails/7?part=1"


def request(url: str, *, follow: bool, from_byte: int = 0, lease: str = "j_1.1.0") -> TailLog:
    """A TailLog."""
    return TailLog(epoch=Epoch(1), lease_id=LeaseId(lease), url=url, token="tok", follow=follow, from_byte=from_byte)


async def whole(api: Api) -> bool:
    """Whether the request has come to its end."""
    return api.whole


async def test_what_there_is_is_sent_from_the_byte_asked_for(api: tuple[Api, str], tmp_path: Path) -> None:
    """Without `follow` the request ends with the output that is there; the token and the path are those asked for."""
    (tmp_path / "output.log").write_bytes(b"0123456789" * 20_000)
    tails = HttpTails(Kept(tmp_path))
    tails.begin(request(api[1], follow=False, from_byte=5))
    await until_async(lambda: whole(api[0]))
    assert api[0].body == (b"0123456789" * 20_000)[5:]
    assert api[0].head.startswith(b"POST /v1/tails/7?part=1 HTTP/1.1\r\n")
    assert b"Authorization: Bearer tok\r\n" in api[0].head
    await tails.close()


async def test_follow_goes_on_until_the_task_has_ended(api: tuple[Api, str], tmp_path: Path) -> None:
    """With `follow` what is written later is sent too, and the last word is not lost."""
    kept = Kept(tmp_path)
    log = tmp_path / "output.log"
    log.write_bytes(b"one ")
    tails = HttpTails(kept)
    tails.begin(request(api[1], follow=True))

    async def has_one() -> bool:
        return api[0].body == b"one "

    await until_async(has_one)
    log.write_bytes(b"one two ")
    log.write_bytes(b"one two three")
    kept.more = False
    await until_async(lambda: whole(api[0]))
    assert api[0].body == b"one two three"
    await tails.close()


async def test_a_lease_without_output_gives_an_empty_answer(api: tuple[Api, str], tmp_path: Path) -> None:
    """The api learns at once that there is nothing, instead of waiting."""
    tails = HttpTails(Kept(tmp_path))
    tails.begin(request(api[1], follow=True, lease="j_other.1.0"))
    await until_async(lambda: whole(api[0]))
    assert api[0].body == b""


@pytest.mark.parametrize(
    ("seconds", "from_byte", "sent"),
    [
        (60.0, 0, b"simulated node: nothing was run; the task pretends for 60 s\n"),
        (None, 0, b"simulated node: nothing was run\n"),
        (60.0, 56, b"0 s\n"),
        (60.0, 1000, b""),
    ],
)
async def test_a_virtual_task_says_that_nothing_was_run(
    api: tuple[Api, str], seconds: float | None, from_byte: int, sent: bytes
) -> None:
    """One line and the end, at once also with `follow`; whoever has it already gets it not again."""
    tails = SimulatedTails(lambda lease: seconds)
    tails.begin(request(api[1], follow=True, from_byte=from_byte))
    await until_async(lambda: whole(api[0]))
    assert api[0].body == sent
    await tails.close()


async def test_an_offset_means_the_same_byte_over_rotations(tmp_path: Path) -> None:
    """Whoever reads on from an offset sees every byte once, whether or not the file was rotated meanwhile; what was
    lost is skipped, and the place says so."""
    log = OutputLog(str(tmp_path), 2000)

    def write(text: bytes) -> None:
        log._write(text)

    write(b"a" * 600)
    position, read = read_log(tmp_path, 0)
    assert (position, read) == (0, b"a" * 600)
    write(b"b" * 600)
    position, read = read_log(tmp_path, 600)
    assert (position, read) == (600, b"b" * 600)
    write(b"z" * 3000)
    position, read = read_log(tmp_path, 1200)
    assert read.startswith(b"[signalbox: 1200 bytes came before")
    write(b"y")
    assert read_log(tmp_path, 0)[0] == 1200
    log.close_input()
    log.close()
    all_of_it = b"".join([chunk async for chunk in output(tmp_path, 0, lambda: False)])
    assert all_of_it.count(b"z") == 3000
