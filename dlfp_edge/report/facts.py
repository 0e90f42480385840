"""What was compared, where and how, as names and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlfp_edge.experiment.document import Result
from dlfp_edge.experiment.workload import Stream
from dlfp_edge.report.words import minutes

Facts = list[tuple[str, str]]


def facts(result: Result) -> Facts:
    """The facts a reader needs before any figure."""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(result.trials.items())) or "none"
    found = [
        ("candidate", result.candidate),
        ("baseline of agreement", result.baseline or "none among the settings"),
        ("workload", _workload(result)),
        ("machine", _machine(result.machine)),
        ("model", _model(result.runtime)),
        ("runtime", _runtime(result)),
        ("seeds", ", ".join(map(str, result.seeds))),
        ("a trial ends", f"at {result.gaps:,} contended gaps, or after {result.cap_s:g} s"),
        ("trials", counts),
        ("time", f"planned {minutes(result.expected_s)}, taken {minutes(result.took_s)}"),
    ]
    return [(name, value) for name, value in found if value]


def streams(result: Result) -> Facts:
    """The streams of the workload: what each asks for."""
    found = result.workload.get("stream") or result.workload.get("streams") or []
    return [(str(stream.get("name", "")), _stream(stream)) for stream in found if isinstance(stream, Mapping)]


def title(result: Result) -> str:
    """What a report is called."""
    return str(result.workload.get("name", "comparison"))


def _workload(result: Result) -> str:
    described = f"{title(result)}: {result.workload.get('description') or ''}".rstrip(": ")
    return described if result.scale == 1 else f"{described} (token counts times {result.scale:g})"


def _machine(machine: Mapping[str, Any]) -> str:
    cpus, memory = machine.get("cpus"), machine.get("memory_bytes")
    virtual = machine.get("virtual_machine")
    parts = [
        machine.get("cpu_model"),
        f"{len(cpus)} CPUs" if isinstance(cpus, list) else None,
        f"a quota of {machine['cpu_quota']:g}" if isinstance(machine.get("cpu_quota"), int | float) else None,
        f"{memory / 2**30:.1f} GiB" if isinstance(memory, int | float) else None,
        f"kernel {machine['kernel']}" if machine.get("kernel") else machine.get("system"),
        (f"virtual machine ({virtual})" if isinstance(virtual, str) else "virtual machine") if virtual else None,
    ]
    return ", ".join(str(part) for part in parts if part)


def _model(runtime: Mapping[str, Any]) -> str:
    model = runtime.get("model")
    if not isinstance(model, Mapping):
        return str(model or "")
    size, digest = model.get("parameters"), runtime.get("sha256")
    parts = [
        model.get("name"),
        model.get("quantisation"),
        f"{size / 1e6:,.0f} M parameters" if isinstance(size, int | float) else None,
        f"SHA-256 {str(digest)[:12]}…" if digest else None,
        "random weights: its words mean nothing" if runtime.get("random_weights") else None,
    ]
    return ", ".join(str(part) for part in parts if part)


def _runtime(result: Result) -> str:
    runtime = result.runtime
    threads = runtime.get("threads")
    counted = isinstance(threads, Mapping)
    parts = [
        runtime.get("runtime"),
        runtime.get("llama_cpp_python"),
        f"{threads.get('decode')} decode and {threads.get('prefill')} prefill threads" if counted else None,  # type: ignore[union-attr]
        f"mode {runtime['mode']}" if runtime.get("mode") else None,
        "exact kernels (--exact)" if result.exact else None,
    ]
    return ", ".join(str(part) for part in parts if part)


def _stream(stream: Mapping[str, Any]) -> str:
    usual = {field.alias or name: field.default for name, field in Stream.model_fields.items()}
    said = [
        f"{name.replace('_', ' ')} {_plain(value)}"
        for name, value in stream.items()
        if value and value != usual.get(name) and name not in ("name", "class")
    ]
    return ", ".join([str(stream.get("class", "")), *said])


def _plain(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
