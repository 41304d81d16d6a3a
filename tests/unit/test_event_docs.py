"""The documents of the event catalogue."""

from pathlib import Path

from events.describe import documents

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documents_of_the_events_are_what_the_code_says() -> None:
    """docs/ was made from this very catalogue: run `python docs/generate.py` after a change."""
    for name, document in documents().items():
        assert (DOCS / name).read_bytes() == document, name
