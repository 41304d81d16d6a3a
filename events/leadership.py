"""Leadership, and what a leader finds out about itself and its inputs."""

from events.catalogue import event
from events.ids import Epoch, Instant, NodeId


@event("leader.elected")
class LeaderElected:
    """First commit of a term: claims equal the log, the gateway opens (P-16 clocks start)."""

    epoch: Epoch
    holder: str


@event("clock.gapped")
class ClockGap:
    """Time jumped by `gap_s` between commits: no time-outs until `until_at` (P-11)."""

    gap_s: int
    until_at: Instant


@event("command.refused")
class CommandRefused:
    """The answer to a command that changes nothing. `code` is a RefusalCode; the other figures explain it."""

    code: str
    field: str = ""
    value: str = ""
    limit: str = ""


@event("command.repeated")
class CommandRepeated:
    """The idempotency key was used before with the same body: `seq` and `job_id` of the first answer (R-2)."""

    job_id: str
    seq: int


@event("command.unreadable")
class CommandUnreadable:
    """A record of the commands log that is no command of ours: passed over, and on record (P-13)."""

    why: str


@event("command.done")
class CommandDone:
    """The command was accepted and found everything as it asks already: nothing had to change."""


@event("input.refused")
class InputRefused:
    """An input that ended two leaderships, or whose outcome would break an invariant, is passed over (P-7)."""

    input: str
    why: str


@event("claim.conflicted")
class ClaimConflictFound:
    """Postgres holds a claim that the log does not know: the grant was not made (P-8)."""

    node_id: NodeId
    gpu: int
    held_by: str
    quarantined: bool = False


@event("log.restored")
class LogRestored:
    """An operator's word that a log shorter than the epoch row remembers is to be led on (P-5)."""

    operator: str
    reason: str
