# Everything here works on a fresh machine with only Python 3.11 or newer, make and git. What was made once is not made
# again: stamp files in the virtual environment remember it.

VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
PYTEST_ARGS ?=
# Packages of the first rank that are there; an argument mypy does not find would be an error.
TYPED := $(wildcard load_watcher watcher scorers agent migrations tests benchmarks scripts/real-parts scripts/real-kube scripts/soak)

RULE := deploy/components/prometheusrule/prometheusrule.yaml

# A test that is parallel with others of its module would start that module's Prometheus once per core: hence loadscope.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadscope $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help venv install dev serve demo test test-fast lint format types check bench soak alerts constraints kube \
        real-parts clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/.made ## make the virtual environment, .venv

install: $(VENV)/.installed ## install load-watcher into it, as a user would have it

dev: $(VENV)/.installed-dev ## the same, and what the tests and checks need

serve: $(VENV)/.installed ## run the service on its embedded default; ARGS="--port 2021" hands it flags
	$(BIN)/load-watcher serve $(ARGS)

demo: $(VENV)/.installed ## the same over a simulated cluster, with the extender; ARGS="--nodes 100"
	$(BIN)/load-watcher demo $(ARGS)

test: $(VENV)/.installed-dev real-parts ## run all tests, the real Prometheus and its like included
	$(PYTEST)

test-fast: $(VENV)/.installed-dev ## run the tests not marked slow: under a minute on two cores
	$(PYTEST) -m "not slow"

lint: $(VENV)/.installed-dev ## ruff
	$(BIN)/ruff check .

format: $(VENV)/.installed-dev ## lay the code out as ruff does, imports sorted
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev ## mypy, strict
	$(BIN)/mypy $(TYPED)

check: lint types test ## lint, types, tests

bench: $(VENV)/.installed-dev real-parts ## run every benchmarks/bench_*.py; ARGS=--write-docs puts the tables into docs/
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(VENV)/.installed-dev real-parts ## 20 minutes of the service and a Prometheus that break; ARGS="--minutes 5"
	$(BIN)/python scripts/soak $(ARGS)

alerts: ## put deploy/alerts.yaml, once changed, into the manifest for the Prometheus operator
	sed -i '/^  groups:$$/,$$d' $(RULE)
	sed -n '/^groups:$$/,$$ { s/^./  &/; p }' deploy/alerts.yaml >> $(RULE)

constraints: $(VENV)/.made ## let tests and checks have the newest releases of today; keep them if `make check` passes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager --editable '.[dev]'
	sed -i '/^[^#]/d' constraints.txt
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/==/<=/' >> constraints.txt

kube: $(VENV)/.installed-dev real-parts ## build a real Kubernetes control plane once, and run the tests that need one
	@$(BIN)/python scripts/real-kube
	LOAD_WATCHER_REQUIRE_KUBE=1 $(BIN)/python -m pytest -m real_apiserver tests/real $(PYTEST_ARGS)

real-parts: $(VENV)/.made ## fetch the real components that tests run against, into .real-parts
	@$(BIN)/python scripts/real-parts

clean: ## remove what make made and what tools left; the service's database stays
	rm -rf $(VENV) .real-parts build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# PYTHON=... chooses the interpreter. Each candidate is run, not just looked up: a pyenv shim exists for versions that
# are not active, and Debian's python3 may lack ensurepip.
$(VENV)/.made:
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	    new_enough="$$python"; \
	    "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || continue; \
	    echo "$$python -m venv $(VENV)   ($$("$$python" --version))"; \
	    "$$python" -m venv --clear $(VENV) && touch $@; exit; \
	done; \
	if [ -n "$$new_enough" ]; then \
	    echo "$$new_enough cannot make virtual environments: install its venv module (Debian: apt-get install python3-venv)" >&2; \
	else \
	    echo "load-watcher needs Python 3.11 or newer, and none was found: install one, or say make PYTHON=/path/to/python3" >&2; \
	fi; exit 1

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(VENV)/.installed $@
