# Two commands matter to a newcomer: `make up` and `make test`. `make help` lists the rest.
# Environments are built once per change of the locked requirements; after that nothing is downloaded again.
# `venv --without-pip` and `pip --python` work on a Debian that has pip but no python3-venv.

PYTHON ?= python3
VENV := .venv
PIP := $(PYTHON) -m pip --quiet --disable-pip-version-check --python $(VENV)/bin/python
BIN := $(VENV)/bin
SAY := @printf '\033[1m== %s\033[0m\n'
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-strip-extras \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

# What failed beside other tests must pass alone; the first real failure ends it. See docs/ci.md.
SECOND_LOOK = printf '\033[1m== %s\033[0m\n' 'what failed, once more and alone' && $(BIN)/pytest -x --last-failed --last-failed-no-failures none -m real

.PHONY: help up quick test check e2e bench conformance lock format clean
.DEFAULT_GOAL := help

help:
	@echo 'make up           run Zonewise here, with no cluster and no root'
	@echo 'make quick        the tests that need no root and no other program; about two minutes'
	@echo 'make test         install what the tests need and run every test (needs root and apt once)'
	@echo 'make check        lint, types, layers'
	@echo 'make e2e          the product on real Kubernetes, built from source with Go'
	@echo 'make conformance  Kubernetes'"'"' own specs on the embedded cluster; writes docs/conformance.md'
	@echo 'make bench        side by side with our peers, ratios in one run'
	@echo 'make format       rewrite the sources the way make check wants them'
	@echo 'make lock         choose versions anew and write requirements/'
	@echo 'make clean        remove everything that was built inside the tree'

$(VENV)/bin/python:
	$(SAY) 'making an environment in $(VENV)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Zonewise needs Python 3.11 or newer; set PYTHON=/path/to/python3'; exit 2; }
	@$(PYTHON) -m venv --without-pip $(VENV)

$(VENV)/.runtime: requirements/runtime.txt pyproject.toml | $(VENV)/bin/python
	$(SAY) 'installing zonewise and what it needs to run'
	@$(PIP) install --require-hashes -r requirements/runtime.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	$(SAY) 'installing what checks and tests need'
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.peers: requirements/peers.txt $(VENV)/.dev
	$(SAY) 'installing the client libraries we compare with'
	@$(PIP) install --require-hashes -r requirements/peers.txt
	@touch $@

up: $(VENV)/.runtime
	@$(BIN)/zonewise up $(UP)

check: $(VENV)/.peers
	$(SAY) 'format, lint'
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	$(SAY) 'types'
	@$(BIN)/mypy
	$(SAY) 'layers'
	@$(BIN)/lint-imports --no-cache

quick: $(VENV)/.dev
	$(SAY) 'tests in one process'
	@$(BIN)/pytest -n auto -m 'not (real or system or slow)' --durations 3 $(ARGS)

test: $(VENV)/.dev
	$(SAY) 'what the tests need from Debian'
	@$(PYTHON) tools/debian.py
	$(SAY) 'tests'
	@$(BIN)/pytest -n auto -m 'not real' $(ARGS)

e2e: $(VENV)/.peers
	$(SAY) 'a real Kubernetes (built from source once, then cached outside the tree)'
	@$(BIN)/python -m tools.realkube build
	@$(BIN)/python -m tools.coredns build
	@$(BIN)/python -m tools.csi build
	@$(BIN)/python -m tools.sidecars build
	$(SAY) 'what the tests need from Debian, and a real Ceph'
	@$(PYTHON) tools/debian.py ceph
	@$(BIN)/python -m tools.ceph
	$(SAY) 'tests on it'
	@$(BIN)/pytest -n 2 --dist loadfile -m real $(ARGS) || { test $$? -eq 1 && $(SECOND_LOOK) $(ARGS); }

bench: $(VENV)/.peers
	$(SAY) 'benchmarks'
	@$(BIN)/python -m tools.realkube build
	@$(BIN)/python -m tools.coredns build
	@$(PYTHON) tools/debian.py ceph bench
	@$(BIN)/python -m tools.ceph
	@$(BIN)/python -m benchmarks $(ARGS)

conformance: $(VENV)/.peers
	$(SAY) "Kubernetes' own specs (built from source once)"
	@$(BIN)/python -m tools.conformance $(ARGS)

format: $(VENV)/.dev
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --quiet --fix .

lock: $(VENV)/.dev
	@$(LOCK) $(UPGRADE) pyproject.toml --extra csi --group build -o requirements/runtime.txt
	@$(LOCK) $(UPGRADE) pyproject.toml --extra csi --group build --group dev -c requirements/runtime.txt -o requirements/dev.txt
	@$(LOCK) $(UPGRADE) pyproject.toml --extra csi --group build --group dev --group peers -c requirements/dev.txt -o requirements/peers.txt
	@$(LOCK) $(UPGRADE) --group go -o requirements/go.txt

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
