"""`signalboxd projector` and `signalboxd rebuild`: the read models, kept in step or made anew."""

import argparse
import sys

from prometheus_client import start_http_server

from projections import worker
from projections.rebuild import rebuild
from signalboxd.site import Site
from signalboxd.wiring import open_logs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metrics-port", type=int, help="serve /metrics on this loopback port")


async def run(site: Site, args: argparse.Namespace) -> None:
    """Until it fails; its supervisor starts it again, and it goes on where its tables stand."""
    if args.metrics_port is not None:
        start_http_server(args.metrics_port, "127.0.0.1")
    events, _ = open_logs(site, "projector")
    await events.open()
    await worker.run(events, site.postgres)


async def run_rebuild(site: Site, args: argparse.Namespace) -> None:
    """Drop the read models and make them anew from the log; the log and schema `control` are not touched."""
    events, _ = open_logs(site, "rebuild")
    await events.open()

    def tell(cluster: str, offset: int, end: int, seq: int) -> None:
        sys.stderr.write(f"\r{cluster}: record {offset} of {end}, event {seq}")

    await rebuild(site.postgres, [events], tell)
    sys.stderr.write("\n")
