"""What the facts about the cluster as a whole make of its rows: leadership, policy, quotas; and the records' own."""

from typing import Any

from events.envelope import Commit, Genesis, Term
from events.leadership import ClockGap, LeaderElected
from events.policy import PolicyChanged
from events.quota import QuotaChanged, TeamClassesChanged
from projections.fold.moment import Moment, Rule
from projections.rows import ClusterRow, LeaderRow, PolicyRow, QuotaRow, TeamRow
from projections.store import Rows


def begun(rows: Rows, genesis: Genesis) -> None:
    """The log begins."""
    rows.add(ClusterRow(cluster=rows.cluster, log_id=genesis.log_id))


def term_begun(rows: Rows, term: Term) -> None:
    """A new leadership. It can do nothing before its LeaderElected."""
    row = rows.change(ClusterRow)
    row.epoch, row.holder, row.elected_at = term.epoch, term.holder, None
    rows.put(
        LeaderRow(
            cluster=rows.cluster,
            epoch=term.epoch,
            nonce=term.nonce,
            holder=term.holder,
            rules=term.rules,
            term_n=term.n,
            term_at=term.at,
        )
    )


def input_taken(rows: Rows, commit: Commit) -> None:
    """How far the commands log was taken (P-13)."""
    made_by = commit.input
    if made_by.kind == "command" and made_by.position is not None:
        row = rows.change(ClusterRow)
        row.commands_position, row.commands_log_id = made_by.position, made_by.log_id


def elected(rows: Rows, when: Moment, event: LeaderElected) -> None:
    rows.change(ClusterRow).elected_at = when.at
    leader = rows.change(LeaderRow, event.epoch)
    leader.elected_at, leader.elected_seq = when.at, when.seq


def clock_gapped(rows: Rows, when: Moment, event: ClockGap) -> None:
    rows.change(ClusterRow).quiet_until_at = event.until_at


def policy_changed(rows: Rows, when: Moment, event: PolicyChanged) -> None:
    rows.change(ClusterRow).policy_version = event.version
    rows.put(
        PolicyRow(
            cluster=rows.cluster,
            version=event.version,
            policy=event.policy,
            at=when.at,
            seq=when.seq,
            actor=when.commit.actor,
            reason=event.reason,
        )
    )


def quota_changed(rows: Rows, when: Moment, event: QuotaChanged) -> None:
    rows.put(
        QuotaRow(
            cluster=rows.cluster,
            team=event.team,
            gpu_type=event.gpu_type,
            guaranteed=event.guaranteed,
            borrow_limit=event.borrow_limit,
            changed_at=when.at,
            changed_seq=when.seq,
            actor=when.commit.actor,
            reason=event.reason,
            guaranteed_percent=event.guaranteed_percent,
            borrow_limit_percent=event.borrow_limit_percent,
        )
    )


def classes_changed(rows: Rows, when: Moment, event: TeamClassesChanged) -> None:
    rows.put(
        TeamRow(
            cluster=rows.cluster,
            team=event.team,
            classes=list(event.classes),
            changed_at=when.at,
            changed_seq=when.seq,
        )
    )


RULES: dict[type[Any], Rule] = {
    LeaderElected: elected,
    ClockGap: clock_gapped,
    PolicyChanged: policy_changed,
    QuotaChanged: quota_changed,
    TeamClassesChanged: classes_changed,
}
