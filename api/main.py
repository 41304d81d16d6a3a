"""Serving the app; who makes the context, and parses words of a command line, is signalboxd."""

import uvicorn
from fastapi import FastAPI

_BACKLOG = 2048
_SHUTDOWN_S = 3


async def serve(app: FastAPI, host: str = "127.0.0.1", port: int = 8080) -> None:
    """Serve until a signal comes. Open feeds are cut after 3 s: they resume elsewhere."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,
        log_config=None,
        backlog=_BACKLOG,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        timeout_keep_alive=75,
    )
    await uvicorn.Server(config).serve()
