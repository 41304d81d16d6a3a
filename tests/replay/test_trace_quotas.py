"""What the teams of a trace are guaranteed, and may borrow."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from commands.messages import QuotaLine, SetQuota
from events.ids import GpuType, Instant, TeamId
from events.job import PriorityClass
from replay.scenario import TeamQuota, Timed
from replay.traces.quotas import Quotas, Share, parse_quotas
from replay.traces.rows import BadOption, Fault, Why
from replay.traces.scenario import scenario
from tests.replay import made
from tests.replay.made import options, row


class TestQuotas:
    """What each team gets."""

    rows = (row("a", team="red", duration_s=300), row("b", team="blue", duration_s=100), row("c", duration_s=400))

    def quotas(self, quotas: Quotas, fleet: str = "4x8:h100") -> dict[str, tuple[int, int]]:
        found, _ = scenario(made.trace(*self.rows), options(fleet, quotas=quotas))
        return {each.team: (each.guaranteed, each.borrow_limit) for each in found.quotas}

    def test_in_proportion_to_use(self) -> None:
        """GPUs times run time; jobs without a team are one; the rest of the fleet may be borrowed, or a part of it."""
        assert self.quotas(Quotas()) == {"red": (12, 20), "blue": (4, 28), "all": (16, 16)}
        assert self.quotas(Quotas(borrow_percent=50)) == {"red": (12, 10), "blue": (4, 14), "all": (16, 8)}

    def test_all_alike(self) -> None:
        """The last GPUs go to the first of the alphabet."""
        assert self.quotas(Quotas(share=Share.EQUAL)) == {"all": (11, 21), "blue": (11, 21), "red": (10, 22)}

    def test_one_team(self) -> None:
        """It has the whole fleet."""
        assert self.quotas(Quotas(share=Share.ONE)) == {"all": (32, 0)}

    def test_each_type_by_itself(self) -> None:
        """A team has a quota of the types that it uses."""
        rows = (row("a", team="red", gpu_type="t4"), row("b", team="blue", gpu_type="v100"))
        found, _ = scenario(made.trace(*rows), options("1x8:t4,1x8:v100"))
        assert [(each.team, each.gpu_type, each.guaranteed) for each in found.quotas] == [
            ("red", "t4", 8),
            ("blue", "v100", 8),
        ]

    def test_a_file(self, tmp_path: Path) -> None:
        """As it says; rows of teams that are not in it are counted."""
        path = tmp_path / "q.csv"
        path.write_text("team,guaranteed,borrow_limit\nred,16,8\nblue,8,\n")
        found, report = scenario(made.trace(*self.rows), options(quotas=parse_quotas(str(path))))
        assert [(each.team, each.guaranteed, each.borrow_limit) for each in found.quotas] == [
            ("red", 16, 8),
            ("blue", 8, 24),
        ]
        assert report.faults.counts == {Fault(Why.NO_QUOTA, "team"): 1}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (
                "team,guaranteed\nred,16\nblue,17\n",
                r"quotas: 'blue: 17': the guarantees of h100 exceed the fleet's 32 GPUs",
            ),
            ("team,guaranteed,gpu_type\nred,16,\nred,16,t4\n", "has to be one of h100"),
        ],
    )
    def test_a_file_that_does_not_suit_the_fleet(self, tmp_path: Path, text: str, said: str) -> None:
        """It says which line is too much."""
        path = tmp_path / "q.csv"
        path.write_text(text)
        rows = (row("a", team="red"), row("b", team="red", gpu_type="t4"))
        with pytest.raises(BadOption, match=said):
            scenario(made.trace(*rows[:1]), options(quotas=replace(parse_quotas(str(path)))))

    def test_by_day(self, tmp_path: Path) -> None:
        """The first day's quotas hold at the beginning; a change is a command at its time, scaled as arrivals are, and
        what is lowered comes first; after the last arrival nothing is changed."""
        path = tmp_path / "q.csv"
        path.write_text(made.HELIOS_QUOTAS + "2020-06-20,0,96,96\n")
        trace = replace(
            made.trace(row("a", team="vcOne"), row("b", team="vcTwo", submit_s=7 * 86400), row("c", team="vcX")),
            first_at_s=1591660800,
        )
        found, report = scenario(trace, options("12x8:h100", quotas=parse_quotas(str(path)), scale=Fraction(1, 2)))
        assert [(each.team, each.guaranteed) for each in found.quotas] == [("vcOne", 64), ("vcTwo", 32)]
        at = Instant((1591660800 + 86400) * 1000)
        assert found.commands == tuple(
            Timed(at=at, command=_set_quota(team, guaranteed)) for team, guaranteed in [("vcOne", 32), ("vcTwo", 64)]
        )
        assert report.faults.counts == {Fault(Why.NO_QUOTA, "team"): 1}

    def test_by_day_without_dates(self, tmp_path: Path) -> None:
        """A trace that does not say when it was has no days."""
        path = tmp_path / "q.csv"
        path.write_text(made.HELIOS_QUOTAS)
        with pytest.raises(BadOption, match="does not say when it was"):
            scenario(made.trace(row(team="vcOne")), options("12x8", quotas=parse_quotas(str(path))))


def _set_quota(team: str, guaranteed: int) -> SetQuota:
    line = QuotaLine(gpu_type=GpuType("h100"), guaranteed=guaranteed, borrow_limit=96 - guaranteed)
    return SetQuota(team=TeamId(team), lines=(line,), reason="the trace's quotas by day")


def test_a_team_quota_allows_every_class() -> None:
    """Importers set no bounds on classes: those come with the policy that is tried."""
    found, _ = scenario(made.trace(row()), options())
    assert found.quotas == (
        TeamQuota(
            team=TeamId("all"), gpu_type=GpuType("h100"), guaranteed=32, borrow_limit=0, classes=tuple(PriorityClass)
        ),
    )
