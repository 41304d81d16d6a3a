"""Serving the app; who makes the context, and parses words of a command line, is signalboxd."""

import uvicorn
from fastapi import FastAPI

_BACKLOG = 2048
_SHUTDOWN_S = 3


def configured(app: FastAPI, host: str, port: int) -> uvicorn.Config:
    """How the app is served: no access log, and open feeds are cut 3 s after the end was asked for: they resume."""
    return uvicorn.Config(
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


async def serve(app: FastAPI, host: str = "127.0.0.1", port: int = 8080) -> None:
    """Serve until a signal comes."""
    await uvicorn.Server(configured(app, host, port)).serve()
