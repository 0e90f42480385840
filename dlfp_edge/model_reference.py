"""How people name a model: a file, or `hf:owner/repo[@revision][:file]` on a model hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlfp_edge.errors import UsageError

if TYPE_CHECKING:
    from dlfp_edge.runtime import RuntimeProvider, Tell

HUB = "hf:"
_NAME = r"[A-Za-z0-9][\w.-]*"
_REFERENCE = re.compile(rf"hf:(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>[\w./-]+))?(?::(?P<file>.+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on a hub. `revision` is a branch, tag or commit, `file` the whole or a part of a file's name."""

    repo: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{HUB}{self.repo}{revision}" + (f":{self.file}" if self.file else "")


def parse_model(text: str | Path) -> Path | HubModel:
    """What a model's name says. Raises UsageError for an empty one and for a hub reference that cannot be read."""
    if not str(text).strip():
        raise UsageError(f"model is {text!r}: name a file, or hf:owner/repo")
    if isinstance(text, Path) or not text.startswith(HUB):
        return Path(text)
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"'{text}' is no model on a hub: write hf:owner/repo, hf:owner/repo:file or hf:owner/repo@branch"
        )
    return HubModel(match["repo"], match["revision"], match["file"])


def local_model(model: str | Path | None, provider: RuntimeProvider, tell: Tell | None = None) -> Path | None:
    """The model's file, fetched first where it is on a hub; None stays the provider's default.

    Raises UsageError for a model that is not there, FetchError where it cannot be fetched.
    """
    if model is None:
        return None
    parsed = parse_model(model)
    return provider.fetch(parsed, tell) if isinstance(parsed, HubModel) else parsed
