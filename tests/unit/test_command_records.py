"""Commands as they lie in their log: what is decided is what the commit's input keeps of them (I-9, P-13)."""

from __future__ import annotations

from base64 import b64decode

import orjson
import pytest

from commands.messages import NoCommand, SetPolicy, decode_command, read_command, unread

RECORD = (
    b'{"id":"c1","principal":"user:ada","key":"k","body":"b","sent_at":1,'
    b'"command":{"type":"set_policy","policy":{"grace_s_max":%b},"reason":""}}'
)


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity"])
def test_a_number_that_json_has_not_makes_no_command(value: bytes) -> None:
    """It could not be written into the commit that answers it, and so would end leader after leader (P-7)."""
    with pytest.raises(NoCommand, match="not JSON"):
        decode_command(RECORD % value)


def test_what_is_decided_is_what_is_recorded() -> None:
    """A number beyond 64 bits is decided as the number that the log will hold, not as the one that was written."""
    raw = RECORD % b"123456789012345678901234567890"
    decided = decode_command(raw)
    assert decided == read_command(orjson.loads(orjson.dumps(orjson.loads(raw))))
    assert decided.command == SetPolicy(policy={"grace_s_max": 1.2345678901234568e29})


def test_a_record_that_is_no_command_is_kept_whole_if_it_is_short() -> None:
    """Its bytes, so that why it was passed over can be computed again; of a long one the hash alone."""
    short, long = unread(b"no command \xff"), unread(b"x" * 70_000)
    assert b64decode(short["unreadable"]["base64"]) == b"no command \xff"
    assert long["unreadable"]["base64"] is None
    assert (long["unreadable"]["bytes"], len(long["unreadable"]["sha256"])) == (70_000, 64)
