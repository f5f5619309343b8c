# The short commands. Desk and CI use the same ones, and each does its own set-up on a fresh machine.

PYTHON ?= python3
TORCH ?= torch==2.13.0
NIXL ?= nixl-cu12==1.5.1
PYTEST_ARGS ?=
# A machine with a device often has no network, and a Python of its own with torch for that device: NOVENV=1 takes that.
NOVENV ?=
HARDWARE_ARGS ?=
BENCH_ARGS ?=
RDMA_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# pip speaks up on errors only; what is being installed is said below.
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types docs bench hardware mutants rdma clean

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(READY) ## the whole life of a cache on this machine's best driver
	@$(BIN)/vmmcache demo

test: $(READY) ## all tests; PYTEST_ARGS='-k region' for some of them
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: lint types docs ## style, types, and documentation that builds without a warning

lint: $(READY) ## ruff: rules and format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(READY) ## mypy --strict
	@$(BIN)/mypy

docs: $(READY) ## docs/_build/html
	@$(BIN)/sphinx-build --fail-on-warning --keep-going --nitpicky --quiet docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

bench: $(READY) ## every benchmark, those of a checkout too: tables, and JSON in benchmarks/out; BENCH_ARGS='planner --quick'
	@$(BIN)/vmmcache bench --with benchmarks --record benchmarks/out/bench.json $(BENCH_ARGS)

hardware: $(if $(NOVENV),,$(READY)) ## what this machine's accelerator does, as a JSON record; NOVENV=1: with PYTHON as it is
	@$(if $(NOVENV),$(PYTHON),$(BIN)/python) benchmarks/hardware.py $(HARDWARE_ARGS)

mutants: $(READY) ## plant faults in the package and see that a test notices each
	@$(BIN)/python tests/mutants/run.py

rdma: $(READY) ## real verbs in a virtual machine, with NIXL and Mooncake over them; a JSON record
	@$(BIN)/python -m tests.rdma.run $(RDMA_ARGS)

clean: ## what the commands above have made, except .venv (rm -r .venv to start afresh)
	rm -rf build dist docs/_build benchmarks/out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find vmmcache drivers tests docs benchmarks examples -name __pycache__ -prune -exec rm -r {} +

# One stamp stands for the whole environment: it is made again when a pin or a dependency changes. torch comes first and
# by itself, for the reason that requirements.txt gives; the pins hold for what it brings along. NIXL comes by itself too:
# its wheel asks for a torch that it does not need. The build tools are pinned too, hence no isolation.
$(READY): pyproject.toml requirements.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("vmmcache needs Python 3.11 or newer, but $(PYTHON) is %d.%d; say for example: make PYTHON=python3.11" % v[:2])'
	@echo "set-up: $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "set-up: $(TORCH)"
	@$(PIP) install --constraint requirements.txt $(TORCH)
	@echo "set-up: requirements.txt"
	@$(PIP) install --requirement requirements.txt
	@echo "set-up: $(NIXL)"
	@$(PIP) install --no-deps $(NIXL)
	@$(BIN)/python tests/lend_libibverbs.py
	@echo "set-up: vmmcache, editable"
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
