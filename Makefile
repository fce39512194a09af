# All targets work on a fresh machine with only Python 3.11 or newer, make, and git. Stamp files in the virtual
# environment record completed steps, which are then not repeated.

VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
PYTEST_ARGS ?=
# The Kubernetes version of the tests with a real control plane: tests/modules has 1.36, 1.35, and 1.34.
KUBERNETES ?= $(or $(LOAD_WATCHER_KUBERNETES),1.36)
export LOAD_WATCHER_KUBERNETES := $(KUBERNETES)
# Python keeps compiled modules, also where the environment says otherwise: the tests start some hundred programs, and
# each would compile the project again.
export PYTHONDONTWRITEBYTECODE :=
# The top-level packages that exist; mypy fails for a missing argument.
TYPED := $(wildcard load_watcher lab watcher scorers agent migrations tests benchmarks examples scripts/real-parts scripts/go-programs scripts/release scripts/soak scripts/code-lines scripts/flow-files)


# loadscope runs the tests of a module in one worker; otherwise each worker would start the module's own Prometheus. Two
# workers more than cores, because many tests wait for real programs most of the time.
WORKERS := $(shell expr 2 + $$(getconf _NPROCESSORS_ONLN))
# Modules start in the order of tests/conftest.py: the longest first.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help venv install dev serve demo test test-fast lint format types check bench bench-quick closed-loop soak faults hostile properties fuzz removal constraints \
        lock image-digests image image-agent release kube compatibility kubernetes helm nri-runtime nri containers cluster cluster-v2 originals plans mutants fleet real-parts clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/.made ## create the virtual environment .venv

install: $(VENV)/.installed ## install load-watcher into .venv without development tools

dev: $(VENV)/.installed-dev ## install load-watcher with the tools for tests and checks

serve: $(VENV)/.installed ## run the service with its default settings; pass flags with ARGS="--port 2021"
	$(BIN)/load-watcher serve $(ARGS)

demo: $(VENV)/.installed ## run the service with a simulated cluster and the extender; ARGS="--nodes 100"
	$(BIN)/load-watcher demo $(ARGS)

test: $(VENV)/.installed-dev real-parts kubernetes helm nri-runtime ## run all tests, including those with a real Prometheus and other real components
	$(PYTEST)

test-fast: $(VENV)/.installed-dev ## run the tests not marked slow
	LOAD_WATCHER_EXAMPLES=$${LOAD_WATCHER_EXAMPLES:-10} $(PYTEST) -m "not slow"

lint: $(VENV)/.installed-dev ## run ruff
	$(BIN)/ruff check .

format: $(VENV)/.installed-dev ## format the code and sort imports with ruff
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev ## run mypy in strict mode
	$(BIN)/mypy $(TYPED)

removal: $(VENV)/.installed-dev ## run the fast tests without the agent, the QoS Resource Manager, and the laboratory in turn; `make test` imports them without the agent
	LOAD_WATCHER_REMOVAL=all $(BIN)/python -m pytest tests/test_removal.py --timeout 900

check: lint types test ## run lint, types, and test

bench-quick: $(VENV)/.installed-dev real-parts kubernetes ## run every benchmark at a tiny size; `make test` runs three short ones
	LOAD_WATCHER_BENCHMARKS=all $(PYTEST) tests/test_benchmarks.py tests/test_fleet.py

bench: $(VENV)/.installed-dev real-parts kubernetes ## run every benchmarks/bench_*.py; ARGS=--write-docs updates the tables in docs/
	$(BIN)/python -m benchmarks $(ARGS)

closed-loop: $(VENV)/.installed-dev ## compare placements by forecasts and by windows on ten traces (an hour); ARGS="bitbrains --data DIRECTORY"
	$(BIN)/python -m benchmarks.closed_loop $(or $(ARGS),weekly)

soak: $(VENV)/.installed-dev real-parts ## run the service and Prometheus with injected faults for 20 minutes; ARGS="--minutes 5"
	$(BIN)/python scripts/soak $(ARGS)

faults: $(VENV)/.installed-dev real-parts ## inject faults around a service and measure what is served; requires root; ARGS="--only clock", ARGS=--write-docs updates docs/
	$(BIN)/python -m tests.faults $(ARGS)

hostile: $(VENV)/.installed-dev ## run each client against each hostile response, also those that end by a timeout (10 minutes); `make test` runs fewer
	LOAD_WATCHER_HOSTILE=all $(PYTEST) tests/hostile

properties: $(VENV)/.installed-dev ## run the property tests, with 500 examples where a test sets no number; `make test` runs 40
	LOAD_WATCHER_EXAMPLES=$${LOAD_WATCHER_EXAMPLES:-500} $(PYTEST) -m "hypothesis and not slow" --timeout 1800

fuzz: $(VENV)/.installed-dev ## send 20,000 random requests to a demo; ARGS="--requests 5000 --seed 7"
	$(BIN)/python -m tests.fuzz.http $(ARGS)

constraints: $(VENV)/.made ## update constraints.txt to the newest releases; commit it if `make check` passes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager --editable '.[dev]'
	sed -i '/^[^#]/d' constraints.txt
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/==/<=/' >> constraints.txt

LOCK = build/lock/bin/uv pip compile --quiet --universal --python-version 3.13 --generate-hashes --upgrade \
       --constraint constraints.txt --custom-compile-command "make lock" --output-file

lock: $(VENV)/.made ## write the locks of the container image, deploy/image/*.lock, within constraints.txt
	test -x build/lock/bin/uv || { $(BIN)/python -m venv build/lock && build/lock/bin/python -m pip install --quiet uv; }
	$(LOCK) deploy/image/requirements.lock --extra influxdb --extra postgres --extra qrm pyproject.toml
	$(LOCK) deploy/image/agent.lock deploy/image/agent.in
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' > build/build.in
	$(LOCK) deploy/image/build.lock build/build.in

BASE := $(shell sed -n 's/^ARG PYTHON_IMAGE=//p' Dockerfile)
IMAGE ?= load-watcher:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' watcher/__init__.py)

AGENT_IMAGE ?= load-watcher-agent:$(lastword $(subst :, ,$(IMAGE)))
require-digest = @expr "$(BASE)" : '.*@sha256:[0-9a-f]\{64\}$$' > /dev/null || { \
	    echo "the base image of the Dockerfile, $(BASE), has no digest: run make image-digests where the registry is" \
	         "reachable, or docker build for an image that is not released" >&2; exit 1; }

image-digests: ## write the current digest of the base image into the Dockerfile; requires docker buildx and the registry
	@digest=$$(docker buildx imagetools inspect "$(firstword $(subst @, ,$(BASE)))" --format '{{.Manifest.Digest}}') \
	    && expr "$$digest" : 'sha256:[0-9a-f]\{64\}$$' > /dev/null \
	    && sed -i "s|^ARG PYTHON_IMAGE=.*|ARG PYTHON_IMAGE=$(firstword $(subst @, ,$(BASE)))@$$digest|" Dockerfile \
	    && grep '^ARG PYTHON_IMAGE=' Dockerfile

# The labels of an image and the commit that `load-watcher --version` prints.
COMMIT = $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null)
SOURCE = $(shell sed -n 's/^Repository = "\(.*\)"/\1/p' pyproject.toml 2>/dev/null)
LABELS = --build-arg COMMIT="$(COMMIT)" --label org.opencontainers.image.revision="$(COMMIT)" \
         --label org.opencontainers.image.version="$(lastword $(subst :, ,$(1)))" \
         $(if $(SOURCE),--label org.opencontainers.image.source="$(SOURCE)")

image: ## build the container image from the locks and a base with a digest; IMAGE=NAME:TAG, ARGS="--platform ... --push"
	$(require-digest)
	docker buildx build --tag "$(IMAGE)" $(call LABELS,$(IMAGE)) $(ARGS) .

image-agent: ## build the container image of the node agent in the same way; AGENT_IMAGE=NAME:TAG
	$(require-digest)
	docker buildx build --target agent --tag "$(AGENT_IMAGE)" $(call LABELS,$(AGENT_IMAGE)) $(ARGS) .

release: $(VENV)/.installed-dev helm ## build wheel, sdist, images, chart, SBOM, checksums, and notes into dist/
	@$(BIN)/python scripts/release $(ARGS)

# More pods than in `make test`; the values of the environment take precedence.
kube: export LOAD_WATCHER_TRIMARAN_PODS ?= 60
kube: $(VENV)/.installed-dev real-parts ## run the tests that need a real Kubernetes; KUBERNETES=1.35 selects the version
	@$(BIN)/python scripts/go-programs kubernetes $(KUBERNETES)
	@$(BIN)/python scripts/go-programs scheduler-plugins
	LOAD_WATCHER_REQUIRE_REAL=1 $(PYTEST) -m real_apiserver --junitxml=build/kubernetes-$(KUBERNETES).xml tests

compatibility: $(VENV)/.installed-dev ## run make kube on each version of Kubernetes, and write docs/reference/compatibility.md
	for version in 1.36 1.35 1.34; do $(MAKE) kube KUBERNETES=$$version || exit; done
	$(BIN)/python -m tests.real.control_plane.compatibility

kubernetes: $(VENV)/.made ## build Kubernetes into the cache if missing
	@$(BIN)/python scripts/go-programs --optional kubernetes $(KUBERNETES)

helm: $(VENV)/.made ## build Helm into the cache if missing
	@$(BIN)/python scripts/go-programs --optional helm

nri-runtime: $(VENV)/.made ## build the runtime side of NRI into the cache if missing
	@$(BIN)/python scripts/go-programs --optional nri-runtime

nri: $(VENV)/.installed-dev ## run 10,000 random sequences of pods, faults, and restarts in the mode nri, and 1,000 with containerd/nri; ARGS="--seed 7 --sequences 500"
	$(BIN)/python -m tests.agent.qrm.runtime.nri.sequences $(ARGS)
	@$(BIN)/python scripts/go-programs nri-runtime
	$(BIN)/python -m tests.real.nri.sequences $(ARGS)

containers: $(VENV)/.installed-dev ## run containers with containerd and runc under the QoS Resource Manager; requires root
	@$(BIN)/python scripts/go-programs containers
	LOAD_WATCHER_CONTAINERS=1 $(BIN)/python -m pytest tests/real/nri/test_containers.py $(PYTEST_ARGS)

cluster: $(VENV)/.installed-dev ## run the tests with real kubelets on this machine; requires root and Debian packages
	@$(BIN)/python -m tests.cluster.programs
	@$(BIN)/python scripts/go-programs kubernetes $(KUBERNETES)
	@$(BIN)/python scripts/go-programs kubelet
	@$(BIN)/python scripts/go-programs containers
	@$(BIN)/python scripts/go-programs metrics-server
	@$(BIN)/python scripts/go-programs kube-state-metrics
	@$(BIN)/python scripts/go-programs helm
	@LOAD_WATCHER_REQUIRE_REAL=1 $(BIN)/python scripts/real-parts Prometheus "node exporter"
	@mkdir -p build
	LOAD_WATCHER_CLUSTER=1 $(BIN)/python -m pytest tests/cluster --basetemp build/cluster $(PYTEST_ARGS)

cluster-v2: $(VENV)/.installed-dev ## run the tests with a real kubelet in a virtual machine with control groups v2; requires root and Debian packages
	@$(BIN)/python -m tests.cluster.programs --virtual
	@$(BIN)/python scripts/go-programs kubernetes $(KUBERNETES)
	@$(BIN)/python scripts/go-programs kubelet
	@$(BIN)/python scripts/go-programs containers
	@mkdir -p build
	LOAD_WATCHER_CLUSTER=v2 LOAD_WATCHER_SLOWNESS=4 $(BIN)/python -m pytest tests/cluster --basetemp build/cluster-v2 $(PYTEST_ARGS)

originals: $(VENV)/.installed-dev ## compare with Koordinator, Trimaran, Crane, Katalyst and descheduler; ARGS="--seed 7 crane"
	$(BIN)/python -m tests.originals $(ARGS)

plans: $(VENV)/.installed-dev ## check 50,000 plans of the node agent; ARGS="--seed 7 --plans 1000000"
	$(BIN)/python -m tests.plan_checker $(ARGS)

mutants: $(VENV)/.installed-dev ## change 300 random places of the code, and name the changes that no test notices (an hour); ARGS="--seed 7 --room agent/decision"
	$(BIN)/python -m tests.mutants $(ARGS)

fleet: $(VENV)/.installed-dev ## run thousands of agents against a real API server; ARGS="--agents 500"
	@$(BIN)/python scripts/go-programs kubernetes $(KUBERNETES)
	$(BIN)/python -m benchmarks.fleet $(ARGS)

real-parts: $(VENV)/.made ## download the real components for tests into .real-parts
	@$(BIN)/python scripts/go-programs --optional go
	@$(BIN)/python scripts/real-parts

clean: ## remove files created by make and tools; keeps the service's database
	rm -rf $(VENV) .real-parts build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# PYTHON=... selects the interpreter; otherwise it is the newest of this machine.
$(VENV)/.made:
	@python="$(PYTHON)"; test -n "$$python" || python=$$(scripts/find-python) || exit; \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "load-watcher requires Python 3.11 or newer, and $$python is not" >&2; exit 1; }; \
	echo "$$python -m venv $(VENV)   ($$("$$python" --version))"; \
	"$$python" -m venv --clear $(VENV) && touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(VENV)/.installed $@
