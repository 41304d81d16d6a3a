"""What time and silence lead to. The shell observed (Tick); here it is judged against the state and the policy."""

from commands.decide.attempts import Draft, end_attempt, limit_grace_s, settle
from commands.decide.elastic import late_ranks, lose_ranks
from commands.decide.following import follow
from commands.entities import Attempt, AttemptKey, MassSilenceState, Node, NodeState, RankPhase
from commands.reports import Tick
from commands.state import State
from events.ids import NodeIndex
from events.job import EndReason
from events.node import (
    GpuFaulted,
    MassSilence,
    NodeLost,
    NodeReturned,
    NodesConfirmed,
    NodeSuspected,
    SilenceEased,
)


def decide_tick(draft: Draft, tick: Tick) -> None:
    """Facts of a tick, in this order: who is heard, who is silent, what is missing, what is due, what follows."""
    _observe(draft, tick)
    follow(draft)


def _observe(draft: Draft, tick: Tick) -> None:
    _heard(draft, tick.heard)
    _confirm(draft, tick.confirmed)
    for index, mask in tick.faults:
        _fault(draft, index, mask)
    if draft.state.meta.at < draft.state.meta.quiet_until_at:
        return
    _silence(draft, dict(tick.silent))
    for lease in tick.missing:
        if (held := draft.state.live_lease(lease)) is not None:
            attempt, rank = held
            lose_ranks(draft, attempt.key, [rank], EndReason.LEASE_MISSING)
    for key in tick.due:
        _due(draft, key)


def _heard(draft: Draft, heard: tuple[NodeIndex, ...]) -> None:
    """A suspect that is heard again was never gone; a lost node has to register (P-15)."""
    for index in heard:
        if draft.state.nodes[index].state is NodeState.SUSPECT:
            draft.add(NodeReturned(node=index))


def _confirm(draft: Draft, nodes: tuple[NodeIndex, ...]) -> None:
    """All that they run is known now, and is covered by leases: they may be granted on (P-16)."""
    epoch = draft.state.meta.epoch
    news = tuple(index for index in nodes if draft.state.nodes[index].confirmed != epoch)
    if news:
        draft.add(NodesConfirmed(nodes=news))


def _fault(draft: Draft, index: NodeIndex, mask: int) -> None:
    node = draft.state.nodes[index]
    new = mask & node.all_gpus & ~node.broken
    if new:
        draft.add(GpuFaulted(node=index, mask=new, code="agent"))  # type: ignore[arg-type]


def _silence(draft: Draft, silent: dict[NodeIndex, int]) -> None:
    """First suspicion, then loss; but silence of many at once is no loss of nodes (P-20)."""
    state, policy = draft.state, draft.state.policy
    for index in sorted(silent):
        if state.nodes[index].state is NodeState.UP and silent[index] >= policy.node_suspect_s:
            draft.add(NodeSuspected(node=index, silent_s=silent[index]))
    suspects = [node for node in state.nodes.rows.values() if node.state is NodeState.SUSPECT]
    _judge_mass(draft, suspects)
    if state.meta.mass_silence is MassSilenceState.HELD:
        return
    for index in sorted(silent):
        if state.nodes[index].state is NodeState.SUSPECT and silent[index] >= policy.node_lost_s:
            _lose(draft, index, silent[index])


def _judge_mass(draft: Draft, suspects: list[Node]) -> None:
    mass = _is_mass(draft.state, suspects)
    held = draft.state.meta.mass_silence
    if mass and held is MassSilenceState.NONE:
        known = sum(node.state in (NodeState.UP, NodeState.SUSPECT) for node in draft.state.nodes.rows.values())
        draft.add(MassSilence(silent=len(suspects), of=known))
    elif not mass and held is not MassSilenceState.NONE:
        draft.add(SilenceEased(silent=len(suspects)))


def _is_mass(state: State, suspects: list[Node]) -> bool:
    """Over 10% of the nodes and at least 8, or a whole block of at least 8."""
    policy = state.policy
    if len(suspects) < policy.mass_silence_nodes_min:
        return False
    answering = [node for node in state.nodes.rows.values() if node.state in (NodeState.UP, NodeState.SUSPECT)]
    if len(suspects) * 100 > policy.mass_silence_percent * len(answering):
        return True
    per_block: dict[str, int] = {}
    for node in suspects:
        per_block[node.block] = per_block.get(node.block, 0) + 1
    sizes: dict[str, int] = {}
    for node in answering:
        sizes[node.block] = sizes.get(node.block, 0) + 1
    return any(count >= policy.mass_silence_nodes_min and count == sizes[block] for block, count in per_block.items())


def _lose(draft: Draft, index: NodeIndex, silent_s: int) -> None:
    """Its gangs fail and queue again in front; its GPUs stay claimed until its orphans are known to be dead (R-70)."""
    leases = draft.state.nodes[index].leases
    draft.add(NodeLost(node=index, silent_s=silent_s))
    ranks: dict[AttemptKey, list[int]] = {}
    for job_id, number, rank in leases:
        ranks.setdefault((job_id, number), []).append(rank)
    for key, lost in ranks.items():
        lose_ranks(draft, key, lost, EndReason.NODE_LOST)
    for key in sorted(ranks):
        settle(draft, key)


def _due(draft: Draft, key: AttemptKey) -> None:
    """The run-time limit less the grace, or the time in which a gang has to start (R-5, R-30)."""
    state = draft.state
    attempt = state.attempts.get(key)
    if attempt is None or attempt.ending is not None or _unheard(state, attempt):
        return
    now, policy = state.meta.at, state.policy
    grace_s = limit_grace_s(policy, state.jobs[attempt.job_id], attempt)
    if attempt.limit_at is not None and now >= attempt.limit_at - grace_s * 1000:
        end_attempt(draft, key, EndReason.TIMED_OUT)
    elif _starts_late(attempt, now - policy.start_timeout_s * 1000):
        end_attempt(draft, key, EndReason.START_TIMEOUT)
    else:
        lose_ranks(draft, key, late_ranks(state, attempt), EndReason.START_TIMEOUT)


def _starts_late(attempt: Attempt, latest: int) -> bool:
    return RankPhase.GRANTED in attempt.phases[: attempt.first_size] and attempt.granted_at <= latest


def _unheard(state: State, attempt: Attempt) -> bool:
    """Is the word of a node still to come: one that has not registered with this leader, or is silent with many?

    What began or ended there meanwhile is in its reports (C-40, C-48); a stop could not reach it anyway.
    """
    held = state.meta.mass_silence is MassSilenceState.HELD
    for rank, (index, _) in enumerate(attempt.ranks):
        node = state.nodes[index]
        if attempt.live(rank) and node.state is not NodeState.LOST:
            unregistered = node.confirmed != state.meta.epoch
            if unregistered or (held and node.state is NodeState.SUSPECT):
                return True
    return False
