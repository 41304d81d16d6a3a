"""What the endpoints work with, and how they get at it: the parts of one app, and who calls."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Header, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.auth import PEOPLE, Caller, Role, bearer, unauthenticated
from api.context import ApiContext
from api.feed import Feed
from api.follower import Follower
from api.idempotency import HEADER, check_key
from api.mirror import Mirror
from api.problems import Problem
from api.rate import Rates
from api.reads import Reads
from api.submit import Commands
from api.tails import Tails
from events.ids import JobId, TeamId

BIG = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One of each for an app; made by its lifespan."""

    context: ApiContext
    commands: Commands
    mirror: Mirror
    reads: Reads
    feed: Feed
    follower: Follower
    tails: Tails
    rates: Rates
    feeds: Counter[str] = field(default_factory=Counter)
    """Open feeds of each principal."""

    def open_feed(self, principal: str) -> None:
        """Count one more feed. Raises Problem (429)."""
        limit = self.context.settings.feeds_per_principal_max
        if self.feeds[principal] >= limit:
            raise Problem("too_many_requests", f"at most {limit} feeds at one time", headers={"retry-after": "10"})
        self.feeds[principal] += 1

    def close_feed(self, principal: str) -> None:
        """One feed less."""
        self.feeds[principal] -= 1
        if self.feeds[principal] <= 0:
            del self.feeds[principal]

    async def team_of(self, job_id: JobId) -> TeamId:
        """The team of a job, also of one that the projection has not seen yet. Raises Problem (404)."""
        team = self.feed.team_of(job_id) or await self.reads.team_of(job_id)
        if team is None:
            raise Problem("unknown_job", f"there is no job {job_id}")
        return TeamId(team)


async def services(request: Request) -> Services:
    """The app's parts. Raises Problem (503) before they are there."""
    made = getattr(request.app.state, "services", None)
    if made is None:
        raise Problem("unavailable", "starting", headers={"retry-after": "1"})
    return made  # type: ignore[no-any-return]


Parts = Annotated[Services, Depends(services)]

_bearer = HTTPBearer(auto_error=False, description="A static token, or one of the site's identity provider")


async def authenticated(
    request: Request, parts: Parts, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> Caller:
    """Who calls. Raises Problem (401, 429)."""
    try:
        caller = parts.context.tokens.find(bearer(request.headers.get("authorization")))
        if caller is None:
            raise unauthenticated("the token is not known")
    except Problem:
        parts.rates.take(f"from {request.client.host if request.client else ''}")
        raise
    parts.rates.take(caller.principal)
    request.state.principal = caller.principal
    return caller


async def person(caller: Annotated[Caller, Depends(authenticated)]) -> Caller:
    """Anyone but an agent. Raises Problem (403)."""
    caller.require(PEOPLE)
    return caller


async def operator(caller: Annotated[Caller, Depends(authenticated)]) -> Caller:
    """An operator or admin. Raises Problem (403)."""
    caller.require({Role.OPERATOR, Role.ADMIN})
    return caller


async def admin(caller: Annotated[Caller, Depends(authenticated)]) -> Caller:
    """An admin. Raises Problem (403)."""
    caller.require({Role.ADMIN})
    return caller


async def auditor(caller: Annotated[Caller, Depends(authenticated)]) -> Caller:
    """An auditor or admin. Raises Problem (403)."""
    caller.require({Role.AUDITOR, Role.ADMIN})
    return caller


Person = Annotated[Caller, Depends(person)]
Operator = Annotated[Caller, Depends(operator)]
Admin = Annotated[Caller, Depends(admin)]
Auditor = Annotated[Caller, Depends(auditor)]


async def idempotency_key(
    key: Annotated[
        str | None, Header(alias=HEADER, description="Required. A UUID, say; a retry sends the same one")
    ] = None,
) -> str:
    """The key of a write. Raises Problem (422)."""
    return check_key(key)


Key = Annotated[str, Depends(idempotency_key)]


async def fresh(
    parts: Parts,
    min_seq: Annotated[int, Query(ge=0, le=BIG, description="Wait, at most 5 s, until the read models have it")] = 0,
) -> None:
    """Read your own writes. Raises Problem (504)."""
    if min_seq > 0:
        await parts.reads.require(min_seq, parts.context.settings.min_seq_wait_s)


Fresh = Depends(fresh)
