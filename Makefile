# Two commands for everyone: `make demo` and `make test`. Each sets up .venv by itself; only Python, make and git are needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test quick check bench docs clean

demo: .venv/demo ## why eight GPUs train slower than four, from two recordings that lie in this repository
	@$(BIN)/debubble why examples/four-to-eight/recordings/four examples/four-to-eight/recordings/eight --html demo.html
	@$(BIN)/debubble diagnose examples/four-to-eight/recordings/eight --perfetto eight.perfetto.json.gz

test: .venv/test check ## everything that CI runs
	$(BIN)/python -m pytest

quick: .venv/test ## what needs no processes and no patience
	$(BIN)/python -m pytest -m "not slow and not real"

check: .venv/test ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/test ## every claim of speed, measured here
	$(BIN)/python -m pytest benchmarks --benchmark-only -s -o python_files='bench_*.py'

.venv/demo: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# torch first and pinned: an open range would fetch gigabytes for a GPU that tests do not use.
.venv/test: pyproject.toml requirements-test.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-test.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,fast]'
	@touch $@ .venv/demo

docs: .venv/test ## put into the pages what their commands print now
	$(BIN)/python docs/refresh.py

clean:
	rm -rf .venv
