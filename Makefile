# make demo: install into .venv and run.   make test: lint, types and tests.
# Needs Python 3.10 or newer with venv, a C++ compiler and make. Another Python: make demo PYTHON=python3.12
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := dlfp_edge runtimes devices workloads

# llama.cpp's AMX kernels, compiled by GCC, end in an illegal instruction: it drops the writes to a tile configuration
# that only inline assembly reads. Without the macro they are not compiled; no laptop or phone has AMX.
export CMAKE_ARGS := -DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__ $(CMAKE_ARGS)

.PHONY: demo test lint types pytest format clean

demo: $(VENV)/.installed-demo
	$(BIN)/dlfp-edge run

test: lint types pytest

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy $(SOURCES)

pytest: $(VENV)/.installed-test
	$(BIN)/python -m pytest

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "$(PYTHON) is older than 3.10: choose another with make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: pyproject.toml constraints-core.txt | $(BIN)/python
	@echo "Installing into $(VENV). The first time, llama-cpp-python is compiled from source: some minutes."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-core.txt -e '.[llama-cpp,demo]'
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints-core.txt | $(VENV)/.installed-demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-core.txt -e '.[llama-cpp,demo,test]'
	@touch $@
