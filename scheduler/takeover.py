"""From a tenure in Postgres to the first commit of a term (DESIGN 5, P-3, P-5, P-8).

Order: fold to the end; check that the log still has what the last leader noted; the term record; see it accepted;
make claims equal to the log; LeaderElected. Only then may agents be heard.
"""

from collections.abc import Callable

from commands.decide import decide_leader
from commands.entities import Meta
from commands.messages import NoCommand, decode_command
from commands.snapshot import RULES_VERSION
from events import codec
from events.chain import Accepted, Head
from events.envelope import Input, Term
from events.ids import ClusterId, Instant, LogId, Principal
from events.log import AppendRefused, CommandLog, EventLog, LogUnusable, UnknownOutcome, kept_record
from scheduler.ports import Claims, Exit, Tenure
from scheduler.replica import Replica
from scheduler.writer import Writer, read_through

SCHEDULER = Principal("scheduler")


class TermLost(Exception):
    """The term record did not count: another record came before it. Nothing was done; try again with a new epoch."""


async def take_over(
    *,
    cluster: ClusterId,
    replica: Replica,
    tenure: Tenure,
    log: EventLog,
    commands: CommandLog,
    command_log_id: LogId,
    claims: Claims,
    monotonic: Callable[[], float],
    leave: Exit,
) -> Writer:
    """A writer whose term is in force. Raises TermLost, LogUnusable (an operator is needed); leaves on the unknown."""
    await replica.catch_up(log)
    await check_noted_head(log, tenure)
    if tenure.restored is None:
        await check_commands(commands, command_log_id, replica.state.meta)
    last_at = replica.head.at
    head = await _begin_term(cluster, replica, tenure, log, leave)
    writer = Writer(
        state=replica.state,
        head=head,
        tenure=tenure,
        log=log,
        claims=claims,
        monotonic=monotonic,
        leave=leave,
    )
    await writer.reconcile()
    await _elect(writer, tenure, Instant(last_at))
    return writer


async def _elect(writer: Writer, tenure: Tenure, last_at: Instant) -> None:
    body = {"holder": tenure.holder, "last_at": last_at, "restored": tenure.restored}
    await writer.commit(
        Input(kind="leader", id=f"leader-{tenure.epoch}", body=body),
        SCHEDULER,
        lambda draft: decide_leader(draft, tenure.holder, last_at, tenure.restored),
    )


async def _begin_term(cluster: ClusterId, replica: Replica, tenure: Tenure, log: EventLog, leave: Exit) -> Head:
    head = replica.head
    term = Term(
        cluster=cluster,
        epoch=tenure.epoch,
        nonce=tenure.nonce,
        n=head.n + 1,
        prev=head.hash,
        at=max(head.at, tenure.at),
        rules=RULES_VERSION,
        holder=tenure.holder,
    )
    raw = codec.encode(term)
    try:
        offset = await log.append(raw, head.offset + 1)
    except AppendRefused as error:
        raise TermLost(str(error)) from error
    except UnknownOutcome as error:
        leave(f"term: {error}")
    outcome = await read_through(log, head, offset)
    if not isinstance(outcome, Accepted) or outcome.raw != raw:
        raise TermLost(f"the term at {offset} does not count")
    replica.fold(term, outcome.head)
    return outcome.head


async def check_noted_head(log: EventLog, tenure: Tenure) -> None:
    """The log has the record that the last leader noted as accepted (P-5). Raises LogUnusable."""
    if tenure.head is None:
        return
    log_id, offset, n, noted = tenure.head
    advice = "if it was restored on purpose, say so with `signalboxd log restored`"
    try:
        found = await kept_record(log, offset)
    except LogUnusable as error:
        raise LogUnusable(f"commit {n} at {offset} was accepted, but {error}: {advice}") from error
    if codec.digest(found) != noted:
        raise LogUnusable(f"the record at {offset} of log {log_id} is not the accepted commit {n}: {advice}")


async def check_commands(commands: CommandLog, log_id: LogId, meta: Meta) -> None:
    """The commands log is the one that was taken from, up to where it was taken (P-13). Raises LogUnusable."""
    if meta.command_position == 0:
        return
    if log_id != meta.command_log:
        raise LogUnusable(f"the commands log is {log_id}, commands were taken from {meta.command_log}")
    last = await kept_record(commands, meta.command_position)
    if command_id(last) not in (None, meta.command_id):
        raise LogUnusable(f"the command at {meta.command_position} is not {meta.command_id}, which was taken there")


def command_id(raw: bytes) -> str | None:
    """Id of a stored command; None where it is no command."""
    try:
        return decode_command(raw).id
    except NoCommand:
        return None
