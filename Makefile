# make demo     attack two mixtures of the package, g and h; writes an HTML page
# make test     run the tests on all cores
# make lint     check style, types and the direction of imports
# make format   correct style and layout
# make dist     build the wheel and the sdist into dist/
# make docs     build the documentation as a site in site/, to be read without a network
# make bench    measure the seconds of a training epoch (needs a GPU)
# make clean    delete the virtual environment, runs, built packages and caches
#
# ARGS is passed on: make test ARGS="tests/mixing -x"

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Install this exact version of torch first: pip would resolve a range to the newest build with its CUDA packages.
TORCH := $(shell grep '^torch==' constraints.txt)
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SETTINGS := pyproject.toml constraints.txt tests/interop.txt

.PHONY: demo test lint format dist docs bench clean

demo: $(VENV)/.package
	$(BIN)/adaptive-smoothing demo $(ARGS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m hatchling build --directory dist

# The variable silences a notice of Material about a later version of MkDocs.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

bench: $(VENV)/.package
	$(BIN)/python benchmarks/train.py $(ARGS)

$(VENV)/.package: $(SETTINGS)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	$(INSTALL) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.package
	$(INSTALL) --editable '.[dev,docs,export,timm,app]'
	$(INSTALL) --no-deps --requirement tests/interop.txt
	touch $@

$(VENV)/.docs: $(VENV)/.package
	$(INSTALL) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) runs dist site .pytest_cache .mypy_cache .ruff_cache
