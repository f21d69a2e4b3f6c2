# Most targets set up .venv first (tools/bootstrap.py returns at once when it is current).

PYTHON ?= python3
# Build of torch to install: empty for the default one, or `cpu` for the small one.
TORCH_BACKEND ?=
DEVICE ?= cpu
SUITE ?=
NAME ?=
PORT ?= 8000
PATTERN ?=
ARGS ?=
BASE ?= origin/main
# Processes that run tests, one more than the cores of CI, as many tests wait; each keeps to one
# thread, and a file to one of them, in the order of tests/conftest.py. What compiles does so by
# itself: helpers that inductor starts import torch, which costs more than they spare.
WORKERS ?= 3

# As docs/_ext/support/galleries.py.
GALLERIES := tutorials how-to

# Processes by the thousand import the modules here: without bytecode each compiles them anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
RUN := $(BIN)/python
PYTEST := OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 $(RUN) -m pytest --numprocesses $(WORKERS) --dist loadfile \
	--no-loadscope-reorder --durations 10
# The files that read the built site; those of the others would import the stack into each process.
SITE_TESTS = tests/browser $$(grep -rl "pytest\.mark\.site" tests --include="test_*.py")

# The recipes that need a package which the site is not built with.
PEER_RECIPES := dqn_atari ppo_resident sac_halfcheetah
RECIPES = $(filter-out __init__ %_contenders,$(basename $(notdir $(wildcard benchmarks/recipes/*.py))))

COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --group docs --group bench --group test \
	--no-annotate --custom-compile-command "make lock" --quiet

.DEFAULT_GOAL := help
# `make -j test` too builds the site before it tests it.
.NOTPARALLEL:
.PHONY: help html html-fast html-pattern test test-changed costs lint unit site-tests bench recipe cuda-kit \
	addresses serve contact-sheets linkcheck mutation-test notebook-test lock clean venv bench-venv

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv:
	@command -v $(PYTHON) >/dev/null || { \
		echo "No $(PYTHON) on the PATH. Install Python 3.11 to 3.13, or name one: make html PYTHON=..."; exit 1; }
	@$(PYTHON) tools/bootstrap.py --torch-backend "$(TORCH_BACKEND)"

html: venv  ## execute the tutorials and build the site into build/html
	@$(RUN) tools/build_site.py $(ARGS)

html-fast: venv  ## build the site without executing tutorials (not for publishing)
	@$(RUN) tools/build_site.py --no-gallery $(ARGS)

html-pattern: venv  ## execute only the tutorials whose path matches PATTERN=...
	@$(RUN) tools/build_site.py --pattern "$(PATTERN)" $(ARGS)

test: lint unit html site-tests  ## lint, unit tests, RST blocks, build, link and browser checks

test-changed: venv  ## what the diff to BASE=origin/main touches: lint, its tests, its scripts
	@$(RUN) tools/changed.py --base $(BASE) $(ARGS)

lint: venv  ## style of code, spelling, RST, habits of prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/sphinx-lint --enable all --disable line-too-long,default-role $(addprefix --ignore docs/,$(GALLERIES)) docs $(GALLERIES) README.md CONTRIBUTING.md
	$(RUN) tools/prose.py

unit: venv  ## unit tests and RST blocks; ARGS=... goes to pytest
	$(PYTEST) -m "not site and not browser and not notebook and not mutation" $(ARGS)

site-tests: venv  ## links, weight and browser checks of build/html
	$(PYTEST) -m "site or browser" $(SITE_TESTS) $(ARGS)

bench-venv: venv  ## set up .venv-bench, with what TorchRL is measured beside
	@$(PYTHON) tools/bootstrap.py --venv .venv-bench --lock requirements-bench.txt --torch-backend "$(TORCH_BACKEND)"

bench: bench-venv  ## take the benchmark records; SUITE=name for one, DEVICE=cuda for a GPU
	.venv-bench/bin/python -m benchmarks --device $(DEVICE) $(addprefix --suite ,$(SUITE)) $(ARGS)

recipe: $(if $(filter $(NAME),$(PEER_RECIPES)),bench-venv,venv)  ## train with a recipe: NAME=ppo_cartpole ARGS="--seeds 0 1"; the list without NAME
	@test -f "benchmarks/recipes/$(NAME).py" || { \
		echo "make recipe NAME=..., one of:" $(RECIPES); exit 1; }
	@$(if $(filter $(NAME),$(PEER_RECIPES)),.venv-bench/bin/python,$(RUN)) benchmarks/recipes/$(NAME).py $(ARGS)

cuda-kit: venv  ## prepare CUDA records on a lent machine: wheels, sizes, the commands
	@$(RUN) -m benchmarks.kit prepare $(ARGS)

addresses: venv  ## add the new pages and anchors of build/html to docs/addresses.txt
	@$(RUN) tools/addresses.py

serve: venv  ## serve build/html compressed on http://localhost:PORT
	@$(RUN) tools/serve.py --port $(PORT)

contact-sheets: venv  ## photograph a page of each kind: light, dark, phone, print
	@$(RUN) -m tools.contact_sheets $(ARGS)

linkcheck: venv  ## check the links to other hosts
	$(RUN) -m sphinx -c . -b linkcheck -D plot_gallery=0 -d build/linkcheck/doctrees docs build/linkcheck

mutation-test: venv  ## change torchrl and pages: does what speaks of the change fail?
	$(PYTEST) -m mutation $(ARGS)

notebook-test: venv  ## execute the downloadable notebooks
	$(PYTEST) -m notebook $(ARGS)

costs: venv  ## measure what each command costs, into CONTRIBUTING.md (alone on the machine)
	@$(RUN) tools/costs.py $(ARGS)

lock: venv  ## compile both lock files from pyproject.toml; ARGS=--upgrade for newer versions
	$(COMPILE) --output-file requirements-docs.txt $(ARGS)
	$(COMPILE) --group peers --constraint requirements-docs.txt --output-file requirements-bench.txt $(ARGS)

clean:  ## remove everything that was built, but not .venv
	rm -rf build docs/doctor $(addprefix docs/,$(GALLERIES)) docs/sg_execution_times.rst .pytest_cache .ruff_cache
	find docs/reference/api -maxdepth 1 -name "*.rst" ! -name index.rst -delete
