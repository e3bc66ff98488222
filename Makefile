# The verbs of a working day. `make` alone lists them.

PYTHON ?= python3
PY := .venv/bin/python
INSTALLED := .venv/.installed
SUITES := $(wildcard tests/unit tests/contract tests/scenario tests/simulation tests/integration tests/acceptance)
# Many tests wait for a broker, so a few more than there are cores keep them busy; each job has a broker of its own.
JOBS ?= 3
on = $(filter-out 0 no off false,$(1))

.DEFAULT_GOAL := help
.PHONY: help setup demo dev test acceptance crash chaos transactions sim lint tables golden mutants format bench lock clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make .venv from the hashed lock and install perdure into it, editable

# The stamp is written last, so an interrupted set-up is taken up again where it matters.
$(INSTALLED): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'perdure needs Python 3.11 or later: make setup PYTHON=python3.11' >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || \
		{ echo 'Python cannot make virtual environments: install its venv module (Debian: python3-venv)' >&2; exit 1; }
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/dev.txt
	@# setuptools warns of each editable install at length
	PYTHONWARNINGS=ignore $(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup ## a run survives a crash in the worst place; CRASH=<point>, NAIVE=1, LIVE=1
	@$(PY) -m perdure.console.demo $(if $(CRASH),--crash $(CRASH)) $(if $(call on,$(NAIVE)),--naive) $(if $(call on,$(LIVE)),--live) $(ARGS)

dev: setup ## a local broker, its topics and all roles, until Ctrl-C
	@$(PY) -m perdure.console.main dev $(ARGS)

test: setup ## all suites, with a real broker of their own; ARGS="-k word" narrows
	$(PY) -m pytest -n $(JOBS) --dist loadfile $(SUITES) $(ARGS)

acceptance: setup ## kill -9 under load, counted from outside; RUNS=1000
	RUNS=$(or $(RUNS),1000) $(PY) -m pytest tests/acceptance -s $(ARGS)

crash: setup ## processes that die, stop or leave at named points; CELLS=300, SEED=1
	@$(PY) -m chaos.crash --cells $(or $(CELLS),12) --seed $(or $(SEED),1) $(ARGS)

chaos: setup ## three brokers, many workers, everything goes wrong; MINUTES=10, SEED=1
	@$(PY) -m chaos --minutes $(or $(MINUTES),2) --seed $(or $(SEED),1) $(ARGS)

transactions: setup ## numbered commands through bounced orchestrators and brokers; COMMANDS=100000
	@$(PY) -m chaos.transactions --commands $(or $(COMMANDS),100000) --seed $(or $(SEED),1) $(ARGS)

sim: setup ## whole worlds that fail in every way, one a seed; SEEDS=200, SEED=n, PLANTED=all
	@$(PY) -m simulator $(if $(PLANTED),--planted $(PLANTED),$(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),200))) $(ARGS)

lint: setup ## rules, format, types (mypy and pyright), layers
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/pyright
	.venv/bin/lint-imports --no-logo

tables: setup ## write down again what the machine does with every input in every state
	$(PY) -m tests.unit.machine.product

mutants: setup ## small faults put into the machine, one at a time, must be noticed; COUNT=500, SEED=1
	$(PY) -m tests.mutants --count $(or $(COUNT),500) --seed $(or $(SEED),1) $(ARGS)

golden: setup ## record golden histories with the schemas of now; SET=v2, ARGS=--unreleased replaces a set
	$(PY) -m tests.golden.record $(SET) $(ARGS)

format: setup ## let ruff format and mend what it can
	.venv/bin/ruff check --fix-only .
	.venv/bin/ruff format .

bench: setup ## measure, and print JSON
	@$(PY) -m benchmarks $(ARGS)

# Extras stay in the lock: without them pip, checking hashes, looks at the newest release of what is asked for with
# an extra before it looks at the pin, and refuses it (`coverage[toml]` the day after coverage had a release).
lock: setup ## compile requirements/*.txt again; UPGRADE=1 takes newer versions
	.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --no-strip-extras --generate-hashes --no-header \
		$(if $(call on,$(UPGRADE)),--upgrade) --all-extras --output-file requirements/dev.txt \
		pyproject.toml requirements/dev.in
	.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --no-strip-extras --generate-hashes --no-header \
		--extra all --constraint requirements/dev.txt --no-annotate --output-file requirements/runtime.txt \
		pyproject.toml

clean: ## remove local state (broker data, stores) and what tools left; keeps .venv and the jar cache
	rm -rf .perdure build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
