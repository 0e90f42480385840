"""`dlfp-edge models`: the models at hand, what they are and need, and how to get more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import typer

from dlfp_edge.cli import options
from dlfp_edge.cli.fetching import model_file
from dlfp_edge.cli.live import spinner
from dlfp_edge.cli.output import print_json, print_table
from dlfp_edge.errors import MissingExtra, UsageError
from dlfp_edge.model_reference import HubModel, parse_model

if TYPE_CHECKING:
    from dlfp_edge.runtime import LaneSpec, LoadOptions

app = typer.Typer(
    help="Models at hand, what they need, and how to get more.", rich_markup_mode="rich", no_args_is_help=True
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_RUNTIME = "llama_cpp"


class ModelMaker(Protocol):
    """A runtime provider that has a model of its own, knows those of others, and can write random ones."""

    def find_cached(self, model: HubModel) -> Path:
        """The file of a model that was fetched before. Raises UsageError."""
        ...

    def cached_models(self) -> list[tuple[str, Path, int]]:
        """The reference, file and bytes of each fetched model file. Raises MissingExtra."""
        ...

    def inspect(self, options: LoadOptions, lanes: Sequence[LaneSpec]) -> dict[str, Any]:
        """What a model is and what memory it needs, without loading it."""
        ...

    def default_model(self) -> Path:
        """The embedded model's file. Raises MissingExtra where it is not installed."""
        ...

    def shapes(self) -> dict[str, dict[str, int]]:
        """The shapes that can be written, and the bytes of each in each quantisation."""
        ...

    def synthesize(self, shape: str, quant: str, out: Path) -> Path:
        """Write a model. Raises UsageError for an unknown shape or quantisation."""
        ...


@app.command("list")
def list_models(as_json: JsonOption = False) -> None:
    """The embedded model, those fetched from a hub, and the shapes that `models synth` can write."""
    maker = model_maker()
    embedded, cached, shapes = _embedded(maker), _cached(maker), maker.shapes()
    if as_json:
        fetched = None
        if cached is not None:
            fetched = [{"model": name, "path": str(path), "bytes": size} for name, path, size in cached]
        print_json({"embedded": embedded, "fetched": fetched, "shapes": shapes})
        return
    rows = [("embedded", embedded or "not installed: pip install 'dlfp-edge[demo]'", "")]
    rows += [("fetched", name, _size(size)) for name, _, size in cached or ()]
    print_table("Models", ("kind", "name", "size"), rows)
    quants = list(next(iter(shapes.values())))
    sizes = [(shape, *(_size(size) for size in by_quant.values())) for shape, by_quant in shapes.items()]
    print_table("Shapes", ("shape", *quants), sizes)
    if cached is None:
        print("models from a hub need: pip install 'dlfp-edge[hub]'")
    print("fetch one with: dlfp-edge models fetch hf:OWNER/REPO")
    print("write one of a shape with: dlfp-edge models synth SHAPE --out FILE")


@app.command()
def info(
    model: Annotated[
        str, typer.Argument(parser=options.model_argument, help="A GGUF file, or a fetched hf:owner/repo.")
    ],
    ctx: Annotated[int | None, typer.Option(help="KV cells of all lanes together.")] = None,
    runtime_option: options.RuntimeOptions = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="As for run: kernels whose output no schedule changes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """What a model is, and whether it fits the memory; reads the header only.

    Example: [cyan]dlfp-edge models info my.gguf --ctx 32768 --runtime-option kv_type=q8_0[/cyan]
    """
    from dlfp_edge.runtime import LoadOptions

    options.existing_model(model, "MODEL")
    options.at_least_one(ctx, "--ctx")
    maker, parsed = model_maker(), parse_model(model)
    path = maker.find_cached(parsed) if isinstance(parsed, HubModel) else parsed
    given = options.parse_options(runtime_option)
    found = maker.inspect(LoadOptions(path, (0,), 1, exact=exact, options=given), _lanes(ctx))
    if as_json:
        print_json(found)
        return
    print_table(found["path"], ("what", "value"), _rows(found))
    memory = found["memory"]
    if memory["fits"] is False:
        most = memory["most_kv_cells"]
        mend = f"give --ctx at most {most}, take a smaller kv_type or model" if most else "take a smaller model"
        print(f"it does not fit: {mend}, or end other programs")


@app.command()
def fetch(
    model: Annotated[str, typer.Argument(help="hf:owner/repo, with @revision or :file where that is needed.")],
    as_json: JsonOption = False,
) -> None:
    """Fetch a model from a hub into its cache; what was fetched before stays.

    Without :file it is the Q4_K_M of the repository, or the quantisation nearest to it. A part of a file's name is
    enough: [cyan]dlfp-edge models fetch hf:owner/repo:Q8_0[/cyan]

    A download that was stopped goes on where it was. HF_HOME says where the cache is, HF_TOKEN who asks.
    """
    if not isinstance(parse_model(model), HubModel):
        raise UsageError(f"'{model}' is no model on a hub: write hf:owner/repo")
    path = model_file(_RUNTIME, model)
    assert path is not None
    if as_json:
        print_json({"model": model, "path": str(path)})
        return
    print(path)


@app.command()
def synth(
    shape: Annotated[str, typer.Argument(help="A shape that `models list` shows, such as qwen3-0.6b.")],
    out: Annotated[Path, typer.Option(parser=options.path_argument, metavar="PATH", help="The GGUF file to write.")],
    quant: Annotated[str, typer.Option(help="Q4_K_M, Q8_0 or Q4_0.")] = "Q4_K_M",
    as_json: JsonOption = False,
) -> None:
    """Write a model of random weights in the shape of a real one.

    Its output is random, its timing is real: kernels do the same work whatever the weights are.

    Example: [cyan]dlfp-edge models synth qwen3-0.6b --out qwen3.gguf[/cyan]
    then [cyan]dlfp-edge run chat-ingest --model qwen3.gguf[/cyan]
    """
    if out.is_dir():
        raise UsageError(f"--out: {out} is a folder; name a file such as {out / (shape + '.gguf')}")
    if out.exists() and not out.is_file():
        raise UsageError(f"--out: {out} is no regular file; name one that may be written")
    maker = model_maker()
    shapes = maker.shapes()
    if shape not in shapes:
        raise options.nearest(shape, shapes, "shape")
    if quant not in shapes[shape]:
        raise options.nearest(quant, shapes[shape], "quantisation")
    options.writable_directory(out.absolute().parent)
    with spinner(f"writing {out}…", picture=not as_json):
        maker.synthesize(shape, quant, out)
    size = out.stat().st_size
    if as_json:
        print_json({"path": str(out), "shape": shape, "quant": quant, "bytes": size})
        return
    print(f"{out}: {size / 1e6:,.0f} MB, shape {shape}, {quant}. Its output is random, its timing is real.")


def model_maker() -> ModelMaker:
    """The provider that has models of its own. Raises UsageError where it is not there."""
    from dlfp_edge.plugins import runtime_provider

    return cast(ModelMaker, runtime_provider(_RUNTIME))


def _embedded(maker: ModelMaker) -> str | None:
    try:
        return str(maker.default_model())
    except MissingExtra:
        return None


def _cached(maker: ModelMaker) -> list[tuple[str, Path, int]] | None:
    try:
        return maker.cached_models()
    except MissingExtra:
        return None


def _lanes(ctx: int | None) -> list[LaneSpec]:
    """The lanes an engine opens where nothing else is said."""
    from dlfp_edge.lane_state import RESTING_SEQUENCES
    from dlfp_edge.placement import lane_cells
    from dlfp_edge.runtime import LaneSpec, Priority
    from dlfp_edge.settings import Settings

    settings = Settings(context=ctx)
    front, back = lane_cells(settings)
    counts = [count + RESTING_SEQUENCES for count in (settings.foreground_sequences, settings.background_sequences)]
    return [
        LaneSpec("foreground", Priority.NORMAL, counts[0], front, threads_invariant=True),
        LaneSpec("background", Priority.LOWEST, counts[1], max(back, 1)),
    ]


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    memory = found["memory"]
    window = "none"
    if found["sliding_window"]:
        layers = f"{found['sliding_window_layers']} of {found['layers']}" if found["sliding_window_layers"] else "some"
        kept = "only what they see is kept" if found["windowed"] else "all their cells are kept"
        window = f"{layers} layers look back {found['sliding_window']:,} tokens; {kept}"
    size = _size(found["bytes"]) + (f" in {found['files']} files" if found["files"] > 1 else "")
    return [
        ("name", found["name"]),
        ("architecture", found["architecture"]),
        ("size", size),
        ("quantisation", found["quantisation"]),
        ("parameters", f"{found['parameters'] / 1e6:,.0f} million"),
        ("layers", str(found["layers"])),
        ("trained context", "not said" if found["trained_context"] is None else f"{found['trained_context']:,} tokens"),
        ("sliding window", window),
        ("a KV cell", f"{found['kv_bytes_per_cell']:,.0f} bytes ({found['kv_type']})"),
        ("memory: weights", _size(memory["weights"])),
        ("memory: KV", f"{_size(memory['kv'])} for {memory['kv_cells']:,} cells in two lanes"),
        ("memory: buffers", _size(memory["buffers"])),
        (
            "memory: all",
            f"{_size(memory['needed'])}; {_size(memory['available'])} of {_size(memory['total'])} available",
        ),
        ("fits", "not known" if memory["fits"] is None else "yes" if memory["fits"] else "no"),
    ]


def _size(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e6:,.0f} MB"
