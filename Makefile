# Verbs only. `make demo` and `make test` are the two commands of the README.
PYTHON ?= python3
BIN := .venv/bin
REPOSITORY ?= model_repository
EXAMPLES := $(wildcard export/examples/checkpoints/example-*)
# Of two examples for one task, these answer who names no model.
DEFAULTS := example-captioner example-clip example-es-en example-gpt

.PHONY: help setup demo serve export test unit check bench load quality proto up down clean

help: ## what there is to do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Installed once; again when pyproject.toml changes.
.venv/installed: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (once; about a minute and 3 GB of disk)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

setup: .venv/installed ## the environment in .venv

export: .venv/installed ## the example checkpoints into the model repository, what is missing or stale
	@$(foreach source,$(EXAMPLES),$(BIN)/triptych export $(source) --repository $(REPOSITORY) \
	  $(if $(filter $(notdir $(source)),$(DEFAULTS)),--default) &&) true

demo: export ## export, start Triton and the gateway, one request to each endpoint, stop
	@$(BIN)/python -m export.examples.demo --repository $(REPOSITORY)

serve: export ## the same, and stay up (Ctrl-C stops everything)
	@$(BIN)/triptych serve --repository $(REPOSITORY)

test: .venv/installed ## the whole suite, a real Triton included
	@$(BIN)/pytest

unit: .venv/installed ## what needs neither a Triton nor an exported graph, on all cores
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist loadscope -m "not integration and not slow"

check: .venv/installed ## ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: .venv/installed ## side by side with CTranslate2 and transformers (BENCH="--models gpt2-124m" narrows it)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,bench]'
	@$(BIN)/python -m benchmarks.speed $(BENCH)

load: .venv/installed ## load against a running gateway: make load PROFILE=poisson RATE=20 DURATION=60s
	@$(BIN)/python -m benchmarks.load

quality: export ## the examples' scores in PyTorch, ONNX, int8 and through the served API
	@$(BIN)/python -m benchmarks.quality --repository $(REPOSITORY) --record

proto: .venv/installed ## what follows from clients/triptych/tasks: proto, client methods, tables
	@$(BIN)/python -m codegen

up: export ## docker compose: triton and gateway in containers
	docker compose -f docker/compose.yaml up --build

down: ## stop what `make up` started
	docker compose -f docker/compose.yaml down

clean: ## forget exported versions (configs stay)
	rm -rf $(REPOSITORY)/*/[0-9]*
