# make demo   the main job, from nothing to a certificate
# make test   everything that must hold
# make bench  the figures of the README (ONLY=name for one)
# make docs   the site of docs/, in site/
# make test-doors  the rest: a browser, the site, pages whose code needs more packages, clusters of several nodes
# make count  files and lines of each part
# Everything is installed into .venv; VENV=path uses an environment you have.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.pac-sets-ready
BENCH_READY := $(VENV)/.pac-sets-bench-ready
DOORS_READY := $(VENV)/.pac-sets-doors-ready

.PHONY: demo test suite setup lint types bench docs gallery test-doors count format clean help

help:
	@sed -n 's/^# //p' Makefile

demo: $(READY)
	@$(BIN)/python scripts/halfcheetah demo

test: lint
	@$(MAKE) --no-print-directory -j 2 types suite

suite: $(READY)
	@echo "== tests, doctests and the promise itself"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -q

lint: $(READY)
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@echo "== mypy --strict"
	@$(BIN)/mypy

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(BENCH_READY)
	@$(BIN)/python -m benchmarks $(ONLY)

docs: $(DOORS_READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "== wrote site/index.html"

gallery: $(READY)
	@$(BIN)/python docs/tools/gallery.py

test-doors: $(DOORS_READY)
	@command -v chromium chromedriver > /dev/null || \
	{ echo "chromium and chromedriver are needed: apt-get install chromium chromium-driver"; exit 1; }
	@echo "== the site, the report in a browser, longer pages, clusters of several nodes"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -q -m doors tests/doors tests/cluster tests/test_examples.py

count:
	@for part in pac_core pac_rl pac_vision cluster scripts tests; do \
	printf '%-10s %4d files %6d lines\n' $$part $$(git ls-files "$$part/*.py" | wc -l) \
	$$(git ls-files "$$part/*.py" | xargs cat | wc -l); done

setup: $(READY)

PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "== making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@if $(BIN)/python -c 'import torch' 2>/dev/null; \
	then grep -v '^torch==' constraints.txt; else cat constraints.txt; fi > $(VENV)/constraints.txt
	@$(BIN)/python scripts/install.py $(VENV)/install.log \
	"installing pac-sets and its tools into $(VENV), a minute or two the first time" \
	$(PIP) -c $(VENV)/constraints.txt -e '.[dev]'
	@# mbrl-lib pins old versions of what it needs, so it comes without them
	@$(PIP) -q --no-deps mbrl==0.2.0 >> $(VENV)/install.log
	@touch $@

$(BENCH_READY): $(READY)
	@echo "== installing the peers, without their dependencies"
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps torchcp==1.2.1 mapie==1.6.0
	@touch $@

$(DOORS_READY): $(READY)
	@$(BIN)/python scripts/install.py $(VENV)/doors.log "installing what the site and its pages need" \
	$(PIP) -c $(VENV)/constraints.txt -e '.[doors]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info demo_output halfcheetah_output site
