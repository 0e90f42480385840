"""Whether what a caller gives can be worked with."""

from __future__ import annotations

import inspect
import os
import reprlib
import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar, get_type_hints

from dlfp_edge.errors import UsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")

YEAR_S = 365 * 86_400.0
"""The longest time that may be asked for: clocks and timers take no more than some centuries."""

MOST_CLOCK_S = 100 * YEAR_S
"""No clock is further from its start than this."""

MOST_STOPS, LONGEST_STOP = 16, 256
"""How many stop strings a task may have, and how many characters each."""


def check_number(name: str, value: object, least: float, most: float, *, whole: bool = False) -> None:
    """Raises UsageError unless `value` is a number (a whole one) from `least` to `most`, both included."""
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
        what = "a whole number" if whole else "a number"
        raise UsageError(f"{name} is {value!r}: give {what} from {least:g} to {most:g}")


def check_arrival(arrived: object) -> None:
    """Raises UsageError unless `arrived` is a moment that an engine's clock can read."""
    check_number("arrived", arrived, -MOST_CLOCK_S, MOST_CLOCK_S)


def check_not_in(thread: threading.Thread | None) -> None:
    """Raises UsageError where an engine is closed in its own thread, which it would wait for."""
    if thread is threading.current_thread():
        raise UsageError("an engine cannot be closed in a callback, which it waits for: close it in another thread")


def check_process(process: int) -> None:
    """Raises UsageError in a process made by fork() from that one: without its threads a wait would never end."""
    if os.getpid() != process:
        raise UsageError("this engine was opened before this process was made by fork(): open one here")


def checks_types(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Makes the function raise UsageError for an argument that is not of the type its signature says."""
    signature = inspect.signature(function)

    @cache
    def adapters() -> dict[str, TypeAdapter[object]]:
        from pydantic import TypeAdapter

        hints = get_type_hints(function)
        return {name: TypeAdapter(hints[name]) for name in signature.parameters}

    @wraps(function)
    def checked(*given: _Given.args, **named: _Given.kwargs) -> _Returned:
        from pydantic import ValidationError

        for name, value in signature.bind(*given, **named).arguments.items():
            try:
                adapters()[name].validate_python(value, strict=True)
            except ValidationError:
                fits = str(signature.parameters[name].annotation).replace(" | ", " or ")
                raise UsageError(f"{name} is {reprlib.repr(value)}: give {fits}") from None
        return function(*given, **named)

    return checked


def check_text(text: str) -> None:
    """Raises UsageError for a text that is empty, or that has no UTF-8 form, such as undecodable command-line bytes."""
    if not text.strip():
        raise UsageError("the prompt is empty: give it some text")
    if _has_surrogate(text):
        raise UsageError("the prompt is not valid Unicode: it holds a lone surrogate; give UTF-8 text")


def check_stop(stop: object) -> None:
    """Raises UsageError unless `stop` is a tuple of up to 16 strings of 1 to 256 characters."""
    if not isinstance(stop, tuple):
        raise UsageError(f"stop is {stop!r}: give a tuple of strings")
    if len(stop) > MOST_STOPS:
        raise UsageError(f"{len(stop)} stop strings are too many: give at most {MOST_STOPS}")
    for text in stop:
        if not isinstance(text, str) or not 1 <= len(text) <= LONGEST_STOP:
            raise UsageError(f"stop string {text!r}: give a string of 1 to {LONGEST_STOP} characters")
        if _has_surrogate(text):
            raise UsageError(f"stop string {text!r} is not valid Unicode: it holds a lone surrogate; give UTF-8 text")


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
