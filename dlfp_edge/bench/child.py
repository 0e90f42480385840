"""Measuring in a process of its own: memory that was given back stays resident, and would count for what comes next."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from dlfp_edge.errors import RuntimeFailure, UsageError

_WRONG_INPUT = 2


def in_child(module: str, *arguments: Any) -> Any:
    """What `module`, which calls `answer_parent`, makes of the arguments; both as JSON.

    Raises UsageError as the child did, RuntimeFailure with its last line where it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    if done.returncode == _WRONG_INPUT:
        raise UsageError(last)
    if done.returncode != 0:
        raise RuntimeFailure(f"the measuring process failed: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def answer_parent(measure: Callable[..., Any]) -> None:
    """Measure what the parent asks for, and tell it."""
    try:
        print(json.dumps(measure(*json.loads(sys.argv[1]))))
    except UsageError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(_WRONG_INPUT)
