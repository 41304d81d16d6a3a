"""Idempotency keys, their digests, and the ids that the api draws (P-14)."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from api.problems import FieldError, Problem
from commands.messages import Command, SubmitJob
from events.ids import CommandId, Instant, JobId, Principal

HEADER = "Idempotency-Key"
KEY_PATTERN = r"^[\x21-\x7e]{1,128}$"
_KEY = re.compile(KEY_PATTERN)
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_UNBOUND = JobId("")


def check_key(key: str | None) -> str:
    """The key of a write. Raises Problem (422) naming the header."""
    if key is None:
        error = FieldError(HEADER, None, "required", "is required on every write: a UUID, say")
        raise Problem("invalid", f"the header {HEADER} is required on every write", errors=[error])
    if not _KEY.fullmatch(key):
        error = FieldError(HEADER, None, "1 to 128 printable ASCII characters", "is not a usable key")
        raise Problem("invalid", f"{HEADER} has to be 1 to 128 printable ASCII characters", errors=[error])
    return key


def key_digest(principal: Principal, key: str) -> str:
    """16 bytes in hex that stand for (principal, key)."""
    return _digest(orjson.dumps([principal, key]))


def body_digest(command: Command) -> str:
    """16 bytes in hex that stand for what is asked. A submission's id is no part of it: it is drawn, not asked for."""
    content: Any = replace(command, job_id=_UNBOUND) if isinstance(command, SubmitJob) else command
    return _digest(orjson.dumps(content, option=orjson.OPT_SORT_KEYS))


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def new_job_id(now: Instant, random: Callable[[int], bytes]) -> JobId:
    """`j_`, 10 digits of milliseconds, 10 random ones (50 bits): sorts by time of submission."""
    return JobId("j_" + _base32(now, 10) + _base32(int.from_bytes(random(7)), 10))


def new_command_id(now: Instant, random: Callable[[int], bytes]) -> CommandId:
    """`c_` and the same, with 16 random digits."""
    return CommandId("c_" + _base32(now, 10) + _base32(int.from_bytes(random(10)), 16))


def _base32(number: int, digits: int) -> str:
    return "".join(_CROCKFORD[number >> (5 * place) & 31] for place in reversed(range(digits)))
