"""The proof for people, as Markdown: where the default loses first, then every cell with its bars and controls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dlfp_edge.prove.bars import BarResult
from dlfp_edge.prove.conditions import CONDITIONS
from dlfp_edge.prove.document import CellResult, Proof
from dlfp_edge.report.words import minutes, number


def as_markdown(proof: Proof) -> str:
    """The whole page."""
    return "\n".join([*_head(proof), *_losses(proof), *_overview(proof), *_cells(proof)]) + "\n"


def headline(proof: Proof) -> str:
    """The proof in a sentence."""
    held, lost, undecided = (len(proof.of(status)) for status in ("held", "lost", "undecided"))
    rest = len(proof.cells) - held - lost - undecided
    said = [f"held in {held}", f"lost in {lost}", f"undecided in {undecided}", f"not measured in {rest}"]
    return f"{proof.name}: of {len(proof.cells)} cells the default " + ", ".join(said)


def loss_lines(cell: CellResult) -> list[str]:
    """Where the default loses in a cell, by how much, and what its records say of why."""
    return [*(f"- {cell.name}: {loss}" for loss in cell.losses), *(f"    - {line}" for line in cell.telling)]


def _head(proof: Proof) -> Iterator[str]:
    yield from (f"# {proof.name}", "", headline(proof) + ".", "")
    cpu, cpus = proof.machine.get("cpu_model"), proof.machine.get("cpus")
    yield f"Machine: {cpu or 'unknown CPU'}, {len(cpus) if cpus else 'unknown'} CPUs. It took {minutes(proof.took_s)}."
    if not proof.complete:
        yield "It is not complete: the same command goes on."
    yield ""


def _losses(proof: Proof) -> Iterator[str]:
    yield from ("## Where the default loses", "")
    lost = proof.of("lost")
    yield from (line for cell in lost for line in loss_lines(cell))
    if not lost:
        yield "In no cell that was measured."
    yield ""


def _overview(proof: Proof) -> Iterator[str]:
    yield from ("## Cells", "", "| cell | outcome | bars held | model | workload | condition | why not |", _rule(7))
    for result in proof.cells:
        held = sum(bar.state == "held" for bar in result.bars)
        bars = f"{held} of {len(result.bars)}" if result.bars else "-"
        told = (result.cell[name] for name in ("model", "workload", "condition"))
        yield _row([result.name, result.status, bars, *told, result.reason or ""])
    yield ""


def _cells(proof: Proof) -> Iterator[str]:
    for result in proof.cells:
        if result.bars:
            yield from _cell(result)


def _cell(result: CellResult) -> Iterator[str]:
    cell = result.cell
    yield from (f"## {result.name}: {result.status}", "")
    seeds = ", ".join(map(str, cell["seeds"]["score"]))
    yield f"{cell['why']} " if cell["why"] else ""
    yield f"Condition: {CONDITIONS[cell['condition']].what}."
    yield f"Scored with seeds {seeds}, trials up to {result.cap_s:g} s."
    for sweep, labels in result.chosen.items():
        yield f"Of {sweep}, chosen with seeds {', '.join(map(str, cell['seeds']['choose']))}: {', '.join(labels)}."
    yield from ("", "| bar | value | outcome |", _rule(3), *map(_bar, result.bars), "")
    yield from ("| against | outcome | P99 gap shorter by | background more by | why |", _rule(5))
    for each in result.against:
        yield _row([each.control, each.outcome, each.gap_p99 or "-", each.background or "-", "; ".join(each.why)])
    yield ""
    yield from (f"- {line}" for line in (*result.telling, *result.troubles))
    yield ""


def _bar(bar: BarResult) -> str:
    return _row([f"`{bar.bar}`", number(bar.value), bar.state])


def _row(values: Sequence[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def _rule(columns: int) -> str:
    return "|" + "---|" * columns
