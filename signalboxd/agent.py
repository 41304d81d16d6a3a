"""`signalboxd agent`: the agent's own flags, and where its token comes from."""

import argparse
from pathlib import Path

from agent import main as agent_main


def add_arguments(parser: argparse.ArgumentParser) -> None:
    agent_main.add_arguments(parser)
    parser.add_argument("--token-file", type=Path, help="file with the token of the agents")


async def run(args: argparse.Namespace) -> None:
    """Until SIGTERM or SIGINT; tasks run on."""
    if args.token_file is not None:
        args.token = args.token_file.read_text().strip()
    await agent_main.run(args)
