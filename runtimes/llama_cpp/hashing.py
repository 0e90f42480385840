"""The SHA-256 of a model file, worked out once and remembered, since reading gigabytes at each start would be felt."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path


def file_sha256(path: Path, cache: Path) -> str:
    """The hash of a file, in hex. `cache` is a JSON file that keeps it by path, size and time of change."""
    status = path.stat()
    key = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    known = _read(cache)
    if key not in known:
        known[key] = _hash(path)
        with contextlib.suppress(OSError):
            _write(cache, known)
    return known[key]


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read(cache: Path) -> dict[str, str]:
    try:
        return dict(json.loads(cache.read_text()))
    except (OSError, ValueError):
        return {}


def _write(cache: Path, known: dict[str, str]) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    unfinished = cache.with_name(f"{cache.name}.{os.getpid()}.part")
    unfinished.write_text(json.dumps(known, indent=1))
    unfinished.replace(cache)
