"""HTML as a browser would take it, strictly: every element that is opened is closed in its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input", "base"}


@dataclass
class Element:
    """One element: its attributes, the text directly and deeper in it, and the elements in it, all levels."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""
    inside: list[Element] = field(default_factory=list)


class Markup(HTMLParser):
    """A parsed page. AssertionError where an element is closed that is not open, or left open."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"left open: {[one.tag for one in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        for outer in self._open:
            outer.inside.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1].tag == tag, f"</{tag}> where {self._open[-1].tag} is open"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for outer in self._open:
            outer.text += data

    def all(self, *tags: str) -> list[Element]:
        """The elements of these kinds, in the order of the page."""
        return [one for one in self.elements if one.tag in tags]
