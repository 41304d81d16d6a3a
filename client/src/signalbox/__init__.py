"""Signalbox for people and notebooks: `signalbox.connect()` gives a client, `signalbox.job` is the job's own side.

Names are loaded when first used, so that `import signalbox.job` in a training process costs nothing but the standard
library. Must not import anything of the service.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from signalbox import job
    from signalbox.client import Client, connect
    from signalbox.errors import FieldError, NoProfile, Refused, ServerFault, SignalboxError, Unreachable
    from signalbox.profile import Profile
    from signalbox.shapes import ENDS, Event, Job, Submission
    from signalbox.whatif import ReplayFailed, WhatIf, what_if

__all__ = [
    "ENDS",
    "Client",
    "Event",
    "FieldError",
    "Job",
    "NoProfile",
    "Profile",
    "Refused",
    "ReplayFailed",
    "ServerFault",
    "SignalboxError",
    "Submission",
    "Unreachable",
    "WhatIf",
    "connect",
    "job",
    "what_if",
]

_HOMES = {
    "Client": "client",
    "connect": "client",
    "FieldError": "errors",
    "NoProfile": "errors",
    "Refused": "errors",
    "ServerFault": "errors",
    "SignalboxError": "errors",
    "Unreachable": "errors",
    "Profile": "profile",
    "ENDS": "shapes",
    "Event": "shapes",
    "Job": "shapes",
    "Submission": "shapes",
    "ReplayFailed": "whatif",
    "WhatIf": "whatif",
    "what_if": "whatif",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    from importlib import import_module

    if name == "job":
        return import_module("signalbox.job")
    if name not in _HOMES:
        raise AttributeError(f"module 'signalbox' has no attribute {name!r}")
    return getattr(import_module(f"signalbox.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, loaded or not: what a notebook offers to complete."""
    return sorted(__all__)
