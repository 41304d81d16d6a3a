"""The event feed: every accepted event once, in order, from any seq on (R-83, C-64).

A follower holds nothing but its cursor, so a slow one costs no memory. Three places serve it, oldest first: the
projection's timeline up to where this process began to read; the log itself; the newest events in memory. Each is
complete up to where the next begins, whatever the projection's lag.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from api.times import format_time
from events.chain import Accepted, Head
from events.log import EventLog, accepted

_HEADS_EVERY = 256
_TEAMS_MAX = 100_000
_PAGE = 1000
_REBUILDING_S = 0.25


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event as it goes out. `line` is its JSON."""

    seq: int
    type: str
    job_id: str | None
    team: str | None
    line: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which events are wanted; empty: all. A type that ends in `.*` stands for its whole subject."""

    types: frozenset[str] = frozenset()
    team: str | None = None
    job_id: str | None = None

    def wants(self, event: FeedEvent) -> bool:
        """Does the event pass?"""
        if self.types and event.type not in self.types and event.type.partition(".")[0] + ".*" not in self.types:
            return False
        if self.job_id is not None and event.job_id != self.job_id:
            return False
        return self.team is None or event.team == self.team


class History(Protocol):
    """The projection's side of the feed."""

    async def events(self, after: int, until: int, wanted: Filter, limit: int) -> Sequence[FeedEvent] | None:
        """Up to `limit` wanted events with after < seq <= until; None while the projection has not got to `until`."""
        ...

    async def team_of(self, job_id: str) -> str | None:
        """The team of a job that was submitted before this process began to read."""
        ...


def feed_event(cluster: str, seq: int, commit: dict[str, Any], stored: dict[str, Any], team: str | None) -> FeedEvent:
    """An event of a parsed commit in the feed's form."""
    body, name = stored["body"], stored["type"]
    asked = commit["input"]
    job_id = body.get("job_id") or None
    line = orjson.dumps(
        {
            "seq": seq,
            "at": format_time(commit["at"]),
            "n": commit["n"],
            "cluster": cluster,
            "type": name,
            "v": stored["v"],
            "job_id": job_id,
            "team": team,
            "actor": commit["actor"],
            "cause": commit["cause"],
            "input": {"kind": asked["kind"], "id": asked["id"]},
            "body": body,
        }
    )
    return FeedEvent(seq, name, job_id, team, line)


class Feed:
    """The newest events, and the way to all others. `take` is the follower's listener."""

    def __init__(self, log: EventLog, history: History, ring_events: int, batch_s: float) -> None:
        self._log = log
        self._history = history
        self._batch_s = batch_s
        self._ring: list[FeedEvent] = []
        self._ring_events = ring_events
        self._teams: OrderedDict[str, str] = OrderedDict()
        self._heads: list[Head] = []
        self._taken = 0
        self._grown: asyncio.Future[None] | None = None
        self._stopped = False
        self.end = 0

    def begin(self, start: Head) -> None:
        """Everything up to `start` is in the history; the follower reads on from there."""
        self._heads = [start]
        self.end = start.seq

    def take(self, outcome: Accepted) -> None:
        """The next accepted record."""
        if outcome.parsed["kind"] == "commit":
            self._ring.extend(self._events_of(outcome, self._ring_team))
            if len(self._ring) >= 2 * self._ring_events:  # seldom, so that a slice at the end stays cheap
                del self._ring[: -self._ring_events]
            self.end = outcome.head.seq
            self._wake()
        self._taken += 1
        if self._taken % _HEADS_EVERY == 0:
            self._heads.append(outcome.head)

    def team_of(self, job_id: str) -> str | None:
        """The team of a job that passed by since this process began."""
        return self._teams.get(job_id)

    def remember(self, job_id: str, team: str) -> None:
        """Note the team of a job; a job that was sent and is not in the log yet has one too."""
        self._teams[job_id] = team
        while len(self._teams) > _TEAMS_MAX:
            self._teams.popitem(last=False)

    async def stream(
        self, after: int, wanted: Filter, *, follow: bool, idle_s: float
    ) -> AsyncIterator[list[FeedEvent]]:
        """Batches of wanted events with seq > `after`; an empty one is a sign of life, after `idle_s` without any.

        Ends at the end as it is now; never with `follow`.
        """
        until = None if follow else self.end
        now = asyncio.get_running_loop().time
        cursor, told = after, now()
        while not self._stopped and (until is None or cursor < until):
            page: list[FeedEvent] | None = []
            if cursor >= self.end:
                await self._wait(idle_s)
            else:
                page, cursor = await self._page(cursor, self.end if until is None else until, wanted)
            if page or now() - told >= idle_s:
                told = now()
                yield page or []
            if page is None:
                await asyncio.sleep(min(_REBUILDING_S, idle_s))

    async def _page(self, after: int, until: int, wanted: Filter) -> tuple[list[FeedEvent] | None, int]:
        """(wanted events, the cursor after them); None for the events where the history cannot tell yet."""
        if self._ring and after + 1 >= self._ring[0].seq:
            skip = after + 1 - self._ring[0].seq
            found = self._ring[skip : skip + min(_PAGE, until - after)]
            return await self._wanted(found, wanted), found[-1].seq
        start = self._heads[0].seq
        if after < start:
            last = min(start, until)
            past = await self._history.events(after, last, wanted, _PAGE)
            if past is None:
                return None, after
            return list(past), past[-1].seq if len(past) == _PAGE else last
        found = [event async for event in self._from_log(after, min(until, after + _PAGE))]
        return await self._wanted(found, wanted), found[-1].seq

    async def _from_log(self, after: int, until: int) -> AsyncIterator[FeedEvent]:
        """Events that left the ring: read again from the nearest place that was noted."""
        nearest = self._heads[bisect_right(self._heads, after, key=lambda head: head.seq) - 1]
        async for outcome in accepted(self._log, nearest):
            if outcome.parsed["kind"] == "commit" and outcome.head.seq > after:
                for event in self._events_of(outcome, self._teams.get):
                    if after < event.seq <= until:
                        yield event
            if outcome.head.seq >= until:
                return

    async def _wanted(self, found: list[FeedEvent], wanted: Filter) -> list[FeedEvent]:
        if wanted == Filter():
            return found
        if wanted.team is not None:
            found = [await self._with_team(event) for event in found]
        return [event for event in found if wanted.wants(event)]

    async def _with_team(self, event: FeedEvent) -> FeedEvent:
        """The event with the team of its job, where the job is older than this process."""
        if event.team is not None or event.job_id is None:
            return event
        team = self._teams.get(event.job_id) or await self._history.team_of(event.job_id)
        if team is None:
            return event
        self.remember(event.job_id, team)
        document = orjson.loads(event.line)
        document["team"] = team
        return FeedEvent(event.seq, event.type, event.job_id, team, orjson.dumps(document))

    def _events_of(self, outcome: Accepted, known: Any) -> list[FeedEvent]:
        commit = outcome.parsed
        made = []
        for seq, stored in enumerate(commit["events"], commit["seq"]):
            body = stored["body"]
            job_id = body.get("job_id")
            team = body.get("team") or (body.get("spec") or {}).get("team")
            if team is None and job_id:
                team = known(job_id)
            elif team is not None and job_id:
                self.remember(job_id, team)
            made.append(feed_event(commit["cluster"], seq, commit, stored, team))
        return made

    def _ring_team(self, job_id: str) -> str | None:
        team = self._teams.get(job_id)
        if team is not None:
            self._teams.move_to_end(job_id)
        return team

    def stop(self) -> None:
        """End all streams: the log is not to be read on, or the process ends."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        if self._grown is not None and not self._grown.done():
            self._grown.set_result(None)

    async def _wait(self, idle_s: float) -> None:
        """Wait for more, at most `idle_s`; then a moment, so that what comes together goes out together."""
        if self._grown is None or self._grown.done():
            self._grown = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._grown}, timeout=idle_s)
        await asyncio.sleep(self._batch_s)


def ndjson(batch: Sequence[FeedEvent]) -> bytes:
    """A batch as lines; an empty line as a sign of life."""
    return b"".join(event.line + b"\n" for event in batch) or b"\n"


def server_sent(batch: Sequence[FeedEvent]) -> bytes:
    """A batch as server-sent events, whose id is the seq to resume after; a comment as a sign of life."""
    return (
        b"".join(b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), event.line) for event in batch)
        or b": waiting\n\n"
    )
