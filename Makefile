# `make` lists the targets. Everything runs in .venv, which the first target that needs it creates.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FOR ?=
PYTEST_ARGS ?=
# Tests wait more than they compute, so there are more workers than cores. Each worker has its own servers.
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-browser lint docs format golden clean
.PHONY: bench bench-capture bench-snapshot bench-stores bench-warehouse bench-audit bench-source

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Installs again only if pyproject.toml or a compiled source has changed. A failed install leaves no stamp.
$(VENV)/.installed: pyproject.toml $(shell find cdc -name "*.p[yx][xd]")
	@$(PYTHON) deploy/check_python.py
	@echo "Installing into $(VENV); the first time this takes a few minutes, most of it for Spark."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(VENV)/.installed ## Create the virtual environment

demo: setup ## Run local servers, an example shop and the pipeline (FOR=30: for 30 seconds)
	$(BIN)/tailrace demo $(if $(FOR),--for $(FOR))

test: setup ## Run the test suite against real servers
	$(BIN)/pytest -m "not slow" --ignore tests/browser -n $(WORKERS) $(PYTEST_ARGS)

test-slow: setup ## Run the tests that take minutes
	$(BIN)/pytest -m slow $(PYTEST_ARGS)

test-browser: setup ## Test the dashboard in Chromium
	@tests/browser/chromium.sh
	$(BIN)/pytest tests/browser $(PYTEST_ARGS)

lint: setup docs ## Run ruff, mypy, the import contracts and the link checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.harness.docs.links

docs: setup ## Build the documentation site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: setup ## Format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: setup ## Record events of a real Debezium as expected results for tests
	$(BIN)/python -m tests.golden.record

bench: bench-capture bench-snapshot bench-stores bench-warehouse bench-audit bench-source ## Run all benchmarks

bench-capture: setup ## Compare capture with pg_recvlogical and a tuned Debezium
	$(BIN)/python -m tests.bench.capture

bench-snapshot: setup ## Compare the initial snapshot with Debezium's and with plain COPY
	$(BIN)/python -m tests.bench.snapshot

bench-stores: setup ## Measure bootstrap, sync and commit-to-visible latency
	$(BIN)/python -m tests.bench.stores

bench-audit: setup ## Compare an audit with a hash aggregate in Postgres
	$(BIN)/python -m tests.bench.audit

bench-source: setup ## Compare the Spark data source with Spark's Kafka connector
	$(BIN)/python -m tests.bench.spark_source

bench-warehouse: setup ## Measure batches, bootstrap, sync and maintenance of a warehouse
	$(BIN)/python -m tests.bench.warehouse

clean: ## Stop the demo's servers and remove generated files (cached downloads stay)
	@if [ -x $(BIN)/tailrace ]; then $(BIN)/tailrace stack down --wipe; fi
	rm -rf $(VENV) .tailrace build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
