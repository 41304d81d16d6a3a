"""Jobs that their team's quota holds back, with the factors and their figures: data for test_explain."""

from __future__ import annotations

from tests.builders import RED, quota
from tests.scenario import Stimulus
from tests.unit.explain_cases import HOUR_S, PROTECTED, SERVING, Case, T, reclaiming
from tests.unit.steps import cluster, policy, runs, submit


def lending(longest_s: int, *more: Stimulus) -> tuple[Stimulus, ...]:
    """Two nodes, of which red is guaranteed one, and may borrow the other for so long."""
    return (cluster("b0: [8] [8]"), quota(RED, 8, 8), policy(borrow_runtime_max_s=longest_s), *more)


QUOTA_CASES = [
    Case(
        T.OVER_LIMIT,
        "for itself alone",
        (cluster("b0: [8] [8]"), quota(borrow_limit=8), runs("x", gpus_per_replica=4), submit("a", gpus_per_replica=8)),
        {"asked": 8, "use": 4, "limit": 8},
    ),
    Case(
        T.OVER_LIMIT,
        "whole nodes are charged",
        (cluster("b0: [8] [8]"), quota(), submit("a", replicas=3, gpus_per_replica=4), quota(borrow_limit=14)),
        {"asked": 16, "use": 0, "limit": 14},
    ),
    Case(
        T.OVER_LIMIT,
        "a pledge counts as use",
        reclaiming(submit("a"), name="p"),
        {"asked": 1, "use": 8, "limit": 8},
        (T.OVER_LIMIT, T.CAPACITY),
    ),
    Case(
        T.NOT_COVERED,
        "not preemptible",
        (
            *(cluster("b0: [8] [8]"), quota(guaranteed=8), runs("x", gpus_per_replica=4)),
            submit("a", gpus_per_replica=8, checkpoint=PROTECTED),
        ),
        {"asked": 8, "covered": 4, "guaranteed": 8},
    ),
    Case(
        T.NOT_COVERED,
        "prod-serving",
        (cluster("b0: [8] [8]"), quota(guaranteed=8), submit("a", priority_class=SERVING), quota()),
        {"asked": 1, "covered": 0, "guaranteed": 0},
    ),
    Case(
        T.NOT_COVERED,
        "and over the limit as well",
        (
            cluster("b0: [8] [8]"),
            quota(guaranteed=8),
            submit("a", gpus_per_replica=8, checkpoint=PROTECTED),
            quota(RED, 4, 0),
        ),
        {"asked": 8, "guaranteed": 4},
        (T.OVER_LIMIT, T.NOT_COVERED),
    ),
    Case(
        T.BORROWS_TOO_LONG,
        "the guarantee is used up",
        lending(HOUR_S, runs("x", gpus_per_replica=8), submit("a", max_runtime_s=2 * HOUR_S)),
        {"asked": 1, "covered": 8, "guaranteed": 8, "left_s": 2 * HOUR_S, "lent_s": HOUR_S},
    ),
    Case(
        T.BORROWS_TOO_LONG,
        "the quota was lowered",
        lending(HOUR_S, submit("a", gpus_per_replica=8, max_runtime_s=HOUR_S + 1), quota(RED, 4, 12)),
        {"asked": 8, "covered": 0, "guaranteed": 4},
    ),
    Case(
        T.BORROWS_TOO_LONG,
        "over its limit as well, and no room",
        lending(60, runs("x", "y", gpus_per_replica=8, max_runtime_s=60), submit("a")),
        {"left_s": HOUR_S, "lent_s": 60},
        (T.OVER_LIMIT, T.BORROWS_TOO_LONG, T.CAPACITY),
    ),
]
