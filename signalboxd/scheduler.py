"""`signalboxd scheduler`: one process that stands by or leads. It ends by os._exit alone once it leads (P-9)."""

import argparse
import asyncio
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import structlog
from prometheus_client import start_http_server

from agent.gateway import GrpcGateway
from events.chain import ChainBroken
from events.ids import ClusterId
from events.log import LogUnusable
from scheduler.claims import PostgresClaims, PostgresSnapshots
from scheduler.control import PostgresLeadership
from scheduler.measures import Measures
from scheduler.ports import Exit
from scheduler.service import Ports, Service
from scheduler.tenure import Office, keep
from signalboxd.collection import collect_rarely
from signalboxd.site import Site
from signalboxd.wiring import open_logs

_log = structlog.get_logger(__name__)

EXIT_OVER = 70
"""The leadership is over: start again."""
EXIT_OPERATOR = 74
"""The log is not fit to lead on: an operator has to look."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", default="127.0.0.1:7500", help="where agents dial in (default: 127.0.0.1:7500)")
    parser.add_argument("--advertise", help="how agents reach this scheduler (default: as --listen)")
    parser.add_argument("--metrics-port", type=int, help="serve /metrics on this loopback port")


def leave(why: str) -> NoReturn:
    """End now: nothing is flushed, nothing retried, nothing tidied (P-9)."""
    sys.stderr.write(f"scheduler: leaving: {why}\n")
    sys.stderr.flush()
    os._exit(EXIT_OVER)


async def run(site: Site, args: argparse.Namespace) -> None:
    """Until the process ends."""
    cluster = ClusterId(site.cluster)
    holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    events, commands = open_logs(site, "scheduler")
    measures = Measures()
    if args.metrics_port is not None:
        start_http_server(args.metrics_port, "127.0.0.1", measures.registry)
    service: Service | None = None

    def leader() -> str | None:
        return service.leader_address if service is not None else None

    gateway = GrpcGateway(leader=leader, token=site.agent_token())
    port = await gateway.start(args.listen)
    address = args.advertise or f"{args.listen.rsplit(':', 1)[0]}:{port}"
    service = Service(
        Ports(
            cluster=cluster,
            holder=holder,
            address=address,
            log=events,
            commands=commands,
            leadership=PostgresLeadership(site.postgres, cluster, holder),
            claims=PostgresClaims(site.postgres, cluster, holder),
            snapshots=PostgresSnapshots(site.postgres, cluster, holder),
            gateway=gateway,
            monotonic=time.monotonic,
            leave=leave,
            keep=keeper_thread(site.postgres, cluster, holder, leave),
            measures=measures,
        )
    )
    collect_rarely()
    try:
        await service.run()
    except (LogUnusable, ChainBroken) as error:
        sys.stderr.write(f"scheduler: cannot lead: {error}\n")
        sys.stderr.flush()
        os._exit(EXIT_OPERATOR)
    except Exception as error:
        _log.exception("scheduler failed")
        leave(f"{type(error).__name__}: {error}")


def keeper_thread(dsn: str, cluster: ClusterId, holder: str, leave: Exit) -> Callable[[Office], None]:
    """Starts the keeper of a tenure on a thread, loop and connection of its own (P-9)."""

    async def renewing(office: Office) -> None:
        leadership = PostgresLeadership(dsn, cluster, holder)
        try:
            await keep(office, leadership, leave)
        finally:
            await leadership.close()

    def run_thread(office: Office) -> None:
        try:
            asyncio.run(renewing(office))
        except Exception as error:
            leave(f"the keeper failed: {type(error).__name__}: {error}")

    def begin(office: Office) -> None:
        threading.Thread(target=run_thread, args=(office,), name="tenure", daemon=True).start()

    return begin
