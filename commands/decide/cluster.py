"""Commands about the cluster: quotas, policy, and an operator's word on silence."""

from dataclasses import replace

from pydantic import ValidationError

from commands.decide.attempts import Draft
from commands.entities import MassSilenceState, NodeState
from commands.messages import QuotaLine, SetPolicy, SetQuota
from commands.policy import Policy
from commands.pools import pool_of
from commands.refusal import Refusal, RefusalCode
from commands.state import State
from events.ids import GpuType, TeamId
from events.node import SilenceEased
from events.policy import PolicyChanged
from events.quota import QuotaChanged, TeamClassesChanged


def set_quota(draft: Draft, command: SetQuota) -> Refusal | None:
    """All lines or none. The guarantees of all teams may not exceed the registered GPUs outside pools, unless the line
    lowers one. Nothing that runs is stopped for it: what is then above the guarantee is borrowed (R-12, C-15)."""
    lines = [_resolved(draft.state, line) for line in command.lines]
    for line in lines:
        if (refusal := _over_inventory(draft.state, command.team, line)) is not None:
            return refusal
    for line in lines:
        now = draft.state.quotas.get((command.team, line.gpu_type))
        if now is None or (now.guaranteed, now.borrow_limit) != (line.guaranteed, line.borrow_limit):
            draft.add(
                QuotaChanged(
                    team=command.team,
                    gpu_type=line.gpu_type,
                    guaranteed=line.guaranteed,
                    borrow_limit=line.borrow_limit,
                    reason=command.reason,
                    guaranteed_percent=line.guaranteed_percent,
                    borrow_limit_percent=line.borrow_limit_percent,
                )
            )
    team = draft.state.teams.get(command.team)
    if command.classes is not None and (team is None or team.classes != command.classes):
        classes = tuple(str(name) for name in command.classes)
        draft.add(TeamClassesChanged(team=command.team, classes=classes, reason=command.reason))
    return None


def _resolved(state: State, line: QuotaLine) -> QuotaLine:
    """The line in GPUs; a fraction of one is nobody's."""
    registered = registered_gpus(state, line.gpu_type)
    guaranteed, borrow = line.guaranteed_percent, line.borrow_limit_percent
    return replace(
        line,
        guaranteed=line.guaranteed if guaranteed is None else registered * guaranteed // 100,
        borrow_limit=line.borrow_limit if borrow is None else registered * borrow // 100,
    )


def _over_inventory(state: State, team: TeamId, line: QuotaLine) -> Refusal | None:
    registered = registered_gpus(state, line.gpu_type)
    others = sum(
        quota.guaranteed
        for quota in state.quotas.rows.values()
        if quota.gpu_type == line.gpu_type and quota.team != team
    )
    now = state.quotas.get((team, line.gpu_type))
    lowered = now is not None and line.guaranteed <= now.guaranteed
    if others + line.guaranteed <= registered or lowered:
        return None
    limit = (
        f"{max(0, registered - others)} of {registered} registered GPUs outside pools are not guaranteed to other teams"
    )
    return Refusal(RefusalCode.OVER_INVENTORY, f"{line.gpu_type}.guaranteed", str(line.guaranteed), limit)


def registered_gpus(state: State, gpu_type: GpuType) -> int:
    """GPUs of a type that can be guaranteed: on registered nodes, whatever their state, that are in no pool."""
    pools = state.policy.pools
    return sum(
        len(node.gpus)
        for node in state.nodes.rows.values()
        if node.gpu_type == gpu_type and node.state is not NodeState.REMOVED and pool_of(pools, node) is None
    )


def set_policy(draft: Draft, command: SetPolicy) -> Refusal | None:
    """A policy that does not validate is refused with the field."""
    try:
        policy = Policy.model_validate(command.policy)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        return Refusal(RefusalCode.BAD_POLICY, field, str(first.get("input", ""))[:100], first["msg"])
    if policy == draft.state.policy:
        return None
    version = draft.state.meta.policy_version + 1
    draft.add(PolicyChanged(version=version, policy=policy.model_dump(mode="json"), reason=command.reason))
    return None


def ease_silence(draft: Draft) -> Refusal | None:
    if draft.state.meta.mass_silence is not MassSilenceState.HELD:
        return Refusal(RefusalCode.WRONG_STATE, "silence", draft.state.meta.mass_silence, MassSilenceState.HELD)
    silent = sum(node.state is NodeState.SUSPECT for node in draft.state.nodes.rows.values())
    draft.add(SilenceEased(silent=silent, operator=True))
    return None
