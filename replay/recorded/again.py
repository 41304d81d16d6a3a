"""A recorded day replayed as it was: does the engine give the decisions that the log holds?

This is what a what-if rests on. Where it gives others, or the same later, each is listed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from commands.entities import AttemptKey
from events.envelope import Event
from events.gang import GangAllocated
from events.ids import Instant
from replay.engine.on_beat import OnBeat
from replay.engine.run import Told
from replay.recorded.day import Granted, Recorded

NEAR_MS = 2_000
START = Instant(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """A grant that came out otherwise: `then` None: was not recorded; `now` None: did not come."""

    then: Granted | None
    now: Granted | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """`same`: to the millisecond, on the same GPUs; `near`: within two seconds, wherever; `others`: the exceptions, in
    the order of their times."""

    recorded: int
    same: int
    near: int
    others: tuple[Other, ...]

    @property
    def honest(self) -> bool:
        """The recorded decisions, and no others."""
        return not self.others


def again(recorded: Recorded, told: Told | None = None, *, since: Instant = START) -> Again:
    """Replay it under the policy it was recorded with, and compare every grant since then. `told`: how far it is."""
    replay = OnBeat(recorded.scenario)
    made: dict[AttemptKey, Granted] = {}

    def see(events: tuple[Event, ...]) -> None:
        for event in events:
            if isinstance(event, GangAllocated):
                made[event.job_id, event.attempt] = Granted(
                    at=replay.core.now, job_id=event.job_id, attempt=event.attempt, ranks=event.ranks
                )

    replay.core.watchers.append(see)
    replay.run("as recorded", told)
    return compare(_since(recorded.granted, since), _since(made.values(), since))


def _since(granted: Iterable[Granted], since: Instant) -> dict[AttemptKey, Granted]:
    return {(each.job_id, each.attempt): each for each in granted if each.at >= since}


def compare(then: dict[AttemptKey, Granted], now: dict[AttemptKey, Granted]) -> Again:
    """Grant by grant."""
    same = near = 0
    others: list[Other] = []
    for key in dict.fromkeys([*then, *now]):
        before, after = then.get(key), now.get(key)
        if before is None or after is None or abs(before.at - after.at) > NEAR_MS:
            others.append(Other(then=before, now=after))
        elif before == after:
            same += 1
        else:
            near += 1
    others.sort(key=_at)
    return Again(recorded=len(then), same=same, near=near, others=tuple(others))


def _at(other: Other) -> tuple[int, str]:
    granted = other.then or other.now
    assert granted is not None
    return granted.at, granted.job_id
