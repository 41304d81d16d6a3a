"""The simulation finds what it is there to find: each rule of PROTOCOL taken away, in the code that keeps it.

Every test plants one bug and runs scenarios, seed by seed, until something is found; that must be within the seeds
given, and the finding must be of a kind that names the bug.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.fence import Fence, Verdict
from agent.node import NodeAgent
from commands.decide import attempts
from commands.decide.attempts import Draft
from commands.entities import AttemptKey, Node, NodeState
from events import chain
from events.chain import Accepted, Dropped, Head, admit
from events.envelope import Commit
from events.gang import LeaseReleased, ReleasedBy
from events.ids import Epoch
from events.job import EndReason
from scheduler.intake import Intake
from scheduler.link import StopTask
from scheduler.memory import MemoryControl, Row
from scheduler.planning import capacity
from scheduler.writer import Writer
from tests.simulation.audit import Found
from tests.simulation.run import run
from tests.simulation.scenarios import SCENARIOS


def finds(names: Sequence[str], seeds: Sequence[int], rules: set[str]) -> None:
    """Some run of these finds something, and the first finding is of one of the rules."""
    for seed in seeds:
        for name in names:
            if (found := _finding(name, seed)) is not None:
                assert found.rule in rules, f"{name} {seed}: {found}"
                return
    pytest.fail(f"nothing was found in {len(seeds)} seeds of {', '.join(names)}")


def _finding(name: str, seed: int) -> Found | None:
    try:
        run(SCENARIOS[name], seed)
    except Found as found:
        return found
    return None


def test_planted_p_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that acts on an acknowledged append, though the record does not count, is found."""

    async def trust(self: Writer, raw: bytes, offset: int) -> Head:
        outcome = admit(replace(self.head, offset=offset - 1), offset, raw)
        assert isinstance(outcome, Accepted)
        return outcome.head

    monkeypatch.setattr(Writer, "_accepted", trust)
    finds(["early-successors"], range(1, 9), {"P-1"})


def test_planted_p_3_stale_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that accepts the term of an epoch that is over is found."""
    real = chain._admit_term

    def lax(head: Head, offset: int, raw: bytes, parsed: dict[str, Any]) -> Accepted | Dropped:
        body = parsed["body"]
        late = body["epoch"] < head.epoch
        return real(
            replace(head, epoch=Epoch(0), n=body["n"] - 1, hash=body["prev"]) if late else head, offset, raw, parsed
        )

    monkeypatch.setattr(chain, "_admit_term", lax)
    finds(["terms"], range(1, 9), {"P-3"})


def test_planted_p_3_equal_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that accepts a second term of the same epoch is found."""
    real = chain._admit_term

    def lax(head: Head, offset: int, raw: bytes, parsed: dict[str, Any]) -> Accepted | Dropped:
        body = parsed["body"]
        equal = body["epoch"] == head.epoch
        return real(
            replace(head, epoch=Epoch(0), n=body["n"] - 1, hash=body["prev"]) if equal else head, offset, raw, parsed
        )

    monkeypatch.setattr(chain, "_admit_term", lax)
    finds(["terms"], range(1, 9), {"P-3"})


def test_planted_p_3_old_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that accepts the commit of a deposed leader is found."""
    real = chain._admit_commit

    def lax(head: Head, offset: int, raw: bytes, parsed: dict[str, Any]) -> Accepted | Dropped:
        return real(replace(head, epoch=parsed["epoch"], nonce=parsed["nonce"]), offset, raw, parsed)

    monkeypatch.setattr(chain, "_admit_commit", lax)
    finds(["late-appends"], range(1, 9), {"P-3"})


def test_planted_p_8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims that are changed without a look at the epoch row are found."""

    def anyone(self: MemoryControl, cluster: Any, tenure: Any) -> Row:
        return self.rows[cluster]

    monkeypatch.setattr(MemoryControl, "fence", anyone)
    finds(["late-statements", "takeover-reconcile.sent"], range(1, 13), {"I-2", "P-15"})


@pytest.mark.parametrize("order", ["claim after append", "release before append"])
def test_planted_i_2(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """A writer that claims after its append, or releases before it, is found."""
    claim, append, release = Writer._claim, Writer._append, Writer._release
    made: list[Commit] = []

    async def remember(self: Writer, commit: Commit) -> None:
        made.append(commit)
        if order == "release before append":
            await claim(self, commit)

    async def other_order(self: Writer, raw: bytes) -> Head:
        commit = made.pop()
        if order == "release before append":
            await release(self, commit)
        head = await append(self, raw)
        if order == "claim after append":
            await claim(self, commit)
        return head

    monkeypatch.setattr(Writer, "_claim", remember)
    monkeypatch.setattr(Writer, "_append", other_order)
    finds(["quiet"], range(1, 3), {"I-2"})


def test_planted_p_13(monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor that goes on at the end of the commands log, and not where it was taken to, is found."""
    real = Intake.read

    async def from_the_end(self: Intake, wake: Any) -> None:
        skipped = await self._world.commands.end() - self._writer.state.meta.command_position
        self._writer.state.meta_table.rows[""] = replace(
            self._writer.state.meta, command_position=self._writer.state.meta.command_position + max(0, skipped)
        )
        await real(self, wake)

    monkeypatch.setattr(Intake, "read", from_the_end)
    finds(["storm"], range(1, 9), {"P-13"})


@pytest.mark.parametrize("when", ["at StopTask", "at a time-out"])
def test_planted_p_15(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """A lease that is freed when it is told to stop, or after a while, and not when its agent confirms, is found."""
    real: Callable[[Draft, AttemptKey, EndReason], None] = attempts.end_attempt

    def too_soon(draft: Draft, key: AttemptKey, reason: EndReason) -> None:
        before = draft.state.attempts.get(key)
        real(draft, key, reason)
        if (
            before is None
            or before.ending is not None
            or (when == "at a time-out" and reason is not EndReason.NODE_LOST)
        ):
            return
        for rank in range(len(before.ranks)):
            if draft.state.attempts[key].live(rank):
                draft.add(LeaseReleased(job_id=key[0], attempt=key[1], rank=rank, by=ReleasedBy.RECONCILED))

    for name, module in list(sys.modules.items()):
        if name.startswith("commands.") and hasattr(module, "end_attempt"):
            monkeypatch.setattr(module, "end_attempt", too_soon)
    finds(["partition-300s" if when == "at a time-out" else "quiet"], range(5, 11), {"P-15"})


def test_planted_p_16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that grants on nodes which have not yet said what they run is found."""

    def at_once(node: Node, epoch: int) -> bool:
        return node.state is NodeState.UP and node.drained is None and bool(node.gpus)

    monkeypatch.setattr(capacity, "schedulable", at_once)
    monkeypatch.setattr("commands.apply_grants._Grants._out_of_service", lambda *_: None)
    finds(["storm"], range(1, 6), {"P-16"})


def test_planted_p_17_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that forgets what has ended, and starts whatever it does not know, is found."""
    real = Fence.acknowledged

    def forgetful(self: Fence, number: int) -> Any:
        over = real(self, number)
        self.book.settled.clear()
        self.book.grants.clear()
        self.book.grant_floor = (0, 0)
        return over

    monkeypatch.setattr(Fence, "acknowledged", forgetful)
    finds(["hostile"], range(1, 6), {"P-17"})


def test_planted_p_17_stop_before_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that answers a stop that overtakes its start, and does not remember it, is found."""
    real = Fence._stop_unknown

    def lost(self: Fence, message: StopTask) -> Verdict:
        verdict = real(self, message)
        self.book.leases.pop(message.lease_id, None)
        return verdict

    monkeypatch.setattr(Fence, "_stop_unknown", lost)
    finds(["hostile"], range(1, 6), {"P-17"})


def test_planted_p_17_lower_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that obeys a leader after it has heard of the next is found."""
    real = Fence.hear

    def anyone(self: Fence, epoch: Epoch) -> bool:
        real(self, epoch)
        return True

    monkeypatch.setattr(Fence, "hear", anyone)
    finds(["hostile-any-session"], range(1, 17), {"P-17", "P-1"})


def test_planted_p_18(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that starts what waited in its socket while it stood still is found."""
    monkeypatch.setattr(Fence, "exec_before", lambda self, last_heartbeat: float("inf"))
    monkeypatch.setattr(NodeAgent, "_drop_if_frozen", lambda self, now: None)
    monkeypatch.setattr(NodeAgent, "_keep_session", _beat_only)
    finds(["frozen-agents"], range(1, 9), {"P-17", "P-18"})


def _beat_only(self: NodeAgent, now: float) -> None:
    session = self._session
    if session is not None and session.registered and not session.dropped and now >= session.heartbeat_due:
        self._heartbeat(session, now)
