# Everything is set up by the target that needs it; nothing has to be installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The lesson that is opened, and more: make lab LESSON=zh/03_split ARGS="--port 9999"
LESSON ?=
ARGS ?=
# Compiled code is kept, whatever the shell says: the tests start hundreds of processes that import labkit.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --durations=10 --durations-min=5

.DEFAULT_GOAL := help
.PHONY: help lab test test-more lint renew bench site clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 18

lab: $(VENV)/.zh  ## open the course, in a copy of your own (LESSON=zh/03_split, ARGS="--dir DIR --port 9999")
	@$(BIN)/python -m labkit lab $(LESSON) $(ARGS)

test: $(VENV)/.test  ## run the tests on all cores: library, notebooks, browser (ARGS="tests/engine -x", ARGS="-n0 --pdb")
	@$(PYTEST) -m "not more" $(ARGS)

test-more: $(VENV)/.more  ## run the tests marked "more": further cases of those of `make test`, and other people's models
	@$(PYTEST) -m more $(ARGS) || [ $$? -eq 5 ]  # 5: ARGS name no such test

lint: $(VENV)/.test  ## check style and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check --exclude labkit_content labkit* simgpu tests benchmarks tools && $(BIN)/mypy
	@$(BIN)/python -m tools.plain_words labkit simgpu labkit_diagnose labkit_ranks labkit_course labkit_classroom labkit_cli labkit_content tools

bench: $(VENV)/.test  ## measure the claims, each as a ratio, into docs/benchmarks.md (ARGS="engine cost" for some)
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/table.py $(ARGS)

site: $(VENV)/.site  ## make the site: lessons, explorers, reference, in both languages (site/index.html)
	@OMP_NUM_THREADS=1 $(BIN)/python docs/site/build.py $(ARGS)

renew: $(VENV)/.test  ## write anew what quotes labkit: pages, documents, pictures, lessons' outputs (ARGS="pages" for some)
	@$(BIN)/python -m tools.renew $(ARGS)

clean:  ## remove the virtual environment and what the tests left
	rm -rf $(VENV) dist site test-output .pytest_cache .hypothesis .ruff_cache .mypy_cache labkit.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "labkit needs Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "could not make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# A stamp for each set of extras: made anew when what it installs from changes. (zh is lab with the menus in Chinese, too.)
$(VENV)/.zh $(VENV)/.site $(VENV)/.test $(VENV)/.more: $(VENV)/.%: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing labkit[$*] into $(VENV) (once; some minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@
