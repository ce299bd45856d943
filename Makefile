# Needs Python 3.11 or newer and nothing else: no GPU, no CUDA toolkit, no compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := sm90_fp8_gemm_nt_bf16_128x128 sm100_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_256x128 sm120_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_128x128_k64

.PHONY: demo test check generate bench clean
.DEFAULT_GOAL := test

# The stamp changes only when the dependencies do; the install is editable, so sources never need another.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"gemmgen needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(DEMO:%=demo/%)

demo/%: $(INSTALLED)
	@mkdir -p build
	@echo "== the plan of $*: every number that follows from its spec"
	@$(BIN)/gemmgen plan $*
	@echo "== compiled with NVRTC for the chip"
	@$(BIN)/gemmgen compile $*
	@echo "== run on random input and compared with the reference"
	@$(BIN)/gemmgen run $* -m 192 -n 384 -k 1024
	@$(BIN)/gemmgen emit $* -o build/$*.cu
	@$(BIN)/gemmgen emit $* --as json -o build/$*.json
	@echo "== read the CUDA in build/$*.cu and the spec it came from in build/$*.json"

test: $(INSTALLED)
	$(BIN)/gemmgen generate --check
	$(BIN)/python -m pytest -n 2

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/black --check --quiet . || { echo "run: $(BIN)/black ."; exit 1; }
	$(BIN)/mypy
	$(BIN)/lint-imports

generate: $(INSTALLED)
	$(BIN)/gemmgen generate

bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks

clean:
	rm -rf build $(VENV)
