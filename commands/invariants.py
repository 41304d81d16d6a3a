"""What must hold of every state (DESIGN 2). `check_touched` runs before every claim; `check_all` in tests and verify.

Both raise InvariantBroken, which names the invariant: an assertion that stays on.
"""

from collections import defaultdict

from commands.entities import Attempt, Job, Node, NodeState
from commands.following import derived
from commands.shape import count_node
from commands.state import Change, State
from events.job import ENDS, JobState


class InvariantBroken(AssertionError):
    """The facts on trial would make a state that must not be. Definite: the input is refused (P-7)."""


def check_touched(state: State, changes: list[Change]) -> None:
    """I-1, I-11 on what a decision changed; costs what it touched."""
    for change in changes:
        if change.table == "nodes" and change.new is not None:
            _check_node(state, change.new)
        elif change.table == "attempts" and change.new is not None:
            _check_attempt(state, change.new)
        elif change.table == "usage" and change.new.charged < 0:
            raise InvariantBroken(f"I-11: {change.key} is charged {change.new.charged}")
        elif change.table == "jobs" and change.new is not None and change.old is not None:
            _check_end_once(change)


def check_all(state: State) -> None:
    """Everything, recomputed from the attempts: sum of live leases = ledger = node view (I-11)."""
    used: dict[int, int] = defaultdict(int)
    leases: dict[int, set[tuple[str, int, int]]] = defaultdict(set)
    charged: dict[tuple[str, str], int] = defaultdict(int)
    for attempt in state.attempts.rows.values():
        _check_attempt(state, attempt)
        charged[attempt.team, attempt.gpu_type] += attempt.charged
        for rank, (index, mask) in enumerate(attempt.ranks):
            if not attempt.live(rank):
                continue
            if used[index] & mask:
                raise InvariantBroken(f"I-1: gpus {used[index] & mask:#x} of node {index} are in two leases")
            used[index] |= mask
            leases[index].add((attempt.job_id, attempt.number, rank))
    for node in state.nodes.rows.values():
        if node.used != used[node.index] or set(node.leases) != leases[node.index]:
            raise InvariantBroken(f"I-11: node {node.id} shows {node.used:#x}, leases say {used[node.index]:#x}")
    _check_pools(state)
    _check_reservations(state)
    for key, usage in state.usage.rows.items():
        if usage.charged != charged[key]:
            raise InvariantBroken(f"I-11: {key} is charged {usage.charged}, leases say {charged[key]}")
    if missing := {key for key, gpus in charged.items() if gpus and key not in state.usage}:
        raise InvariantBroken(f"I-11: no ledger line for {sorted(missing)}")
    _check_queues(state)
    _check_arrays(state)


def _check_node(state: State, node: Node) -> None:
    if node.used & ~node.all_gpus:
        raise InvariantBroken(f"I-11: node {node.id} shows gpus that it has not")
    total = 0
    for job_id, number, rank in node.leases:
        attempt = state.attempts.get((job_id, number))
        if attempt is None or not attempt.live(rank) or attempt.ranks[rank][0] != node.index:
            raise InvariantBroken(f"I-11: node {node.id} shows the lease {job_id}.{number}.{rank}, which is not live")
        mask = attempt.ranks[rank][1]
        if total & mask:
            raise InvariantBroken(f"I-1: gpus {total & mask:#x} of node {node.id} are in two leases")
        total |= mask
    if total != node.used:
        raise InvariantBroken(f"I-11: node {node.id} shows {node.used:#x}, its leases say {total:#x}")


def _check_attempt(state: State, attempt: Attempt) -> None:
    charged = sum(
        mask.bit_count()
        for rank, (index, mask) in enumerate(attempt.ranks)
        if attempt.live(rank) and state.nodes[index].state is not NodeState.LOST
    )
    if attempt.charged != charged:
        raise InvariantBroken(f"I-11: attempt {attempt.key} is charged {attempt.charged}, leases say {charged}")
    if attempt.job_id not in state.jobs:
        raise InvariantBroken(f"I-11: attempt {attempt.key} of a job that is gone")


def _check_end_once(change: Change) -> None:
    if change.old.state in ENDS and change.new.state is not change.old.state:
        raise InvariantBroken(f"R-3: {change.key} ended {change.old.state}, now {change.new.state}")


def _check_pools(state: State) -> None:
    """Nodes by pool, block and rack, counted anew."""
    counted = State(state.cluster)
    for node in state.nodes.rows.values():
        count_node(counted, node, 1)
    if counted.pools.rows != state.pools.rows:
        raise InvariantBroken("I-11: the pools are not those of the registered nodes")


def _check_reservations(state: State) -> None:
    """No job has nodes held for it twice (R-23)."""
    held = [reservation.job_id for reservation in state.reservations.rows.values()]
    if len(held) != len(set(held)):
        raise InvariantBroken(f"R-23: more than one reservation of a job: {sorted(held)}")


def _check_queues(state: State) -> None:
    queued: dict[str, int] = defaultdict(int)
    for job in state.jobs.rows.values():
        queued[job.spec.team] += job.state is JobState.QUEUED
        runs = job.state in (JobState.STARTING, JobState.RUNNING) and job.elements is None
        if runs and (job.id, job.attempt) not in state.attempts:
            raise InvariantBroken(f"R-3: {job.id} is {job.state} without an attempt")
    for team in state.teams.rows.values():
        if team.queued != queued[team.id]:
            raise InvariantBroken(f"R-13: team {team.id} shows {team.queued} queued, jobs say {queued[team.id]}")


def _check_arrays(state: State) -> None:
    """Counts of arrays, and the tables that follow from the jobs, recomputed (R-7)."""
    held: dict[str, list[Job]] = defaultdict(list)
    for job in state.jobs.rows.values():
        if job.element_of is not None and job.state not in ENDS:
            held[job.element_of].append(job)
    for job in state.jobs.rows.values():
        if job.elements is None:
            continue
        live = (len(held[job.id]), sum(element.cancel_requested for element in held[job.id]))
        if (job.elements.open, job.elements.cancelled) != live or job.unmade < 0:
            raise InvariantBroken(f"R-7: array {job.id} shows {job.elements}, its elements say {live}")
    dependents, follow_ups = derived(state)
    if state.dependents.rows != dependents or state.follow_ups.rows != follow_ups:
        raise InvariantBroken("R-7: dependents or follow-ups are not those of the jobs")
