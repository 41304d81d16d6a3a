"""`signalboxd api`: serve REST. Any number of them may run; they share nothing but the log and Postgres."""

import argparse

from api.app import create_app
from api.auth import BadTokenFile, load_tokens
from api.context import ApiContext
from api.main import serve
from api.settings import ApiSettings
from events.ids import ClusterId
from signalboxd.site import Site, SiteError
from signalboxd.tail import LeaderTail
from signalboxd.wiring import open_logs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="(default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, help="(default: 8080)")
    parser.add_argument("--tail-url", help="how agents reach this api for logs (default: http://HOST:PORT)")
    parser.add_argument("--metrics-open", action="store_true", help="serve /metrics without a token")


async def run(site: Site, args: argparse.Namespace) -> None:
    """Until a signal comes."""
    if site.tokens is None:
        raise SiteError("tokens: an api needs the file of tokens")
    cluster = ClusterId(site.cluster)
    events, commands = open_logs(site, "api")
    try:
        tokens = load_tokens(site.tokens)
    except BadTokenFile as error:
        raise SiteError(f"tokens: {error}") from None
    context = ApiContext(
        cluster=cluster,
        events=events,
        commands=commands,
        postgres_dsn=site.postgres,
        tokens=tokens,
        settings=ApiSettings(
            tail_url=args.tail_url or f"http://{args.host}:{args.port}", metrics_open=args.metrics_open
        ),
        tail=LeaderTail(site.postgres, cluster, site.agent_token()),
    )
    await serve(create_app(context), args.host, args.port)
