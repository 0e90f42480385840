"""Runs the command in this process and looks at what it printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlfp_edge.cli.main import main


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """The command, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DLFP_EDGE_DEBUG", raising=False)
    monkeypatch.delenv("DLFP_EDGE_LOG", raising=False)

    def run(*arguments: str) -> Said:
        code = main(arguments)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run
