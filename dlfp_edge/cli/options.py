"""How people spell values on the command line, and what is wrong with a value that cannot be read."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from dlfp_edge.errors import UsageError, hint
from dlfp_edge.given import check_text
from dlfp_edge.model_reference import parse_model
from dlfp_edge.settings import Settings, parse_controller, parse_parameters, parse_setting

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"([0-9]*\.?[0-9]+)\s*([a-z]*)")
_PRESETS = ("edge", "a100")


def parse_duration(text: str, option: str, bare_unit: str | None = None) -> float:
    """Seconds from "80ms", "0.08s" or "2m". A number without a unit is read in `bare_unit`, or refused without one."""
    match = _QUANTITY.fullmatch(text.strip().lower())
    unit = (match.group(2) or bare_unit) if match else None
    if match is not None and not unit:
        raise UsageError(f"{option}: '{text}' has no unit: write for example 80ms or 0.08s")
    if match is None or unit not in _UNITS_S:
        examples = "80ms or 0.08s" if bare_unit is None else "60, 90s or 2m"
        raise UsageError(f"{option}: cannot read '{text}' as a duration above zero; write for example {examples}")
    seconds = float(match.group(1)) * _UNITS_S[unit]
    if seconds <= 0:
        raise UsageError(f"{option}: '{text}' must be above zero")
    return seconds


def parse_pace(text: str) -> float | None:
    """Tokens a second to show the reader, or None for "off"."""
    if text.strip().lower() == "off":
        return None
    return parse_positive(text, "--pace", hint="a number of tokens a second, or 'off'")


def parse_positive(text: str, option: str, hint: str = "a number above zero") -> float:
    """A finite number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        wrong = "must be above zero" if math.isfinite(value) else f"is not {hint}"
        raise UsageError(f"{option}: '{text}' {wrong}")
    return value


def parse_options(pairs: Iterable[str] | None) -> dict[str, str]:
    """Runtime options from NAME=VALUE pairs; the runtime judges the names and values."""
    split = [pair.partition("=") for pair in pairs or ()]
    for name, equals, _ in split:
        if not (name and equals):
            raise UsageError(f"--runtime-option: '{name}' is not NAME=VALUE")
    return {name.strip(): value for name, _, value in split}


def at_least_one(value: int | None, option: str) -> int | None:
    """A count that may be left out, but not be zero."""
    if value is not None and value < 1:
        raise UsageError(f"{option}: {value} is too few; give at least 1")
    return value


def nearest(word: str, words: Iterable[str], what: str) -> UsageError:
    """The error for an unknown word: the nearest known one, or all of them."""
    return UsageError(f"unknown {what} '{word}': {hint(word, sorted(words))}")


def known_runtime(name: str) -> str:
    """The name of an installed runtime."""
    from dlfp_edge.plugins import runtime_names

    if name not in runtime_names():
        raise nearest(name, runtime_names(), "runtime")
    return name


def path_argument(value: str | Path) -> Path:
    """A path as typed; an empty one would mean the current folder, which nobody who typed it wanted."""
    if not str(value).strip():
        raise typer.BadParameter("the path is empty; name a file or folder")
    return Path(value)


def model_argument(value: str) -> str:
    """A model's name as typed, not empty."""
    if not value.strip():
        raise typer.BadParameter("the name is empty; name a GGUF file, or hf:owner/repo")
    return value


MODEL_HELP = "A GGUF file, or hf:owner/repo[@revision][:file]. Default: the embedded model."
ModelOption = Annotated[str | None, typer.Option("--model", parser=model_argument, metavar="MODEL", help=MODEL_HELP)]


RUNTIME_OPTION_HELP = "NAME=VALUE for the runtime, such as kv_type=q8_0. Repeatable."
RuntimeOptions = Annotated[list[str] | None, typer.Option("--runtime-option", help=RUNTIME_OPTION_HELP)]


def existing_model(model: str | None, option: str = "--model") -> None:
    """Refuse a file that is not there, or a hub reference that cannot be read, before anything is begun."""
    if model is None:
        return
    path = parse_model(model)
    try:
        there = not isinstance(path, Path) or path.exists()
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror or error}; give the path of a GGUF model") from None
    if not there:
        raise UsageError(f"{option}: {path} is not there; give the path of a GGUF model, or hf:owner/repo")


def text_argument(value: str, option: str) -> str:
    """The text itself, or for @FILE that file's text. Empty text is refused."""
    text = read_text(Path(value[1:]), option) if value.startswith("@") else value
    if not text.strip() and value.startswith("@"):
        raise UsageError(f"{option} {value[1:]} is empty: remove it or fill it")
    try:
        check_text(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}, or @FILE") from None
    return text


def read_text(path: Path, option: str) -> str:
    """A file's text, or one line that says why it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{option}: {path} is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{option}: cannot read {path}: {error.strerror or error}") from None


def writable_directory(path: Path, option: str = "--out") -> Path:
    """The directory, created where it is missing, once something could be written to it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option}: cannot create {path}: {error.strerror or error}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{option}: {path} is not writable; choose another directory")
    return path


@contextmanager
def output_directory(path: Path) -> Iterator[Path]:
    """A writable directory during a block; one made for it goes again if nothing was written there."""
    made = not path.exists()
    try:
        yield writable_directory(path)
    finally:
        if made:
            with suppress(OSError):
                path.rmdir()


def fresh_directory(path: Path) -> Path:
    """The path, or one beside it where that is taken."""
    beside = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return path if not path.exists() else next(other for other in beside if not other.exists())


def build_settings(
    setting: str,
    placement: str | None,
    controller: str | None,
    preset: str,
    parameters: Iterable[str],
    target_itl: str | None,
    slowdown: float | None,
    context: int | None,
) -> Settings:
    """The engine's settings from the options as they were typed, refused before any model is loaded."""
    from dlfp_edge.control import suitable_placement
    from dlfp_edge.controls import with_control

    chosen, law = parse_setting(setting)
    if setting != "auto" and (placement is not None or controller is not None):
        raise UsageError("--setting says both placement and controller: leave --placement and --controller out")
    if placement is not None:
        chosen, law = parse_setting(placement)
    if controller is not None:
        law = controller
    law, values = parse_controller(law)
    values.update(parse_parameters(parameters, "--set"))
    if preset not in _PRESETS:
        raise nearest(preset, _PRESETS, "preset")
    if slowdown is not None and not 1 < slowdown <= 1e6:
        raise UsageError(f"--slowdown: {slowdown:g} is no number above 1 (2 allows gaps twice as long as alone)")
    settings = Settings(
        placement=suitable_placement(chosen, law, preset, values),
        controller=law,
        preset=preset,
        parameters=values,
        target_itl_s=None if target_itl is None else parse_duration(target_itl, "--target-itl"),
        slowdown=slowdown,
        context=at_least_one(context, "--ctx"),
    )
    return with_control(settings)
