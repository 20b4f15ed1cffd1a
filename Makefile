# Everything runs from a clone on Linux with Python 3.11, gcc, Go and root. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := .venv-node

.PHONY: help demo test check format e2e cluster cluster-down bench lab chart crds proto docs schemas metrics-doc reference locks conformance clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.installed: requirements/dev.lock pyproject.toml tools/install.sh
	@tools/install.sh $(PYTHON) $(VENV) requirements/dev.lock

$(RUNTIME)/.installed: requirements/node.lock pyproject.toml tools/install.sh
	@tools/install.sh $(PYTHON) $(RUNTIME) requirements/node.lock

demo: $(VENV)/.installed ## four jobs share one simulated H100, on this machine, without a cluster
	@$(BIN)/python -m dra_gpu_sim.local demo --output demo.json

test: $(VENV)/.installed ## unit and component tests, in parallel and in random order
	@$(BIN)/python -m lab build --helm-only
	@tools/run_tests.sh $(BIN)/pytest --parallel=4/worksteal

check: $(VENV)/.installed ## lint, types, and the direction of every import
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy --strict lab tests/e2e tests/unit/lab
	@$(BIN)/mypy --strict -p tools.reference
	@$(BIN)/lint-imports --no-cache
	@echo "check: clean"

format: $(VENV)/.installed ## format the code and sort its imports
	@$(BIN)/ruff format -q .
	@$(BIN)/ruff check -q --fix .

lab: $(VENV)/.installed ## build the binaries of a real Kubernetes into the cache (~/.cache/dra-gpu)
	@$(BIN)/python -m lab build

cluster: $(VENV)/.installed ## a real Kubernetes with simulated GPUs on this machine; NODES=2 for more than one
	@$(BIN)/python -m lab up --nodes $(or $(NODES),1)
	@$(BIN)/python -m lab driver start

cluster-down: $(VENV)/.installed ## stop the cluster and remove what it left
	@$(BIN)/python -m lab driver stop
	@$(BIN)/python -m lab down

e2e: $(VENV)/.installed ## the driver on two real clusters at once, test by test with its budget
	@$(BIN)/python -m lab build
	@tools/run_tests.sh $(BIN)/pytest --parallel=2/loadfile -p no:randomly tests/e2e

bench: $(VENV)/.installed $(RUNTIME)/.installed ## figures beside their floors, three runs
	@$(BIN)/python -m tests.bench.run

conformance: $(VENV)/.installed ## the kubelet's own plugin manager against our sockets
	@cd tests/go-conformance && go test -count=1 ./...

proto: $(VENV)/.installed ## regenerate the gRPC code from the .proto files
	@$(BIN)/python src/dra_gpu/kubelet/_proto/generate.py

schemas: $(VENV)/.installed ## write docs/schemas: JSON schemas of what users write, from the types that read it
	@$(BIN)/python tools/schemas.py

crds: $(VENV)/.installed ## write deploy/crds.yaml: the kinds of this driver, from the types that read them
	@$(BIN)/python tools/crds.py

chart: crds ## write what the Helm chart has from the manifests in deploy/, and docs/values.md
	@$(BIN)/python tools/chart.py

metrics-doc: $(VENV)/.installed ## write docs/metrics.md: every metric, from its definition
	@$(BIN)/python tools/metrics_doc.py

reference: $(VENV)/.installed ## write docs/reference: kinds, devices and commands, from the code
	@$(BIN)/python -m tools.reference

docs: schemas chart metrics-doc reference ## write every page that is made from code

locks: ## resolve the dependencies again (needs uv)
	@uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --no-emit-index-url \
	  pyproject.toml -o requirements/node.lock
	@uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --no-emit-index-url \
	  pyproject.toml --extra webhook -c requirements/node.lock -o requirements/image.lock
	@uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --no-emit-index-url \
	  pyproject.toml --all-extras --group dev -o requirements/dev.lock

clean: ## remove what was built here; the cache outside stays
	@rm -rf $(VENV) $(RUNTIME) build dist demo.json .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
