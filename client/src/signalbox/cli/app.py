"""The command's frame: options that all commands share, and what becomes of errors. Commands register themselves."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from typer.core import TyperGroup

from signalbox.cli import ending
from signalbox.client import Client, connect
from signalbox.errors import SignalboxError
from signalbox.times import seconds
from signalbox.transport import client_version

CLI_PATIENCE_S = 8.0
"""People wait for less than programs do before they want to be told."""


@dataclass(slots=True)
class Settings:
    """What was given before the command's name."""

    profile: str | None = None
    address: str | None = None
    patience_s: float = CLI_PATIENCE_S


ORDER = (
    *("run", "submit", "queue", "show", "why", "logs", "cancel", "hold", "release", "extend", "requeue", "change"),
    *("history", "top", "events", "nodes", "quota", "shares", "policy", "drain", "undrain", "audit", "version"),
)
"""How the help lists the commands: what is needed most comes first."""


class Guarded(TyperGroup):
    """Turns errors into words on stderr and an exit code, for all commands in one place."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in their order for people."""
        known = super().list_commands(ctx)
        return sorted(known, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except SignalboxError as error:
            complain(str(error))
            raise typer.Exit(ending.of_error(error)) from None
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(ending.INTERRUPTED) from None


class Defaulting(TyperGroup):
    """A group in which a missing subcommand means `show`: `quota TEAM` is `quota show TEAM`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `show` in front where the first word is no subcommand."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Guarded,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=ending.TABLE,
    help="Submit jobs to Signalbox and see what becomes of them. All commands take --json.",
)
settings = Settings()


def stated(value: str | None) -> str | None:
    """An option's text; one that is given and empty is a slip (an unset variable), and no way to say nothing."""
    if value is not None and not value.strip():
        raise typer.BadParameter("it is empty: leave the option out, or give it a value")
    return value


def duration(text: str) -> str:
    """A duration as the API takes it. Raises BadParameter, in the same words for every command."""
    try:
        seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


Json = Annotated[bool, typer.Option("--json", help="Nothing but JSON on stdout.")]


@app.callback()
def options(
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME|PATH", help="Which profile; default: profile.toml.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="URL", help="The API, instead of the profile's.")
    ] = None,
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            envvar="SIGNALBOX_PATIENCE",
            min=0,
            metavar="SECONDS",
            help="How long a request is tried again.",
        ),
    ] = CLI_PATIENCE_S,
) -> None:
    """Options of all commands, before the command's name."""
    settings.profile, settings.address, settings.patience_s = profile, address, patience


def client() -> Client:
    """The client for the options given. Raises NoProfile."""
    return connect(settings.profile, settings.address, patience_s=settings.patience_s, on_no_answer=_trying)


def _trying(address: str) -> None:
    here = urlsplit(address).hostname in ("127.0.0.1", "localhost", "::1")
    asked = "; is `./dev up` running?" if here else ""
    complain(f"no answer from {address}, trying for {settings.patience_s:g} s{asked}")


def complain(message: str) -> None:
    """An error or a notice, on stderr."""
    print(f"signalbox: {message}", file=sys.stderr, flush=True)


@app.command()
def version(as_json: Json = False) -> None:
    """Say which version this is."""
    from signalbox.cli import output

    found = client_version()
    output.show({"version": found}, as_json, lambda: output.line(f"signalbox {found}"))


def main() -> None:
    """The console script."""
    logging.getLogger("httpx").setLevel(logging.WARNING)
    from signalbox.cli import fleet, follow, jobs, submit, top  # noqa: F401

    app()
