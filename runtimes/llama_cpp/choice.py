"""Which GGUF of a repository is meant.

Without a file: the one model there is in the quantisation that suits small devices best, Q4_K_M; failing that another
of 4 bits, then 5, 6, 8, 3, 2, 16, 32 and 1 bits, K-quants of size M before others. Projectors and importance matrices
are no models. A part of a file's name is enough where it fits one model only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dlfp_edge.errors import UsageError

from .split_name import split_name

_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:(?:IQ|TQ|Q)\d\w*|BF16|F16|F32|FP16|FP32|MXFP4\w*))(?=[-./]|$)", re.IGNORECASE
)
_NO_MODEL = re.compile(r"(?:^|/)(?:mmproj|[^/]*\bimatrix\b)[^/]*$", re.IGNORECASE)
_BITS = (4, 5, 6, 8, 3, 2, 16, 32, 1)
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model in a repository: the files it consists of, in order."""

    files: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name people know it by, without the part's number and the ending."""
        split = split_name(self.files[0])
        return split.name if split else self.files[0].rpartition(".")[0]

    @property
    def quantisation(self) -> str:
        """The quantisation its name tells, in capitals; empty where it tells none."""
        found = _QUANT.findall(self.name)
        return str(found[-1]).upper() if found else ""

    @property
    def base(self) -> str:
        """The name, in small letters, without folders and quantisation: the same for all quantisations of one model."""
        file = self.name.rpartition("/")[2]
        return _QUANT.sub("", file).strip("-._").lower()


def choose(files: Iterable[str], asked: str | None, where: str) -> tuple[str, ...]:
    """The files of the model that is meant. Raises UsageError that lists what there is in `where`."""
    there = set(files)
    candidates = _candidates(there)
    if not candidates:
        raise UsageError(f"{where} holds no GGUF model: name a repository with a .gguf file (often named ...-GGUF)")
    chosen = _asked_for(candidates, asked, where) if asked else _preferred(candidates, where)
    missing = [file for file in chosen.files if file not in there]
    if missing:
        raise UsageError(f"{where}: {missing[0]} is missing, one of the {len(chosen.files)} parts of {chosen.name}")
    return chosen.files


def _candidates(files: Iterable[str]) -> list[Candidate]:
    found = set()
    for file in files:
        if file.lower().endswith(".gguf") and not _NO_MODEL.search(file):
            split = split_name(file)
            found.add(Candidate(tuple(split.parts()) if split else (file,)))
    return sorted(found, key=lambda candidate: candidate.files)


def _asked_for(candidates: list[Candidate], asked: str, where: str) -> Candidate:
    exact = [candidate for candidate in candidates if asked in candidate.files]
    word = re.compile(rf"(?:^|[-./]){re.escape(asked)}(?=[-./]|$)", re.IGNORECASE)
    whole = [candidate for candidate in candidates if word.search(candidate.files[0])]
    within = [candidate for candidate in candidates if any(asked.lower() in file.lower() for file in candidate.files)]
    for fitting in (exact, whole, within):
        if len(fitting) == 1:
            return fitting[0]
    fitting = whole or within
    if fitting:
        raise UsageError(f"{where}: '{asked}' fits several models; add one of them: {_listed(fitting)}")
    raise UsageError(f"{where} has no model '{asked}'; it has: {_listed(candidates)}")


def _preferred(candidates: list[Candidate], where: str) -> Candidate:
    if len({candidate.base for candidate in candidates}) > 1:
        raise UsageError(f"{where} holds several models; add :FILE, one of: {_listed(candidates)}")
    return min(candidates, key=_rank)


def _rank(candidate: Candidate) -> tuple[int, bool, bool, str]:
    quantisation = candidate.quantisation
    number = re.search(r"\d+", quantisation)
    bits = int(number.group()) if number else 0
    place = _BITS.index(bits) if bits in _BITS else len(_BITS)
    return place, not quantisation.endswith("_K_M"), "_K" not in quantisation, candidate.name


def _listed(candidates: list[Candidate]) -> str:
    named = [candidate.files[0] for candidate in candidates[:_MOST_NAMED]]
    more = len(candidates) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
