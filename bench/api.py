"""What the api costs beside everything else: `signalboxd up` with a simulated fleet, on this machine alone.

Submissions come at a fixed rate whatever the answers do, so that a stall is counted for every request that it would
have met. Then readers and followers of the feed, one after the other.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil

from bench.figure import Figure, latency, rate
from signalboxd.child import free_port

PER_S = 50
SECONDS = 30
READS = 500
FOLLOWERS = 20
TARGET_P99_MS = 250.0
JOB: dict[str, Any] = {"team": "demo", "command": ["train"], "gpu_type": "h100", "max_runtime": "1h"}


async def main() -> list[Figure]:
    """The figures of one run."""
    with tempfile.TemporaryDirectory() as folder:
        async with _installation(Path(folder)) as client:
            await _wait_for_quota(client)
            pid = orjson.loads((Path(folder) / "up.json").read_bytes())["pids"]["api"]
            before = _cpu_s(pid)
            submits, refused = await _submissions(client)
            cpu_s = (_cpu_s(pid) - before) / len(submits)
            answers = await _answer_s(client)
            assert refused == 0, f"{refused} submissions were not queued"
            reads = await _reads(client)
            followed = await _feed(client)
    return [
        latency("api", f"POST /v1/jobs at {PER_S}/s", submits, target_p99_ms=TARGET_P99_MS),
        latency("api", "of which mean wait for the scheduler", [answers]),
        latency("api", "of which processor time of the api", [cpu_s]),
        latency("api", "GET /v1/jobs/{id}", reads),
        rate("api", f"feed to {FOLLOWERS} followers", followed, unit="events/s"),
    ]


@contextlib.asynccontextmanager
async def _installation(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    port = free_port()
    words = ["up", "--data", str(folder), "--port", str(port), "--nodes", "16", "--no-agent"]
    words += ["--profile", str(folder / "profile")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "signalboxd", *words), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            if b"ready:" in line:
                break
        else:
            raise RuntimeError("signalboxd up did not become ready")
        headers = {"authorization": f"Bearer {(folder / 'admin-token').read_text().strip()}"}
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30, limits=limits
        ) as client:
            yield client
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _wait_for_quota(client: httpx.AsyncClient) -> None:
    for _ in range(100):
        if (await client.get("/v1/teams/demo/quota")).json():
            return
        await asyncio.sleep(0.2)
    raise RuntimeError("the demo team got no quota")


async def _submissions(client: httpx.AsyncClient) -> tuple[list[float], int]:
    """Seconds from when each was due to its answer; and how many were not answered QUEUED."""
    begin = time.perf_counter() + 0.5
    tasks = [asyncio.create_task(_submit(client, begin + number / PER_S)) for number in range(PER_S * SECONDS)]
    answers = await asyncio.gather(*tasks)
    return [seconds for seconds, _ in answers], sum(state != "QUEUED" for _, state in answers)


async def _submit(client: httpx.AsyncClient, due: float) -> tuple[float, str]:
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    answer = await client.post("/v1/jobs", json=JOB, headers={"idempotency-key": str(uuid.uuid4())})
    return time.perf_counter() - due, answer.json().get("state", answer.text)


def _cpu_s(pid: int) -> float:
    """Seconds that a process has used of a processor."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def _answer_s(client: httpx.AsyncClient) -> float:
    """Mean seconds from the append of a command to its commit, as the api saw it."""
    figures = dict(
        line.split(" ", 1) for line in (await client.get("/metrics")).text.splitlines() if "answer_seconds_" in line
    )
    return float(figures["signalbox_api_answer_seconds_sum"]) / float(figures["signalbox_api_answer_seconds_count"])


async def _reads(client: httpx.AsyncClient) -> list[float]:
    ids = [job["job_id"] for job in (await client.get("/v1/jobs", params={"limit": READS})).json()["jobs"]]
    seconds = []
    for job_id in ids:
        began = time.perf_counter()
        (await client.get(f"/v1/jobs/{job_id}")).raise_for_status()
        seconds.append(time.perf_counter() - began)
    return seconds


async def _feed(client: httpx.AsyncClient) -> list[float]:
    """Events a second that all followers get together, from the first event to the end."""
    began = time.perf_counter()
    counts = await asyncio.gather(*(_follow(client) for _ in range(FOLLOWERS)))
    return [sum(counts) / (time.perf_counter() - began)]


async def _follow(client: httpx.AsyncClient) -> int:
    lines = 0
    async with client.stream("GET", "/v1/events") as answer:
        async for chunk in answer.aiter_bytes():
            lines += chunk.count(b"\n")
    return lines
