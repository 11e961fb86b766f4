# One environment in .venv, made from pyproject.toml and constraints.txt by the first target run. What the
# demo needs is installed first (.demo): a newcomer does not wait for what tests and checks want.
PYTHON ?= python3.11
BIN := .venv/bin
GPU_PYTHON ?= $(BIN)/python
# Four at a time, on two cores: nearly half of the time a test waits for a program that it started or
# for a disk. Each has its own part of the files: what a file prepares is prepared once. How long each test
# took is in .pytest_cache/TARGET.xml, the slowest are told at the end.
PYTEST := $(BIN)/pytest -q -n 4 --dist worksteal --durations 20 --durations-min 2
GRADIENTS := re:fc[123]\.(weight|bias)@grad

.PHONY: demo check check-style test test-long chaos soak diagnosis bench gpu profile screenshots docs wheels matrix fix proto clean

demo: .venv/.demo  ## train on real digits, print names and a histogram, write the PNG
	$(BIN)/python examples/gradient_histogram.py --store anchors --run demo --overwrite
	@echo; $(BIN)/anchor names demo --store anchors
	@echo; $(BIN)/anchor hist demo --store anchors --tensor '$(GRADIENTS)' --as fp16
	$(BIN)/anchor hist demo --store anchors --tensor '$(GRADIENTS)' -o gradients.png
	@echo; echo "The run is in anchors/demo.zarr, the picture in gradients.png."
	@echo "A page about it: .venv/bin/anchor report demo -o demo.html"
	@echo "Look around: .venv/bin/anchor stats demo --tensor loss"

check: check-style  ## what must pass before every commit
	$(PYTEST) -m "not slow and not long and not wide" --hypothesis-profile check --junit-xml .pytest_cache/$@.xml

check-style: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: .venv/.ready  ## before every push: all but the longest tests; those of the page want chromium, firefox-esr; of power loss libfuse2
	$(PYTEST) -m "not long and not wide" --junit-xml .pytest_cache/$@.xml

test-long: .venv/.ready  ## the tests that `make test` leaves out because they take longest; CI runs both
	$(PYTEST) -m "long and not wide" --junit-xml .pytest_cache/$@.xml

chaos: .venv/.ready  ## 20 seeds of killed trainers, recorders and collectors on a line that breaks
	$(BIN)/python -m tests.delivery.chaos --seeds 20 --records 4000

soak: .venv/.ready  ## 64 ranks that come, go, die and resume against one collector for 15 minutes: the table
	$(BIN)/python -m tests.delivery.soak --minutes 15 --ranks 64

diagnosis: .venv/.ready  ## what compare finds of planted faults, and its false alarms: the table
	$(PYTEST) -m "wide or hypothesis" --hypothesis-profile wide --junit-xml .pytest_cache/$@.xml
	$(BIN)/python -m tests.diagnosis

bench: .venv/.ready  ## what observing costs, against targets: the table (BENCH=calls: a part of it)
	$(BIN)/python -m benchmarks $(BENCH)

# Where nothing can be installed: make gpu GPU_PYTHON=python3, of an environment with all packages.
gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),.venv/.ready)  ## on a machine with a GPU: what is recorded from it, and the table of what that costs
	$(GPU_PYTHON) -m pytest -q -m gpu tests/gpu
	$(GPU_PYTHON) -m benchmarks gpu

profile: .venv/.ready  ## where a step's time goes, on the training thread and off it
	$(BIN)/python -m benchmarks.profiling $(WORKLOAD)

screenshots: .venv/.ready  ## the pictures of docs/report.md, taken in Chromium
	$(BIN)/python -m tests.page.screenshots docs/images

docs: .venv/.ready  ## the documentation, into docs/_build; nothing is fetched
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo "docs/_build/index.html"

# What `pip install anchorlib` chooses from: the wheel of its own Python and machine, with the compiled put;
# else the pure wheel, which every other one can use.
wheels: .venv/.ready  ## the sdist, the pure wheel and a wheel with the compiled put, into dist
	ANCHORLIB_NO_EXTENSION=1 $(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --wheel --outdir dist .

matrix: .venv/.ready  ## the wheel on each Python of PATH, without a compiler and with one: the table (PYTHONS=… TORCH=oldest)
	$(BIN)/python -m tests.packaging.matrix $(PYTHONS) $(if $(TORCH),--torch '$(TORCH)') -c constraints.txt

fix: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: .proto-venv/.ready  ## rewrite anchorlib/wire/v1 from proto/
	PATH="$(CURDIR)/.proto-venv/bin:$$PATH" python -m grpc_tools.protoc -I proto \
	  --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. \
	  $$(find proto -name '*.proto')

clean:
	rm -rf .venv .proto-venv anchors gradients.png demo.html docs/_build dist anchorlib/recorder/*.so

.venv/.demo: pyproject.toml constraints.txt hatch_build.py anchorlib/recorder/_put.c
	@command -v $(PYTHON) >/dev/null || { echo "anchorlib: $(PYTHON) is not installed; say which Python to use: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --upgrade pip
	$(BIN)/python -m pip install -q -c constraints.txt -e . --group demo
	@touch $@

.venv/.ready: .venv/.demo
	$(BIN)/python -m pip install -q -c constraints.txt -e . --group dev
	@touch $@

.proto-venv/.ready: proto/requirements.txt
	$(PYTHON) -m venv .proto-venv
	.proto-venv/bin/python -m pip install -q -r proto/requirements.txt
	@touch $@
