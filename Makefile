# Every command sets up what it needs: Python 3.11 or newer and make are enough.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench clean
.DEFAULT_GOAL := test

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest

clean:
	rm -rf .venv build dist demo
