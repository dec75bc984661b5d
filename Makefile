# Everything a fresh checkout needs: Python 3.11+, make, a JDK 17+. The rest is set up here, once, into .venv.
#
#   make demo       34,000 places of the world, 48,000 subscriptions, matched on Ray and checked
#   make feed-demo  files, streamed by Spark into a running topology, and checked
#   make test       the quick tests of everything; WIDE=1: with the slow ones, and more rows of those without Ray, as CI does
#   make lint       ruff, import layers, kinds named where none may be, pyright
#   make test-long  what a commit cannot wait for
#   make test-cluster   of that, what needs several Ray nodes or the image; as root on Debian, for some are namespaces
#   make wheel      a wheel with compiled kernels, in dist
#   make docs       the documents as a site, in build/site
#   make mutants    break the code in many small ways, and see a test fail for each
#   make clean      remove the environment and all caches

PYTHON ?= $(shell for candidate in python3.11 python3.12 python3.13 python3; do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$candidate" && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPLETE := $(VENV)/.complete
DOCUMENTING := $(VENV)/.documenting
# Python compiles the modules that it imports, few of all; pip would take half of its time to compile each.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
WARM := if test -f topology/warmup.py; then $(BIN)/python -m topology.warmup; fi

export RAY_USAGE_STATS_ENABLED := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of tests are read faster once they are compiled; everything is below the checkout.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: warmed wheel cluster-programs help python setup documenting demo feed-demo docs test test-long test-cluster mutants lint clean

help:
	@sed -n '3,12s/^# *//p' Makefile

python:
	@echo "$(PYTHON)"

setup: $(COMPLETE) warmed

documenting: $(DOCUMENTING)

# Extras of the environment. The demo does without those of tests, maps and benchmarks, which bring most
# packages: a driver for browsers, Node.js, DuckDB and so on.
EVERYTHING := all,dev
EXTRAS := $(EVERYTHING)
demo: EXTRAS := ray,spark,demo
feed-demo: EXTRAS := ray,spark,demo

# The stamp is made last, so that an interrupted installation is begun again. What the core needs comes first: then kernels
# are compiled while the rest, Spark and Ray above all, is unpacked. The stamp names the extras that are there if not all are.
$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; install python3.11 with its venv module, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "Setting up $(VENV) (about 2 GB, once)"
	@$(INSTALL) $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"])')
	@$(WARM) & warming=$$!; $(INSTALL) --editable '.[$(EXTRAS)]' || { kill $$warming; exit 1; }; wait $$warming
	@printf '%s' '$(filter-out $(EVERYTHING),$(EXTRAS))' > $@

# After a demo, what it did without.
$(COMPLETE): $(INSTALLED)
	@test ! -s $< || $(INSTALL) --editable '.[$(EVERYTHING)]'
	@touch $@

# Kernels are compiled into a cache that knows them by their sources: what it has is not compiled again, which takes a
# second to see. No file here could say it: the cache is elsewhere, and without it each process would compile all it uses.
warmed: $(INSTALLED)
	@$(WARM)

demo: warmed
	@$(BIN)/skyray demo $(ARGS)

feed-demo: warmed
	@$(BIN)/skyray feed-demo $(ARGS)

# A link that leads nowhere is an error.
$(DOCUMENTING): $(COMPLETE)
	@$(INSTALL) --editable '.[docs]'
	@touch $@

# Of a copy, since a checkout with kernels would take these, and an earlier wheel leaves files in build.
wheel: $(COMPLETE)
	@copy=$$(mktemp -d) && trap 'rm -rf "$$copy"' EXIT && git ls-files -z | tar --create --null --files-from=- | tar --extract --directory "$$copy" \
	&& (cd "$$copy" && "$(abspath $(BIN))/python" -m topology.warmup --prebuilt) \
	&& $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist "$$copy"

docs: $(DOCUMENTING)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "build/site/index.html"

# Two cores have room for two halves, which `tests/halves.py` shares out. With ARGS, one process does what they say.
EVERY_ROW := -m "not long and not cluster"
test: $(COMPLETE) warmed
	@$(BIN)/python -m $(if $(strip $(ARGS)),pytest $(ARGS),tests.halves $(if $(WIDE),--wide))

# Then the kernels' tests again with bounds checked, and without the compiler.
ENGINE_TESTS := tests/baselines tests/unit/papers tests/unit/boolean tests/unit/topk tests/unit/knn tests/unit/skyline tests/unit/matching/test_slots.py tests/unit/matching/test_words.py tests/unit/distribution/test_signature_parts.py tests/property/test_topk_room.py
test-long: $(COMPLETE) warmed cluster-programs
	@-$(BIN)/python -m tests.support.apache_kafka
	@$(BIN)/python -m pytest -m "slow or wide or long or cluster" --hypothesis-profile searching --timeout 3600 $(ARGS)
	@$(BIN)/python -m pytest tests/property --hypothesis-profile searching --timeout 3600
	@NUMBA_BOUNDSCHECK=1 $(BIN)/python -m pytest $(EVERY_ROW) --timeout 3600 $(ENGINE_TESTS)
	@NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest $(EVERY_ROW) --timeout 3600 $(ENGINE_TESTS)
	@$(MAKE) --no-print-directory mutants ARGS=

# Those tests fail where programs are missing, so what is missing is installed first.
test-cluster: $(COMPLETE) warmed cluster-programs
	@$(BIN)/python -m pytest -m cluster --timeout 3600 $(ARGS)

cluster-programs: $(COMPLETE)
	@$(BIN)/python -m tests.support.machines

# Needs the kernels as they are; what a fault changes is compiled, or run without the compiler, in a copy.
mutants: $(COMPLETE) warmed
	@$(BIN)/python -m tests.mutants $(ARGS)

lint: $(COMPLETE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tests/lint_kinds.py
	$(BIN)/pyright --pythonpath $(BIN)/python

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
