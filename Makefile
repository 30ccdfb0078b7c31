# `make` shows what there is. Everything runs in .venv, which the first target that needs it makes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FOR ?=
PYTEST_ARGS ?=
# Tests wait more than they compute: more workers than cores. Each has servers of its own.
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-browser lint docs format golden clean
.PHONY: bench bench-capture bench-snapshot bench-stores bench-warehouse bench-audit

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Installs again only when what is installed or compiled has changed; a broken install leaves no stamp behind.
$(VENV)/.installed: pyproject.toml $(shell find cdc -name "*.p[yx][xd]")
	@$(PYTHON) deploy/check_python.py
	@echo "Installing into $(VENV); the first time this takes a few minutes, most of it for Spark."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(VENV)/.installed ## Make the virtual environment

demo: setup ## Local servers and a small shop that writes all the time (FOR=30 ends by itself)
	$(BIN)/tailrace demo $(if $(FOR),--for $(FOR))

test: setup ## The whole suite against real servers
	$(BIN)/pytest -m "not slow" --ignore tests/browser -n $(WORKERS) $(PYTEST_ARGS)

test-slow: setup ## What takes minutes
	$(BIN)/pytest -m slow $(PYTEST_ARGS)

test-browser: setup ## The dashboard's page in a real Chromium
	@tests/browser/chromium.sh
	$(BIN)/pytest tests/browser $(PYTEST_ARGS)

lint: setup docs ## ruff, mypy, the import contracts, and the links of the documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.harness.links

docs: setup ## The site of docs/, in build/site; a broken link ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: setup ## Let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: setup ## Record the events of a real Debezium for the tests to compare with
	$(BIN)/python -m tests.golden.record

bench: bench-capture bench-snapshot bench-stores bench-warehouse bench-audit ## Every benchmark

bench-capture: setup ## Capture against pg_recvlogical and a tuned Debezium, one run
	$(BIN)/python -m tests.bench.capture

bench-snapshot: setup ## The first copy against Debezium's snapshot and plain COPY, one run
	$(BIN)/python -m tests.bench.snapshot

bench-stores: setup ## Bootstrap, sync and commit to visible in both stores, one run
	$(BIN)/python -m tests.bench.stores

bench-audit: setup ## An audit against a plain scan with a hash aggregate in Postgres, one run
	$(BIN)/python -m tests.bench.audit

bench-warehouse: setup ## A batch in a small and a large warehouse, bootstrap, sync, upkeep, one run
	$(BIN)/python -m tests.bench.warehouse

clean: ## Stop the demo's servers and remove what was made here (downloads stay cached)
	@if [ -x $(BIN)/tailrace ]; then $(BIN)/tailrace stack down --wipe; fi
	rm -rf $(VENV) .tailrace build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
