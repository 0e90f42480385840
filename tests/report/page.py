"""A page as a browser reads it: its elements, its text, and what it would fetch."""

from __future__ import annotations

from html.parser import HTMLParser

_EMPTY = {"meta", "br", "hr", "img", "link", "input"}
_FETCHED = {"src", "href", "xlink:href", "data", "poster", "action"}


class Page(HTMLParser):
    """`faults` are elements that are closed in no order, `fetched` addresses that are not within the page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.faults: list[str] = []
        self.fetched: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        self.faults += [f"<{tag}> is never closed" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in _EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data
        if self._open and self._open[-1] == "style" and ("@import" in data or "url(http" in data):
            self.fetched.append(data)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in _FETCHED and value:
                (self.links if value.startswith("#") else self.fetched).append(value)
