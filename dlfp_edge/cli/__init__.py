"""The `dlfp-edge` command: argument handling and what a terminal shows. Everything else lives outside."""
