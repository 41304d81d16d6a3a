"""Who calls, and what they may do (R-110). Static tokens: the file holds hashes, never tokens.

A token is a random string of at least 128 bits; that is why a plain SHA-256 suffices.
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.problems import FieldError, Problem
from events.ids import Principal, TeamId
from events.job import PriorityClass

TOKEN_BYTES_MAX = 4096


class Role(StrEnum):
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"
    AUDITOR = "auditor"
    AGENT = "agent"


PEOPLE = frozenset({Role.SUBMITTER, Role.OPERATOR, Role.ADMIN, Role.AUDITOR})
"""Reading is allowed to everyone but agents, which have no business here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An authenticated principal. `teams` None: every team. `classes` None: whatever the team may use."""

    principal: Principal
    roles: frozenset[Role]
    teams: frozenset[TeamId] | None
    classes: frozenset[PriorityClass] | None

    def may_act_for(self, team: TeamId) -> bool:
        """May this caller change jobs of the team?"""
        if self.roles & {Role.OPERATOR, Role.ADMIN}:
            return True
        return Role.SUBMITTER in self.roles and (self.teams is None or team in self.teams)

    def require(self, allowed: Iterable[Role]) -> None:
        """Raises Problem (403) where the caller has none of the roles."""
        wanted = frozenset(allowed)
        if not self.roles & wanted:
            names = ", ".join(sorted(wanted))
            raise Problem("forbidden", f"needs one of the roles: {names}", required_roles=sorted(wanted))

    def require_team(self, team: TeamId) -> None:
        """Raises Problem (403) where the caller may not act for the team."""
        if not self.may_act_for(team):
            raise Problem("forbidden", "only the job's own team, operators and admins may do this")

    def require_class(self, wanted: PriorityClass) -> None:
        """Raises Problem (403) where the token is not good for this class."""
        if self.classes is not None and wanted not in self.classes:
            limit = ", ".join(sorted(self.classes)) or "none"
            error = FieldError("priority_class", wanted, limit, "is not a class that this token may use")
            raise Problem("forbidden", f"this token may use the classes: {limit}", errors=[error])


class _Entry(BaseModel):
    """One entry of the token file."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@:/-]{0,127}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    roles: Annotated[list[Role], Field(min_length=1)]
    teams: list[str] | str = []
    classes: list[PriorityClass] | None = None


class Tokens:
    """The known tokens. Looking one up takes the same time whether it is there or not."""

    def __init__(self, entries: Sequence[tuple[bytes, Caller]]) -> None:
        self._entries = entries

    def find(self, token: str) -> Caller | None:
        """Whose token this is."""
        presented = hashlib.sha256(token.encode()).digest()
        found = None
        for digest, caller in self._entries:
            if hmac.compare_digest(digest, presented):
                found = caller
        return found


class BadTokenFile(Exception):
    """The token file cannot be used; says why without showing hashes."""


def load_tokens(path: Path) -> Tokens:
    """Tokens from a file: [{"name", "sha256", "roles", "teams": [...] | "*", "classes"}]. Raises BadTokenFile."""
    try:
        return parse_tokens(path.read_bytes())
    except OSError as error:
        raise BadTokenFile(f"{path}: {error.strerror}") from None


def parse_tokens(raw: bytes) -> Tokens:
    """The same from bytes. Raises BadTokenFile."""
    try:
        listed = orjson.loads(raw)
        if not isinstance(listed, list):
            raise BadTokenFile("a list of tokens is needed")
        entries = [_Entry.model_validate(each) for each in listed]
    except orjson.JSONDecodeError as error:
        raise BadTokenFile(f"not JSON: {error.msg}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise BadTokenFile(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if len({entry.sha256 for entry in entries}) != len(entries):
        raise BadTokenFile("one token is there twice")
    return Tokens([(bytes.fromhex(entry.sha256), _caller(entry)) for entry in entries])


def _caller(entry: _Entry) -> Caller:
    if isinstance(entry.teams, str) and entry.teams != "*":
        raise BadTokenFile(f"{entry.name}: teams is a list, or *")
    return Caller(
        principal=Principal(entry.name if ":" in entry.name else f"user:{entry.name}"),
        roles=frozenset(entry.roles),
        teams=None if entry.teams == "*" else frozenset(TeamId(team) for team in entry.teams),
        classes=None if entry.classes is None else frozenset(entry.classes),
    )


def bearer(authorization: str | None) -> str:
    """The token of an Authorization header. Raises Problem (401)."""
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > TOKEN_BYTES_MAX or not token.isascii():
        raise unauthenticated("an Authorization header with a bearer token is needed")
    return token


def unauthenticated(detail: str) -> Problem:
    """The 401, with the challenge that belongs to it."""
    return Problem("unauthenticated", detail, headers={"www-authenticate": 'Bearer realm="signalbox"'})
