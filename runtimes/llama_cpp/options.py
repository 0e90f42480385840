"""What a caller may set for this runtime, checked before anything is loaded."""

from __future__ import annotations

from dlfp_edge.errors import UsageError, hint
from dlfp_edge.runtime import LoadOptions

from .context import ALL_LAYERS, KV_TYPES, QUANTISED_KV, ContextSettings
from .library import library

CHOICES = {
    "probe": ("on", "off"),
    "flash_attention": ("on", "off"),
    "kv_type": tuple(KV_TYPES),
    "swa": ("full", "window"),
}
GPU_LAYERS = "gpu_layers"
_MOST_LAYERS = 10_000


def check_options(options: LoadOptions) -> None:
    """Raises UsageError for an option or a value that is not known, or a number of threads below 1."""
    for name, value in options.options.items():
        if name not in CHOICES and name != GPU_LAYERS:
            known = (*CHOICES, GPU_LAYERS)
            raise UsageError(f"the llama_cpp runtime has no option '{name}': {hint(name, known, 'it has')}")
        if name in CHOICES and value not in CHOICES[name]:
            raise UsageError(f"{name}={value} is not possible; use one of {', '.join(CHOICES[name])}")
    if options.threads is not None and options.threads > len(options.cpus):
        raise UsageError(f"{options.threads} threads is not possible; this process may use {len(options.cpus)} CPUs")
    if options.cpu_limit < 1:
        raise UsageError(f"{options.cpu_limit} CPUs is not possible; give at least 1")


def wants_probe(options: LoadOptions) -> bool:
    """Whether to measure thread counts and priority at load."""
    return options.options.get("probe", "on") == "on"


def most_threads(options: LoadOptions) -> int:
    """The most threads any step may use."""
    return options.threads or options.cpu_limit


def context_settings(options: LoadOptions) -> ContextSettings:
    """The settings all contexts share. Raises UsageError where options contradict each other.

    A quantised value cache exists in llama.cpp with flash attention only.
    """
    kv_type = options.options.get("kv_type", "f32" if options.exact else "f16")
    quantised = kv_type in QUANTISED_KV
    asked = options.options.get("flash_attention")
    if options.exact and kv_type != "f32":
        raise UsageError(f"exact output and kv_type={kv_type} exclude each other; leave one of them out")
    if options.exact and asked == "on":
        raise UsageError("exact output and flash_attention=on exclude each other; leave one of them out")
    if quantised and asked == "off":
        raise UsageError(f"kv_type={kv_type} needs flash attention; leave flash_attention=off out")
    windowed = options.options.get("swa") == "window"
    if options.exact and windowed:
        raise UsageError("exact output and swa=window exclude each other; leave one of them out")
    flash = True if quantised else False if options.exact else None if asked is None else asked == "on"
    return ContextSettings(options.exact, kv_type, flash, windowed, _gpu_layers(options))


def _gpu_layers(options: LoadOptions) -> int:
    """How many layers go to a GPU. Raises UsageError where there is none to go to."""
    given = options.options.get(GPU_LAYERS, "0")
    layers = ALL_LAYERS if given == "all" else int(given) if given.isascii() and given.isdigit() else None
    if layers is None or layers > _MOST_LAYERS:
        raise UsageError(f"{GPU_LAYERS}={given} is not possible; give a number of layers, or all")
    if layers and options.exact:
        raise UsageError(f"exact output and {GPU_LAYERS}={given} exclude each other: it is known of CPU kernels only")
    if layers and not library().llama_supports_gpu_offload():
        raise UsageError(
            f"{GPU_LAYERS}={given} needs a llama.cpp that was built with a GPU: run  CMAKE_ARGS=-DGGML_CUDA=on "
            "pip install --force-reinstall --no-cache-dir llama-cpp-python  (or -DGGML_VULKAN=on, -DGGML_METAL=on)"
        )
    return layers
