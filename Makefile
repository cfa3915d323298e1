# make up            set everything up and run Penstock on its embedded server
# make test          set everything up and run the tests: units, servers, contracts, docs, a few faults
# make test-rights   the tests of topics, queues, coordination and commands with the least rights
# make test-faults   clusters, and all tests that kill, pause, cut off and fill up real processes
# make torture       hours of the same
# make dist          wheel, sdist, bill of materials and licences into dist/
# make audit         look for known vulnerabilities of the locked packages
# make locks         write locks/ from pyproject.toml and constraints.txt

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest -n 4 --dist loadfile
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Without compiled modules every process that a test starts compiles all of Penstock again.
unexport PYTHONDONTWRITEBYTECODE

RELEASE := release/.venv

.PHONY: up test test-rights test-faults test-skipped setup lint format bench torture clean dist audit locks
.DEFAULT_GOAL := up

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "Penstock needs Python 3.11 or newer (set PYTHON=…)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.created pyproject.toml constraints.txt
	$(INSTALL) --editable '.[documents]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(INSTALL) --editable '.[dev]'
	@touch $@

setup: $(VENV)/.dev

up: $(VENV)/.core
	@exec $(BIN)/penstock up

test: $(VENV)/.dev
	$(PYTEST) --slowest-allowed 60 -m '(not faults or short) and not torture'

# As a worker, or an operator where only that one may: see tests/kit/least_rights.py. On one kind of
# server; what each role does is tested on all kinds by tests/server/app/test_roles.py.
test-rights: $(VENV)/.dev
	$(PYTEST) --slowest-allowed 60 --as-role worker -m 'not faults and not torture' \
		--ignore tests/server/app/test_roles.py \
		-k 'not cluster and not redis62 and not redis7' tests/contracts $(addprefix tests/server/,\
		app cli/test_cli_feeds.py cli/test_cli_limits.py cli/test_cli_queues.py \
		cli/test_cli_runs.py cli/test_cli_topics.py cli/test_cli_windows.py \
		coordination queues redis runtime sync topics)

test-faults: $(VENV)/.dev
	$(PYTEST) --slowest-allowed 100 -m 'faults and not torture'

lint: $(VENV)/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(VENV)/.dev
	$(BIN)/python bench/run.py

# The tests that an earlier run skipped, listed in $(SKIPPED), once the machine has what they need.
test-skipped: $(VENV)/.dev
	$(BIN)/pytest -n 4 -m 'not torture' @$(SKIPPED)

torture: $(VENV)/.dev
	$(BIN)/pytest -m torture

$(RELEASE)/.created: locks/release.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

dist: $(RELEASE)/.created
	$(RELEASE)/bin/python release/dist.py

audit: $(RELEASE)/.created
	$(RELEASE)/bin/python release/audit.py

locks: $(RELEASE)/.created
	$(RELEASE)/bin/python release/locks.py

clean:
	rm -rf $(VENV) $(RELEASE) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
