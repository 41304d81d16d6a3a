"""The state of one cluster: tables of entities, changed only through an undo journal.

A decision is tried in place and then accepted (its commit is known to be in the log) or undone (P-7). Nothing
outside may look between the two. Derived indices live elsewhere and are fed the changes of each accepted commit.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from commands.entities import (
    Attempt,
    AttemptKey,
    Ended,
    FairUse,
    Job,
    KeyUse,
    Meta,
    Node,
    Pledge,
    Quota,
    Reservation,
    ReservationKey,
    Team,
    Usage,
)
from commands.policy import DEFAULT, Policy
from commands.rows import filler
from events.ids import BlockId, ClusterId, GpuType, JobId, LeaseId, NodeId, NodeIndex, TeamId, parse_lease_id

K = TypeVar("K")
V = TypeVar("V")
PoolKey = tuple[GpuType, int, int]
"""(type, GPUs of a node, memory of a GPU in GB): nodes that are alike but for their place and use."""
Racks = dict[BlockId, dict[str, int]]
"""`racks[block][rack]` = how many registered nodes. Never changed in place."""


class Change(NamedTuple):
    """What one accepted commit made of one entity: `old` None: new; `new` None: gone."""

    table: str
    key: Any
    old: Any
    new: Any


_change = filler(Change)


if TYPE_CHECKING:

    class Rows(Mapping[K, V]):
        """A table is a dict, so that reading it costs no more; the type checker lets nobody write to it as to one."""

        def __getitem__(self, key: K, /) -> V: ...
        def __iter__(self) -> Iterator[K]: ...
        def __len__(self) -> int: ...
else:
    Rows = dict


class Table(Rows[K, V]):
    """Rows by key. Reads are those of a dict; writes go through `put` and `drop`, which note the old row. `rows` is the
    table as a plain dict: for what comes to it without a decision, as from a snapshot."""

    __slots__ = ("_undo", "name", "rows")

    def __init__(self, name: str, undo: "list[tuple[Table[Any, Any], Any, Any]]") -> None:
        super().__init__()
        self.name = name
        self.rows: Final = cast(dict[K, V], self)
        self._undo = undo

    def put(self, key: K, row: V) -> None:
        self._undo.append((self, key, self.get(key)))
        self.rows[key] = row

    def put_all(self, rows: dict[K, V]) -> list[V | None]:
        """The same for many at once. Returns the rows in whose place they are."""
        old = list(map(self.get, rows))
        self._undo += zip(repeat(self), rows, old)
        self.rows.update(rows)
        return old

    def drop(self, key: K) -> None:
        self._undo.append((self, key, self.rows.pop(key)))


class State:
    """Everything the core knows of a cluster. `policy` belongs to it; derived look-ups are kept beside the tables."""

    def __init__(self, cluster: ClusterId) -> None:
        self.cluster = cluster
        self._undo: list[tuple[Table[Any, Any], Any, Any]] = []
        self.meta_table: Table[str, Meta] = Table("meta", self._undo)
        self.policies: Table[str, Policy] = Table("policies", self._undo)
        self.jobs: Table[JobId, Job] = Table("jobs", self._undo)
        self.attempts: Table[AttemptKey, Attempt] = Table("attempts", self._undo)
        self.nodes: Table[NodeIndex, Node] = Table("nodes", self._undo)
        self.node_index: Table[NodeId, NodeIndex] = Table("node_index", self._undo)
        self.uuids: Table[str, NodeIndex] = Table("uuids", self._undo)
        self.pools: Table[PoolKey, Racks] = Table("pools", self._undo)
        self.quotas: Table[tuple[TeamId, GpuType], Quota] = Table("quotas", self._undo)
        self.teams: Table[TeamId, Team] = Table("teams", self._undo)
        self.usage: Table[tuple[TeamId, GpuType], Usage] = Table("usage", self._undo)
        self.fair_use: Table[tuple[TeamId, GpuType], FairUse] = Table("fair_use", self._undo)
        self.pledges: Table[JobId, Pledge] = Table("pledges", self._undo)
        self.reservations: Table[ReservationKey, Reservation] = Table("reservations", self._undo)
        self.keys: Table[str, KeyUse] = Table("keys", self._undo)
        self.ended: Table[JobId, Ended] = Table("ended", self._undo)
        self.dependents: Table[JobId, tuple[JobId, ...]] = Table("dependents", self._undo)
        self.follow_ups: Table[JobId, bool] = Table("follow_ups", self._undo)
        self.type_facts: dict[tuple[GpuType, int], tuple[tuple[Racks, ...], Any]] = {}
        """Kept by commands.shape: (type, memory) -> the rows of `pools` that the facts rest on, and the facts."""
        self.meta_table.rows[""] = Meta()
        self.policies.rows[""] = DEFAULT

    @property
    def meta(self) -> Meta:
        return self.meta_table.rows[""]

    @meta.setter
    def meta(self, meta: Meta) -> None:
        self.meta_table.put("", meta)

    def numbered(self, meta: Meta) -> None:
        """The number of a commit's next event, which comes with each: noted only where no `meta` was noted before."""
        if self._undo and self._undo[0][0] is self.meta_table:
            self.meta_table.rows[""] = meta
        else:
            self.meta = meta

    @property
    def policy(self) -> Policy:
        return self.policies.rows[""]

    @property
    def tables(self) -> dict[str, Table[Any, Any]]:
        """Every table by name: what a snapshot holds."""
        return {table.name: table for table in vars(self).values() if isinstance(table, Table)}

    def node_by_id(self, node_id: NodeId) -> Node | None:
        index = self.node_index.get(node_id)
        return None if index is None else self.nodes[index]

    def live_lease(self, lease: LeaseId) -> tuple[Attempt, int] | None:
        """The attempt and rank of a lease that still holds its GPUs; None for any other, or what is no lease id."""
        try:
            job_id, number, rank = parse_lease_id(lease)
        except ValueError:
            return None
        attempt = self.attempts.get((job_id, number))
        if attempt is None or not 0 <= rank < len(attempt.ranks) or not attempt.live(rank):
            return None
        return attempt, rank

    def touched(self) -> list[Change]:
        """What the decision on trial has changed so far: first old row and present row of each key; not what came and
        went within it."""
        first: dict[tuple[str, Any], tuple[Table[Any, Any], Any]] = {}
        for table, key, old in self._undo:
            first.setdefault((table.name, key), (table, old))
        return [
            _change((name, key, old, new))
            for (name, key), (table, old) in first.items()
            if (new := table.get(key)) is not None or old is not None
        ]

    def accept(self) -> list[Change]:
        """The commit is in the log: its changes stay. Returns them, for the derived indices."""
        changes = self.touched()
        self._undo.clear()
        return changes

    def settle(self) -> None:
        """The same, where nobody asks for the changes."""
        self._undo.clear()

    def discard(self) -> None:
        """The decision did not come about: every row is again what it was."""
        while self._undo:
            table, key, old = self._undo.pop()
            if old is None:
                table.rows.pop(key, None)
            else:
                table.rows[key] = old

    def clean(self) -> bool:
        """Is no decision on trial?"""
        return not self._undo


def pruned(rows: MutableMapping[Any, Any], day: int) -> list[Any]:
    """Keys of the rows whose `day` is before `day`, in order."""
    return sorted([key for key, row in rows.items() if row.day < day])
