"""What a report says about how it was made: nothing of it can be seen in the outcomes. Plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from commands.policy import DEFAULT, Policy
from replay.report.losses import Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """`source`: where the work came from. `command`: how to make it again. `policies`: in the order of the outcomes,
    where they are known. `unusable`: rows of the source that were left out, by reason. `exceptions`: where the replay
    departs from what was recorded, and other limits, a sentence each. `models`: stated ones that were on."""

    source: str = ""
    command: str = ""
    seed: int | None = None
    policies: tuple[Policy, ...] = ()
    unusable: Mapping[str, int] = field(default_factory=dict)
    exceptions: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    rates: Rates = field(default_factory=Rates)


def parameters(policies: Sequence[Policy]) -> list[tuple[str, list[str]]]:
    """(parameter, its value in each policy) where the policies differ, or one is not the default."""
    rows = []
    for name in Policy.model_fields:
        values = [_value(policy, name) for policy in policies]
        if set(values) - {_value(DEFAULT, name)}:
            rows.append((name, values))
    return rows


def _value(policy: Policy, name: str) -> str:
    value = policy.model_dump(mode="json")[name]
    return ", ".join(map(str, value)) or "(none)" if isinstance(value, list) else str(value)
