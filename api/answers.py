"""Who waits for the answer to a command, and the commit that brings it."""

import asyncio
from dataclasses import dataclass
from typing import Any

from events.chain import Accepted
from events.ids import CommandId


@dataclass(frozen=True, slots=True)
class Answer:
    """The commit that names a command. `events` as stored: {type, v, body}; the first has seq `seq`."""

    n: int
    seq: int
    at: int
    events: list[dict[str, Any]]

    def first(self, name: str) -> dict[str, Any] | None:
        """The body of the first event of that type."""
        return next((event["body"] for event in self.events if event["type"] == name), None)

    def seq_of(self, name: str) -> int:
        """The seq of the first event of that type; of the first of all where there is none."""
        return self.seq + next((place for place, event in enumerate(self.events) if event["type"] == name), 0)


class AnswerBook:
    """Command id -> who waits for it. Holds an entry only while someone waits, and never more than `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[str, asyncio.Future[Answer]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, command: CommandId) -> asyncio.Future[Answer] | None:
        """To be called before the command is appended; None where too many wait already."""
        if len(self._waiting) >= self._limit:
            return None
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[command] = waiter
        return waiter

    def forget(self, command: CommandId) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(command, None)

    def take(self, accepted: Accepted) -> None:
        """Hand a commit that answers a command to whoever waits for it."""
        parsed = accepted.parsed
        if parsed["kind"] != "commit" or parsed["input"]["kind"] != "command":
            return
        waiter = self._waiting.pop(parsed["input"]["id"], None)
        if waiter is not None and not waiter.done():
            waiter.set_result(Answer(parsed["n"], parsed["seq"], parsed["at"], parsed["events"]))
