# Everything a newcomer needs: `make demo` and `make test`. Each target does its own set-up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo docs picture bench reproduce reproduce-full laplace auto coverage curve lint vulnerabilities system \
	test test-all audit mutants faults fuzz soak dist test-wheel pythons imports clean

install: $(STAMP)

# Reinstalls only when the metadata changed.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(STAMP)

demo: install
	$(BIN)/dpmcmc demo

# The site, docs/_build/html/index.html: every snippet and tutorial is run anew, and whatever is wrong is an error.
docs: $(VENV)/.docs
	rm -rf docs/_build
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[dev,docs]"
	touch $(VENV)/.docs

# The picture in README.md. (Noise is fresh each time: another picture.)
picture: install
	$(BIN)/dpmcmc demo banana --out dpmcmc-demo
	cp dpmcmc-demo/posterior.png docs/banana.png

# About ten minutes; run it alone on the machine. For two minutes: .venv/bin/python -m benchmarks --fast
bench: install
	$(BIN)/python -m benchmarks

# A small version of the paper's experiments; see docs/reproduction.md. Both targets continue where an earlier run stopped.
reproduce: install
	$(BIN)/python -m studies comparison --out reproduction/small/comparison --epsilon 4 --epsilon 15 \
		--sampler paper --sampler dp-hmc-default --repeats 2
	$(BIN)/python -m studies clipping --out reproduction/small/clipping --model banana --algorithm rwmh --repeats 3

# Every row of the paper and this package's own; then the variants, at two budgets.
reproduce-full: install
	$(BIN)/python -m studies comparison --out reproduction/full/comparison --sampler paper --sampler dp-hmc-default
	$(BIN)/python -m studies comparison --out reproduction/full/comparison --sampler variants --epsilon 4 --epsilon 15 \
		--variant-repeats 1
	$(BIN)/python -m studies clipping --out reproduction/full/clipping
	$(BIN)/python -m studies report reproduction/full/comparison reproduction/full/clipping --to docs/reproduction.md

# DP-Laplace against posteriors without noise, and docs/laplace.md. For a quick look: .venv/bin/python -m studies laplace
# --out reproduction/fast --fast --repeats 3
laplace: install
	$(BIN)/python -m studies laplace --out reproduction/laplace
	$(BIN)/python -m studies report reproduction/laplace --to docs/laplace.md

# The default sampler against exact posteriors, and docs/auto.md. For a quick look: .venv/bin/python -m studies auto
# --out reproduction/fast-auto --fast --repeats 3
auto: install
	$(BIN)/python -m studies auto --out reproduction/auto
	$(BIN)/python -m studies report reproduction/auto --to docs/auto.md

# How often intervals hold the truth, on 200 synthetic data sets, and docs/coverage.md. About an hour.
coverage: install
	$(BIN)/python -m studies coverage --out reproduction/coverage
	$(BIN)/python -m studies report reproduction/coverage --to docs/coverage.md

# Widths of intervals beside what a plan says of them, and docs/planning.md. About a quarter of an hour.
curve: install
	$(BIN)/python -m studies curve --out reproduction/curve
	$(BIN)/python -m studies report reproduction/curve --to docs/planning.md

# ---- what tries to break the package (SECURITY.md); none of it is part of `make test`

# Attacks on the privacy claims, about half an hour; `.venv/bin/dpmcmc audit --fast` takes a few minutes.
audit: install
	$(BIN)/dpmcmc audit --json audit.json

# Plants bugs in a copy of the package, one at a time; each must be caught.
mutants: install system
	$(BIN)/python -m trust.mutants --to docs/mutants.md

# Kills, full disks, no memory, clocks that jump, locks, damaged files, in real processes.
faults: install
	$(BIN)/python -m trust.faults

# Damaged and hostile files for every reader.
fuzz: install
	$(BIN)/python -m trust.fuzz

# Two hours of runs in a loop: memory and file handles must stay where they are.
soak: install
	$(BIN)/python -m trust.soak

# Known vulnerabilities of all that is installed. Needs the network; fails if a package cannot be looked up.
vulnerabilities: install
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet "pip-audit>=2.7,<3"
	$(VENV)/audit/bin/pip-audit --strict --skip-editable --path "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Chromium for the report's tests and a PostgreSQL server, where they can be installed; else their tests are skipped.
system:
	sh tests/system_packages.sh

test: install system
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-all: install $(VENV)/.docs system
	$(BIN)/python -m pytest -n 2 --dist loadfile

# ---- release (CONTRIBUTING.md). nox has an environment of its own: it needs a newer attrs than dp-accounting allows.
NOX = $(VENV)/nox/bin/nox --noxfile noxfile.py

$(VENV)/nox/bin/nox:
	$(PYTHON) -m venv $(VENV)/nox
	$(VENV)/nox/bin/python -m pip install --quiet "nox>=2024.10"

# dist/: wheel and source distribution, checked; then the wheel is installed and used, without and with the command line.
dist: $(VENV)/nox/bin/nox
	$(NOX) --sessions clean dist core

# The fast tests on the installed wheel, without the source tree. For some of them: make test-wheel ARGS="tests/cli"
test-wheel: $(VENV)/nox/bin/nox system
	$(NOX) --sessions "tests-$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')" -- $(ARGS)

# The same on each Python from 3.11 that is found; the others are named and skipped.
pythons: $(VENV)/nox/bin/nox system
	$(NOX) --sessions tests -- $(ARGS)

# What importing the package costs beyond JAX itself.
imports: install
	$(BIN)/python -m benchmarks.imports

clean:
	rm -rf $(VENV) .nox build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis dpmcmc-demo benchmark
