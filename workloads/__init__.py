"""The bundled workloads, one TOML file each, and the texts they ask about in `data/`."""
