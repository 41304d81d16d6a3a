"""Where the book is kept: a directory of a real node, or memory."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent.book import Book, decode, encode


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` there, whole or not at all, and on disk when it returns."""
    beside = path.with_suffix(".new")
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@dataclass(frozen=True, slots=True)
class FileJournal:
    """The book as one file. `new_id` names the journal of a directory that has none yet."""

    directory: Path
    new_id: Callable[[], str]

    @property
    def _path(self) -> Path:
        return self.directory / "book.json"

    def load(self) -> Book:
        """A book that is there and cannot be read is an error: to forget the fence could run a lease twice."""
        if self._path.exists():
            return decode(self._path.read_bytes())
        self.directory.mkdir(parents=True, exist_ok=True)
        book = Book(journal=self.new_id())
        self.save(book)
        return book

    def save(self, book: Book) -> None:
        """On disk when it returns."""
        replace_file(self._path, encode(book))


@dataclass(slots=True)
class MemoryJournal:
    """Keeps bytes, so that an agent that dies takes nothing with it that it had not saved."""

    journal: str
    saved: bytes | None = field(default=None)

    def load(self) -> Book:
        """As last saved."""
        if self.saved is None:
            self.save(Book(journal=self.journal))
        assert self.saved is not None
        return decode(self.saved)

    def save(self, book: Book) -> None:
        """Kept."""
        self.saved = encode(book)
