"""Writes the documents of the event catalogue into docs/."""

from pathlib import Path

from events.describe import documents

for name, document in documents().items():
    (Path(__file__).parent / name).write_bytes(document)
