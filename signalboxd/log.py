"""`signalboxd migrate`, and `signalboxd log restored`: the operator's word that a log was restored on purpose (P-5)."""

import argparse
import sys

from scheduler.control import Session
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
    session = Session(site.postgres, "signalbox-operator")
    rows = await session.fetch(
        "UPDATE control.leadership SET head_log_id = '', head_offset = -1, head_n = -1, head_hash = '',"
        " restored_by = $2, restored_reason = $3 WHERE cluster = $1 RETURNING epoch",
        site.cluster,
        args.operator,
        args.reason,
    )
    await session.close()
    sys.stderr.write("noted\n" if rows else f"cluster {site.cluster} never had a leader: nothing to forget\n")
