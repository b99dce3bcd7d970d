# `make demo`, `make test` and the rest set up everything they need in .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two processes; the tests of a file in one of them, which sets up what they share once. Files are
# taken in the order of conftest.py.
TEST_OPTIONS := --numprocesses 2 --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: demo test test-all test-extras test-lowest coverage lint docs pictures wheel-check \
	validate reproduce bench clean

demo: $(VENV)/.installed
	$(BIN)/tvbo demo
	@if test -n "$$TVBO_DATA"; then \
		$(BIN)/python -m experiments bogunovic-fig3a --trials 2 \
			--json demo/temperatures.json --plot demo/temperatures.png; \
	else \
		echo "(TVBO_DATA is not set: the temperatures of the Intel lab are left out.)"; \
	fi

# What shows that everything works, in some minutes; the tests marked slow are left out.
test: $(VENV)/.dev
	$(BIN)/python -m pytest $(TEST_OPTIONS) -m 'not slow'

# With those of experiments/.
test-all: $(VENV)/.dev
	$(BIN)/python -m pytest $(TEST_OPTIONS) tests experiments/tests

# The tests of extras, which the others skip. Those of a run in PostgreSQL start a server of their own
# where Debian's is installed.
test-extras: $(VENV)/.integrations
	$(BIN)/python -m pytest $(TEST_OPTIONS) tests/integrations tests/models/test_ax.py \
		tests/storage/test_postgresql.py

# The tests with the lowest versions that pyproject.toml allows, which uv installs.
test-lowest:
	$(PYTHON) -m venv build/uv && build/uv/bin/python -m pip install --quiet uv
	build/uv/bin/uv venv --quiet --clear --python $(PYTHON) build/lowest
	build/uv/bin/uv pip install --quiet --python build/lowest --resolution lowest-direct \
		--editable '.[test,dask]'
	build/lowest/bin/python -m pytest $(TEST_OPTIONS) -m 'not slow'

# Of lines and branches, by all tests.
coverage: $(VENV)/.dev
	$(BIN)/python -m pytest $(TEST_OPTIONS) tests experiments/tests --cov=tvbo --cov=experiments --cov-branch --cov-report=term-missing

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

# The page of Ax runs it, too.
docs: $(VENV)/.integrations
	$(BIN)/python docs/check_snippets.py
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

# Of the guides, each from the example of its page.
pictures: $(VENV)/.dev
	PYTHONPATH=. $(BIN)/python docs/pictures.py

# The wheel, built from the source distribution, installs into an empty environment, without
# experiments/, and its command runs there. The source distribution holds what git does.
wheel-check: $(VENV)/.dev
	rm -rf build dist
	$(BIN)/python -m build --outdir dist . >/dev/null
	tar -tzf dist/*.tar.gz | sed 's|^[^/]*/||' | sort > dist/contents
	git ls-files | grep -v '^\.' | sort | comm -23 - dist/contents | tee dist/missing
	test ! -s dist/missing
	rm -rf build/empty && $(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --disable-pip-version-check --quiet \
		--constraint constraints.txt dist/*.whl
	cd build && empty/bin/tvbo --help
	test -f build/empty/lib/python*/site-packages/tvbo/py.typed
	cd build && ! empty/bin/python -c 'import experiments' 2>/dev/null

# Long measurements; their tables are in experiments/docs/validation*.md.
validate: $(VENV)/.dev
	@test -n "$$TVBO_DATA" || { echo "set TVBO_DATA to the folder of recorded data"; exit 2; }
	$(BIN)/python benchmarks/coverage.py --draws 200 --json docs/results/coverage.json
	$(BIN)/python benchmarks/context_recovery.py --json docs/results/context_recovery.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/contexts.py --workers 2 --json docs/results/contexts.json
	$(BIN)/python benchmarks/moving_peak.py --first-seed 3000 --json docs/results/moving_peak.json
	PYTHONPATH=. $(BIN)/python benchmarks/box_calibration.py --json docs/results/box_calibration.json
	$(BIN)/python benchmarks/event_reset.py --json docs/results/event_reset.json
	$(BIN)/python benchmarks/compression_drift.py --json docs/results/compression_drift.json
	PYTHONPATH=. $(BIN)/python benchmarks/bpe_guarantee.py --runs 200 --json docs/results/bpe_guarantee.json
	PYTHONPATH=. $(BIN)/python benchmarks/outliers.py --first 100 --logs 200 --json docs/results/outliers.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/evidence.py --first 100 --workers 2 \
		--json docs/results/evidence.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/several_outcomes.py constraint --json docs/results/constraint.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/several_outcomes.py objectives --json docs/results/objectives.json
	PYTHONPATH=. OMP_NUM_THREADS=1 $(BIN)/python benchmarks/simulated_service.py --json docs/results/simulated_service.json
	PYTHONPATH=tests $(BIN)/python benchmarks/kill_run.py --kills 1000 --json docs/results/kill_run.json
	$(BIN)/python benchmarks/service_stress.py
	$(MAKE) reproduce

# The papers' figures and tables, experiments/, with their claims; hours.
FIGURES := bogunovic-fig2a bogunovic-fig2b bogunovic-fig2c bogunovic-fig2d bogunovic-fig3a \
	bogunovic-fig3cf panels krause-fig2 krause-fig3 bedi-table2 bedi-table3 bedi-table4 \
	vakili-fig2 vakili-fig3 vakili-fig4 vakili-fig5
reproduce: $(VENV)/.dev
	@test -n "$$TVBO_DATA" || { echo "set TVBO_DATA to the folder of recorded data"; exit 2; }
	for figure in $(FIGURES); do \
		$(BIN)/python -m experiments $$figure --json docs/results/$$figure.json \
			--plot docs/results/$$figure.png || exit 1; \
	done
	$(BIN)/tvbo backtest $$TVBO_DATA/metr_la/speed.csv.gz --train 0:1152 --test 1152:1440 --unit mph \
		--json docs/results/backtest_metr_la.json --plot docs/results/backtest_metr_la.png
	$(BIN)/tvbo backtest $$TVBO_DATA/intel_lab/temperature.csv.gz --resample 10min --train 0:432 \
		--unit °C --json docs/results/backtest_intel_lab.json

# Ratios, each measured in one run; their tables are in experiments/docs/benchmarks.md and docs/integrations.md.
bench: $(VENV)/.integrations
	@test -n "$$TVBO_DATA" || { echo "set TVBO_DATA to the folder of recorded data"; exit 2; }
	PYTHONPATH=tests $(BIN)/python benchmarks/acquisitions.py --json docs/results/acquisitions.json
	$(BIN)/python benchmarks/streaming.py --json docs/results/streaming.json
	$(BIN)/python benchmarks/temporal_round.py --json docs/results/temporal_round.json
	PYTHONPATH=. $(BIN)/python benchmarks/drift_fit.py --json docs/results/drift_fit.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/panel_fit.py --json docs/results/panel_fit.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/async_throughput.py --json docs/results/async_throughput.json
	$(BIN)/python benchmarks/costs.py --json docs/results/costs.json
	$(BIN)/python benchmarks/box_fit.py --repeats 3 --json docs/results/box_fit.json
	PYTHONPATH=. $(BIN)/python benchmarks/long_box.py --rounds 1000 --json docs/results/long_box.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/ranges.py --json docs/results/ranges.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/failures.py --json docs/results/failures.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/random_spaces.py --workers 2
	PYTHONPATH=.:benchmarks/peers OMP_NUM_THREADS=1 $(BIN)/python benchmarks/doors.py

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "tvbo needs Python 3.11 or newer"'
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV); PyTorch takes a minute or more."
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/.integrations: $(VENV)/.dev
	$(PIP) --editable '.[integrations,postgresql]'
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build demo .coverage
