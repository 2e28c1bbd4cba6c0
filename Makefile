# Every command sets up what it needs: Python 3.11 or newer and make are enough.
PYTHON ?= python3
BIN := .venv/bin
# else each process that a test starts compiles all its modules anew
unexport PYTHONDONTWRITEBYTECODE

# the units and their order are those of tests/conftest.py
IN_PARALLEL := --dist loadgroup --no-loadscope-reorder --numprocesses

.PHONY: demo studio studio-pictures test test-fast fuzz lint bench docs clean
.DEFAULT_GOAL := test

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

.venv/rivals: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@

# the main job: learn labels from a few pictures of the album, tag the rest, write a page
demo: .venv/installed
	$(BIN)/python examples/demo.py demo

# the studio in the browser, on the demo's album; the project is kept in demo/
studio: .venv/installed
	$(BIN)/fewtag studio demo/studio examples/album

# pictures of the studio for the documentation, made in a browser
studio-pictures: .venv/installed
	$(BIN)/python scripts/studio_pictures.py docs/pictures

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# for two cores: every fourth second a test waits for a process of its own, so a third one works then; mypy beside them
test: .venv/installed
	$(MAKE) lint & lint=$$!; $(BIN)/pytest $(IN_PARALLEL) 3; tests=$$?; wait $$lint && exit $$tests

# the product alone, without what starts processes or takes seconds
test-fast: .venv/installed
	$(BIN)/pytest $(IN_PARALLEL) 3 --ignore tests/research --ignore tests/scripts --ignore tests/test_benchmarks.py \
		-m 'not slow and not processes and not ray' tests

# 10,000 mutated files, 1,500 of them sidecars, and 200 kills at random moments, some on a full disk, 200 of `write` and
# 200 of a studio that is answering
fuzz: .venv/installed
	$(BIN)/python tests/support/fuzz.py
	$(BIN)/python tests/support/kills.py
	$(BIN)/python tests/support/kills.py --job write
	$(BIN)/python tests/support/studio_kills.py

# speed and memory, as ratios measured side by side; the studio's latencies; HTTP under load
bench: .venv/rivals
	$(BIN)/python benchmarks/speed.py --out results/speed
	$(BIN)/python benchmarks/studio.py --out results/studio.json
	$(BIN)/python benchmarks/http_load.py --minutes 10 --out results/http.json

# the site, in site/
docs: .venv/installed
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv build dist demo site
