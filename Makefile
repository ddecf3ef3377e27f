# Every target does the set-up that it needs: see `make help`.
.DEFAULT_GOAL := help
.PHONY: help setup build packages packages-check packages-acceptance packages-tree packages-lock demo demo-stop test tests-compiled bounds bench soak fuzz sanitize leaks valgrind lint format clean

# A folder here is called packaging/: Python must not take it for the library of that name
# because it was started in this directory.
export PYTHONSAFEPATH := 1
# Images for containers set this; each process that starts would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# PYTEST_ARGS: more arguments for pytest; BENCH_ARGS: for the benchmarks; KEEP=1: leave the
# demo's stack up; ROUNDS: how often `make soak` kills, CUTS: and cuts the power (default: ROUNDS);
# INPUTS: for the fuzzer.
PYTEST_ARGS ?=
# Five processes share the tests, by modules in the order of tests/conftest.py: most of them wait
# more than they compute. Were one that crashed started again, xdist would wait for it for ever.
IN_PARALLEL := -n 5 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
BENCH_ARGS ?=
KEEP ?=
ROUNDS ?= 200
CUTS ?= $(ROUNDS)
INPUTS ?= 1000000
BIN := .venv/bin
LEAK_TESTS := tests/engine/test_ddl.py tests/engine/test_rollbacks.py \
    tests/engine/test_two_phase.py tests/engine/test_refusals.py \
    tests/engine/test_statements.py tests/engine/test_arrays.py
VALGRIND_TESTS := tests/engine/test_ddl.py tests/engine/test_values.py \
    tests/engine/test_transactions.py tests/engine/test_rollbacks.py \
    tests/engine/test_two_phase.py tests/engine/test_gaps.py
C_FILES := $(filter-out native/_embedding.c,$(wildcard native/*.c native/*.h benchmarks/*.c))

help: ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## fetch and build what is missing into .cache and .venv (all others do this too)
	@scripts/setup.sh

build: setup ## build the wheel and the source distribution into dist/
	$(BIN)/pyproject-build --no-isolation

packages: setup ## as root: all that is shipped, into dist/ (bundle, wheels, deb, rpm; the first time 20 min)
	$(BIN)/python -P scripts/packages wheels bundle replay-bundle linux

packages-check: setup ## as root: bundle and RPM in a bare Debian 12: install, event, upgrade, uninstall; refusals
	$(BIN)/python -P scripts/packages check

packages-tree: setup ## as root: the tree that packages hold, .cache/packages/tree/VERSION
	$(BIN)/python -P scripts/packages tree

packages-acceptance: setup ## as root: .deb and bundle beside a live server: quick start, upgrades, the way back, purge
	$(BIN)/python -P tests/packaging/package_acceptance.py

packages-lock: setup ## renew the versions and hashes of all that is shipped with us
	$(BIN)/python -P scripts/packages lock

demo: setup ## the whole pipeline on this machine, closing with a comparison (KEEP=1: leave it up)
	@$(BIN)/python -P -m firebird_cdc.demo $(if $(filter-out 0 no,$(KEEP)),--keep)

demo-stop: setup ## stop the stacks that `make demo KEEP=1` left up
	@$(BIN)/python -P -m firebird_cdc.demo --stop

test: setup ## linter, types, then the tests against the real engine, server, Kafka and Spark
	@$(MAKE) --no-print-directory --jobs 2 lint $(if $(PYTEST_ARGS),,tests-compiled)
	$(BIN)/pytest $(IN_PARALLEL) $(or $(PYTEST_ARGS),-m "not sanitized and not soak")
	$(if $(PYTEST_ARGS),,@$(MAKE) --no-print-directory sanitize SANITIZED='-m "not soak"')

# Pytest compiles what it imports: in a fresh clone each of the five processes would.
tests-compiled: setup
	@$(BIN)/pytest --collect-only --quiet | tail -n 1

bounds: setup ## a share of the tests with the lowest and highest Kafka, confluent-kafka, duckdb, pyarrow, pyspark
	$(BIN)/python -P scripts/bounds.py

bench: setup ## run the benchmarks one after the other (BENCH_ARGS=--quick: each under 50 s); with a package: its first event
	@set -e; for program in benchmarks/[a-z]*.py; do \
	    echo "== $$program $(BENCH_ARGS)"; $(BIN)/python "$$program" $(BENCH_ARGS); done
	@if ls dist/firebird-cdc_*.deb >/dev/null 2>&1; then echo "== from apt install to the first event"; \
	    $(BIN)/python -P tests/packaging/package_acceptance.py first_event \
	    --package "$$(ls -t dist/firebird-cdc_*.deb | head -n 1)"; \
	    else echo "== no package is built: make packages has make bench measure its first event, too"; fi

soak: setup ## what `make test` leaves out; kill, cut the power, fuzz, leaks, valgrind (ROUNDS=200, CUTS=ROUNDS)
	$(BIN)/python tests/faults/soak.py --rounds $(ROUNDS)
	$(BIN)/python tests/faults/upgrade.py
	$(BIN)/python tests/delivery/soak_delivery.py --rounds $(ROUNDS)
	$(BIN)/python tests/snapshots/soak_snapshots.py --rounds $(ROUNDS)
	$(BIN)/python tests/faults/power_loss.py --cuts $(CUTS) --jobs 2
	$(BIN)/pytest $(IN_PARALLEL) tests/engine
	SPARK_SUBMIT_OPTS=-XX:+UseSerialGC $(BIN)/pytest $(IN_PARALLEL) -m "soak or spark"
	@$(MAKE) sanitize
	@$(MAKE) fuzz
	@$(MAKE) leaks
	@$(MAKE) valgrind
	@$(MAKE) bounds

fuzz: setup ## damaged and forged journals for the reader (INPUTS=1000000)
	$(BIN)/python tests/fuzz/journal_fuzz.py --inputs $(INPUTS)
	$(BIN)/python tests/fuzz/shared_fuzz.py --inputs $(INPUTS)

sanitize: setup ## the engine's tests with the address and undefined-behaviour sanitizers
	FIREBIRD_CDC_INSTRUMENT=sanitizers $(BIN)/pytest $(IN_PARALLEL) $(SANITIZED) tests/engine

leaks: setup ## what the plugin has not freed at the end, after a part of the engine's tests
	FIREBIRD_CDC_INSTRUMENT=leaks $(BIN)/pytest $(LEAK_TESTS)

valgrind: setup ## a part of the engine's tests under valgrind
	$(BIN)/pytest tests/sanitizers/valgrind_proof.py
	FIREBIRD_CDC_INSTRUMENT=valgrind $(BIN)/pytest -p no:randomly --timeout 1200 $(VALGRIND_TESTS)

lint: setup ## ruff, mypy and clang-format; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -P scripts/docstrings.py
	$(BIN)/python -P scripts/limits.py
	$(if $(C_FILES),$(BIN)/clang-format --dry-run --Werror $(C_FILES))

format: setup ## bring Python and C into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(C_FILES),$(BIN)/clang-format -i $(C_FILES))

clean: ## stop what runs, and remove all that was made: .venv, .cache, .run, builds
	@[ ! -x $(BIN)/python ] || $(BIN)/python -P -m firebird_cdc.demo --stop
	rm -rf .venv .cache .run build dist *.egg-info native/*.so native/*.o native/_embedding.c native/_shared_page.py
	rm -rf .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
