"""The rule of the filter once more, written from PROTOCOL P-3 alone and sharing no code with events.chain.

If the two ever differ on a record, one of them is wrong: readers would not agree.
"""

import hashlib
import json
from typing import Any


class SecondFilter:
    """Takes every record of an events log in order, and says whether it counts."""

    def __init__(self) -> None:
        self.epoch = 0
        self.nonce = ""
        self.n = -1
        self.seq = 0
        self.head = "0" * 64

    def takes(self, raw: bytes) -> bool:
        """Does the record count?"""
        record = json.loads(raw)
        if not self._counts(record):
            return False
        self.n += 1
        self.seq += len(record.get("events", ()))
        self.head = hashlib.sha256(raw).hexdigest()
        if record["kind"] == "term":
            self.epoch, self.nonce = record["body"]["epoch"], record["body"]["nonce"]
        return True

    def _counts(self, record: dict[str, Any]) -> bool:
        if record["kind"] == "genesis":
            return self.n == -1
        if record["kind"] == "term":
            body = record["body"]
            return bool(body["epoch"] > self.epoch and (body["n"], body["prev"]) == (self.n + 1, self.head))
        place = (record["epoch"], record["nonce"], record["n"], record["prev"], record["seq"])
        return place == (self.epoch, self.nonce, self.n + 1, self.head, self.seq + 1)
