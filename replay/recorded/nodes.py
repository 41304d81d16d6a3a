"""What became of nodes, folded from the log: when they joined, were silent, and were confirmed by a new leader."""

from dataclasses import dataclass, field, replace
from typing import Any

from commands.entities import NodeState
from commands.reports import FromNode, Register
from commands.state import State
from events.gang import LeaseReleased
from events.ids import Instant, NodeId, NodeIndex
from events.leadership import LeaderElected
from events.node import NodeLost, NodeRegistered, NodeReturned, NodesConfirmed, NodeSuspected
from replay.scenario import Anew, Joined, Noticed, Silence, TakenOver

NEVER = Instant(1 << 62)


@dataclass(slots=True)
class _Term:
    gone_at: Instant
    at: Instant
    confirmed: dict[NodeId, Instant] = field(default_factory=dict)


class Nodes:
    """Those of one cluster."""

    def __init__(self) -> None:
        self.joined: list[Joined] = []
        self.notes: list[str] = []
        self._names: dict[NodeIndex, NodeId] = {}
        self._silent: dict[NodeIndex, Instant] = {}
        self._silences: list[tuple[Silence, _Term]] = []
        self._terms: list[_Term] = []
        self._journals: dict[NodeIndex, str] = {}
        self._anew: list[tuple[NodeId, Instant, bool]] = []
        self._confirmed: dict[int, Instant] = {}
        """Place in `_anew` -> when that agent's node was confirmed."""
        self.noticed: list[Noticed] = []

    def stand(self, state: State) -> None:
        """How they stand as the window begins."""
        for node in state.nodes.rows.values():
            self._names[node.index], self._journals[node.index] = node.id, node.journal
            if node.state in (NodeState.SUSPECT, NodeState.LOST):
                self._silent[node.index] = state.meta.at
        known = {node.id: state.meta.at for node in state.nodes.rows.values() if node.confirmed == state.meta.epoch}
        self._terms = [_Term(state.meta.at, state.meta.at, known)]

    def term(self, at: Instant, last_at: Instant) -> None:
        """Another leader begins; the one before was heard of last at `last_at`."""
        self._terms.append(_Term(last_at, at))

    def take(self, event: Any, at: Instant, said: dict[NodeId, Register], released: set[NodeIndex]) -> None:
        """One event of a commit at `at`. `said`: registrations in its input; `released`: nodes on which leases ended
        by reconciliation in it."""
        match event:
            case NodeRegistered():
                self._registered(event, at, said)
            case NodeSuspected() | NodeLost():  # whole seconds are known: the earliest is the nearest
                since = Instant(at - event.silent_s * 1000)
                self._silent[event.node] = min(since, self._silent.get(event.node, since))
            case NodeReturned():
                self._returned(event.node, at, event.node in released)
            case LeaderElected():
                self._terms[-1].at = at
            case NodesConfirmed() if self._terms:
                for index in event.nodes:
                    self._is_confirmed(self._names[index], at)
            case _:
                pass

    def _registered(self, event: NodeRegistered, at: Instant, said: dict[NodeId, Register]) -> None:
        journal = self._journals.setdefault(event.node, event.journal)
        self._journals[event.node] = event.journal
        if event.node not in self._names:
            self._names[event.node] = event.node_id
            node = said[event.node_id]
            self.joined.append(Joined(at=at, node=_clean(node)))
            return
        self._anew.append((event.node_id, at, journal != event.journal))
        if event.generation > 1:
            self.notes.append(f"{event.node_id} came back with other GPUs at {at}: it is replayed with those it had")

    def _is_confirmed(self, node_id: NodeId, at: Instant) -> None:
        self._terms[-1].confirmed.setdefault(node_id, at)
        newest = max((place for place, (named, *_) in enumerate(self._anew) if named == node_id), default=None)
        if newest is not None:
            self._confirmed.setdefault(newest, at)

    def _returned(self, index: NodeIndex, at: Instant, wiped: bool) -> None:
        since = self._silent.pop(index, None)
        if since is not None:
            silence = Silence(node_id=self._names[index], at=since, until=at, wiped=wiped)
            self._silences.append((silence, self._terms[-1]))

    def silences(self) -> tuple[Silence, ...]:
        """In the order of their beginnings; those that go on have no end."""
        open_ones = [Silence(node_id=self._names[index], at=at, until=None) for index, at in self._silent.items()]
        over = (
            replace(silence, confirmed=term.confirmed.get(silence.node_id, NEVER) <= (silence.until or NEVER))
            for silence, term in self._silences
        )
        return tuple(sorted([*over, *open_ones], key=lambda silence: (silence.at, silence.node_id)))

    def anew(self) -> tuple[Anew, ...]:
        """Every agent of a node but its first."""
        return tuple(
            Anew(node_id=node_id, at=at, confirmed_at=self._confirmed.get(place), new_disk=new_disk)
            for place, (node_id, at, new_disk) in enumerate(self._anew)
        )

    def taken_over(self) -> tuple[TakenOver, ...]:
        """Every leader but the first."""
        return tuple(
            TakenOver(
                gone_at=term.gone_at,
                at=term.at,
                confirmed=tuple(sorted((at, node) for node, at in term.confirmed.items())),
            )
            for term in self._terms[1:]
        )


def registrations(batch: list[FromNode]) -> dict[NodeId, Register]:
    """Those in a batch, by node."""
    return {said.node_id: said.message for said in batch if isinstance(said.message, Register)}


def released_on(events: tuple[Any, ...], nodes_of: dict[tuple[str, int, int], NodeIndex]) -> set[NodeIndex]:
    """Nodes of the leases that ended without a report."""
    leases = [event for event in events if isinstance(event, LeaseReleased)]
    return {nodes_of[event.job_id, event.attempt, event.rank] for event in leases}


def _clean(node: Register) -> Register:
    """As it was when nothing ran on it."""
    return replace(node, last_report=0, running=())
