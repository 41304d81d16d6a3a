"""Options as people write them: what each means, and what is said of one that is written wrong."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.ids import BlockId, GpuType, NodeId
from events.job import PriorityClass
from replay.traces.fleet import Fleet, Group, parse_fleet, read_fleet
from replay.traces.options import (
    ClassRule,
    Estimate,
    Guess,
    Options,
    parse_classes,
    parse_estimate,
    parse_factor,
    parse_options,
    parse_window,
)
from replay.traces.quotas import Line, Quotas, Share, parse_quotas, shared_out
from replay.traces.rows import BadOption, BadTrace, Note, TraceRow
from tests.replay import made

ROW = TraceRow(row=1, job_id="a", submit_s=0, gpus=1, duration_s=100, limit_s=50, priority="HP")


class TestFleet:
    """Groups of alike nodes."""

    def test_in_short(self) -> None:
        """Nodes and GPUs, 32 to a block, of a type that has no name."""
        fleet = parse_fleet("128x8")
        assert fleet.groups == (Group(nodes=128, gpus=8, gpu_type="gpu", memory_gb=80, block=32),)
        assert (fleet.gpus, fleet.types()) == (1024, {"gpu": 1024})

    def test_at_length(self) -> None:
        """Type, block, rack and memory of each group; sizes of a type come large ones first."""
        fleet = parse_fleet("2x4:h100/block=16/rack=2, 3x8:h100/memory=141, 1x16:l40s")
        assert fleet.groups[0] == Group(nodes=2, gpus=4, gpu_type="h100", block=16, rack=2)
        assert fleet.groups[1].memory_gb == 141
        assert (fleet.types(), fleet.sizes("h100")) == ({"h100": 32, "l40s": 16}, {8: 3, 4: 2})

    def test_as_nodes(self) -> None:
        """Each node registers once; a new group begins a new block; no GPU's name occurs twice."""
        nodes = parse_fleet("3x2:a/block=2,1x4:b").registers()
        assert [(node.node_id, node.block, node.gpu_type, len(node.gpus)) for node in nodes] == [
            (NodeId("n00000"), BlockId("b0000"), GpuType("a"), 2),
            (NodeId("n00001"), BlockId("b0000"), GpuType("a"), 2),
            (NodeId("n00002"), BlockId("b0001"), GpuType("a"), 2),
            (NodeId("n00003"), BlockId("b0002"), GpuType("b"), 4),
        ]
        assert len({gpu.uuid for node in nodes for gpu in node.gpus}) == 10

    @pytest.mark.parametrize(
        ("text", "may_be"),
        [
            ("128", "NODESxGPUS"),
            ("", "NODESxGPUS"),
            ("0x8", "at least one node"),
            ("8x65", "1 to 64 GPUs"),
            ("8x8/block=0", "block=N"),
            ("8x8/blocks=2", "block=N"),
            ("20001x8", "at most 20000"),
        ],
    )
    def test_written_wrong(self, text: str, may_be: str) -> None:
        """The error names what is wrong and what may be."""
        with pytest.raises(BadOption, match=r"^fleet: ") as bad:
            parse_fleet(text)
        assert may_be in str(bad.value)

    def test_of_a_list_of_nodes(self, tmp_path: Path) -> None:
        """A group for each type and size; nodes without a GPU are counted; what memory they have is not known."""
        path = tmp_path / "nodes.csv"
        path.write_text(made.OPENB_NODES)
        t4 = Group(nodes=1, gpus=2, gpu_type="T4", memory_gb=0)
        v100 = Group(nodes=2, gpus=8, gpu_type="V100M32", memory_gb=0)
        assert read_fleet(path) == Fleet(groups=(t4, v100), left_out=1)

    def test_of_phillys_machines(self, tmp_path: Path) -> None:
        """Types have no names there, and memory has."""
        path = tmp_path / "machines.csv"
        path.write_text("machineId, number of GPUs, single GPU mem\nm0,2, 12GB\nm31,8, 24GB\nm32,8, 24GB\n")
        assert [(group.nodes, group.gpus, group.memory_gb) for group in read_fleet(path).groups] == [
            (1, 2, 12),
            (2, 8, 24),
        ]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a,b\n1,2\n", "no list of nodes that is known"),
            ("sn,gpu,model\nn,many,T4\n", "row 1: 'many' GPUs"),
            ("sn,gpu,model\nn,0,\n", "none of its 1 nodes has a GPU"),
        ],
    )
    def test_of_no_list(self, tmp_path: Path, text: str, said: str) -> None:
        """As such."""
        path = tmp_path / "nodes.csv"
        path.write_text(text)
        with pytest.raises(BadTrace, match=said):
            read_fleet(path)


class TestEstimate:
    """How long a job may run; never shorter than it ran."""

    @pytest.mark.parametrize(
        ("text", "seconds", "note"),
        [
            ("duration", 100, None),
            ("factor:1.5", 150, None),
            ("factor:4/3", 134, None),
            ("limit", 100, Note.LIMIT_RAISED),
        ],
    )
    def test_each_rule(self, text: str, seconds: int, note: Note | None) -> None:
        """A job of 100 s whose user said 50 is not killed for it."""
        assert parse_estimate(text).seconds(ROW) == (seconds, note)

    def test_a_limit_that_is_kept_or_is_not_there(self) -> None:
        """The user's own limit counts; where there is none the run time does, which is noted."""
        limit = Estimate(by=Guess.LIMIT)
        assert limit.seconds(TraceRow(row=1, job_id="a", submit_s=0, gpus=1, duration_s=9, limit_s=50)) == (50, None)
        assert limit.seconds(TraceRow(row=1, job_id="a", submit_s=0, gpus=1, duration_s=0)) == (1, Note.NO_LIMIT)


class TestClasses:
    """A class for each job."""

    def test_one_for_all(self) -> None:
        """Whatever its priority."""
        assert parse_classes("prod-batch").of(ROW) is PriorityClass.PROD_BATCH

    def test_by_a_column(self) -> None:
        """Named values have theirs; * stands for all others."""
        rule = parse_classes("priority:HP=prod-batch, Spot=preemptible,*=research")
        assert rule.of(ROW) is PriorityClass.PROD_BATCH
        assert rule.of(TraceRow(row=1, job_id="a", submit_s=0, gpus=1, duration_s=1)) is PriorityClass.RESEARCH

    def test_a_value_without_one(self) -> None:
        """Nothing is guessed."""
        with pytest.raises(BadOption, match=r"classes: 'HP': this priority of job a has no class"):
            parse_classes("priority:Spot=preemptible").of(ROW)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_factor, "0", "scale: '0': has to be a number above 0"),
        (parse_factor, "-1", "above 0"),
        (parse_factor, "1/0", "above 0"),
        (parse_window, "5", "window: '5': has to be FROM..TO"),
        (parse_window, "a..b", "FROM..TO"),
        (parse_estimate, "guess", "estimate: 'guess': has to be duration, limit, or factor:NUMBER"),
        (parse_estimate, "limit:2", "has to be"),
        (parse_estimate, "factor:0.5", "at least 1"),
        (parse_classes, "best", "classes: 'best': has to be one of prod-serving, prod-batch, research, preemptible"),
        (parse_classes, "team:a=research", "the column has to be priority or kind"),
        (parse_classes, "kind:a", "has to be VALUE=CLASS"),
        (parse_quotas, "fair", "quotas: 'fair': has to be use, equal, one, or a file"),
    ],
)
def test_each_option_that_is_written_wrong(parse: Callable[[str], object], text: str, said: str) -> None:
    """The error names the option, the value, and what it may be."""
    with pytest.raises(BadOption) as bad:
        parse(text)
    assert said in str(bad.value)


def test_all_options_as_they_are_written(tmp_path: Path) -> None:
    """Each text goes where it belongs; a fleet may be a list of nodes; what is not written has its default."""
    nodes = tmp_path / "nodes.csv"
    nodes.write_text(made.OPENB_NODES)
    written = parse_options(
        fleet=str(nodes),
        window="3..7",
        scale="0.25",
        quotas="equal",
        borrow_percent=50,
        classes="prod-batch",
        estimate="factor:2",
    )
    assert written == Options(
        fleet=read_fleet(nodes),
        scale=Fraction(1, 4),
        from_s=3,
        to_s=7,
        quotas=Quotas(share=Share.EQUAL, borrow_percent=50),
        classes=ClassRule(others=PriorityClass.PROD_BATCH),
        estimate=Estimate(by=Guess.FACTOR, factor=Fraction(2)),
    )
    assert parse_options(fleet="1x8") == Options(fleet=parse_fleet("1x8"))


def test_windows_and_scales_that_are_none() -> None:
    """Also where they were not written."""
    fleet = parse_fleet("1x8")
    with pytest.raises(BadOption, match=r"window: '5..5'"):
        Options(fleet=fleet, from_s=5, to_s=5)
    with pytest.raises(BadOption, match=r"scale: '0'"):
        Options(fleet=fleet, scale=Fraction(0))


def test_numbers_as_they_are_written() -> None:
    """Fractions are exact; either end of a window may be left out."""
    assert (parse_factor("0.25"), parse_factor("1/3")) == (Fraction(1, 4), Fraction(1, 3))
    assert [parse_window(text) for text in ("3..7", "3..", "..7", "..")] == [(3, 7), (3, None), (0, 7), (0, None)]


class TestQuotas:
    """Files of quotas, and sharing out."""

    def write(self, folder: Path, text: str) -> str:
        path = folder / "quotas.csv"
        path.write_text(text)
        return str(path)

    def test_a_file(self, tmp_path: Path) -> None:
        """A line a team; what may be borrowed and the type may be left out."""
        path = self.write(tmp_path, "team,guaranteed,borrow_limit,gpu_type\nred,16,,\nblue,8,4,t4\n")
        quotas = parse_quotas(path)
        assert quotas.share is Share.FILE
        assert quotas.lines == (
            Line(team="red", guaranteed=16),
            Line(team="blue", guaranteed=8, borrow_limit=4, gpu_type="t4"),
        )

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("team,gpus\nred,1\n", "the header has to have team,guaranteed"),
            ("team,guaranteed\nred,many\n", "row 1: many"),
            ("team,guaranteed\nred,1\nred,2\n", "row 2: red"),
            ("team,guaranteed\n,1\n", "row 1: "),
            ("date,red\n2020-01-01,1\nlater,2\n", "row 2: later"),
            ("date,red\n2020-01-02,1\n2020-01-01,2\n", "days have to be in order"),
            ("date,red\n", "there is no day in it"),
        ],
    )
    def test_a_file_that_is_wrong(self, tmp_path: Path, text: str, said: str) -> None:
        """The row is named."""
        with pytest.raises(BadOption, match=said):
            parse_quotas(self.write(tmp_path, text))

    def test_percent_to_borrow(self) -> None:
        """Between none and all of the rest."""
        with pytest.raises(BadOption, match=r"borrow_percent: '101'"):
            parse_quotas("use", 101)

    @given(
        weights=st.dictionaries(st.text("abc", min_size=1), st.integers(1, 10**12), min_size=1, max_size=12),
        gpus=st.integers(12, 2000),
    )
    def test_sharing_out(self, weights: dict[str, int], gpus: int) -> None:
        """All GPUs and no more, at least one for each; no team is a whole GPU above its exact share, unless that is
        below one, and who has more use never has less."""
        shares = shared_out(weights, gpus)
        total = sum(weights.values())
        assert sum(shares.values()) == gpus
        assert min(shares.values()) >= 1
        assert all(shares[team] == 1 or (shares[team] - 1) * total < weight * gpus for team, weight in weights.items())
        by_use = pairwise(sorted(weights, key=weights.__getitem__))
        assert all(shares[less] <= shares[more] for less, more in by_use if weights[less] < weights[more])

    def test_more_teams_than_gpus(self) -> None:
        """They cannot be shared out."""
        with pytest.raises(BadOption, match=r"3 teams.*cannot share 2 GPUs"):
            shared_out({"a": 1, "b": 1, "c": 1}, 2)
