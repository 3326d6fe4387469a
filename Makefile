# Coffer: `make help` lists what there is. Needs git, make, Python 3.11 or newer and a package index.

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.coffer-setup
PACKAGES := coffer_common coffer_supervisor coffer_worker coffer_cli coffer_migrations
SOURCES := coffer_common coffer_supervisor coffer_worker cli migrations tests bench setup.py
PYTEST := $(BIN)/python -m pytest
JOBS ?= 3
MINUTES ?= 10

# The first interpreter that is new enough.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)

.DEFAULT_GOAL := help
.PHONY: help setup run test check check-format check-lint check-types check-imports cover fmt fault soak e2e \
	conformance matrix bench migrate

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## make the virtual environment and install Coffer with its tools

$(STAMP): pyproject.toml setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "error: Coffer needs Python 3.11 or newer; none was found on the PATH."; \
		echo "  install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,demo]'
	@touch $@

run: setup ## start the daemon, register demo servers, call a tool, print what to paste into a client
	@sh scripts/demo.sh $(abspath $(BIN))

# What measures, or drives a suite that measures, runs by itself afterwards.
test: setup ## the whole test suite (JOBS=1: one test at a time)
	@failed=0; $(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not alone" || failed=$$?; \
		$(PYTEST) -m alone || failed=$$?; exit $$failed

e2e: setup ## only the end-to-end tests
	$(PYTEST) tests/e2e

fault: setup ## break things on purpose: the tests, then the measured suite that writes docs/faults.md (25 minutes)
	$(PYTEST) tests/fault
	$(BIN)/python -m tests.fault.suite

soak: setup ## a long, rough day in short: 20 upstreams, 20 clients, random faults (MINUTES=10)
	$(BIN)/python -m tests.fault.soak --minutes $(MINUTES)

conformance: setup ## the official conformance suite, direct and through Coffer (SIDE=server or client for one side)
	$(BIN)/python -W ignore -m tests.conformance $(SIDE)

matrix: setup ## exchange everything in all pairings of eras and transports, and write docs/matrix.md
	$(BIN)/python -W ignore -m tests.matrix

check: check-format check-lint check-types check-imports cover ## formatting, lint, types, import contracts, coverage

check-format: setup
	$(BIN)/ruff format --check --quiet $(SOURCES)

check-lint: setup
	$(BIN)/ruff check $(SOURCES)

check-types: setup build/links
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
	$(BIN)/mypy tests bench

check-imports: setup
	$(BIN)/lint-imports

cover: setup ## each module of decisions is covered to 100 % of its branches by its own test file (15 seconds)
	$(BIN)/python -m tests.cover

fmt: setup ## format, and mend what lint can mend
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

bench: setup ## measure: direct, bare relay, Coffer over HTTP and over the shim (BENCH=--quick for a short one)
	$(BIN)/python -m bench $(BENCH)

migrate: setup ## bring the store of COFFER_HOME up to date by hand (the daemon does it at its start)
	$(BIN)/python -m coffer_supervisor.store.migrate

# Folders that are installed under another name, under that name, for the type checker.
build/links:
	@mkdir -p $@
	@ln -sfn ../../cli $@/coffer_cli
	@ln -sfn ../../migrations $@/coffer_migrations
