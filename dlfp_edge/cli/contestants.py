"""What `compare` is asked to compare: settings, sweeps of them, peers and endpoints."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlfp_edge.cli import options
from dlfp_edge.errors import MissingExtra, UsageError, hint
from dlfp_edge.settings import Settings

if TYPE_CHECKING:
    from dlfp_edge.experiment.arms import Others

FIXED = (4, 8, 16, 32, 64, 128)
N_BATCH = (2048, 128, 64, 32, 24, 16)
"""The declared sweeps: tokens beside a decode, and llama-server's `n_batch`. A quick comparison takes the first, the
middle and the last of each.
"""

PEERS = ("llama-server", "llama-server-pair")


def asked_settings(
    text: str, target_itl: str | None, slowdown: float | None, context: int | None, *, quick: bool
) -> tuple[tuple[str, Settings, str | None], ...]:
    """The settings named, with the sweep each is a point of. Raises UsageError, naming the setting."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or names[0].endswith(":*"):
        raise UsageError("--settings: name the candidate first, such as auto, then what it is held against")
    asked: list[tuple[str, Settings, str | None]] = []
    for name in names:
        points = [name.replace("*", str(tokens)) for tokens in _points(FIXED, quick)] if name.endswith(":*") else [name]
        for point in points:
            if any(label == point for label, _, _ in asked):
                raise UsageError(f"--settings: '{point}' is there twice; name each once")
            built = options.build_settings(point, None, None, "edge", [], target_itl, slowdown, context)
            asked.append((point, built, name if len(points) > 1 else None))
    return tuple(asked)


def asked_others(
    peers: Sequence[str],
    binary: Path | None,
    endpoints: Sequence[str],
    api_key: str | None,
    runtime: str,
    *,
    quick: bool,
) -> tuple[Others, ...]:
    """Peers with their sweeps, and endpoints. Raises UsageError for one not known or not suited to the runtime."""
    from dlfp_edge.experiment.remote_arms import endpoint_at, llama_server_pairs, llama_servers

    if binary is not None and not peers:
        raise UsageError("--peer-binary goes with --peer: add --peer llama-server")
    if (peers or endpoints) and runtime != "llama_cpp":
        raise UsageError(f"--peer and --endpoint run on real time and a real model: not with --runtime {runtime}")
    if binary is not None and not (binary.is_file() and os.access(binary, os.X_OK)):
        raise UsageError(f"--peer-binary: {binary} is no program: give the path of a llama-server")
    if peers and binary is None and importlib.util.find_spec("xllamacpp") is None:
        raise MissingExtra(
            "--peer needs the package 'xllamacpp': pip install 'dlfp-edge[peers]', or give --peer-binary"
        )
    others: list[Others] = []
    for peer in dict.fromkeys(peers):
        if peer not in PEERS:
            raise UsageError(f"unknown peer '{peer}': {hint(peer, PEERS, 'peers are')}")
        others.append(
            llama_servers(_points(N_BATCH, quick), binary) if peer == PEERS[0] else llama_server_pairs(binary)
        )
    return (*others, *(endpoint_at(url, api_key or None) for url in dict.fromkeys(endpoints)))


def _points(sweep: tuple[int, ...], quick: bool) -> tuple[int, ...]:
    return (sweep[0], sweep[len(sweep) // 2], sweep[-1]) if quick else sweep
