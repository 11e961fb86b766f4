# One environment in .venv, made from pyproject.toml and constraints.txt by the first target run.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo check test fix proto clean

demo: .venv/.ready  ## train on real digits, print names and a histogram, write the PNG
	$(BIN)/python examples/gradient_histogram.py --store anchors --run demo --overwrite --png gradients.png

check: .venv/.ready  ## what must pass before every commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -m "not slow"

test: .venv/.ready  ## every test
	$(BIN)/pytest -q

fix: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: .proto-venv/.ready  ## rewrite anchorlib/wire/v1 from proto/
	PATH="$(CURDIR)/.proto-venv/bin:$$PATH" python -m grpc_tools.protoc -I proto \
	  --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. \
	  $$(find proto -name '*.proto')

clean:
	rm -rf .venv .proto-venv anchors gradients.png

.venv/.ready: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "anchorlib: $(PYTHON) is not installed; set PYTHON=... to a Python 3.11 or newer"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade -c constraints.txt pip
	$(BIN)/python -m pip install -q -c constraints.txt -e . --group dev
	@touch $@

.proto-venv/.ready: proto/requirements.txt
	$(PYTHON) -m venv .proto-venv
	.proto-venv/bin/python -m pip install -q -r proto/requirements.txt
	@touch $@
