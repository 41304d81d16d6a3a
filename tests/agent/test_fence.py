"""What an agent may obey, rule by rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.book import SETTLED_MAX, Book
from agent.fence import Fence, Verdict
from agent.journal import MemoryJournal
from events.ids import Epoch, LeaseId
from events.task import TaskEnd
from scheduler.link import Phase, StartTask, StopTask, TaskEndedReport
from tests.agent.builders import GPU, LEASE, start_task, stop_task

HERE = {GPU, "GPU-n-1-1"}


@pytest.fixture
def fence() -> Fence:
    """A fence whose agent registered at time 0."""
    return opened(MemoryJournal("journal"))


def opened(journal: MemoryJournal) -> Fence:
    """As an agent that starts, and has registered at time 0."""
    fence = Fence.open(journal)
    fence.beat(0, 0.0)
    return fence


def reopened(fence: Fence) -> Fence:
    """The fence of the next agent over the same journal."""
    assert isinstance(fence.journal, MemoryJournal)
    return opened(fence.journal)


def ends(fence: Fence) -> list[tuple[LeaseId, TaskEnd]]:
    """The ends that were reported, in order."""
    return [(report.lease_id, report.end) for report in fence.book.reports if isinstance(report, TaskEndedReport)]


def test_p_17_an_older_epoch_is_refused_for_starts_and_stops(fence: Fence) -> None:
    """After a word of epoch 2 nothing of epoch 1 is obeyed, by the next agent on the node either."""
    assert fence.hear(Epoch(2))
    for heard in (fence, reopened(fence)):
        assert heard.start(start_task(epoch=1), 1.0, HERE) is Verdict.OLD_EPOCH
        assert heard.stop(stop_task(epoch=1)) is Verdict.OLD_EPOCH
        assert heard.book.leases == {}


def test_p_17_a_newer_epoch_is_on_disk_before_it_is_obeyed(fence: Fence) -> None:
    """When a start is accepted, the journal holds its epoch, its lease and the grant of its GPU."""
    assert fence.start(start_task(epoch=7), 1.0, HERE) is Verdict.ACCEPTED
    book = reopened(fence).book
    assert (book.epoch, book.grants[GPU], list(book.leases)) == (7, (1, 10), [LEASE])
    assert book.running()[0].phase is Phase.ACCEPTED


def test_p_17_a_doubled_start_runs_once(fence: Fence) -> None:
    """The same start again, in this agent or the next, is known and starts nothing."""
    assert fence.start(start_task(), 1.0, HERE) is Verdict.ACCEPTED
    assert fence.start(start_task(), 2.0, HERE) is Verdict.KNOWN
    assert reopened(fence).start(start_task(), 3.0, HERE) is Verdict.KNOWN


def test_p_17_a_successor_may_repeat_the_start(fence: Fence) -> None:
    """A lease outlives leaders: the next leader's start of it is known too, and raises the epoch."""
    fence.start(start_task(epoch=1), 1.0, HERE)
    assert fence.start(start_task(epoch=2), 2.0, HERE) is Verdict.KNOWN
    assert fence.book.epoch == 2


def test_p_17_a_start_that_comes_after_the_end_is_answered_with_it(fence: Fence) -> None:
    """When a lease has ended and the log has it, a late start gets that end once more and starts nothing."""
    fence.start(start_task(), 1.0, HERE)
    fence.end(fence.book.leases[LEASE], TaskEnd.EXITED, exit_code=0)
    assert fence.acknowledged(fence.book.last_report) == [LEASE]
    assert fence.start(start_task(), 2.0, HERE) is Verdict.KNOWN
    assert ends(fence) == [(LEASE, TaskEnd.EXITED)]


def test_p_17_a_stop_that_overtakes_its_start_prevents_it(fence: Fence) -> None:
    """The stop is answered with NEVER_STARTED, and the start, whenever it comes, is not obeyed."""
    assert fence.stop(stop_task()) is Verdict.NEVER_STARTED
    assert ends(fence) == [(LEASE, TaskEnd.NEVER_STARTED)]
    assert fence.start(start_task(), 1.0, HERE) is Verdict.KNOWN
    fence.acknowledged(fence.book.last_report)
    assert reopened(fence).start(start_task(), 1.0, HERE) is Verdict.KNOWN


def test_p_17_a_grant_not_above_the_highest_of_a_gpu_is_refused(fence: Fence) -> None:
    """Another lease with an older or equal grant on the GPU does not start; on another GPU, or newer, it does."""
    fence.start(start_task(grant=(1, 10)), 1.0, HERE)
    for number, grant in enumerate([(1, 9), (1, 10), (0, 99)]):
        other = start_task(lease_id=f"j_2.1.{number}", grant=grant)
        assert fence.start(other, 1.0, HERE) is Verdict.OLD_GRANT
    beside = start_task(lease_id="j_3.1.0", grant=(1, 10), gpu_uuids=("GPU-n-1-1",))
    assert fence.start(beside, 1.0, HERE) is Verdict.ACCEPTED
    assert fence.start(start_task(lease_id="j_4.1.0", grant=(2, 1)), 1.0, HERE) is Verdict.ACCEPTED


def test_p_17_forgotten_leases_leave_a_floor(fence: Fence) -> None:
    """When so many leases ended that the oldest is forgotten, its start, however late, is refused all the same."""
    fence.stop(stop_task())
    for number in range(SETTLED_MAX + 1):
        fence.stop(stop_task(LeaseId(f"j_9.1.{number}"), grant=(1, 20 + number)))
        fence.acknowledged(fence.book.last_report)
    assert LEASE not in fence.book.settled
    assert fence.start(start_task(), 1.0, HERE) is Verdict.OLD_GRANT


def test_p_18_a_start_needs_a_heartbeat_of_the_last_30_s(fence: Fence) -> None:
    """A start that names a heartbeat sent over 30 s ago, or one that was never sent, is refused."""
    fence.beat(1, 100.0)
    assert fence.start(start_task(last_heartbeat=1), 130.1, HERE) is Verdict.OLD_HEARTBEAT
    assert fence.start(start_task(last_heartbeat=2), 101.0, HERE) is Verdict.OLD_HEARTBEAT
    assert fence.start(start_task(last_heartbeat=1), 130.0, HERE) is Verdict.ACCEPTED
    assert fence.exec_before(1) == 130.0


def test_p_18_the_next_incarnation_does_not_count_old_heartbeats(fence: Fence) -> None:
    """A heartbeat number of an earlier agent on the node means nothing to the next."""
    fence.beat(5, 1.0)
    assert reopened(fence).start(start_task(last_heartbeat=5), 2.0, HERE) is Verdict.OLD_HEARTBEAT


def test_p_21_a_gpu_that_is_not_there_is_refused(fence: Fence) -> None:
    """A start on a UUID that the node does not have ends as START_FAILED, which names it, and grants nothing."""
    assert fence.start(start_task(gpu_uuids=("GPU-else",)), 1.0, HERE) is Verdict.GPU_MISSING
    assert ends(fence) == [(LEASE, TaskEnd.START_FAILED)]
    assert fence.book.grants == {}


def test_p_15_a_stop_order_outlives_the_agent(fence: Fence) -> None:
    """The order to stop is on disk before the runtime hears of it; a longer grace does not replace a shorter one."""
    fence.start(start_task(), 1.0, HERE)
    fence.stop(stop_task(grace_s=5))
    fence.stop(stop_task(grace_s=50))
    assert reopened(fence).book.leases[LEASE].stop_grace_s == 5


def test_p_19_reports_are_numbered_without_a_gap_over_agents(fence: Fence) -> None:
    """Numbers go on where the last agent left off, acknowledged or not."""
    fence.stop(stop_task(LeaseId("j_2.1.0")))
    fence.acknowledged(1)
    fence.stop(stop_task(LeaseId("j_3.1.0")))
    following = reopened(fence)
    following.stop(stop_task(LeaseId("j_4.1.0")))
    assert [report.number for report in following.book.reports] == [2, 3]
    assert following.book.last_report == 3


def test_c_44_a_stop_again_after_the_end_is_answered_again(fence: Fence) -> None:
    """A leader that never got the end asks again, and gets the same end under a new number."""
    fence.start(start_task(), 1.0, HERE)
    fence.end(fence.book.leases[LEASE], TaskEnd.EXITED, exit_code=3)
    fence.acknowledged(fence.book.last_report)
    assert fence.stop(stop_task()) is Verdict.KNOWN
    report = fence.book.reports[-1]
    assert isinstance(report, TaskEndedReport)
    assert (report.end, report.exit_code) == (TaskEnd.EXITED, 3)


_LEASES = [LeaseId(f"j_{job}.1.0") for job in range(4)]
_STARTS = st.builds(
    lambda job, epoch, gpus: start_task(
        lease_id=_LEASES[job], grant=(1, 10 + job), epoch=epoch, gpu_uuids=tuple(sorted(gpus))
    ),
    st.integers(0, 3),
    st.integers(1, 3),
    st.sets(st.sampled_from(sorted(HERE)), min_size=1),
)
_STOPS = st.builds(
    lambda job, epoch: stop_task(_LEASES[job], epoch=epoch, grant=(1, 10 + job)), st.integers(0, 3), st.integers(1, 3)
)


@given(st.lists(st.one_of(_STARTS, _STOPS, st.just("die"), st.just("settle")), max_size=20))
def test_p_17_whatever_comes_in_whatever_order_no_lease_starts_twice(
    steps: list[StartTask | StopTask | str],
) -> None:
    """Starts and stops doubled, reordered, of any epoch, over deaths and acknowledgements: each lease is accepted at
    most once, never after its stop, epochs never fall, and the grants of a GPU rise."""
    fence = opened(MemoryJournal("journal"))
    accepted: list[StartTask] = []
    stopped: set[LeaseId] = set()
    for step in steps:
        epoch = fence.book.epoch
        match step:
            case StartTask():
                if fence.start(step, 1.0, HERE) is Verdict.ACCEPTED:
                    assert step.lease_id not in stopped
                    assert step.epoch >= epoch
                    accepted.append(step)
            case StopTask():
                if fence.stop(step) is not Verdict.OLD_EPOCH:
                    stopped.add(step.lease_id)
            case "die":
                fence = reopened(fence)
            case _:
                for record in fence.book.live():
                    fence.end(record, TaskEnd.EXITED, exit_code=0)
                fence.acknowledged(fence.book.last_report)
        assert fence.book.epoch >= epoch
    assert len({start.lease_id for start in accepted}) == len(accepted)
    for gpu in HERE:
        grants = [start.grant for start in accepted if gpu in start.gpu_uuids]
        assert grants == sorted(set(grants))


def test_a_book_that_cannot_be_read_is_an_error() -> None:
    """An agent does not begin with an empty memory because its own is damaged."""
    with pytest.raises(ValueError, match="Invalid JSON"):
        Fence.open(MemoryJournal("journal", b'{"journal": "jour'))
    assert isinstance(Fence.open(MemoryJournal("journal")).book, Book)
