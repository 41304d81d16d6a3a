"""What the leader hears from its agents between reports: heartbeats, held against what the state says should run.

Never in the log (R-66). What has to be decided comes out as a Tick; what has to be repeated comes out as messages.
Times are this process's monotonic seconds, and begin when the gateway opens (P-20).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from commands.entities import Node, NodeState
from commands.reports import Phase, Tick
from commands.state import State
from events.ids import Instant, LeaseId, NodeId, NodeIndex, lease_id
from scheduler import effects
from scheduler.link import Heartbeat, HeartbeatAck, ToAgent

RESEND_S = 10.0
"""A start or stop that a node does not show yet is said again this often."""


@dataclass(slots=True)
class _Heard:
    """One node. `absent`: lease -> since when it has been missing from heartbeats, though its start was sent.

    `reports_until`: newest report it had written when it registered; `clean`: its last heartbeat showed nothing that no
    lease covers. Until both are settled the node is not confirmed (P-16, R-65).
    """

    at: float
    sent: dict[LeaseId, float] = field(default_factory=dict)
    absent: dict[LeaseId, float] = field(default_factory=dict)
    faults: int = 0
    reports_until: int = 0
    clean: bool = False


class Watch:
    """The nodes of one leadership."""

    def __init__(self, state: State, monotonic: Callable[[], float], now: Callable[[], Instant]) -> None:
        self._state = state
        self._now = now
        self._monotonic = monotonic
        self._opened = monotonic()
        self._nodes: dict[NodeIndex, _Heard] = {}
        self.last_heartbeat: dict[int, int] = {}
        """Node index -> number of the last heartbeat (P-18)."""

    def registered(self, index: NodeIndex, reports_until: int) -> None:
        """A session of the node began."""
        self._nodes[index] = _Heard(self._monotonic(), reports_until=reports_until)
        self.last_heartbeat[index] = 0

    def sent(self, index: NodeIndex, lease: LeaseId) -> None:
        """A start or stop of the lease was just sent."""
        heard = self._nodes.get(index)
        if heard is not None:
            heard.sent[lease] = self._monotonic()

    def heartbeat(self, beat: Heartbeat) -> list[ToAgent]:
        """The answer to a heartbeat: its acknowledgement, and whatever the node seems not to have heard."""
        node = self._state.node_by_id(beat.node_id)
        heard = self._nodes.get(node.index) if node is not None else None
        if node is None or heard is None:
            return []
        heard.at, heard.faults = self._monotonic(), beat.gpu_faults
        self.last_heartbeat[node.index] = beat.number
        listed = {running.lease_id: running.phase for running in beat.running}
        answer: list[ToAgent] = self._repeat(node, heard, listed)
        disowned = tuple(
            lease for lease in sorted(listed) if listed[lease] is not Phase.ENDED and not self._owns(node.index, lease)
        )
        heard.clean = not disowned
        answer.append(HeartbeatAck(epoch=self._state.meta.epoch, number=beat.number, disowned=disowned))
        return answer

    def _owns(self, index: NodeIndex, lease: LeaseId) -> bool:
        """Does the state hold this lease on this node?"""
        found = self._state.live_lease(lease)
        return found is not None and found[0].ranks[found[1]][0] == index

    def _repeat(self, node: Node, heard: _Heard, listed: dict[LeaseId, Phase]) -> list[ToAgent]:
        """Starts that the node does not show, stops that it does not follow; and since when leases are absent."""
        messages: list[ToAgent] = []
        absent: dict[LeaseId, float] = {}
        sent: dict[LeaseId, float] = {}
        for job_id, number, rank in node.leases:
            lease = lease_id(job_id, number, rank)
            attempt = self._state.attempts[job_id, number]
            missing = lease not in listed
            if missing:
                absent[lease] = heard.absent.get(lease, heard.at)
            sent[lease] = heard.sent.get(lease, heard.at)
            stops = attempt.ending is not None or rank in attempt.stopping
            if (missing or stops) and heard.at - sent[lease] >= RESEND_S:
                message = effects.of_lease(self._state, attempt, rank, self.last_heartbeat[node.index], self._now())
                if message is not None:
                    messages.append(message)
                    sent[lease] = heard.at
        heard.absent, heard.sent = absent, sent
        return messages

    # What has to be decided

    def tick(self, due: Iterable[tuple[str, int]]) -> Tick:
        """Observations that the state does not show yet; empty if there are none."""
        now = self._monotonic()
        return Tick(
            silent=tuple(self._silent(now)),
            heard=tuple(self._heard_again(now)),
            missing=tuple(self._missing(now)),
            faults=tuple(self._faults()),
            due=tuple(due),  # type: ignore[arg-type]
            confirmed=tuple(self._confirmed()),
        )

    def _confirmed(self) -> Iterable[NodeIndex]:
        for index in sorted(self._nodes):
            heard, node = self._nodes[index], self._state.nodes[index]
            if node.confirmed != self._state.meta.epoch and heard.clean and node.last_report >= heard.reports_until:
                yield index

    def _silent(self, now: float) -> Iterable[tuple[NodeIndex, int]]:
        policy = self._state.policy
        limits = {NodeState.UP: policy.node_suspect_s, NodeState.SUSPECT: policy.node_lost_s}
        for index in sorted(self._state.nodes.rows):
            node = self._state.nodes[index]
            limit = limits.get(node.state)
            if limit is not None and (silent_s := int(now - self._last(index))) >= limit:
                yield index, silent_s

    def _last(self, index: NodeIndex) -> float:
        heard = self._nodes.get(index)
        return heard.at if heard is not None else self._opened

    def _heard_again(self, now: float) -> Iterable[NodeIndex]:
        for index in sorted(self._nodes):
            suspect = self._state.nodes[index].state is NodeState.SUSPECT
            if suspect and now - self._nodes[index].at < self._state.policy.node_suspect_s:
                yield index

    def _missing(self, now: float) -> Iterable[LeaseId]:
        patience_s = self._state.policy.lease_missing_s
        for index in sorted(self._nodes):
            for lease, since in sorted(self._nodes[index].absent.items()):
                found = self._state.live_lease(lease)
                if found is not None and found[0].ending is None and now - since >= patience_s:
                    yield lease

    def _faults(self) -> Iterable[tuple[NodeIndex, int]]:
        for index in sorted(self._nodes):
            faults = self._nodes[index].faults
            node = self._state.nodes[index]
            if faults & node.all_gpus & ~node.broken:
                yield index, faults

    def lost_but_alive(self) -> list[NodeId]:
        """Lost nodes whose session still brings heartbeats: they must register (P-15)."""
        now = self._monotonic()
        return [
            self._state.nodes[index].id
            for index in sorted(self._nodes)
            if self._state.nodes[index].state is NodeState.LOST and now - self._nodes[index].at < RESEND_S
        ]
