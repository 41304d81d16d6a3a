"""The plain planners: against start times of two independent simulators (tests/data/LICENCE.md), and by tables."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import pytest

from commands.apply import apply
from commands.decide.attempts import Draft
from commands.evolve import begin, fold_term
from commands.messages import DrainNode
from commands.plan import Plan
from commands.policy import Policy, Preset
from commands.state import State
from events.envelope import Term
from events.gang import GangAllocated, GangReleased, LeaseReleased, ReleasedBy
from events.ids import BlockId, ClusterId, Epoch, Instant, JobId, NodeId, NodeIndex, Nonce, Principal
from events.job import EndReason, JobFinished, JobQueued, JobState, JobSubmitted, QueueReason, Span, Topology
from events.node import GpuSlot, NodeRegistered, NodesConfirmed
from events.policy import PolicyChanged
from events.quota import QuotaChanged
from events.reservation import BlocksFreed
from scheduler.planning.plan import Planner
from tests.builders import H100, RED, job_id, quota, spec
from tests.scenario import Scenario
from tests.unit.steps import after, array, checkpointed, cluster, plan, policy, requeue, runs, stopped, submit

DATA = Path(__file__).parents[1] / "data"
T0 = 1_800_000_000_000
NODES = 128

Arrival = tuple[int, str, int, int]
"""(submitted at, name, GPUs, how long it runs), in whole seconds."""


class Clockwork:
    """128 nodes of 8 GPUs; every job lasts exactly as long as it may. At each time: ends, arrivals, one pass."""

    def __init__(self, preset: Preset) -> None:
        self.state = State(ClusterId("kalos"))
        self.planner = Planner(self.state)
        self.starts: dict[str, int] = {}
        self._ends: list[tuple[int, JobId]] = []
        first = {"epoch": Epoch(1), "nonce": Nonce("1"), "n": 1, "prev": "", "rules": 1, "holder": "host"}
        fold_term(self.state, Term(cluster=self.state.cluster, at=Instant(T0), **first))  # type: ignore[arg-type]
        self.planner.feed(self.state.accept())
        self._at(0, partial(self._build, preset=preset))

    def run(self, arrivals: list[Arrival]) -> dict[str, int]:
        """When each job starts."""
        coming = sorted(arrivals, key=lambda arrival: arrival[0])[::-1]
        while coming or self._ends:
            now = min([arrival[0] for arrival in coming[-1:]] + [end for end, _ in self._ends[:1]])
            self._at(now, partial(self._happen, now=now, coming=coming))
            made = self.planner.plan(Instant(T0 + now * 1000))
            self._at(now, partial(self._start, now=now, made=made))
        return self.starts

    def _at(self, now: int, decide: Callable[[Draft], None]) -> None:
        begin(self.state, Epoch(1), self.state.meta.n + 1, Instant(T0 + now * 1000))
        draft = Draft(self.state)
        decide(draft)
        self.planner.feed(self.state.accept())

    def _build(self, draft: Draft, preset: Preset) -> None:
        agent: Any = {"generation": 1, "boot_id": "boot", "incarnation": "agent", "journal": "journal", "rack": "r0"}
        for index in range(NODES):
            name = f"n{index}"
            gpus = tuple(GpuSlot(uuid=f"{name}-{slot}") for slot in range(8))
            place: Any = {"block": BlockId(f"b{index // 32}"), "gpu_type": H100, "gpu_memory_gb": 80, "gpus": gpus}
            draft.add(NodeRegistered(node=NodeIndex(index), node_id=NodeId(name), address=name, **agent, **place))
        draft.add(NodesConfirmed(nodes=tuple(NodeIndex(index) for index in range(NODES))))
        draft.add(QuotaChanged(team=RED, gpu_type=H100, guaranteed=0, borrow_limit=NODES * 8))
        draft.add(PolicyChanged(version=1, policy=Policy(preset=preset).model_dump(mode="json")))

    def _happen(self, draft: Draft, now: int, coming: list[Arrival]) -> None:
        while self._ends and self._ends[0][0] == now:
            _end(draft, heappop(self._ends)[1])
        while coming and coming[-1][0] == now:
            _, name, gpus, lasts_s = coming.pop()
            shape = {"replicas": -(-gpus // 8), "gpus_per_replica": min(gpus, 8), "max_runtime_s": lasts_s}
            draft.add(JobSubmitted(job_id=JobId(name), spec=spec(**shape), principal=Principal("user:ada")))
            draft.add(JobQueued(job_id=JobId(name), attempt=1, reason=QueueReason.SUBMITTED))

    def _start(self, draft: Draft, now: int, made: Plan) -> None:
        assert apply(draft, made) == []
        for event in draft.events:
            assert isinstance(event, GangAllocated)
            assert event.limit_at is not None
            self.starts[event.job_id] = now
            heappush(self._ends, ((event.limit_at - T0) // 1000, event.job_id))


def _end(draft: Draft, job: JobId) -> None:
    for rank in range(len(draft.state.attempts[job, 1].ranks)):
        draft.add(LeaseReleased(job_id=job, attempt=1, rank=rank, by=ReleasedBy.RECONCILED))
    draft.add(JobFinished(job_id=job, state=JobState.SUCCEEDED, reason=EndReason.COMPLETED, exit_code=0))
    draft.add(GangReleased(job_id=job, attempt=1))


def read(name: str) -> list[dict[str, str]]:
    with gzip.open(DATA / name, "rt") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("preset", [Preset.FIFO, Preset.SKIP, Preset.EASY])
def test_every_start_on_a_real_trace(preset: Preset) -> None:
    """The Kalos trace at a quarter of its time on 1,024 GPUs: each of 319 jobs starts in the very second in which it
    starts in the reference."""
    trace, reference = read("acme-kalos-completed.csv.gz"), read("kalos-x4-1024gpus-starts.csv.gz")
    arrivals = [(int(row["submit_s"]) // 4, row["job_id"], int(row["gpus"]), int(row["duration_s"])) for row in trace]
    expected = {row["job_id"]: int(row[f"{preset}_start_s"]) for row in reference}
    assert len(expected) == 319
    assert Clockwork(preset).run(arrivals) == expected


class TestTables:
    """The three rules on two nodes of eight GPUs."""

    def waiting(self, preset: str) -> Scenario:
        """`a` has n0 for an hour; `wide` wants both nodes; behind it `short` fits for half an hour, `long` for two, and
        `tiny`, a GPU for two hours."""
        ready = Scenario().given(cluster("b0: [8] [8]"), quota(), policy(preset=preset))
        ready.given(runs("a", gpus_per_replica=8, max_runtime_s=3600), submit("wide", replicas=2, gpus_per_replica=8))
        ready.given(submit("short", gpus_per_replica=4, max_runtime_s=1800))
        return ready.given(submit("long", gpus_per_replica=4, max_runtime_s=7200), plan())

    @pytest.mark.parametrize(
        ("preset", "started"), [("fifo", set[str]()), ("skip", {"short", "long"}), ("easy", {"short"})]
    )
    def test_behind_a_head_that_does_not_fit(self, preset: str, started: set[str]) -> None:
        """fifo waits; skip fills up; easy fills the hole only; five quiet cycles follow."""
        ready = self.waiting(preset)
        table = ready.table("wide", "short", "long")
        assert {name for name, where in table.items() if where != "waits"} == started
        ready.when(*[plan()] * 5).then_nothing()

    def test_easy_spends_what_the_head_leaves(self) -> None:
        """A job that runs past the head's start has GPUs that the head does not need, and no more than those."""
        ready = Scenario().given(cluster("b0: [8] [8]"), quota(), policy(preset="easy"))
        ready.given(
            runs("a", gpus_per_replica=8, max_runtime_s=3600), runs("b", gpus_per_replica=4, max_runtime_s=3600)
        )
        ready.given(submit("head", gpus_per_replica=6, max_runtime_s=3600))
        for name in ("x", "y", "z"):
            ready.given(submit(name, gpus_per_replica=2, max_runtime_s=7200))
        ready.given(plan())
        assert ready.table("head", "x", "y", "z") == {"head": "waits", "x": "n1*2", "y": "n1*2", "z": "waits"}

    def test_what_is_left_of_a_limit_counts(self) -> None:
        """A job that saved most of its work is over in time, though its whole limit would not be."""
        ready = Scenario().given(cluster("b0: [8] [8]"), quota(), policy(preset="easy"))
        ready.given(runs("a", gpus_per_replica=8, max_runtime_s=5000), submit("head", replicas=2, gpus_per_replica=8))
        ready.given(runs("b", gpus_per_replica=4, max_runtime_s=3600), after(3000), checkpointed("b", 1))
        ready.given(requeue("b"), stopped("b")).when(plan()).then(GangAllocated)
        ready.given(submit("c", gpus_per_replica=4, max_runtime_s=3600)).when(plan()).then_nothing()

    def test_order_is_of_submission_alone(self) -> None:
        """Neither class nor quota moves a job forward."""
        ready = Scenario().given(cluster("b0: [8]"), quota("red", 0), quota("blue", 8), policy(preset="fifo"))
        ready.given(submit("a", gpus_per_replica=8))
        ready.given(submit("b", team="blue", priority_class="prod-batch", gpus_per_replica=8), plan())
        assert ready.table("a", "b") == {"a": "n0*8", "b": "waits"}

    def test_a_job_over_its_teams_limit_blocks_nobody(self) -> None:
        """What may not start at all is passed over, by fifo too."""
        ready = Scenario().given(cluster("b0: [8]"), quota("red", 0, 4), quota("blue"), policy(preset="fifo"))
        ready.given(runs("a", gpus_per_replica=4), submit("b"), submit("c", team="blue"), plan())
        assert ready.table("b", "c") == {"b": "waits", "c": "n0*1"}

    def test_an_array_starts_element_by_element(self) -> None:
        """As many as fit and as its throttle lets, then the next job."""
        ready = Scenario().given(cluster("b0: [8]"), quota(), policy(preset="easy"))
        ready.given(submit("a", array=array(0, 9, 3)), submit("b", gpus_per_replica=5), plan())
        assert ready.table("a_2", "b") == {"a_2": "n0*1", "b": "n0*5"}

    def test_a_change_ends_what_the_policy_held(self) -> None:
        """With the preset the reservations of the default policy are over; and back, they are made anew."""
        ready = Scenario().given(cluster("b0: [8] [8]"), quota())
        ready.given(runs("a", gpus_per_replica=8), submit("b", replicas=2, gpus_per_replica=8), plan())
        assert ready.state.reservations.rows
        ready.given(policy(preset="skip")).when(plan()).then(BlocksFreed)
        ready.when(*[plan()] * 5).then_nothing()
        ready.given(policy(), plan())
        assert [held.job_id for held in ready.state.reservations.rows.values()] == [job_id("b")]

    def test_a_size_that_is_out_of_service_is_remembered_by_the_state_alone(self) -> None:
        """What the head is charged does not depend on which nodes the planner saw go (C-70): each plan is compared
        with that of a fresh planner."""
        ready = Scenario().given(cluster("b0: [4] [4] [8]"), quota(), policy(preset="easy"))
        ready.given(runs("a", gpus_per_replica=8, max_runtime_s=600))
        ready.given(*[DrainNode(node_id=NodeId(name), reason="x") for name in ("n0", "n1")])
        ready.given(submit("head", replicas=3, gpus_per_replica=2), submit("b", gpus_per_replica=8, max_runtime_s=60))
        ready.given(submit("c", gpus_per_replica=1), plan())
        assert ready.table("head", "b", "c") == dict.fromkeys(("head", "b", "c"), "waits")


class TestAnotherCycle:
    """A plan says that it is the last only where no other cycle could find anything."""

    @staticmethod
    def plans(ready: Scenario) -> tuple[bool, bool]:
        """Does it say so; and does the cycle after it find nothing?"""
        plan_now = ready.planner.plan(Instant(ready.at))
        assert not plan_now.empty()
        ready.given(plan())
        return plan_now.last, ready.planner.plan(Instant(ready.at)).empty()

    @pytest.mark.parametrize("preset", [Preset.FIFO, Preset.SKIP, Preset.EASY])
    def test_what_did_not_fit_still_does_not(self, preset: Preset) -> None:
        """Nothing is left to find behind a head that waits."""
        ready = Scenario().given(cluster("b0: [8] [8]"), quota(), policy(preset=preset))
        ready.given(submit("a", gpus_per_replica=8), submit("b", replicas=2, gpus_per_replica=8), submit("c"))
        assert self.plans(ready) == (True, True)

    def test_nodes_that_were_pledged_are_free_after_it(self) -> None:
        """The pledges of the policy end with the first cycle: what they kept is there for the second one."""
        ready = Scenario().given(cluster("b0: [8]"), quota("red", 0, 8), quota("blue", 8))
        ready.given(runs("a", gpus_per_replica=4), runs("b", gpus_per_replica=4))
        ready.given(submit("c", team="blue", gpus_per_replica=8), plan())
        assert ready.state.pledges.rows
        ready.given(policy(preset="skip"), submit("d", team="blue"))
        assert not self.plans(ready)[0]

    def test_a_looser_place_may_be_within_the_limit(self) -> None:
        """Spread as it wishes the job is charged two nodes, which its team may not use; once one of them is taken it
        fits on the other, for less."""
        wish = Topology(spread=Span.NODE, strict=False)
        ready = Scenario().given(cluster("b0: [8] [8]"), quota("red", 8, 0), quota("blue", 8), policy(preset="skip"))
        ready.given(submit("a", replicas=2, gpus_per_replica=4, topology=wish))
        ready.given(submit("b", team="blue", gpus_per_replica=8))
        assert self.plans(ready) == (False, False)

    def test_a_job_may_be_charged_less_than_was_reckoned(self) -> None:
        """Two nodes of four would be its own: so much is taken off the extra. It shares one of eight, and leaves
        some of that to the next."""
        ready = Scenario().given(cluster("b0: [4] [4] [8] [8]"), quota(), policy(preset="easy"))
        ready.given(runs("a", gpus_per_replica=8, max_runtime_s=3600), submit("head", replicas=2, gpus_per_replica=8))
        ready.given(submit("b", replicas=2, gpus_per_replica=3, max_runtime_s=7200))
        ready.given(submit("c", gpus_per_replica=2, max_runtime_s=7200))
        assert self.plans(ready) == (False, False)

    def test_a_commit_is_full(self) -> None:
        """What it could not hold comes with the next."""
        ready = Scenario().given(cluster("b0: [8]"), quota(), policy(preset="fifo"), submit("a"), submit("b"))
        assert [ready.planner.plan(Instant(ready.at), ranks_max).last for ranks_max in (1, 3)] == [False, True]
