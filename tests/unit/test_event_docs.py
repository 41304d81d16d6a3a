"""The documents of the event catalogue."""

from pathlib import Path

from events import describe

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documents_of_the_events_are_what_the_code_says(tmp_path: Path) -> None:
    """docs/ was made from this very catalogue: run `python -m events.describe docs` after a change."""
    describe.write(tmp_path)
    for made in sorted(tmp_path.iterdir()):
        assert (DOCS / made.name).read_bytes() == made.read_bytes(), made.name
