# Two commands on a fresh machine: `make demo` and `make test`. Each makes its own environment in .venv.

VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: demo test test-slow check bench clean

demo: $(VENV)/demo
	$(BIN)/maskwright demo $(if $(DATA),--data $(DATA))

test: $(VENV)/dev check
	$(BIN)/pytest -n auto --dist worksteal -m "not slow"

test-slow: $(VENV)/dev
	$(BIN)/pytest -m slow

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/bench
	$(BIN)/python -m benchmarks.suites.sid
	$(BIN)/python -m benchmarks.suites.regexes
	$(BIN)/python -m benchmarks.suites.grammar
	$(BIN)/python -m benchmarks.suites.self_draft
	$(BIN)/python -m benchmarks.suites.decode $(if $(SCHEMAS),--data $(SCHEMAS))
	$(BIN)/python -m benchmarks.suites.json_schema $(if $(SCHEMAS),--data $(SCHEMAS))
	$(if $(SCHEMAS),$(BIN)/python -m benchmarks.suites.serving --data $(SCHEMAS))

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

# the release that is developed against comes first: extras would otherwise take whatever is newest
$(VENV)/torch: constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	touch $@

$(VENV)/demo: pyproject.toml $(VENV)/torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo]"
	touch $@

$(VENV)/dev: pyproject.toml $(VENV)/torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	mkdir -p $(VENV)/src && ln -sfn ../.. $(VENV)/src/maskwright
	touch $@

$(VENV)/bench: $(VENV)/dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
