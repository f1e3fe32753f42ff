# Everything a newcomer needs: `make demo` and `make test`. Each target does its own set-up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo lint test test-all clean

install: $(STAMP)

# Reinstalls only when the metadata changed.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(STAMP)

demo: install
	$(BIN)/dpmcmc demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-all: install
	$(BIN)/python -m pytest -n 2 --dist loadfile

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis dpmcmc-demo
