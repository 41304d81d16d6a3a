"""`signalboxd migrate`; `signalboxd log restored`, the operator's word that a log was restored on purpose (P-5); and
`signalboxd log export`, the events log as a file, to keep or to verify elsewhere.
"""

import argparse
import os
import sys
from pathlib import Path

from events.ids import ClusterId
from events.log_file import export
from scheduler.control import PostgresLeadership
from signalboxd.site import Site, SiteError
from signalboxd.verify import noted_heads
from signalboxd.wiring import migrate, open_logs


def no_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


async def run_migrate(site: Site, args: argparse.Namespace) -> None:
    await migrate(site)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", choices=["restored", "export"])
    parser.add_argument("--operator", help="restored: who says so")
    parser.add_argument("--reason", help="restored: why")
    parser.add_argument("--to", type=Path, help="export: the file to write; it must not be there")


async def run(site: Site, args: argparse.Namespace) -> None:
    """One of the two."""
    if args.word == "export":
        if args.to is None:
            raise SiteError("log export: --to FILE: where to?")
        await _export(site, args.to)
        return
    if not args.operator or not args.reason:
        raise SiteError("log restored: --operator NAME --reason WHY: both are put on record")
    await _restored(site, args.operator, args.reason)


async def _restored(site: Site, operator: str, reason: str) -> None:
    """Forget the noted head: the next leader leads on what the log has now, and records who said so."""
    leadership = PostgresLeadership(site.postgres, ClusterId(site.cluster), "operator")
    noted = await leadership.restored(operator, reason)
    await leadership.close()
    sys.stderr.write("noted\n" if noted else f"cluster {site.cluster} never had a leader: nothing to forget\n")


async def _export(site: Site, path: Path) -> None:
    """Whole or not at all: written beside, synced, and renamed."""
    if path.exists():
        raise SiteError(f"log export: --to {path}: there is a file already")
    noted = await noted_heads(site)
    log, _ = open_logs(site, "export")
    await log.open()
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            count = await export(log, file, noted)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except OSError as error:
        raise SiteError(f"log export: {path}: {error.strerror}") from None
    finally:
        await log.close()
    sys.stderr.write(f"{count} records\n")
