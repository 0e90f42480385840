"""How many KV cells a workload needs, so that a run fits without anybody counting."""

from __future__ import annotations

from dataclasses import replace

from dlfp_edge.experiment.workload import Stream, Workload
from dlfp_edge.placement import DEFAULT_CONTEXT
from dlfp_edge.settings import Settings
from dlfp_edge.task import Class

GRAIN = 256
"""Cells are asked for in multiples of this, as llama.cpp allots them."""

TEXT_TOKENS = 1024
"""What a prompt from a text file is taken to need; its length is known only once the model has tokenised it."""


def sized(settings: Settings, workload: Workload) -> Settings:
    """`settings` with enough cells for as many of the workload's requests as may run at once.

    The foreground's share of the cells follows its need; an explicit `context` keeps its total.
    """
    foreground = _need(workload.of_class(Class.FOREGROUND), settings.foreground_sequences)
    background = _need(workload.of_class(Class.BACKGROUND), settings.background_sequences)
    total = foreground + background
    return replace(
        settings,
        context=settings.context or max(total, DEFAULT_CONTEXT),
        foreground_share=foreground / total if settings.foreground_share is None else settings.foreground_share,
    )


def _need(streams: list[Stream], sequences: int) -> int:
    """Cells for the largest request of the streams, times the requests that can run at once."""
    if not streams:
        return GRAIN
    largest = max((stream.longest_prompt or TEXT_TOKENS) + stream.answer_length(stream.longest) for stream in streams)
    clients = sum(stream.clients or stream.requests or 1 for stream in streams)
    shared = max(stream.shared_prefix_tokens for stream in streams)
    cells = largest * min(clients, sequences) + shared
    return -(-cells // GRAIN) * GRAIN
