"""The policy in force: data, put in force by an event (DESIGN 4)."""

from typing import Any

from events.catalogue import event


@event("policy.changed")
class PolicyChanged:
    """From the next decision on `policy` (as commands.policy.Policy writes it) holds, as version `version`."""

    version: int
    policy: dict[str, Any]
    reason: str = ""
