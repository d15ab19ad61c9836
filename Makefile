# Two commands for everyone: `make demo` and `make test`. Each sets up .venv by itself; only Python, make and git are needed.
PYTHON ?= python3
BIN := .venv/bin

# Tests run in one process more than there are cores, since some wait for processes of their own; each file in one, so
# that what it shares is made once.
SPREAD := --numprocesses $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)") --dist loadfile

.PHONY: demo test quick clock check frameworks engines fuzz mutants shape bench docs site package clean

demo: .venv/demo ## why eight GPUs train slower than four, from two recordings that lie in this repository
	@$(BIN)/debubble why examples/four-to-eight/recordings/four examples/four-to-eight/recordings/eight --html demo.html
	@$(BIN)/debubble diagnose examples/four-to-eight/recordings/eight --perfetto eight.perfetto.json.gz

test: .venv/test check ## everything that CI runs
	$(BIN)/python -m pytest $(SPREAD) -m "not clock"

quick: .venv/test ## what needs no processes and no patience
	$(BIN)/python -m pytest $(SPREAD) -m "not slow and not real and not clock"

clock: .venv/test ## paced runs whose wall times are held against each other: for a quiet machine, one at a time
	$(BIN)/python -m pytest -m clock tests/real tests/frameworks tests/recorder

check: .venv/test ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# In an environment of their own, with torch's CPU build: megatron-core and DeepSpeed pin other things than we do. About
# ten minutes; torchtitan's trainer imports triton.
frameworks: .venv-frameworks ## thousands of random configurations judged by Megatron-Core, DeepSpeed, torchtitan and by us
	PYTHONPATH=src .venv-frameworks/bin/python -m pytest -m frameworks tests/frameworks

engines: .venv-frameworks ## jobs of Megatron-Core, DeepSpeed and torchtitan, recorded from inside in real processes
	PYTHONPATH=src .venv-frameworks/bin/python -m pytest -m "engines and not clock" tests/recorder

.venv-frameworks: requirements-frameworks.txt
	@test -x $@/bin/python || $(PYTHON) -m venv $@
	@$@/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 setuptools wheel
	@DS_BUILD_OPS=0 $@/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
		--requirement requirements-frameworks.txt
	@$@/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torchtitan==0.3.0
	@touch $@

# make fuzz N=1000000 FIRST=0 JOBS=8; FUZZ="--plan" for the planner, FUZZ="--show 17" for one input aloud
fuzz: .venv/test ## inputs that nobody meant, for every reader and option: which crash, hang, fill memory, answer nan?
	cd tests && PYTHONPATH=../src ../$(BIN)/python -m fuzz.harness $(if $(N),--number $(N)) $(if $(FIRST),--first $(FIRST)) \
		$(if $(JOBS),--jobs $(JOBS)) $(FUZZ)

# make mutants ROOM="core planning" N=60 SEED=1 JOBS=2 FRESH=1; all rooms take about an hour, one with NEAR=1 minutes
mutants: .venv/test ## do the tests see a wrong line? a drawn sample of one-line mutations, its score and its survivors
	@$(BIN)/python tools/mutants.py $(ROOM) $(if $(N),--number $(N)) $(if $(SEED),--seed $(SEED)) \
		$(if $(JOBS),--jobs $(JOBS)) $(if $(FRESH),--fresh) $(if $(NEAR),--near)

shape: ## the figures of the house: files, depth, density of expressions, comments, tests
	@$(PYTHON) tools/shape.py

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
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,fast,solve]'
	@touch $@ .venv/demo

docs: .venv/test ## put into the pages what their commands print now
	$(BIN)/python docs/refresh.py

site: .venv/site ## the documentation as a site in site/: opens from disk, its links are checked
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=src $(BIN)/python -m mkdocs build --quiet --site-dir site

.venv/site: .venv/test
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

# The archive must hold all that its own tests need, the wheel all that a command reads.
package: .venv/test ## source archive and wheel: the tests of the unpacked archive pass, the wheel draws a page
	rm -rf dist && $(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m pip install --quiet --no-deps --target dist/wheel dist/*.whl
	PYTHONPATH=dist/wheel $(BIN)/python -P -m debubble plan --gpu h100 --gpus 8 --global-batch 32 \
		--model llama3-8b --html dist/plan.html > dist/plan.txt
	mkdir dist/unpacked && tar -xzf dist/*.tar.gz -C dist/unpacked --strip-components=1
	cd dist/unpacked && PYTHONPATH=$$PWD/src $(abspath $(BIN))/python -m pytest $(SPREAD) -m "not slow and not real"

clean:
	rm -rf .venv .venv-frameworks
