"""What is to go wrong, and when: gates at every await on the world outside, and the fate of each message to a server.

A gate is a named place (`claim.before`, `commit.acked`, ...) that a process passes. A rule freezes or kills the process
at the n-th passing that it wants; chaos does so at random, by the seed. A fate says what becomes of one request.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch

from tests.simulation.loop import Process, ProcessEnded, VirtualLoop

Wanted = Callable[[Process], bool]
Act = Callable[[Process], None]


@dataclass(slots=True)
class Rule:
    """At the `nth` passing of a gate like `gate` by a process that is `wanted`: act, once."""

    gate: str
    act: Act
    nth: int = 1
    wanted: Wanted = lambda _: True
    fired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of a request: seconds until it takes effect, and from there until its answer. `lost`: it never
    takes effect; `mute`: it does, and is never answered; `again_s`: an append lands once more, so much later."""

    hold_s: float = 0.0
    answer_s: float = 0.0
    lost: bool = False
    mute: bool = False
    again_s: float | None = None


@dataclass(slots=True)
class FateRule:
    """The fate of the `nth` request like `name` of a process that is `wanted`; `also` happens to the process then."""

    name: str
    fate: Fate
    nth: int = 1
    wanted: Wanted = lambda _: True
    also: Act = lambda _: None
    fired: bool = False


@dataclass(slots=True, kw_only=True)
class Chaos:
    """Chances at each passing of a gate, and at each request."""

    freeze: float = 0.0
    kill: float = 0.0
    agent_kill: float = 0.0
    hold: float = 0.0
    lose: float = 0.0
    double: float = 0.0
    freeze_max_s: float = 20.0
    hold_max_s: float = 20.0


CALM = Chaos()
APPENDS = ("term", "commit")
"""What may land twice: at once, since an idempotent producer keeps the order within its partition."""


@dataclass(slots=True)
class Faults:
    """The plan of one run."""

    loop: VirtualLoop
    chance: random.Random
    trace: Callable[[str], None]
    chaos: Chaos = field(default_factory=Chaos)
    rules: list[Rule] = field(default_factory=list)
    fates: list[FateRule] = field(default_factory=list)
    passed: Counter[str] = field(default_factory=Counter)

    def freeze_at(self, gate: str, for_s: float, nth: int = 1, wanted: Wanted = lambda _: True) -> Rule:
        """SIGSTOP a process at a gate, for so long."""

        def act(process: Process) -> None:
            self.trace(f"{process.name} freezes at {gate} for {for_s:.1f} s")
            process.freeze(for_s)

        self.rules.append(Rule(gate, act, nth, wanted))
        return self.rules[-1]

    def kill_at(self, gate: str, nth: int = 1, wanted: Wanted = lambda _: True) -> Rule:
        """kill -9 a process at a gate."""
        self.rules.append(Rule(gate, lambda process: process.end(f"killed at {gate}"), nth, wanted))
        return self.rules[-1]

    def doom(
        self, name: str, fate: Fate, nth: int = 1, wanted: Wanted = lambda _: True, also: Act = lambda _: None
    ) -> FateRule:
        """Fix the fate of a request. Where `also` freezes the process, the request is under way already."""
        self.fates.append(FateRule(name, fate, nth, wanted, also))
        return self.fates[-1]

    def calm(self) -> None:
        """Nothing more goes wrong."""
        self.chaos = CALM
        self.rules.clear()
        self.fates.clear()

    async def gate(self, process: Process, name: str) -> None:
        """A process passes; it may be stopped here, or die."""
        process.alive()
        self.passed[name] += 1
        self._apply_rules(process, name)
        self._apply_chaos(process, name)
        if process.frozen:
            await asyncio.sleep(0)  # from here it does not come back until it is thawed
        process.alive()

    def gate_at_once(self, process: Process, name: str) -> None:
        """The same where nothing can be awaited: a process may die here."""
        process.alive()
        self.passed[name] += 1
        self._apply_rules(process, name)
        if self.chance.random() < self.chaos.agent_kill:
            process.end(f"killed at {name}")
        if process.dead:
            raise ProcessEnded(process.why)

    def _apply_rules(self, process: Process, name: str) -> None:
        for rule in self.rules:
            if not rule.fired and fnmatch(name, rule.gate) and rule.wanted(process):
                rule.nth -= 1
                if rule.nth == 0:
                    rule.fired = True
                    rule.act(process)

    def _apply_chaos(self, process: Process, name: str) -> None:
        drawn = self.chance.random()
        if drawn < self.chaos.kill:
            process.end(f"killed at {name}")
        elif drawn < self.chaos.kill + self.chaos.freeze:
            for_s = self.chance.random() ** 2 * self.chaos.freeze_max_s
            self.trace(f"{process.name} freezes at {name} for {for_s:.1f} s")
            process.freeze(for_s)

    def fate(self, process: Process, name: str) -> Fate:
        """What is to become of a request."""
        for rule in self.fates:
            if not rule.fired and fnmatch(name, rule.name) and rule.wanted(process):
                rule.nth -= 1
                if rule.nth == 0:
                    rule.fired = True
                    self.trace(f"{process.name}: fate of {name}: {rule.fate}")
                    rule.also(process)
                    return rule.fate
        chaos, drawn = self.chaos, self.chance.random()
        long_s = self.chance.random() ** 2 * chaos.hold_max_s
        if drawn < chaos.lose:
            return Fate(hold_s=self.latency(), lost=drawn < chaos.lose / 2, mute=True)
        if drawn < chaos.lose + chaos.hold:
            return Fate(hold_s=long_s) if drawn < chaos.lose + chaos.hold / 2 else Fate(answer_s=long_s)
        again = drawn < chaos.lose + chaos.hold + chaos.double and name in APPENDS
        return Fate(hold_s=self.latency(), answer_s=self.latency(), again_s=0.0 if again else None)

    def latency(self) -> float:
        """Of one way through a quiet network: 0.2 to 3 ms."""
        return 0.0002 + self.chance.random() * 0.0028
