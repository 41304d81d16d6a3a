"""The service program: `signalboxd VERB`. Exit codes: 0 done, 2 usage, 70 start again, 74 an operator has to look,
75 the site or its token file cannot be used. Those of verify are in signalboxd.verify.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from signalboxd.embedded_postgres import EmbeddedPostgresError
from signalboxd.site import Site, SiteError, read_site
from signalboxd.supervisor import ChildFailed

Verb = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], Awaitable[None]]]


def main(argv: list[str] | None = None) -> None:
    """Run one verb; ends the process with its exit code."""
    args = parser().parse_args(argv)
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


def parser() -> argparse.ArgumentParser:
    """The words of the service program, with all that each takes."""
    parser = argparse.ArgumentParser(prog="signalboxd", description="Signalbox: scheduler and control plane")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, about, add, start, needs_site in _verbs():
        verb = verbs.add_parser(name, help=about, description=about)
        if needs_site:
            verb.add_argument("--site", type=Path, required=True, help="the site file (TOML)")
        add(verb)
        verb.set_defaults(start=_with_site(start) if needs_site else start)
    return parser


def _verbs() -> list[tuple[str, str, Callable[..., None], Callable[..., Awaitable[None]], bool]]:
    from signalboxd import agent, api, log, projector, replay, scheduler, up, verify

    return [
        ("up", "run everything on this machine", up.add_arguments, up.run, False),
        ("scheduler", "stand by or lead", scheduler.add_arguments, scheduler.run, True),
        ("api", "serve REST", api.add_arguments, api.run, True),
        ("projector", "keep the read models", projector.add_arguments, projector.run, True),
        ("agent", "run tasks on this node", agent.add_arguments, agent.run, False),
        ("rebuild", "make the read models anew from the log", projector.add_arguments, projector.run_rebuild, True),
        ("migrate", "make schemas and logs where they are not there", log.no_arguments, log.run_migrate, True),
        ("replay", "schedule recorded or generated work again, and compare", replay.add_arguments, replay.run, False),
        ("log", "export the log, or an operator's word about it", log.add_arguments, log.run, True),
        ("verify", "check that the log is whole, and decide it all again", verify.add_arguments, verify.run, False),
    ]


def _with_site(start: Callable[[Site, argparse.Namespace], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
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
