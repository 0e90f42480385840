"""llama.cpp's server out of the `xllamacpp` wheel, in a process of its own: settings come as JSON, the URL goes out.

It ends when its stdin does, so that it outlives no parent on any system.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(settings: dict[str, Any]) -> None:
    """Load the model, print the URL that answers, and serve until stdin ends."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = settings["context"]
    params.n_parallel = settings["slots"]
    params.n_batch = settings["n_batch"]
    params.n_ubatch = settings["n_ubatch"]
    params.n_gpu_layers = settings["gpu_layers"]
    params.cpuparams.n_threads = settings["decode_threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{settings['kv_type'].upper()}")
    wanted = {None: "AUTO", True: "ENABLED", False: "DISABLED"}[settings["flash_attention"]]
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{wanted}")
    params.swa_full = settings["swa_full"]
    params.kv_unified = True
    params.cache_prompt = False
    params.cache_idle_slots = False
    params.cache_ram_mib = 0
    params.n_ctx_checkpoints = 0
    params.fit_params = False
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:  # its log says why
        sys.exit(1)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
