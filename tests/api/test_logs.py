"""The relay of task logs."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx

from api.context import TailRefused
from events.ids import LeaseId, NodeId
from tests.api.site import Site, patient, site

CHUNKS = [b"epoch 1\n", b"\xff\x00binary\n", b"epoch 2\n"]


@dataclass
class Agent:
    """Both the leader, which is asked, and the agent, which dials in."""

    asked: list[tuple[str, str, bool, int]] = field(default_factory=list)
    refuse: bool = False
    silent: bool = False
    client: httpx.AsyncClient | None = None
    uploads: list["asyncio.Task[httpx.Response]"] = field(default_factory=list)
    dials: list[tuple[str, str]] = field(default_factory=list)
    asking: asyncio.Event = field(default_factory=asyncio.Event)

    async def request(
        self, lease_id: LeaseId, node_id: NodeId, *, url: str, token: str, follow: bool, from_byte: int
    ) -> None:
        """As LogTail.request."""
        if self.refuse:
            raise TailRefused("there is no leader")
        self.asked.append((lease_id, node_id, follow, from_byte))
        self.dials.append((url, token))
        self.asking.set()
        if not self.silent:
            self.uploads.append(asyncio.create_task(self.upload(url, token)))

    async def upload(self, url: str, token: str) -> httpx.Response:
        """Stream the log to the api."""
        assert self.client is not None

        async def chunks() -> AsyncIterator[bytes]:
            for chunk in CHUNKS:
                yield chunk

        return await self.client.post(url, headers={"authorization": f"Bearer {token}"}, content=chunks())


async def _running(api: Site, agent: Agent) -> str:
    agent.client = api.client
    job_id: str = (await api.submitted())["job_id"]
    await api.leader.start(job_id)
    return f"/v1/jobs/{job_id}"


async def test_a_log_is_relayed_byte_by_byte(postgres_dsn: str) -> None:
    """The lease is that of the job's newest attempt; the token is good once."""
    agent = Agent()
    async with site(postgres_dsn, patient(tail_url="http://api"), tail=agent) as api:
        path = await _running(api, agent)
        seq = api.leader.head.seq
        answer = await api.get(f"{path}/logs?rank=0&from_byte=5&follow=true&min_seq={seq}")
        assert (answer.status_code, answer.content) == (200, b"".join(CHUNKS))
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert agent.asked == [(f"{path.rpartition('/')[2]}.1.0", "n-0", True, 5)]
        assert (await agent.uploads[0]).status_code == 200
        again = await agent.upload(*agent.dials[0])
        assert again.status_code == 404


async def test_a_log_that_is_not_there_is_told_apart(postgres_dsn: str) -> None:
    """No such rank, no leader, no word from the node, no such job."""
    agent = Agent(silent=True)
    async with site(postgres_dsn, patient(tail_url="http://api", tail_wait_s=0.1), tail=agent) as api:
        path = await _running(api, agent)
        seq = api.leader.head.seq
        assert (await api.get(f"{path}/logs?rank=1&min_seq={seq}")).json()["code"] == "log_not_there"
        assert (await api.get(f"{path}/logs?attempt=2")).json()["code"] == "log_not_there"
        assert (await api.get(f"{path}/logs")).status_code == 504
        agent.refuse = True
        assert (await api.get(f"{path}/logs")).status_code == 503
        assert (await api.get("/v1/jobs/j_NONE/logs")).json()["code"] == "unknown_job"


async def test_a_wrong_token_uploads_nothing(postgres_dsn: str) -> None:
    """Nor does a right one for another log."""
    agent = Agent(silent=True)
    async with site(postgres_dsn, patient(tail_url="http://api"), tail=agent) as api:
        path = await _running(api, agent)
        reading = asyncio.create_task(api.get(f"{path}/logs?min_seq={api.leader.head.seq}"))
        await agent.asking.wait()
        url, token = agent.dials[0]
        assert (await agent.upload(url, token + "x")).status_code == 404
        assert (await agent.upload(url[:-1] + "?", token)).status_code in (404, 422)
        assert (await agent.upload(url, token)).status_code == 200
        assert (await reading).content == b"".join(CHUNKS)
