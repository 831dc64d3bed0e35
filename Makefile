# make demo     the whole story on the models and images inside the package
# make test     the tests
# make lint     style, types and the direction of imports
# make bench    seconds an epoch of training (wants a GPU)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The exact torch first and alone: a range would take the newest build with its CUDA packages.
TORCH := $(shell grep '^torch==' constraints.txt)
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SETTINGS := pyproject.toml constraints.txt

.PHONY: demo test lint format bench clean

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

bench: $(VENV)/.package
	$(BIN)/python benchmarks/train.py $(ARGS)

$(VENV)/.package: $(SETTINGS)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	$(INSTALL) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.package
	$(INSTALL) --editable '.[dev,timm]'
	touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
