"""`dlfp-edge models`: the models at hand, and random ones with real shapes to measure with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Protocol, cast

import typer

from dlfp_edge.cli.live import spinner
from dlfp_edge.cli.options import nearest, path_argument, writable_directory
from dlfp_edge.cli.output import print_json, print_table
from dlfp_edge.errors import MissingExtra, UsageError

app = typer.Typer(
    help="Models at hand, and random ones with real shapes.", rich_markup_mode="rich", no_args_is_help=True
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class ModelMaker(Protocol):
    """A runtime provider that has a model of its own and can write models of random weights."""

    def default_model(self) -> Path:
        """The embedded model's file. Raises MissingExtra where it is not installed."""
        ...

    def shapes(self) -> list[str]:
        """Names of the shapes that can be written."""
        ...

    def quantisations(self) -> list[str]:
        """Names of the quantisations that they can have."""
        ...

    def synthesize(self, shape: str, quant: str, out: Path) -> Path:
        """Write a model. Raises UsageError for an unknown shape or quantisation."""
        ...


@app.command("list")
def list_models(as_json: JsonOption = False) -> None:
    """The embedded model, and the shapes that `models synth` can write."""
    maker = _maker()
    embedded, shapes = _embedded(maker), maker.shapes()
    if as_json:
        print_json({"embedded": embedded, "shapes": shapes})
        return
    rows = [("embedded", embedded or "not installed: pip install 'dlfp-edge[demo]'")]
    rows += [("shape", shape) for shape in shapes]
    print_table("Models", ("kind", "name"), rows)
    print("write a model of a shape with: dlfp-edge models synth SHAPE --out FILE")


@app.command()
def synth(
    shape: Annotated[str, typer.Argument(help="A shape that `models list` shows, such as qwen3-0.6b.")],
    out: Annotated[Path, typer.Option(parser=path_argument, metavar="PATH", help="The GGUF file to write.")],
    quant: Annotated[str, typer.Option(help="Q4_K or Q8_0.")] = "Q4_K",
    as_json: JsonOption = False,
) -> None:
    """Write a model of random weights in the shape of a real one.

    Its output is random, its timing is real: kernels do the same work whatever the weights are.

    Example: [cyan]dlfp-edge models synth qwen3-0.6b --out qwen3.gguf[/cyan]
    then [cyan]dlfp-edge run chat-ingest --model qwen3.gguf[/cyan]
    """
    if out.is_dir():
        raise UsageError(f"--out: {out} is a folder; name a file such as {out / (shape + '.gguf')}")
    maker = _maker()
    if shape not in maker.shapes():
        raise nearest(shape, maker.shapes(), "shape")
    if quant not in maker.quantisations():
        raise nearest(quant, maker.quantisations(), "quantisation")
    writable_directory(out.absolute().parent)
    with spinner(f"writing {out}…", picture=not as_json):
        maker.synthesize(shape, quant, out)
    size = out.stat().st_size
    if as_json:
        print_json({"path": str(out), "shape": shape, "quant": quant, "bytes": size})
        return
    print(f"{out}: {size / 1e6:,.0f} MB, shape {shape}, {quant}. Its output is random, its timing is real.")


def _maker() -> ModelMaker:
    from dlfp_edge.plugins import runtime_provider

    return cast(ModelMaker, runtime_provider("llama_cpp"))


def _embedded(maker: ModelMaker) -> str | None:
    try:
        return str(maker.default_model())
    except MissingExtra:
        return None
