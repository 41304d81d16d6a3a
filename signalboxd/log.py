"""`signalboxd migrate`, and `signalboxd log restored`: the operator's word that a log was restored on purpose (P-5)."""

import argparse
import sys

from events.ids import ClusterId
from scheduler.control import PostgresLeadership
from signalboxd.site import Site
from signalboxd.wiring import migrate


def no_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


async def run_migrate(site: Site, args: argparse.Namespace) -> None:
    await migrate(site)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", choices=["restored"])
    parser.add_argument("--operator", required=True, help="who says so")
    parser.add_argument("--reason", required=True, help="why")


async def run(site: Site, args: argparse.Namespace) -> None:
    """Forget the noted head: the next leader leads on what the log has now, and records who said so."""
    leadership = PostgresLeadership(site.postgres, ClusterId(site.cluster), "operator")
    noted = await leadership.restored(args.operator, args.reason)
    await leadership.close()
    sys.stderr.write("noted\n" if noted else f"cluster {site.cluster} never had a leader: nothing to forget\n")
