"""The planner's word on a waiting job, as it goes out: every factor, its figures, and a sentence."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from api.factors import Document, documents
from projections.rows import JobRow
from scheduler.planning.explain import Factor, Reason
from tests.projections.story import Story
from tests.unit.explain_cases import Case
from tests.unit.test_explain import CASES, told
from tests.unit.test_policy_page import PAGE

START_MS = 1_800_000_000_000
START = "2027-01-15T08:00:00.000Z"
ROOM: dict[str, Any] = {"gpus_needed": 16, "gpus_free": 11, "gpus_pledged": 0, "largest_free_on_one_node": 8}
WHOLE: dict[str, Any] = {"whole_nodes_needed": 2, "whole_nodes_free": 1, "best_block_whole_nodes": 1}
USE: dict[str, Any] = {"asked": 8, "covered": 4, "guaranteed": 8}


async def row() -> JobRow:
    """Of a job of team research."""
    story = await Story("eu-1").begun()
    return story.row(JobRow, await story.job("a"))


SENTENCES: list[tuple[Factor, dict[str, Any], str]] = [
    (Factor.HELD, {}, "held until it is released"),
    (Factor.DEPENDENCIES, {"jobs": 2, "first": "j_x"}, "waits for the end of 2 jobs, j_x the first"),
    (Factor.THROTTLED, {"elements": 2, "waiting": 8}, "2 elements are running, and no more may; 8 wait"),
    (Factor.BACKOFF, {"until_at": START_MS, "retries": 2, "starts_failed": 0}, f"is not tried again before {START}"),
    (
        Factor.PLEDGED,
        {"rule": "reclaim", "gpus": 8, "victims": 1, "awaited": 0},
        "room of 8 h100 GPUs is being made (reclaim): 1 job is stopped, 0 awaited",
    ),
    (
        Factor.PLEDGED,
        {"rule": "nobody", "gpus": 1, "victims": 0, "awaited": 1},
        "room of 1 h100 GPU is being made: 0 jobs are stopped, 1 awaited",
    ),
    (
        Factor.OVER_LIMIT,
        {"asked": 8, "use": 4, "limit": 8},
        "asks for 8 h100 GPUs; team research uses 4 of the 8 that it may use",
    ),
    (
        Factor.OVER_LIMIT,
        {"asked": 16, "use": 0, "limit": 8},
        "asks for 16 h100 GPUs; team research may use 8 in all: it cannot start as the quota is",
    ),
    (
        Factor.NOT_COVERED,
        USE,
        "may not be preempted, and so starts only inside its team's guarantee: asks for 8 h100 GPUs; team research is"
        " guaranteed 8, of which 4 are in use",
    ),
    (
        Factor.NOT_COVERED,
        {**USE, "asked": 16},
        "may not be preempted, and so starts only inside its team's guarantee: asks for 16 h100 GPUs; team research is"
        " guaranteed 8: it cannot start as the quota is",
    ),
    (
        Factor.BORROWS_TOO_LONG,
        {**USE, "left_s": 7200, "lent_s": 3600},
        "GPUs beyond its team's guarantee are lent for at most 1h, and it may run for 2h more: asks for 8 h100 GPUs;"
        " team research is guaranteed 8, of which 4 are in use",
    ),
    (Factor.CAPACITY, ROOM, "needs 16 h100 GPUs; 11 are free for it, at most 8 on one node"),
    (
        Factor.CAPACITY,
        {**ROOM, **WHOLE, "gpus_pledged": 8, "expected_at": START_MS},
        "needs 2 whole h100 nodes; 1 is free, at most 1 in one block; 8 are idle and kept for jobs that room was made"
        f" for; enough is expected by {START}",
    ),
    (
        Factor.HINT,
        {**ROOM, **WHOLE, "whole_nodes_free": 3, "pack": "block", "max_blocks": 1},
        "enough is free, and not as its hint asks (pack block, max_blocks 1): needs 2 whole h100 nodes; 3 are free, at"
        " most 1 in one block",
    ),
    (
        Factor.GPU_MEMORY,
        {"gpu_memory_gb_min": 100, "nodes_with": 1, "nodes_of_type": 2},
        "needs 100 GB a GPU: 1 of 2 nodes with h100 GPUs has that",
    ),
    (
        Factor.SET_APART,
        {"nodes": 2, "gpus_free": 1},
        "2 nodes with h100 GPUs are set apart for other jobs, or as hot spares; 1 of their GPUs is free",
    ),
    (
        Factor.RESERVED,
        {"job": "j_x", "nodes": 1, "start_at": START_MS, "ends_at": 0},
        f"1 node with h100 GPUs is held for j_x, which is to start at {START}; this job has no limit",
    ),
    (
        Factor.RESERVED,
        {"job": "j_x", "nodes": 3, "start_at": START_MS, "ends_at": START_MS + 1},
        f"3 nodes with h100 GPUs are held for j_x, which is to start at {START}; this job might run until"
        " 2027-01-15T08:00:00.001Z",
    ),
    (
        Factor.OUT_OF_SERVICE,
        {"drained": 1, "broken_gpus": 2},
        "nodes with h100 GPUs are out of service: 1 drained, 2 broken gpus",
    ),
    (
        Factor.ORDER,
        {"preset": "fifo", "ahead": 1},
        "under the preset fifo 1 job that came before it goes first",
    ),
    (Factor.NEXT, {}, "nothing holds it back: it starts with the next cycle"),
]


@pytest.mark.parametrize(("factor", "figures", "text"), SENTENCES)
async def test_the_sentence_of_each_factor(factor: Factor, figures: dict[str, Any], text: str) -> None:
    """With its figures, and times as times."""
    (told,) = documents(await row(), [Reason(factor, figures)], ())
    assert (told["code"], told["text"]) == (factor, text)
    assert (told["team"], told["gpu_type"]) == ("research", "h100")
    plain = {name: value for name, value in figures.items() if not name.endswith("_at")}
    assert {name: told[name] for name in plain} == plain
    times = {name: told[name] for name in figures if name.endswith("_at")}
    assert all(at == START for name, at in times.items() if figures[name] == START_MS)


def test_every_factor_has_a_sentence() -> None:
    """None is left out of the table above."""
    assert {factor for factor, _, _ in SENTENCES} == set(Factor)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.factor}-{case.name}")
async def test_what_explain_says_is_told(case: Case) -> None:
    """Each of its reasons, in its order: none is added, and none is lost."""
    _, reasons = told(case.steps)
    listed = list(documents(await row(), reasons, ()))
    assert [each["code"] for each in listed] == [reason.factor for reason in reasons]
    assert all(name in each for each, reason in zip(listed, reasons, strict=True) for name in reason.figures)
    assert not any("None" in each["text"] for each in listed)


async def test_names_are_told_where_the_tables_know_them() -> None:
    """The planner counts jobs and nodes; the read models can name them. Whether it is told is the planner's word."""
    named: list[Document] = [
        {"code": "dependencies", "jobs": ["j_x", "j_y"], "text": "waits for the end of j_x, j_y"},
        {"code": "capacity", "gpus_free": 0, "gpus_in_service": 8, "text": "by the counts"},
        {"code": "out_of_service", "nodes": ["n-1"], "text": "1 node"},
    ]
    reasons = [Reason(Factor.DEPENDENCIES, {"jobs": 2, "first": "j_x"}), Reason(Factor.CAPACITY, ROOM)]
    first, second = documents(await row(), reasons, named)
    assert first is named[0]
    assert (second["gpus_free"], second["gpus_in_service"]) == (11, 8)
    assert second["text"].startswith("needs 16 h100 GPUs")


def test_the_codes_are_those_of_the_guide() -> None:
    """docs/user-guide.md explains each."""
    guide = (PAGE.parent / "user-guide.md").read_text()
    codes = {line.split("`")[1] for line in guide.splitlines() if line.startswith("| `") and line.count("|") == 3}
    assert set(chain((str(factor) for factor in Factor), ["queued"])) <= codes
