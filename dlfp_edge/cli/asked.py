"""What a run is to do: a bundled workload, a workload file, or the texts given on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlfp_edge.cli.options import text_argument
from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.workload import Workload, load_workload
from dlfp_edge.task import Class

DEMO = "demo"
INSTRUCTION = "Summarise the following text in two sentences.\n\n"
_FOREGROUND_TOKENS = 256
_BACKGROUND_TOKENS = 96
_BACKGROUND_CLIENTS = 4


def asked_workload(
    name: str | None, foreground: Sequence[str], background: Sequence[Path], background_prompt: str | None
) -> Workload:
    """The workload by name or path, or one made of the given prompts and files. Raises UsageError for both at once."""
    if background_prompt is not None and not background:
        raise UsageError("--background-prompt goes with --background: name the files it is about")
    if not foreground and not background:
        return load_workload(DEMO if name is None else name)
    if name is not None:
        raise UsageError(f"'{name}' is a workload of its own: give either it or --foreground and --background")
    return _own_workload(
        [text_argument(value, "--foreground") for value in foreground],
        _documents(background),
        INSTRUCTION if background_prompt is None else text_argument(background_prompt, "--background-prompt"),
    )


def documents(workload: Workload) -> int | None:
    """How many background tasks there will be; None where a stream goes on without end."""
    counts = [stream.requests for stream in workload.of_class(Class.BACKGROUND)]
    return None if None in counts else sum(count or 0 for count in counts)


def _own_workload(prompts: list[str], documents: list[str], instruction: str) -> Workload:
    texts = {f"prompt {index}": text for index, text in enumerate(prompts, start=1)}
    files = {f"document {index}": text for index, text in enumerate(documents, start=1)}
    streams: list[dict[str, Any]] = []
    if prompts:
        streams.append({**_stream("chat", "foreground", list(texts), _FOREGROUND_TOKENS), "clients": 1})
    if documents:
        clients = min(_BACKGROUND_CLIENTS, len(documents))
        stream = _stream("documents", "background", list(files), _BACKGROUND_TOKENS)
        streams.append({**stream, "clients": clients, "instruction": "instruction"})
    workload = Workload.model_validate({"name": "own", "description": "From the command line.", "stream": streams})
    workload._contents.update({**texts, **files, "instruction": instruction})
    return workload


def _stream(name: str, task_class: str, texts: list[str], max_tokens: int) -> dict[str, Any]:
    return {"name": name, "class": task_class, "texts": texts, "requests": len(texts), "max_tokens": max_tokens}


def _documents(paths: Sequence[Path]) -> list[str]:
    """The texts of files, and of the files in folders, in order."""
    files = [file for path in paths for file in (_files_in(path) if path.is_dir() else [path])]
    return [text_argument(f"@{file}", "--background") for file in files]


def _files_in(folder: Path) -> list[Path]:
    try:
        files = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    except OSError as error:
        raise UsageError(f"--background: cannot read {folder}: {error.strerror or error}") from None
    if not files:
        raise UsageError(f"--background: {folder} holds no file")
    return files
