"""What a run is to do: a bundled workload, a workload file, or the texts given on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlfp_edge.cli.options import text_argument
from dlfp_edge.cli.output import note
from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.workload import Workload, load_workload
from dlfp_edge.given import check_stop
from dlfp_edge.grammar import compile_grammar, schema_grammar
from dlfp_edge.playout import chat_pace
from dlfp_edge.task import Class

DEMO = "demo"
OWN = "own"
"""The name of a workload made of the command line's own prompts and files."""

INSTRUCTION = "Summarise the following text in two sentences.\n\n"

_FOREGROUND_TOKENS = 256
_BACKGROUND_TOKENS = 96
_BACKGROUND_CLIENTS = 4
_TEMPERATURE, _REPEAT_PENALTY = 0.7, 1.1
"""Small models go round in circles when they always say the likeliest word."""


def asked_workload(
    name: str | None,
    foreground: Sequence[str],
    background: Sequence[Path],
    background_prompt: str | None,
    stop: Sequence[str] = (),
    grammar: str | None = None,
) -> Workload:
    """The workload by name or path, or one made of the given prompts and files. Raises UsageError for both at once.

    The answers to the foreground's prompts end before a text of `stop` and follow `grammar`.
    """
    if grammar is not None and not foreground:
        raise UsageError("--json-schema and --grammar go with --foreground: give the prompt to answer so")
    if background_prompt is not None and not background:
        raise UsageError("--background-prompt goes with --background: name the files it is about")
    if stop and not foreground:
        raise UsageError("--stop goes with --foreground: give the prompts whose answers it is to end")
    check_stop(tuple(stop))
    if not foreground and not background:
        return load_workload(DEMO if name is None else name)
    if name is not None:
        raise UsageError(f"'{name}' is a workload of its own: give either it or --foreground and --background")
    prompts = {
        f"prompt {index}": text_argument(value, "--foreground") for index, value in enumerate(foreground, start=1)
    }
    return _own_workload(
        prompts=prompts,
        stop=stop,
        grammar=grammar,
        documents=_documents(background),
        instruction=INSTRUCTION
        if background_prompt is None
        else text_argument(background_prompt, "--background-prompt"),
    )


def asked_grammar(json_schema: str | None, grammar: str | None) -> str | None:
    """The grammar given, or that of the schema given, as text or as @FILE. Raises UsageError for both at once."""
    if json_schema is not None and grammar is not None:
        raise UsageError("--json-schema and --grammar are both given: give one of them")
    if grammar is not None:
        text = text_argument(grammar, "--grammar")
        compile_grammar(text)
        return text
    return None if json_schema is None else schema_grammar(text_argument(json_schema, "--json-schema"))


def documents(workload: Workload) -> int | None:
    """How many background tasks there will be; None where a stream goes on without end."""
    counts = [stream.requests for stream in workload.of_class(Class.BACKGROUND)]
    return None if None in counts else sum(count or 0 for count in counts)


def _own_workload(
    *, prompts: dict[str, str], stop: Sequence[str], grammar: str | None, documents: dict[str, str], instruction: str
) -> Workload:
    streams: list[dict[str, Any]] = []
    if prompts:
        stream = _stream("chat", "foreground", list(prompts), _FOREGROUND_TOKENS)
        pace = chat_pace(Class.FOREGROUND, grammar)
        streams.append({**stream, "clients": 1, "stop": list(stop), "grammar": grammar, "pace": pace})
    if documents:
        clients = min(_BACKGROUND_CLIENTS, len(documents))
        stream = _stream("documents", "background", list(documents), _BACKGROUND_TOKENS)
        streams.append({**stream, "clients": clients, "instruction": "--background-prompt"})
    workload = Workload.model_validate({"name": OWN, "description": "From the command line.", "stream": streams})
    return workload.with_texts("chat", prompts).with_texts("documents", documents, instruction)


def _stream(name: str, task_class: str, texts: list[str], max_tokens: int) -> dict[str, Any]:
    return {
        "name": name,
        "class": task_class,
        "texts": texts,
        "requests": len(texts),
        "max_tokens": max_tokens,
        "temperature": _TEMPERATURE,
        "repeat_penalty": _REPEAT_PENALTY,
    }


def _documents(paths: Sequence[Path]) -> dict[str, str]:
    """The texts of files, and of the files in folders, in order, by path. A file named twice is read once."""
    texts: dict[str, str] = {}
    for path in paths:
        texts |= _texts_in(path) if path.is_dir() else {str(path): text_argument(f"@{path}", "--background")}
    return texts


def _texts_in(folder: Path) -> dict[str, str]:
    """The texts in a folder. What is no text there is passed over, and that is said."""
    texts: dict[str, str] = {}
    for file in _files_in(folder):
        try:
            texts[str(file)] = text_argument(f"@{file}", "--background")
        except UsageError as error:
            note(f"passed over: {error}")
    if not texts:
        raise UsageError(f"--background: {folder} holds no text")
    return texts


def _files_in(folder: Path) -> list[Path]:
    try:
        files = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    except OSError as error:
        raise UsageError(f"--background: cannot read {folder}: {error.strerror or error}") from None
    if not files:
        raise UsageError(f"--background: {folder} holds no file")
    return files
