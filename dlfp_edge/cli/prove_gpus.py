"""`dlfp-edge prove gpus`: the paper's points on simulated GPUs. The work is done in `dlfp_edge.prove.gpus`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlfp_edge.cli.live import progress_bar
from dlfp_edge.cli.options import output_directory, path_argument
from dlfp_edge.cli.output import print_json, print_table, save, writing

if TYPE_CHECKING:
    from dlfp_edge.prove.gpus import Predictions


def gpus(
    point: Annotated[
        list[str] | None, typer.Option("--point", metavar="NAME", help="Only this operating point. Repeatable.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", parser=path_argument, metavar="PATH", help="Folder for gpus.json and gpus.md.")
    ] = Path("out/prove"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON document instead of tables.")] = False,
) -> None:
    """Predict schedulers on simulated GPUs at the paper's operating points, beside the paper's figures.

    The devices are fitted to the paper's baselines only: nothing here is a measurement of a GPU. A point takes one to
    three minutes.
    """
    from dlfp_edge.prove.gpu_points import candidates, gpu_plan
    from dlfp_edge.prove.gpus import predict

    plan = gpu_plan(point or ())
    with output_directory(out):
        with progress_bar() as progress:
            predictions = predict(plan, candidates(), progress)
        _deliver(predictions, out, as_json)


def _deliver(predictions: Predictions, out: Path, as_json: bool) -> None:
    from dlfp_edge.experiment.artefacts import write_whole
    from dlfp_edge.prove.gpu_tables import markdown, tables
    from dlfp_edge.prove.gpus import HEADING

    document = predictions.as_json()
    if as_json:
        print_json(document)
    else:
        print(f"{HEADING}\n")
        for table in tables(predictions):
            print_table(table.title, table.columns, table.rows)
    save(out / "gpus.json", document)
    with writing(out / "gpus.md") as path:
        write_whole(path, markdown(predictions).encode())
    if not as_json:
        print(f"written to {out / 'gpus.json'} and {out / 'gpus.md'}")
