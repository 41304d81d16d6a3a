"""The service program: `signalboxd VERB`. Exit codes: 0 done, 2 usage, 70 start again, 74 an operator has to look,
75 the site or its token file cannot be used. Those of verify are in signalboxd.verify.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import structlog

from signalboxd.embedded_postgres import EmbeddedPostgresError
from signalboxd.site import Site, SiteError, read_site
from signalboxd.supervisor import ChildFailed

Start = Callable[[argparse.Namespace], Awaitable[None]]


class Verb(NamedTuple):
    """`module`: of this package; it has `add_arguments`, unless there are none, and `start`."""

    name: str
    about: str
    module: str
    needs_site: bool = True
    start: str = "run"
    arguments: str = "add_arguments"


VERBS = (
    Verb("up", "run everything on this machine", "up", needs_site=False),
    Verb("scheduler", "stand by or lead", "scheduler"),
    Verb("api", "serve REST", "api"),
    Verb("projector", "keep the read models", "projector"),
    Verb("agent", "run tasks on this node", "agent", needs_site=False),
    Verb("rebuild", "make the read models anew from the log", "projector", start="run_rebuild"),
    Verb(
        "migrate",
        "make schemas and logs where they are not there",
        "log",
        start="run_migrate",
        arguments="no_arguments",
    ),
    Verb("replay", "schedule recorded or generated work again, and compare", "replay", needs_site=False),
    Verb("log", "export the log, or an operator's word about it", "log"),
    Verb("verify", "check that the log is whole, and decide it all again", "verify", needs_site=False),
)


def main(argv: list[str] | None = None) -> None:
    """Run one verb; ends the process with its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    args = parser(argv[:1]).parse_args(argv)
    _logs()
    try:
        _run(args)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except SiteError as error:
        sys.stderr.write(f"signalboxd: {error}\n")
        raise SystemExit(75) from None
    except (ChildFailed, EmbeddedPostgresError) as error:
        sys.stderr.write(f"signalbox: {error}\n")
        raise SystemExit(1) from None


def _run(args: argparse.Namespace) -> None:
    import uvloop

    runner = asyncio.run if args.verb in ("agent", "up") else uvloop.run
    runner(args.start(args))


def parser(only: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The words of the service program. `only`: verbs of which all the words are wanted (None: of all of them); what
    the others load is not loaded, as an agent has no use for what draws a report."""
    parser = argparse.ArgumentParser(prog="signalboxd", description="Signalbox: scheduler and control plane")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        words = verbs.add_parser(verb.name, help=verb.about, description=verb.about)
        if only is None or verb.name in only:
            _add(verb, words)
    return parser


def _add(verb: Verb, words: argparse.ArgumentParser) -> None:
    module = import_module(f"signalboxd.{verb.module}")
    start = getattr(module, verb.start)
    if verb.needs_site:
        words.add_argument("--site", type=Path, required=True, help="the site file (TOML)")
    getattr(module, verb.arguments)(words)
    words.set_defaults(start=_with_site(start) if verb.needs_site else start)


def _with_site(start: Callable[[Site, argparse.Namespace], Awaitable[None]]) -> Start:
    async def run(args: argparse.Namespace) -> None:
        await start(read_site(args.site), args)

    return run


def _logs() -> None:
    """One line of JSON an event, on standard error."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
