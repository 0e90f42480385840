"""Laws without feedback: no limit, a fixed chunk, every thread."""

from __future__ import annotations

from dataclasses import dataclass

from dlfp_edge.control.port import Observation, Update, View
from dlfp_edge.errors import UsageError


@dataclass(slots=True)
class Unlimited:
    """Prefill beside decodes is limited by the runtime's largest step alone: what stock servers do."""

    name: str = "unlimited"
    resets: int = 0
    steered: bool = False
    state: float | None = None

    def budget(self, view: View, now: float) -> int | None:
        return None

    def observe(self, observation: Observation) -> Update:
        return Update(None, changed=False, reason="no feedback")


class Fixed:
    """At most `tokens` of prefill beside decodes (Sarathi-Serve's chunk, per step over all prefills)."""

    resets = 0
    steered = False

    def __init__(self, tokens: int) -> None:
        if tokens < 1:
            raise UsageError(f"'fixed:{tokens}' leaves prefill no token beside a decode: use fixed:1 or more")
        self.name = f"fixed:{tokens}"
        self.state: float | None = float(tokens)
        self._tokens = tokens

    def budget(self, view: View, now: float) -> int | None:
        return self._tokens

    def observe(self, observation: Observation) -> Update:
        return Update(self.state, changed=False, reason="no feedback")


@dataclass(slots=True)
class Static:
    """The background lane always has every thread; priority alone protects the foreground."""

    name: str = "static"
    resets: int = 0
    steered: bool = False
    state: float | None = None

    def budget(self, view: View, now: float) -> int | None:
        return view.most

    def observe(self, observation: Observation) -> Update:
        return Update(None, changed=False, reason="no feedback")
