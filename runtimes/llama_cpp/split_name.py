"""How the parts of a model in several files are named: `name-00001-of-00003.gguf`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ending>\.gguf)", re.IGNORECASE | re.DOTALL)
_MOST_PARTS = 10_000


@dataclass(frozen=True, slots=True)
class SplitName:
    """What the name of one part says. `number` counts from 1."""

    name: str
    number: int
    count: int
    ending: str

    def parts(self) -> list[str]:
        """The names of all parts, in order."""
        return [f"{self.name}-{number:05d}-of-{self.count:05d}{self.ending}" for number in range(1, self.count + 1)]


def split_name(file: str) -> SplitName | None:
    """What a file's name says about its part; None where it is no part's name."""
    match = _PART.fullmatch(file)
    if match is None:
        return None
    name = SplitName(match["name"], int(match["number"]), int(match["count"]), match["ending"])
    return name if 1 <= name.number <= name.count <= _MOST_PARTS else None
