"""The search for victims against all the sets there are, on small fleets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from hypothesis import given, note, settings
from hypothesis import strategies as st

from commands.displace import may_displace, saved_at, shielded_until, untouchable
from commands.entities import Attempt, AttemptKey, Job
from commands.plan import Plan, Room
from commands.shape import charged_gpus, takes_whole_nodes
from commands.state import State
from events.ids import Instant, JobId
from events.job import CLASS_RANK, PriorityClass, Span, Topology
from scheduler.planning.capacity import Capacity
from scheduler.planning.fit import find
from tests.crowds import H100, RESEARCH, SERVING, T0, Crowd, masks

TEAMS = st.sampled_from(["red", "red", "blue", "green"])
CLASSES = st.sampled_from(list(PriorityClass))
SPANS = st.sampled_from([None, None, *Span])
HINTS = st.just(Topology()) | st.builds(
    Topology,
    pack=SPANS,
    spread=SPANS,
    max_blocks=st.none() | st.integers(1, 2),
    strict=st.sampled_from([True, True, False]),
)


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    """Up to five nodes of one size with up to nine jobs on them, of three teams; one more waits: `wanted`."""
    crowd = Crowd()
    size = draw(st.sampled_from([2, 4]))
    for _ in range(draw(st.integers(1, 5))):
        crowd.nodes(size, block=draw(st.sampled_from("aab")), rack=draw(st.sampled_from("rs")))
    for team in ("red", "blue", "green"):
        crowd.quota(team, draw(st.integers(0, 2 * size)))
    for number in range(draw(st.integers(0, 9))):
        _start(draw, crowd, number, size)
    crowd.pass_time(draw(st.sampled_from([10, 1_000, 2_700, 7_200])))
    wanted = crowd.queue(
        "wanted",
        draw(st.integers(1, 4)),
        draw(st.integers(1, size)),
        team=draw(TEAMS),
        cls=draw(CLASSES),
        topology=draw(HINTS),
    )
    assert wanted.id in crowd.state.jobs
    return crowd


def _start(draw: st.DrawFn, crowd: Crowd, number: int, size: int) -> None:
    """A job on some of what is free."""
    free = {index: node.free for index, node in sorted(crowd.state.nodes.rows.items()) if node.free}
    if not free:
        return
    each = draw(st.integers(1, size))
    fitting = [index for index, mask in free.items() if mask.bit_count() >= each]
    if not fitting:
        return
    used = draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=3, unique=True))
    ranks = [(int(index), _lowest(free[index], each)) for index in used]
    name = f"j{number}"
    crowd.run(
        name,
        *ranks,
        team=draw(TEAMS),
        cls=draw(CLASSES),
        preemptible=draw(st.sampled_from([True, True, True, False])),
        max_runtime_s=draw(st.sampled_from([30 * 86_400, 30 * 86_400, 2_730])),
    )
    _history(draw, crowd, JobId(name))
    crowd.pass_time(draw(st.sampled_from([0, 5, 600])))


def _history(draw: st.DrawFn, crowd: Crowd, job_id: JobId) -> None:
    """Preemptions that it suffered before this attempt."""
    preempted = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
    job, attempt = crowd.state.jobs[job_id], crowd.state.attempts[job_id, 1]
    at = tuple(Instant(T0 - 1000 * 3600 * (ago + 1)) for ago in reversed(range(preempted)))
    crowd.state.jobs.put(job_id, replace(job, preempted_at=at, preemptions=preempted))
    crowd.state.attempts.put(attempt.key, replace(attempt, after_preemption=preempted > 0))
    crowd.feed(crowd.state.accept())


def _lowest(mask: int, count: int) -> int:
    chosen = 0
    for _ in range(count):
        chosen |= mask & -mask
        mask &= mask - 1
    return chosen


# The oracle


def harm(crowd: Crowd, job: Job, covered: bool, attempt: Attempt, now: Instant) -> int | None:
    """How late the attempt's turn to go comes (R-40): borrowed before covered, low classes first, shielded ones last;
    None where it may not be displaced."""
    victim = crowd.state.jobs[attempt.job_id]
    borrowed = attempt.key in crowd.shares.borrowed((attempt.team, attempt.gpu_type))
    if not may_displace(crowd.state.policy, now, job, covered, victim, attempt, borrowed):
        return None
    if shielded_until(crowd.state.policy, now, victim, attempt) > now:
        return 6
    level = CLASS_RANK[PriorityClass.PREEMPTIBLE] - CLASS_RANK[victim.priority_class]
    by_rule_of_others = covered and job.priority_class is not SERVING
    if borrowed:
        return level
    return 3 + level if by_rule_of_others else 7


def oracle(crowd: Crowd, name: str) -> tuple[int, bool, int, int, int] | None:
    """(worst harm, wasteful, victims, their GPUs, work lost) of the best legal set; None where there is none."""
    job, now = crowd.job(name), Instant(crowd.at + 1000)
    size = len(next(iter(crowd.state.nodes.rows.values())).gpus)
    charged = charged_gpus(job.spec, size)
    covered = charged <= crowd.shares.standing((job.spec.team, H100)).covered_room
    harms = {row.key: harm(crowd, job, covered, row, now) for row in crowd.state.attempts.rows.values()}
    legal = sorted(key for key, found in harms.items() if found is not None and not awaited(crowd, key, now))
    best = None
    for count in range(len(legal) + 1):
        for chosen in combinations(legal, count):
            gpus = sum(crowd.state.attempts[key].charged for key in chosen)
            lost = sum(_lost(crowd, key, now) for key in chosen)
            wasteful = gpus * 100 > charged * crowd.state.policy.evicted_percent_max
            score = (max((harms[key] or 0 for key in chosen), default=-1), wasteful, count, gpus, lost)
            if (best is None or score < best) and fits_without(crowd, job, set(chosen), now):
                best = score
    return best


def awaited(crowd: Crowd, key: AttemptKey, now: Instant) -> bool:
    limit_at = crowd.state.attempts[key].limit_at
    return limit_at is not None and limit_at - 60_000 <= now < limit_at + 120_000


def given_up(crowd: Crowd, key: AttemptKey, now: Instant) -> bool:
    limit_at = crowd.state.attempts[key].limit_at
    return limit_at is not None and now >= limit_at + 120_000


def _lost(crowd: Crowd, key: AttemptKey, now: Instant) -> int:
    attempt = crowd.state.attempts[key]
    return attempt.charged * (now - saved_at(crowd.state.jobs[attempt.job_id], attempt))


def fits_without(crowd: Crowd, job: Job, stopped: set[AttemptKey], now: Instant | None) -> bool:
    """Does the job fit, without these and those that are about to end `now`? None: as it is."""
    small = State(crowd.state.cluster)
    small.meta = crowd.state.meta
    for index, node in crowd.state.nodes.rows.items():
        used = 0
        for job_id, number, rank in node.leases:
            key = (job_id, number)
            if key not in stopped and (now is None or not awaited(crowd, key, now)):
                used |= crowd.state.attempts[key].ranks[rank][1]
        small.nodes.put(index, replace(node, used=used, leases=()))
    hint = job.spec.topology if job.spec.topology.strict else Topology()
    return find(small, Capacity.of(small), replace(job.spec, topology=hint)) is not None


def worth_asking(crowd: Crowd) -> bool:
    """Not where it fits as it is, or its quota keeps it from starting; nor where what is overdue muddles the oracle."""
    return not fits_without(crowd, crowd.job("wanted"), set(), None) and not kept_out(crowd) and not overdue(crowd)


def overdue(crowd: Crowd) -> bool:
    return any(given_up(crowd, key, Instant(crowd.at + 1000)) for key in crowd.state.attempts.rows)


def kept_out(crowd: Crowd, stopped: set[AttemptKey] = set()) -> bool:  # noqa: B006
    """Does the team's quota keep the job from starting, once these have stopped? Over the limit, or uncovered where it
    starts only covered."""
    job = crowd.job("wanted")
    charged = charged_gpus(job.spec, len(next(iter(crowd.state.nodes.rows.values())).gpus))
    standing = crowd.shares.standing((job.spec.team, H100))
    own = {key: row.charged for key, row in crowd.state.attempts.rows.items() if row.team == job.spec.team}
    borrowed = crowd.shares.borrowed((job.spec.team, H100))
    given = sum(own[key] for key in stopped & own.keys())
    covered = sum(own[key] for key in stopped & own.keys() - borrowed)
    return charged > standing.room + given or (untouchable(job) and charged > standing.covered_room + covered)


@settings(max_examples=1_500, deadline=None)
@given(crowds())
def test_a_legal_set_is_found_if_and_only_if_there_is_one_and_none_is_cheaper(crowd: Crowd) -> None:
    """Of all sets of attempts that may be displaced the best by R-40 and C-12 is found, protected ones last (C-16)."""
    note(repr(crowd))
    if not worth_asking(crowd):
        return
    (room,) = crowd.rooms("wanted")
    note(repr(room))
    best = oracle(crowd, "wanted")
    assert (room is None) == (best is None)
    if room is not None:
        assert score_of(crowd, room) == best
        check_room(crowd, room)


@settings(max_examples=1_500, deadline=None)
@given(crowds(), st.integers(0, 8))
def test_a_job_kept_out_by_its_quota_has_room_made_by_its_own_if_that_can_be(crowd: Crowd, borrow_limit: int) -> None:
    """A legal set after whose end the quota lets the job start, and it fits, is found if and only if there is one; and
    none of it could run on (R-12, R-40)."""
    team = crowd.job("wanted").spec.team
    crowd.quota(team, crowd.state.quotas[team, H100].guaranteed, borrow_limit)
    note(repr(crowd))
    if not kept_out(crowd) or overdue(crowd):
        return
    (room,) = crowd.rooms("wanted", covered=False)
    note(repr(room))
    assert (room is None) == (not any(sets_that_do(crowd)))
    if room is not None:
        check_kept_out(crowd, room)


def sets_that_do(crowd: Crowd) -> Iterator[set[AttemptKey]]:
    """Every legal set that makes it start, small ones first."""
    job, now = crowd.job("wanted"), Instant(crowd.at + 1000)
    rows = crowd.state.attempts.rows
    legal = [key for key, row in rows.items() if harm(crowd, job, False, row, now) is not None]
    legal = [key for key in legal if not awaited(crowd, key, now)]
    for count in range(len(legal) + 1):
        for chosen in map(set, combinations(legal, count)):
            if not kept_out(crowd, chosen) and fits_without(crowd, job, chosen, now):
                yield chosen


def check_kept_out(crowd: Crowd, room: Room) -> None:
    """Legal, enough, nobody in it for nothing; and the applier objects to nothing."""
    job, now, stopped = crowd.job("wanted"), Instant(crowd.at + 1000), set(room.victims)
    assert all(harm(crowd, job, False, crowd.state.attempts[key], now) is not None for key in stopped)
    assert not kept_out(crowd, stopped)
    in_the_way = {
        key for index, mask in masks(room.ranks).items() for key, held in _holders(crowd, index) if held & mask
    }
    assert in_the_way <= stopped | set(room.awaited)
    for key in stopped - in_the_way:
        assert kept_out(crowd, stopped - {key})
    crowd.apply(Plan(n=crowd.state.meta.n, rooms=(room,)))


def score_of(crowd: Crowd, room: Room) -> tuple[int, bool, int, int, int]:
    job, now = crowd.job(room.job_id), Instant(crowd.at + 1000)
    size = len(next(iter(crowd.state.nodes.rows.values())).gpus)
    charged = charged_gpus(job.spec, size)
    covered = charged <= crowd.shares.standing((job.spec.team, H100)).covered_room
    gpus = sum(crowd.state.attempts[key].charged for key in room.victims)
    return (
        max((harm(crowd, job, covered, crowd.state.attempts[key], now) or 0 for key in room.victims), default=-1),
        gpus * 100 > charged * crowd.state.policy.evicted_percent_max,
        len(room.victims),
        gpus,
        sum(_lost(crowd, key, now) for key in room.victims),
    )


def check_room(crowd: Crowd, room: Room) -> None:
    """The ranks are whole, apart, on GPUs that are free or to be; each victim and each awaited one is in the way."""
    job, going = crowd.job(room.job_id), {*room.victims, *room.awaited}
    assert len(room.ranks) == job.spec.replicas
    assert sum(mask.bit_count() for _, mask in room.ranks) == sum(
        mask.bit_count() for mask in masks(room.ranks).values()
    )
    in_the_way: set[AttemptKey] = set()
    for index, mask in masks(room.ranks).items():
        node = crowd.state.nodes[index]  # type: ignore[index]
        for holder in _holders(crowd, index):
            if holder[1] & mask:
                in_the_way.add(holder[0])
                assert holder[0] in going
            assert holder[0] in going or not takes_whole_nodes(job.spec, len(node.gpus))
    assert going == in_the_way
    for _, mask in room.ranks:
        assert mask.bit_count() >= job.spec.gpus_per_replica
    if job.spec.topology.strict:
        assert hint_holds(crowd, room, job.spec.topology)


def _holders(crowd: Crowd, index: int) -> Iterator[tuple[AttemptKey, int]]:
    for job_id, number, rank in crowd.state.nodes[index].leases:  # type: ignore[index]
        yield (job_id, number), crowd.state.attempts[job_id, number].ranks[rank][1]


def hint_holds(crowd: Crowd, room: Room, hint: Topology) -> bool:
    """R-33, rank by rank."""
    nodes = [crowd.state.nodes[index] for index, _ in room.ranks]
    places: dict[Span, list[tuple[str | int, ...]]] = {
        Span.NODE: [(node.index,) for node in nodes],
        Span.RACK: [(node.block, node.rack) for node in nodes],
        Span.BLOCK: [(node.block,) for node in nodes],
    }
    most = 1 if hint.pack is Span.BLOCK and hint.max_blocks is None else hint.max_blocks
    return (
        (hint.pack not in (Span.NODE, Span.RACK) or len(set(places[hint.pack])) == 1)
        and (hint.spread is None or len(set(places[hint.spread])) == len(nodes))
        and (most is None or len(set(places[Span.BLOCK])) <= most)
    )


@settings(max_examples=300, deadline=None)
@given(crowds())
def test_what_the_planner_chose_the_applier_lets_pass(crowd: Crowd) -> None:
    """On the same state the applier objects to nothing; the pledge holds every GPU of the placement."""
    note(repr(crowd))
    if not worth_asking(crowd):
        return
    (room,) = crowd.rooms("wanted")
    note(repr(room))
    if room is None:
        return
    crowd.apply(Plan(n=crowd.state.meta.n, rooms=(room,)))
    for index, mask in masks(room.ranks).items():
        assert crowd.state.nodes[index].pledged == mask  # type: ignore[index]
    assert crowd.rooms("wanted") is not None


@settings(max_examples=300, deadline=None)
@given(crowds(), st.integers(1, 4), CLASSES)
def test_the_index_is_what_the_state_alone_gives(crowd: Crowd, each: int, cls: PriorityClass) -> None:
    """After a trial that is put back, and after what the log brings, the same room is made as by a new index."""
    crowd.rooms("wanted")
    other = Crowd(at=crowd.at)
    other.state = crowd.state
    other.capacity, other.shares = Capacity.of(crowd.state), type(crowd.shares)(crowd.state)
    other.victims = type(crowd.victims)(crowd.state, other.shares)
    assert crowd.rooms("wanted") == other.rooms("wanted")
    crowd.queue("second", 1, 1, team="green", cls=RESEARCH if cls is SERVING else cls)
    assert crowd.rooms("second", "wanted") == other.rooms("second", "wanted")
