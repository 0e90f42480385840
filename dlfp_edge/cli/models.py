"""`dlfp-edge models`: the models at hand, and random ones with real shapes to measure with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Protocol, cast

import typer

from dlfp_edge.cli.live import spinner
from dlfp_edge.cli.options import nearest, writable_directory
from dlfp_edge.cli.output import print_json, print_table
from dlfp_edge.errors import UsageError

app = typer.Typer(help="Models at hand, and random ones with real shapes.", rich_markup_mode="rich")

_QUANTS = ("Q4_K", "Q8_0")
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class _Synthesizer(Protocol):
    """A runtime provider that can write models of random weights."""

    def shapes(self) -> list[str]: ...

    def synthesize(self, shape: str, quant: str, out: Path) -> Any: ...

    def default_model(self) -> Path: ...


@app.command("list")
def list_models(as_json: JsonOption = False) -> None:
    """The default model, and the shapes that `models synth` can write."""
    provider = _synthesizer()
    default = _default_model(provider)
    if as_json:
        print_json({"default": default, "shapes": provider.shapes(), "quants": _QUANTS})
        return
    rows = [("default", default or "not installed: pip install 'dlfp-edge[demo]'")]
    rows += [("shape", shape) for shape in provider.shapes()]
    print_table("Models", ("kind", "name"), rows)
    print("write one of a shape with: dlfp-edge models synth SHAPE --out FILE")


@app.command()
def synth(
    shape: Annotated[str, typer.Argument(help="A shape that `models list` shows, such as qwen3-0.6b.")],
    out: Annotated[Path, typer.Option(help="The GGUF file to write.")],
    quant: Annotated[str, typer.Option(help="Q4_K or Q8_0.")] = "Q4_K",
    as_json: JsonOption = False,
) -> None:
    """Write a model of random weights in the shape of a real one.

    Its output is random, its timing is real: kernels do the same work whatever the weights are.

    Example: [cyan]dlfp-edge models synth qwen3-0.6b --out qwen3.gguf[/cyan]
    then [cyan]dlfp-edge run chat-ingest --model qwen3.gguf[/cyan]
    """
    provider = _synthesizer()
    if shape not in provider.shapes():
        raise nearest(shape, provider.shapes(), "shape")
    if quant not in _QUANTS:
        raise nearest(quant, _QUANTS, "quantisation")
    if out.is_dir():
        raise UsageError(f"--out: {out} is a folder; name a file such as {out / (shape + '.gguf')}")
    writable_directory(out.absolute().parent)
    with spinner(f"writing {out}…", picture=not as_json):
        provider.synthesize(shape, quant, out)
    if as_json:
        print_json({"path": str(out), "shape": shape, "quant": quant, "bytes": out.stat().st_size})
        return
    print(
        f"{out}: {out.stat().st_size / 1e6:,.0f} MB, shape {shape}, {quant}. Its output is random, its timing is real."
    )


def _synthesizer() -> _Synthesizer:
    from dlfp_edge.plugins import runtime_provider

    return cast(_Synthesizer, runtime_provider("llama_cpp"))


def _default_model(provider: _Synthesizer) -> str | None:
    from dlfp_edge.errors import MissingExtra

    try:
        return str(provider.default_model())
    except MissingExtra:
        return None
