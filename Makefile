# Everything runs in .venv, made on first use: only Python 3.11 or newer with venv is needed.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.ready-dev
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast check examples bench bench-quick zoo clean

help:
	@echo "make demo       train MONAI's U-Net for a minute as a pipeline over two CPU workers"
	@echo "make test       the whole test suite"
	@echo "make test-fast  the suite without the slow tests"
	@echo "make check      formatter, linter, types, layers"
	@echo "make examples   run every example briefly"
	@echo "make bench      all benchmarks (long), into docs/benchmarks.md; make bench-quick: only that they run"
	@echo "make zoo        the zoo of real models, beside other front ends, into docs/zoo.md"
	@echo "make clean      remove caches and outputs (not .venv)"

$(VENV)/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "fxpipe needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(PIP) -e '.[test]'
	@touch $@

$(DEV_READY): pyproject.toml constraints.txt $(READY)
	$(PIP) -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python -m examples.train_unet

test: $(READY)
	$(PYTEST)

test-fast: $(READY)
	$(PYTEST) -m "not slow"

check: $(DEV_READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

examples: $(READY)
	$(BIN)/python -m examples.train_unet --seconds 5

TORCHGPIPE := $(VENV)/.torchgpipe
$(TORCHGPIPE): $(READY)
	$(PIP) setuptools
	$(PIP) --no-deps --no-build-isolation torchgpipe==0.0.7
	@touch $@

bench: $(TORCHGPIPE)
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.keyed_dropout
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.simulator
	$(BIN)/python -m benchmarks.capture
	$(BIN)/python -m benchmarks.large_models
	$(BIN)/python -m benchmarks.split_backward
	$(BIN)/python -m benchmarks.schedules
	$(BIN)/python -m benchmarks.published_page
	$(BIN)/python -m benchmarks.side_by_side
	$(BIN)/python -m benchmarks.harness

bench-quick: $(TORCHGPIPE)
	$(BIN)/python -m benchmarks.overhead --quick
	$(BIN)/python -m benchmarks.keyed_dropout --quick
	$(BIN)/python -m benchmarks.memory --quick
	$(BIN)/python -m benchmarks.simulator --quick
	$(BIN)/python -m benchmarks.capture --quick
	$(BIN)/python -m benchmarks.large_models --quick
	$(BIN)/python -m benchmarks.split_backward --quick
	$(BIN)/python -m benchmarks.schedules --quick
	$(BIN)/python -m benchmarks.side_by_side --quick

zoo: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.zoo

clean:
	rm -rf demo_output benchmarks/results build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find fxpipe tests examples benchmarks -name __pycache__ -type d -exec rm -rf {} +
