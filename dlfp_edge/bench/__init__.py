"""What a runtime, the engine and the machine cost, one module a question; `dlfp-edge bench` prints the answers."""
