"""Accept or refuse: the state and an input in, the facts that follow out. A file per subject. Pure.

A refusal is a value. `decide_command` never raises for what a client sent; a report that makes no sense is dropped
with a reason. Guards come first, in the documented order; then the facts.
"""

from commands.decide.commands import decide_command
from commands.decide.leader import decide_conflict, decide_leader
from commands.decide.reports import decide_messages
from commands.decide.ticks import decide_tick

__all__ = ["decide_command", "decide_conflict", "decide_leader", "decide_messages", "decide_tick"]
