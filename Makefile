# Everything starts here: `make lab`. Python 3.11+ (with venv) and make are all that is needed.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Files that mark an environment as ready: for a reader, for all tests, for the site.
LAB    := $(VENV)/.lab-ready
ALL    := $(VENV)/.all-ready
SITE   := $(VENV)/.site-ready
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
# pip says nothing unless it fails, so there is a dot every 5 seconds, while the line's shell runs.
PIP_DOTS := (while sleep 5; kill -0 $$$$; do printf .; done) 2>/dev/null & $(PIP) --no-compile
# What asks whether JupyterLab may fetch news, and looks for updates.
NEWS   := @jupyterlab/apputils-extension:announcements
# Python compiles what is imported, and keeps the bytecode. pip would compile all that it installs; the
# set-up compiles what every notebook imports, by importing it. Without the bytecode on disk, each of
# the many processes that the tests start would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help lab lab-user test test-all test-hours test-macos refresh bounds figures bench gpu lint size site clean
.DEFAULT_GOAL := help

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(LAB): pyproject.toml setup.py constraints.txt etc/ipython/ipython_kernel_config.py
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null || \
	  { echo "This needs Python 3.11 to 3.14; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true). Name another with: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "This needs Python's venv module; on Debian and Ubuntu: sudo apt install python3-venv"; exit 1; }
	@echo "Setting up $(VENV), once: PyTorch, Numba, JupyterLab and what they need (3 GB on Linux, 6 GB with CUDA; some minutes)."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@$(PIP_DOTS) -e '.[lab,triton]' && echo " installed"
	@$(BIN)/jupyter labextension disable --log-level=ERROR --level=sys_prefix $(NEWS)
	@$(BIN)/python -c 'import ipykernel, jupyterlab, matplotlib.pyplot, numba.cuda, torch, torch.utils.flop_counter'
	@touch $(LAB)

$(ALL): $(LAB)
	@echo "Adding what the tests need, once."
	@$(PIP_DOTS) -e '.[dev]' && echo " installed"
	@touch $(ALL)

lab: lab-user $(LAB)  ## open JupyterLab on the first notebook (as root: make lab ROOT=1)
	@echo "Opening JupyterLab on notebooks/00_start_here.ipynb (stop it with Ctrl-C)."
	@$(BIN)/jupyter lab --ServerApp.log_level=WARN --LabApp.log_level=WARN $(if $(ROOT),--allow-root) \
	  --ServerApp.root_dir='$(CURDIR)' --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

lab-user:
	@test "$$(id -u)" != 0 || test -n "$(ROOT)" || { echo "You are root, and JupyterLab would let" \
	  "notebooks change anything. In a container that is fine: make lab ROOT=1"; exit 1; }

# Tests that share compiled kernels or ranks are in one file, so a file stays with one worker.
TEST := $(BIN)/python -m pytest -n auto --no-loadscope-reorder

test: $(ALL)  ## run the checks that show a clone works, every notebook included (4 minutes on 2 cores)
	$(TEST) --dist loadfile

test-all: $(ALL)  ## run the tests that `make test` leaves out (15 minutes)
	$(TEST) --dist loadfile --rest

test-hours: $(ALL)  ## try every wrong example on every case, a million operations (hours)
	@echo "This takes about 4 hours on 2 cores. Stop it with Ctrl-C."
	$(TEST) --dist load --hours

test-macos: $(ALL)  ## run kernels, notebooks 07 and 10 and a stage with what a Mac has
	$(BIN)/python -m pytest --rest tests/test_macos.py

refresh: $(ALL)  ## after a change of a kernel: rewrite notebooks' outputs and figures (5 minutes)
	@$(BIN)/python -m tests.refresh $(ONLY)

bounds: $(ALL)  ## measure the bounds of the checks, and print old beside new (7 minutes)
	@$(BIN)/python -m tests.record_bounds $(ONLY)

figures: $(ALL)  ## draw every figure for slides, as SVG and PNG, into build/figures/
	@echo "Drawing build/figures/."
	$(BIN)/python -m pa_tutorial.viz

$(SITE): $(LAB)
	@echo "Adding what makes the site, once."
	@$(PIP_DOTS) -e '.[site]' && echo " installed"
	@touch $(SITE)

site: $(SITE)  ## make the notebooks and pages a site, into build/site/ (at most 2 minutes)
	@$(BIN)/python -c 'import furo, latex2mathml, myst_nb, sphinx, sphinx_copybutton' 2>/dev/null || \
	  { echo "The site needs Sphinx and more: $(BIN)/pip install -c constraints.txt -e '.[site]'"; exit 1; }
	@rm -rf build/site
	@$(BIN)/python -m sphinx -q -E -W --keep-going -c docs -d build/doctrees . build/site
	@echo "The site is build/site/index.html."

bench: $(LAB)  ## measure on this machine's CPU
	@echo "Measuring on the CPU."
	$(BIN)/python -m pa_tutorial.bench

gpu:  ## check and measure on this machine's GPU, with its own python3; installs nothing
	@$(PYTHON) -c 'import numba.cuda, pytest, torch' 2>/dev/null || \
	  { echo "This needs pytest, torch and numba-cuda in '$(PYTHON)', and installs nothing."; exit 1; }
	$(PYTHON) -m pytest -m gpu
	$(PYTHON) -m pa_tutorial.bench.gpu

# PLW1514: text is opened with its encoding named, because Windows assumes another one.
lint: $(ALL)  ## style and format, notebooks included, and which room imports which
	$(BIN)/ruff check .
	$(BIN)/ruff check --quiet --preview --select PLW1514 .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

size: $(ALL)  ## lines of code, files and words, each against its limit
	@$(BIN)/python -m tests.house_size

clean:  ## remove the environment
	rm -rf $(VENV)
