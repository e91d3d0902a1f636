# What a person types. `make` alone says what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
S3_SERVER := build/s3/bin/s3s-fs
PROGRAMS := pyservice/bin/hosting-edge-guard pyservice/bin/hosting-keeper
NATIVE_SOURCES := $(shell find native -name '*.rs' -not -path '*/tests/*' -not -path '*/examples/*') $(wildcard native/*/Cargo.toml) Cargo.toml Cargo.lock
export PYTHONDONTWRITEBYTECODE ?=

.PHONY: help check run test test-full proofs lint bench build generate lock clean

help: ## What each command does
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

check: ## Name every tool that a build lacks, with its install line
	@PYTHON=$(PYTHON) ./scripts/check-tools

build: check $(BIN)/.built $(PROGRAMS) ## Python environment, the native module and programs, release profile

$(BIN)/.installed: requirements/dev.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@touch $@

$(BIN)/.built: $(BIN)/.installed $(NATIVE_SOURCES) pyproject.toml
	@mkdir -p build
	@echo "building the native module (release)"
	@$(BIN)/maturin develop --release >build/native.log 2>&1 || { cat build/native.log; exit 1; }
	@touch $@

# Both are shipped with the package.
pyservice/bin/hosting-edge-guard: $(NATIVE_SOURCES)
	@mkdir -p build pyservice/bin
	@echo "building edge-guard (release)"
	@cargo build --release --quiet -p hosting-edge-guard 2>build/edge-guard.log || { cat build/edge-guard.log; exit 1; }
	@install -s -t pyservice/bin target/release/hosting-edge-guard

# A keeper forks and is forked for each game server: a static one has a third of the mappings that are copied then. Flags
# for one target leave alone what is made for this build only.
RUST_HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
pyservice/bin/hosting-keeper: $(NATIVE_SOURCES)
	@mkdir -p build pyservice/bin
	@echo "building keeper (release)"
	@RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --quiet -p hosting-keeper --target $(RUST_HOST) 2>build/keeper.log || { cat build/keeper.log; exit 1; }
	@install -s -t pyservice/bin target/$(RUST_HOST)/release/hosting-keeper

run: build ## Start the service with the arena in it, and say where to play (Ctrl-C ends all of it)
	@exec $(BIN)/python -m examples.run

test: build $(S3_SERVER) ## The fast tests: run them before a commit
	cargo test --workspace --exclude hosting-bindings --quiet
	$(BIN)/pytest -m "not proof" --tier fast -n 3 --dist worksteal

test-full: build $(S3_SERVER) ## Every test: what CI runs
	cargo test --workspace --exclude hosting-bindings --quiet
	$(BIN)/pytest -m "not proof" -n 3 --dist worksteal

# A real S3 server for the tests of objects; without it they are skips that say so.
$(S3_SERVER):
	@mkdir -p build
	@echo "building the S3 server of the tests"
	@cargo install --quiet --locked --debug --features binary --version 0.14.0 --root build/s3 --target-dir build/s3-target s3s-fs >build/s3.log 2>&1 || echo "no S3 server (build/s3.log): its tests are skipped"
	@rm -rf build/s3-target

proofs: build ## The long proofs: kill -9, full disks, soak
	$(BIN)/pytest -m proof

lint: build ## Format, types, layers, proto, stub and generated code
	./scripts/lint

bench: build ## Measure, with a baseline beside each figure; JSON and tables in bench/results
	$(BIN)/python -m bench.run

generate: $(BIN)/.installed ## Write the code and the page that are derived from proto/
	$(BIN)/python proto/generate.py
	$(BIN)/python docs/generate.py

lock: $(BIN)/.installed ## Resolve requirements/*.in anew into requirements/*.lock
	./scripts/lock

clean: ## Remove everything that was built
	rm -rf $(VENV) target build pyservice/bin pyservice/_native*.so bench/results
