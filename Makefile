# Two commands are enough: `make serve` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
PEERS ?= .venv-peers
BENCH_CACHE ?= .bench
# A GPU image may have all packages for these targets; .venv has pytest once it is set up for tests.
WITH_GPU = $(if $(wildcard $(VENV)/.installed-dev),$(BIN)/python,python3)
ACCELERATOR ?= cpu
TORCH_INDEX ?=
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' tandem_client/__init__.py)
# A cluster is many processes, and each would compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE
# Tests that take minutes, and are not part of `make test`.
CLUSTER_TESTS := tests/e2e/hosts tests/e2e/two_hosts tests/e2e/test_scaling.py \
	tests/e2e/test_rollout.py tests/e2e/test_sleep.py tests/e2e/test_two_routers.py \
	tests/e2e/test_ray_chaos.py tests/e2e/test_rolling_restart.py tests/e2e/test_console.py \
	tests/e2e/test_faults.py tests/e2e/test_console_rollout.py tests/e2e/test_console_page.py \
	tests/e2e/test_dashboards.py
# Two tests at a time, with real clusters first; one at a time if ARGS selects tests.
BESIDE = $(if $(ARGS),,--durations 15 --durations-min 5 -n 2 --dist loadscope --no-loadscope-reorder tests/e2e tests)
# The code of the public API lives in the client's package and is registered under its path there, so
# that it meets no `protos/inference.proto` of a user.
PUBLIC := protos/inference.proto protos/error_details.proto
INTERNAL := $(filter-out $(PUBLIC), $(wildcard protos/*.proto))
SBOM := cyclonedx-bom==7.5.0
PROTOC := .venv-protos/bin/python -m grpc_tools.protoc
define generate
$(PROTOC) -Itandem_client/protos=protos --python_out=$(1) --pyi_out=$(1) $(PUBLIC) && \
$(PROTOC) -Itandem_client/protos=protos --grpc_python_out=$(1) protos/inference.proto && \
$(PROTOC) -I. -Itandem_client/protos=protos --python_out=$(1) --pyi_out=$(1) $(INTERNAL) && \
$(PROTOC) -I. --grpc_python_out=$(1) protos/router.proto
endef

.PHONY: help install serve test lint types contracts protos protos-check docs-check tests coverage \
	test-cluster test-clients test-gpu bench-gpu test-oldest constraints helm-schema helm-golden helm-dashboard reference sbom wheels image demo-model \
	bench-engine bench-host bench-guided bench-schemas bench-soak bench-peers bench-burst bench-itl bench-claims bench-router bench-overload bench-refusals bench-journal bench-observing bench-streams \
	bench-failover bench-faults bench-router-death bench-transfer bench-report fuzz soak-transfer chaos clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

install: $(VENV)/.installed  ## set up .venv

serve: $(VENV)/.installed  ## serve the demo model; ARGS="--model PATH" for another
	@$(BIN)/tandem serve $(ARGS)

test: lint types contracts protos-check docs-check tests  ## lint, types, contracts, protos, documentation, tests; CI also does test-cluster

lint: $(VENV)/.installed-dev  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev  ## strict types
	$(BIN)/mypy

contracts: $(VENV)/.installed-dev  ## imports point down
	$(BIN)/lint-imports

protos: .venv-protos/.installed  ## generate the code of protos/*.proto
	$(call generate,.)

protos-check: .venv-protos/.installed  ## the generated code matches the protos
	@folder=$$(mktemp -d) && trap "rm -rf $$folder" EXIT && $(call generate,$$folder) && \
	for file in $$(cd $$folder && find . -type f); do cmp "$$folder/$$file" "$$file" || exit 1; done && \
	echo "generated code is up to date"

docs-check: $(VENV)/.installed-dev  ## links, generated pages, words and sentences of the documentation
	$(BIN)/python -m docs.check

tests: $(VENV)/.installed-dev  ## all tests; ARGS="-k NAME" for some
	$(BIN)/python -m pytest $(addprefix --ignore ,$(CLUSTER_TESTS) tests/clients) $(BESIDE) $(ARGS)

coverage:  ## all tests with line coverage; Python takes twice as long
	$(MAKE) tests ARGS='--cov --cov-report=term:skip-covered $(ARGS)'

test-cluster: $(VENV)/.installed-dev  ## several hosts, a lost head, pools that grow, shrink and sleep, rollouts, restarts, two routers, the console, why TTFT rose, dashboards and alerts: real Ray, minutes
	$(BIN)/python -m pytest $(CLUSTER_TESTS) $(ARGS)

test-clients: $(VENV)/.installed-dev .venv-clients/load-clients/.installed .venv-clients/gateways/.installed .venv-clients/vllm/.installed  ## guidellm, AIPerf, vLLM's bench, lm-eval, LiteLLM, LangChain against a running cluster
	$(BIN)/python -m pytest tests/clients $(ARGS)

test-gpu:  ## tests for a CUDA device; skipped without one
	$(WITH_GPU) -m pytest -c tests/gpu/pytest.ini -k "not C++" tests/gpu \
		tests/engine/model/test_ops.py tests/engine/model/test_forward_selection.py \
		tests/engine/model/experts/test_grouped_product.py \
		tests/engine/model/test_attention_flashinfer.py tests/bench/gpu/test_varlen_attention.py \
		tests/engine/kernels tests/engine/model/products tests/engine/fp8

bench-gpu:  ## an 8 B shape on a GPU, section by section, in eight minutes; ARGS=--dry tries it on a CPU
	$(WITH_GPU) -m bench.gpu.main $(ARGS)

test-oldest: .venv-oldest/.installed  ## engine, transfer and pools on the oldest torch and transformers
	.venv-oldest/bin/python -m pytest tests/engine tests/kv_transfer tests/prefill_pool tests/decode_pool

demo-model: $(VENV)/.installed  ## train models/demo anew (about ten minutes)
	$(BIN)/python -m models.train_demo

constraints: $(VENV)/.installed-dev  ## pin the packages of .venv
	@(sed -n '1p' constraints.txt; $(PIP) freeze --all --exclude pip --exclude wheel --exclude-editable | sed 's/+cpu//') > constraints.new
	@mv constraints.new constraints.txt

helm-schema: $(VENV)/.installed  ## write the schema of the chart's values
	$(BIN)/python -m cluster.chart.values_schema > values.schema.new
	@mv values.schema.new helm/tandem/values.schema.json

helm-golden: $(VENV)/.installed-dev  ## write the golden renders of the chart's examples
	$(BIN)/python -m tests.helm.chart

helm-dashboard: $(VENV)/.installed  ## write the chart's Grafana dashboard from the code
	$(BIN)/python -m cluster.chart.dashboard > dashboard.new
	@mv dashboard.new helm/tandem/files/dashboards/tandem.json

reference: $(VENV)/.installed  ## write the pages of docs/reference that come from the code
	$(BIN)/python -m cluster.reference docs/reference

sbom: $(VENV)/.installed .venv-sbom/.installed  ## write dist/sbom.cdx.json, the bill of materials of .venv
	@mkdir -p dist
	@.venv-sbom/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml \
		--output-reproducible --output-file dist/sbom.cdx.json
	@echo "dist/sbom.cdx.json"

wheels: $(VENV)/.installed-dev  ## write both wheels to dist/: the client's to publish, the server's for images
	@mkdir -p dist
	@cd tandem_client && ../$(BIN)/python -m hatchling build -t wheel -d ../dist
	@$(BIN)/python -m hatchling build -t wheel -d dist

image:  ## build the container image; ACCELERATOR=cuda, TORCH_INDEX=URL of torch's wheels, EXTRAS=nixl
	docker build --build-arg ACCELERATOR=$(ACCELERATOR) --build-arg TORCH_INDEX=$(TORCH_INDEX) \
		--build-arg EXTRAS=$(EXTRAS) -t tandem:$(VERSION)-$(ACCELERATOR) .

bench-engine: $(VENV)/.installed  ## measure the engine against the machine's limits
	$(BIN)/python -m bench.systems.engine --cache $(BENCH_CACHE) $(ARGS)

bench-guided: $(VENV)/.installed  ## 32 streams that follow JSON schemas beside free streams: the engine alone, then served
	$(BIN)/python -m bench.engine.guided --cache $(BENCH_CACHE) --results bench/results
	$(BIN)/python -m bench.compare.guided_streams --cache $(BENCH_CACHE) $(ARGS)

bench-schemas: $(VENV)/.installed  ## the share of JSON schemas that compile; ARGS="--folder SCHEMAS --name NAME"
	$(BIN)/python -m bench.engine.schema_share --results bench/results $(ARGS)

bench-host: $(VENV)/.installed  ## the host's work for a decode step, beside a device on paper
	$(BIN)/python -m bench.engine.host_step $(ARGS)

bench-soak: $(VENV)/.installed  ## ten minutes at the edge of the KV pool
	$(BIN)/python -m bench.router.soak $(ARGS)

bench-peers: $(VENV)/.installed  ## measure Tandem beside vLLM, transformers and llama.cpp
	$(BIN)/python -m bench.systems.install_peers --to $(PEERS)
	$(BIN)/python -m bench.compare.peers --peers $(PEERS) --cache $(BENCH_CACHE) $(ARGS)

bench-burst: $(VENV)/.installed  ## vLLM, one pool and two pools under a burst; ARGS="--load NAME"
	$(BIN)/python -m bench.systems.install_peers --to $(PEERS) --only vllm
	$(BIN)/python -m bench.compare.burst --peers $(PEERS) --cache $(BENCH_CACHE) $(ARGS)

bench-itl: $(VENV)/.installed  ## inter-token latency of running streams while four long prompts arrive
	$(BIN)/python -m bench.systems.install_peers --to $(PEERS) --only vllm
	$(BIN)/python -m bench.compare.burst --itl --peers $(PEERS) --cache $(BENCH_CACHE) $(ARGS)

bench-claims: $(VENV)/.installed  ## measure common claims about serving
	$(BIN)/python -m bench.compare.claims --cache $(BENCH_CACHE) $(ARGS)

bench-router: $(VENV)/.installed  ## measure one router process: messages, tokens, first tokens
	$(BIN)/python -m bench.router.main --results bench/results $(ARGS)

bench-overload: $(VENV)/.installed  ## five times the capacity over gRPC and HTTP; ARGS="--seconds 300 --factor 5"
	$(BIN)/python -m bench.compare.overload $(ARGS)

bench-router-death: $(VENV)/.installed  ## kill -9 of a router: when the next one serves; ARGS="--rounds 3"
	$(BIN)/python -m bench.router.death $(ARGS)

bench-refusals: $(VENV)/.installed  ## what a refusal costs the router's event loop
	$(BIN)/python -m bench.router.refusals --results bench/results $(ARGS)

bench-journal: $(VENV)/.installed  ## what the journal of resumable streams costs a router
	$(BIN)/python -m bench.router.journal --results bench/results $(ARGS)

bench-observing: $(VENV)/.installed  ## what request log, traces and console cost a router
	$(BIN)/python -m bench.router.observing --results bench/results $(ARGS)

bench-streams: $(VENV)/.installed  ## 2,000 open streams on one router; ARGS="--streams 2000 --minutes 10"
	$(BIN)/python -m bench.router.open_streams --results bench/results $(ARGS)

bench-failover: $(VENV)/.installed  ## pauses of streams whose decode replica dies; ARGS="--fault freeze"
	$(BIN)/python -m bench.failover.main --results bench/results $(ARGS)

bench-faults: $(VENV)/.installed  ## calm traffic, then TTFT that rises; ARGS="slow-prefill", tenant-burst or kv-full
	$(BIN)/python -m bench.faults.main $(ARGS)

bench-transfer: $(VENV)/.installed  ## measure the hand-over of KV against its floor
	$(BIN)/python -m bench.transfer.main $(ARGS)

bench-report: $(VENV)/.installed  ## write bench/REPORT.md from bench/results/
	$(BIN)/python -m bench.report.main $(ARGS)

fuzz: $(VENV)/.installed-dev  ## 100,000 fuzzed requests to every port; ARGS="--requests 2000 --seed 1 --kinds all"
	$(BIN)/python -m tests.fuzz.main $(ARGS)

soak-transfer: $(VENV)/.installed-dev  ## 10,000 random faults while KV moves, then a check for leaks
	$(BIN)/python -m tests.chaos.soak $(ARGS)

chaos: $(VENV)/.installed-dev  ## kill, freeze, slow and cut off parts of a cluster 1,000 times; ARGS="--ray --minutes 8 --continue"
	$(BIN)/python -m tests.chaos.main $(ARGS)

clean:  ## remove the environments
	rm -rf $(VENV) .venv-protos .venv-oldest .venv-peers .venv-sbom .venv-clients .bench

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed, and on the PATH" >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# torch first and by itself, so that a machine without a GPU gets its CPU build.
$(VENV)/.installed: $(BIN)/python pyproject.toml tandem_client/pyproject.toml constraints.txt
	@echo "installing torch"
	@$(PIP) install $(TORCH)
	@echo "installing tandem"
	@$(PIP) install -c constraints.txt -e ./tandem_client -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what the tests need"
	@$(PIP) install -c constraints.txt -e ./tandem_client -e '.[dev]'
	@touch $@

.venv-protos/.installed: protos/requirements.txt
	@$(PYTHON) -m venv .venv-protos
	@.venv-protos/bin/pip --disable-pip-version-check --quiet install -r protos/requirements.txt
	@touch $@

.venv-sbom/.installed:
	@$(PYTHON) -m venv .venv-sbom
	@.venv-sbom/bin/pip --disable-pip-version-check --quiet install $(SBOM)
	@touch $@

# torch first, as above: lm-eval needs it.
.venv-clients/%/.installed: tests/clients/%.txt
	@$(PYTHON) -m venv .venv-clients/$*
	@.venv-clients/$*/bin/pip --disable-pip-version-check --quiet install $(TORCH)
	@.venv-clients/$*/bin/pip --disable-pip-version-check --quiet install -r $<
	@touch $@

.venv-clients/vllm/.installed: bench/systems/install_peers.py $(VENV)/.installed
	@$(BIN)/python -m bench.systems.install_peers --to .venv-clients --only vllm

.venv-oldest/.installed: tests/requirements-oldest.txt
	@$(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/pip --disable-pip-version-check --quiet install -r tests/requirements-oldest.txt
	@touch $@
