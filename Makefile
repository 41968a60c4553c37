# `make demo` and `make test` work on a fresh machine with Python 3.11 or newer: each installs what it needs into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint bench up clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt $(wildcard serving/*.c) | $(BIN)/python
	$(PIP_INSTALL) --editable '.[train,serve,examples]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(wildcard serving/*.c) | $(BIN)/python
	$(PIP_INSTALL) --editable '.[train,serve,postgres,examples,dev]'
	touch $@ $(VENV)/.run

demo: $(VENV)/.run  ## the main job on real flights, embedded, in a scratch folder
	$(BIN)/python -m examples.flights.demo

up: $(VENV)/.run  ## start the appliance on this machine and keep it running
	$(BIN)/appliance up

test: $(VENV)/.dev  ## every test
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev  ## ruff, mypy and which package may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev  ## the budgets, with ratios; minutes to an hour
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.gateway
	$(BIN)/python -m benchmarks.registry
	$(BIN)/python -m benchmarks.registry_stress
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.streams
	$(BIN)/python -m benchmarks.parity
	$(BIN)/python -m benchmarks.soak

clean:
	rm -rf $(VENV) build dist *.egg-info
