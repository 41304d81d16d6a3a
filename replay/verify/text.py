"""A report in words, for a terminal, and as JSON."""

from collections.abc import Iterator
from typing import Any

import orjson

from replay.verify.findings import Difference, Report

SHOWN_MAX = 10
EVENTS_SHOWN = 2_000
"""Characters of each outcome."""


def to_json(report: Report) -> bytes:
    """All of it, and whether the log is whole."""
    return orjson.dumps({**_plain(report), "whole": report.whole})


def _plain(report: Report) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__slots__}


def lines(report: Report) -> Iterator[str]:
    """What people read: the verdict first, then what it rests on."""
    yield f"{report.cluster}: {_verdict(report)}"
    if (finding := report.finding) is not None:
        named = "" if finding.n is None else f" (n {finding.n})"
        yield f"  first bad record: offset {finding.offset}{named} {finding.wrong}: {finding.why}"
    head = report.head
    if head is not None:
        yield f"  chain: n {report.since_n} to {head.n}, at {head.accepted}, hash {head.hash}"
    yield (
        f"  {report.records} records, {report.accepted} accepted: {report.terms} terms,"
        f" {report.commits} commits, {report.events} events"
    )
    yield f"  decisions: {report.recomputed} recomputed, {report.differing} come out otherwise{_aside(report)}"
    for line in report.not_recomputable:
        yield f"  not recomputed: {line.commits} commits, n {line.first_n} to {line.last_n}: {line.why}"
    for reason in sorted(report.dropped):
        yield f"  dropped by every reader: {report.dropped[reason]} {reason}{_where(report, reason)}"
    for word in report.restored:
        yield f"  restored before n {word.n}, by the word of {word.operator}: {word.reason}"
    for noted in report.noted:
        yield f"  n {noted.n} is the one that {noted.by} knows"
    for difference in report.differences[:SHOWN_MAX]:
        yield from _difference(difference)
    if report.differing > SHOWN_MAX:
        yield f"  ... and {report.differing - SHOWN_MAX} more"


def _verdict(report: Report) -> str:
    if report.finding is not None:
        return "NOT WHOLE"
    if report.differing:
        return "whole, but DECIDED OTHERWISE"
    return "whole"


def _aside(report: Report) -> str:
    return f", {report.set_aside} set aside on a leader's word" if report.set_aside else ""


def _where(report: Report, reason: str) -> str:
    places = [str(record.offset) for record in report.dropped_records if record.reason == reason]
    more = ", ..." if len(places) > SHOWN_MAX else ""
    return f" (at {', '.join(places[:SHOWN_MAX])}{more})"


def _difference(found: Difference) -> Iterator[str]:
    fields = ", ".join(found.fields) or "bytes"
    yield f"  n {found.n} at {found.offset}: {fields} of {found.input_kind} {found.input_id}"
    if found.why:
        yield f"    {found.why}"
    yield f"    input:      {_short(found.input_body)}"
    yield f"    recorded:   {_short(_outcome(found, found.recorded))}"
    if found.recomputed is not None:
        yield f"    recomputed: {_short(_outcome(found, found.recomputed))}"


def _outcome(found: Difference, record: dict[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in found.fields if name != "input"}


def _short(what: Any) -> str:
    text = orjson.dumps(what).decode()
    return text if len(text) <= EVENTS_SHOWN else f"{text[:EVENTS_SHOWN]} ... ({len(text)} characters)"
