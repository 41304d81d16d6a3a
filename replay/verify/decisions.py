"""Each decision once more: from the state before it and the input in the commit, by the production core, byte for byte.

The state goes on from what was recorded, whatever comes out here: one difference is one difference, not all after it.
"""

from dataclasses import dataclass
from typing import Any

from commands.apply import apply
from commands.evolve import fold_commit
from commands.plan import Plan, Planned
from commands.state import State
from events import codec
from events.catalogue import entry_of
from events.chain import Accepted, Head
from events.envelope import Commit, Input
from events.ids import Instant, Principal
from events.leadership import InputRefused
from events.upcast import STEPS
from replay.verify import inputs
from replay.verify.findings import Difference
from replay.verify.inputs import NoInput, OnlyHash, Question
from scheduler.intake import ENDED_TWO
from scheduler.planning.plan import Planner
from scheduler.proposal import Decide, Occasion, fitting, propose
from scheduler.takeover import SCHEDULER


@dataclass(frozen=True, slots=True)
class Unknown:
    """The log does not hold what is needed to decide this again; says what is missing."""

    why: str


class OnTheWord:
    """The leader passed the input over on the word of the epoch row, which the log does not have (P-7)."""


REFUSED = entry_of(InputRefused).name

Verdict = None | Difference | Unknown | OnTheWord
"""What recomputing one commit came to; None: the same bytes."""


class Decisions:
    """The core of one cluster, at the state before the next commit."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._planner: Planner | None = None
        self._plan: tuple[int, Instant, Plan] | None = None
        """The last one, as (n, at, plan): its parts may be several commits."""
        self._since_n: int | None = None
        """n of the state from which every commit has been decided again."""

    def forget(self) -> None:
        """The state goes on without us: indices are made anew when they are needed again."""
        self._planner = self._plan = self._since_n = None

    def take(self, before: Head, accepted: Accepted) -> Verdict:
        """Decide the commit again and fold it. Raises codec.Unreadable, or whatever folding it raises."""
        verdict, made = self._recompute(before, accepted)
        if not made:
            self.state.discard()
            fold_commit(self.state, _commit(accepted))
        self.fed()
        return verdict

    def comes_out(self, before: Head, accepted: Accepted) -> bool | None:
        """Would it come out the same? The state stays as it is."""
        verdict, _ = self._recompute(before, accepted)
        self.state.discard()
        return None if isinstance(verdict, Unknown | OnTheWord) else verdict is None

    def fed(self) -> None:
        """What was folded stays; the indices follow."""
        if self._planner is None:
            self.state.settle()
            return
        self._planner.feed(self.state.accept())

    # One commit

    def _recompute(self, before: Head, accepted: Accepted) -> tuple[Verdict, bool]:
        """What comes out, and whether exactly that is on trial now."""
        if self._since_n is None:
            self._since_n = self.state.meta.n
        try:
            made_by = _input(accepted.parsed)
            question = self._question(before, accepted.parsed, made_by)
        except OnlyHash as kept:
            return Unknown(str(kept)), False
        except NoInput as none:
            return _difference(accepted, None, str(none)), False
        if question is None:
            return Unknown("its plan was made before the first commit that was recomputed"), False
        on_the_word = made_by.kind == "command" and _passed_over(accepted.parsed)
        if on_the_word:
            question = _on_the_word(made_by, question)
        raw, why = self._answer(before, _occasion(accepted.parsed, made_by, question.actor), question)
        if raw == accepted.raw:
            return (OnTheWord() if on_the_word else None), True
        self.state.discard()
        if raw is not None and _same_but_older(accepted, raw):
            return None, False
        return _difference(accepted, raw, why), False

    def _answer(self, before: Head, occasion: Occasion, question: Question) -> tuple[bytes | None, str]:
        """The record that comes out, on trial; or None, and why nothing does."""
        raw, why = self._try(before, occasion, question.decide)
        if raw is None and why and question.instead is not None:
            instead, failed = question.instead, why
            return self._try(before, occasion, lambda draft: instead(draft, failed))
        return raw, why

    def _try(self, before: Head, occasion: Occasion, decide: Decide) -> tuple[bytes | None, str]:
        """As the writer tries it. Where no record comes out, why; "": there were no facts."""
        try:
            commit = propose(self.state, before, occasion, decide)
            return (None, "") if commit is None else (fitting(commit), "")
        except Exception as error:  # our own fault, as it was the leader's: what it did then is on record (P-7)
            self.state.discard()
            return None, f"{type(error).__name__}: {error}"

    # What was asked

    def _question(self, before: Head, recorded: dict[str, Any], made_by: Input) -> Question | None:
        """How the recorded input is decided; None: by a plan that is not known. Raises NoInput, OnlyHash."""
        match made_by.kind:
            case "command":
                self._check_place(made_by)
                return inputs.command(made_by)
            case "reports":
                return inputs.reports(made_by)
            case "tick":
                return inputs.tick(made_by)
            case "leader":
                return inputs.leader(made_by)
            case "cycle":
                return self._cycle(before, recorded, made_by)
            case "conflict":
                question, planned = inputs.conflict(made_by)
                self._planned(recorded, planned)
                return question
            case _:
                raise NoInput(f"this build knows no input of kind {made_by.kind}")

    def _check_place(self, made_by: Input) -> None:
        """Commands are taken in strict order (P-13)."""
        expected = self.state.meta.command_position + 1
        if made_by.position != expected:
            raise NoInput(f"it answers command {made_by.position}, the next one is {expected}")

    def _cycle(self, before: Head, recorded: dict[str, Any], made_by: Input) -> Question | None:
        planned = inputs.cycle(made_by)
        plan = self._planned(recorded, planned)
        if plan is None:
            return None
        if not self._had_to_split(before, recorded, plan, planned):
            raise NoInput("a part of the plan was taken, where all of it makes a commit")
        taken = plan.taken(planned)
        return Question(SCHEDULER, lambda draft: apply(draft, taken))

    def _planned(self, recorded: dict[str, Any], planned: Planned) -> Plan | None:
        """The plan that the commit is about, made again at the state that it was made at; None: that was before the
        first commit that was recomputed. Raises NoInput where no leader can have gone by such a plan."""
        n = recorded["planned_at_n"]
        if self._plan is not None and self._plan[:2] == (n, planned.at):
            return self._plan[2]
        if n != self.state.meta.n:
            if n is not None and self._since_n is not None and n < self._since_n:
                return None
            raise NoInput(f"it is about a plan made at n {n}, and none was made there that was still to be taken")
        if self._planner is None:
            self._planner = Planner(self.state)
        plan = self._planner.plan(planned.at)
        self._plan = (n, planned.at, plan)
        return plan

    def _had_to_split(self, before: Head, recorded: dict[str, Any], plan: Plan, planned: Planned) -> bool:
        """A part stands for a plan, and a held job for its part, only where that makes no commit (P-7). Not asked of
        later parts: what came before them has changed the state."""
        if planned == Planned(at=planned.at) or (planned.held is None and plan.n != self.state.meta.n):
            return True
        more = plan.only({planned.held}) if planned.held is not None else plan
        occasion = _occasion(recorded, Input(kind="cycle", id=recorded["input"]["id"]), SCHEDULER)
        raw, why = self._try(before, occasion, lambda draft: apply(draft, more))
        self.state.discard()
        return raw is None and why != ""


# What is recorded


def _input(recorded: dict[str, Any]) -> Input:
    return Input(**recorded["input"])


def _occasion(recorded: dict[str, Any], made_by: Input, actor: Principal) -> Occasion:
    return Occasion(
        made_by=made_by,
        actor=actor,
        at=recorded["at"],
        cycle=recorded["cycle"],
        planned_at_n=recorded["planned_at_n"],
    )


def _commit(accepted: Accepted) -> Commit:
    record = accepted.record()
    assert isinstance(record, Commit)
    return record


def _passed_over(recorded: dict[str, Any]) -> bool:
    """Is it said to have ended two leaderships? Only the epoch row knew."""
    events = recorded["events"]
    return len(events) == 1 and events[0]["type"] == REFUSED and events[0]["body"].get("why") == ENDED_TWO


def _on_the_word(made_by: Input, question: Question) -> Question:
    actor = Principal("unknown") if "unreadable" in made_by.body else question.actor
    refuse = inputs.refusal(made_by)
    return Question(actor, lambda draft: refuse(draft, ENDED_TWO))


def _same_but_older(accepted: Accepted, raw: bytes) -> bool:
    """The same facts, recorded in versions of events that were superseded since (I-10)."""
    older = any((event["type"], event["v"]) in STEPS for event in accepted.parsed["events"])
    return older and accepted.record() == codec.decode(raw)


def _difference(accepted: Accepted, raw: bytes | None, why: str) -> Difference:
    recorded = accepted.parsed
    recomputed = None if raw is None else codec.parse(raw)
    made_by = recorded["input"]
    return Difference(
        n=recorded["n"],
        offset=accepted.head.accepted,
        input_kind=made_by["kind"],
        input_id=made_by["id"],
        input_body=made_by["body"],
        recorded=recorded,
        recomputed=recomputed,
        fields=tuple(name for name in recorded if recomputed is None or recomputed.get(name) != recorded[name]),
        why=why or ("" if raw is not None else "no facts follow from it"),
    )
