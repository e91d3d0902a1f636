# `make` alone lists the commands.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
S3_SERVER := build/s3/bin/s3s-fs
ACME_SERVER := build/pebble/bin/pebble
CARGO_TARGET := $(or $(CARGO_TARGET_DIR),target)
# `quick` compiles in a fraction of the time, `release` is measured and shipped. A checkout with a release build stays one.
PROFILE ?= $(if $(wildcard build/native-release),release,quick)
BUILT := build/native-$(PROFILE) build/keeper-$(PROFILE)
NATIVE_SOURCES := $(shell find native -name '*.rs' -not -path '*/tests/*' -not -path '*/examples/*' -not -path '*/fuzz/*') $(wildcard native/*/Cargo.toml native/*/*.json) pyservice/runtime/seccomp_profile.json Cargo.toml Cargo.lock
# Compiled parts of the tests. The tests only read them, and name `make test-programs` if one is missing or older than its
# source (tests/support/compiled_programs.py).
FAST_TEST_PROGRAMS := $(addprefix build/test_programs/,faults.so contained-server)
TEST_PROGRAMS := $(FAST_TEST_PROGRAMS) $(addprefix build/test_programs/,older_machine.so hosting-keeper udp-server udp-bot)
# The tests start hundreds of Python processes: each would compile the modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help check missing-tools service run test test-programs client-drivers test-full test-ci untimed-tests proofs lint docs bench build wheel release generate lock clean

help: ## List the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

check: ## List the tools of a build with their versions, and say how to install what is missing
	@PYTHON=$(PYTHON) ./scripts/check-tools

# Prints only what is missing.
missing-tools:
	@PYTHON=$(PYTHON) ./scripts/check-tools >/dev/null

build: missing-tools $(BIN)/.installed $(BUILT) ## Python environment, the native module and programs (flags: PROFILE=release)

# The service without the tools of a developer. Its parts are made at the same time, because pip uses only one core.
service: missing-tools
	@$(MAKE) --silent --no-print-directory --jobs 3 $(BIN)/.service $(BUILT)

$(BIN)/.service: requirements/run.lock clients/cli/pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@scripts/step "Python packages" build/python.log $(BIN)/pip install --progress-bar off --disable-pip-version-check --require-hashes -r requirements/run.lock
	@scripts/step "command line" build/command-line.log $(BIN)/pip install --disable-pip-version-check --no-deps --no-build-isolation --editable clients/cli
	@echo "$(CURDIR)" >$$(echo $(VENV)/lib/python*/site-packages)/pyservice.pth
	@touch $@

$(BIN)/.installed: $(BIN)/.service requirements/dev.lock
	@scripts/step "Python packages of developers" build/python-dev.log $(BIN)/pip install --progress-bar off --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@touch $@

# The module and edge-guard share one compilation of their dependencies, with the union of their features.
build/native-$(PROFILE): $(NATIVE_SOURCES)
	@mkdir -p pyservice/bin
	@PYO3_PYTHON=$(PYTHON) scripts/step "native module and edge-guard" build/native.log cargo build --locked --profile $(PROFILE) -p hosting-bindings -p hosting-edge-guard
	@rm -f build/native-* pyservice/_native*.so
	@install -s -T $(CARGO_TARGET)/$(PROFILE)/lib_native.so pyservice/_native.abi3.so
	@install -s -t pyservice/bin $(CARGO_TARGET)/$(PROFILE)/hosting-edge-guard
	@touch $@

# The keeper is static because it forks for each game server: a static program has a third of the mappings to copy. Its flags
# are set for an explicit target, so that they do not apply to build scripts. Its own folder lets it build at the same time.
RUST_HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
build/keeper-$(PROFILE): $(NATIVE_SOURCES)
	@mkdir -p pyservice/bin
	@RUSTFLAGS="-C target-feature=+crt-static" scripts/step "keeper" build/keeper.log cargo build --locked --profile $(PROFILE) -p hosting-keeper --target $(RUST_HOST) --target-dir $(CARGO_TARGET)/static
	@rm -f build/keeper-*
	@install -s -t pyservice/bin $(CARGO_TARGET)/static/$(RUST_HOST)/$(PROFILE)/hosting-keeper
	@touch $@

wheel: ## The wheel for Python 3.11 and newer with both programs, and that of the command line, in build/wheel
	@$(MAKE) --no-print-directory build PROFILE=release
	@rm -rf build/wheel
	@scripts/step "wheel" build/wheel.log $(BIN)/maturin build --release --out build/wheel
	@scripts/step "wheel of the command line" build/command-line-wheel.log $(BIN)/pip wheel --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheel clients/cli

release: wheel ## The wheels with their list of parts (CycloneDX) and checksums, in build/wheel
	@scripts/release-files build/wheel

run: service ## Start the service with the arena in it, and say where to play (flags: make run ARGS=--help)
	@exec $(BIN)/python -m examples.run $(ARGS)

test: build $(FAST_TEST_PROGRAMS) client-drivers $(S3_SERVER) $(ACME_SERVER) ## The fast tests: run them before a commit
	@scripts/test-fast $(BIN)/pytest -m "not proof" --tier fast -n 4 --dist worksteal

test-full: TIER := full
test-full: untimed-tests ## Every test but the proofs and those on a cluster
	$(BIN)/pytest -m "timing and not proof and not cluster" -n 0

test-ci: TIER := ci
test-ci: untimed-tests ## What CI runs: no timing tests, and not every variant of slow tests

untimed-tests: wheel $(TEST_PROGRAMS) client-drivers $(S3_SERVER) $(ACME_SERVER)
	PROPTEST_CASES=1000 cargo test --workspace --exclude hosting-bindings --quiet -- --include-ignored
	@date '+tests of Python since %T'
	$(BIN)/pytest --instafail --tier $(TIER) -m "not proof and not timing and not cluster" -n 3 --dist worksteal

test-programs: $(TEST_PROGRAMS) ## Compiled parts of the tests, for one test file by hand

# Libraries that a test preloads.
build/test_programs/faults.so: tests/faults/shim.c
build/test_programs/older_machine.so: tests/runtime/older_machine.c
build/test_programs/%.so:
	@mkdir -p $(@D)
	cc -shared -fPIC -O2 -std=c11 -Wall -Wextra -Werror -o $@ $< -ldl

# Static, because a test container has no other file.
build/test_programs/contained-server: tests/programs/contained.rs
	@mkdir -p $(@D)
	rustc --edition=2024 -Copt-level=1 -Ctarget-feature=+crt-static -Cstrip=symbols -o $@ $<

# A keeper that is linked dynamically: the one of `make build` is static and ignores preloaded libraries.
build/test_programs/hosting-keeper: $(shell find native/keeper -name '*.rs' -o -name '*.json') pyservice/runtime/seccomp_profile.json native/keeper/Cargo.toml Cargo.toml Cargo.lock
	@mkdir -p $(@D)
	@scripts/step "keeper of the isolation trials" build/test-keeper.log cargo build --locked -p hosting-keeper
	@install -t $(@D) $(CARGO_TARGET)/debug/hosting-keeper

build/test_programs/udp-server build/test_programs/udp-bot &: $(shell find examples/udp -name '*.rs') examples/udp/Cargo.toml Cargo.toml Cargo.lock
	@mkdir -p $(@D)
	@scripts/step "UDP example" build/udp-example.log cargo build --release --locked -p hosting-example-udp
	@install -t $(@D) $(CARGO_TARGET)/release/udp-server $(CARGO_TARGET)/release/udp-bot

# Conformance drivers of the helpers. Without the tools of a language its tests are skipped.
CLIENT_DRIVERS := $(addprefix build/clients/,typescript/conformance-driver.js csharp/ConformanceDriver.exe cpp/conformance_driver)
client-drivers: $(CLIENT_DRIVERS) ## Conformance drivers of the helpers in clients/, for the tests

build/clients/typescript/conformance-driver.js: $(wildcard clients/typescript/src/*.ts clients/typescript/*.json)
	@mkdir -p $(@D)
	@if (cd clients/typescript && npm ci --silent --no-audit --no-fund) >build/npm.log 2>&1; then scripts/step "TypeScript helper" build/typescript.log sh -c 'cd clients/typescript && npx tsc --outDir ../../$(@D)'; else echo "no npm, or no access to its packages: tests of the TypeScript helper are skipped"; fi
	@echo '{"type": "module"}' >$(@D)/package.json

build/clients/csharp/ConformanceDriver.exe: $(wildcard clients/csharp/*.cs)
	@mkdir -p $(@D)
	@if command -v mcs >/dev/null; then scripts/step "C# helper" build/csharp.log mcs -langversion:7.2 -warnaserror -r:System.Net.Http.dll -out:$@ $(filter-out %/UnityWebTransport.cs,$^); else echo "no mcs: tests of the C# helper are skipped"; fi

build/clients/cpp/conformance_driver: $(wildcard clients/cpp/*.cpp clients/cpp/*.hpp)
	@mkdir -p $(@D)
	@if echo '#include <curl/curl.h>' | $(CXX) -E -x c++ - >/dev/null 2>&1; then scripts/step "C++ helper" build/cpp.log $(CXX) -std=c++17 -O1 -Wall -Wextra -Werror -pthread -o $@ clients/cpp/conformance_driver.cpp -lcurl; else echo "no libcurl: tests of the C++ helper are skipped"; fi

# Fuzz targets. libFuzzer counts the branches that an input covers. The flags are set for an explicit target, so that they do
# not apply to build scripts.
FUZZ_TARGETS := $(addprefix build/test_programs/,fuzz-http fuzz-grpc)
FUZZ_FLAGS := -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares)
$(FUZZ_TARGETS): build/test_programs/fuzz-%: $(shell find native/front native/client_addresses native/core native/journal native/matchmaker native/shard native/tls -name '*.rs') native/front/fuzz/Cargo.toml native/front/fuzz/Cargo.lock
	@mkdir -p $(@D)
	@RUSTFLAGS="$(FUZZ_FLAGS)" scripts/step "fuzz target $*" build/fuzz-$*.log cargo build --release --locked --manifest-path native/front/fuzz/Cargo.toml --bin $* --target $(RUST_HOST) --target-dir $(CARGO_TARGET)/fuzz
	@install $(CARGO_TARGET)/fuzz/$(RUST_HOST)/release/$* $@

# A real S3 server. Without it the tests of objects in S3 are skipped.
$(S3_SERVER):
	@scripts/step "S3 server of the tests" build/s3.log cargo install --locked --debug --features binary --version 0.14.0 --root build/s3 --target-dir build/s3-target s3s-fs || echo "no S3 server: its tests are skipped"
	@rm -rf build/s3-target

# A real ACME server with its DNS server. Without Go the tests of ACME are skipped.
PEBBLE := github.com/letsencrypt/pebble/v2/cmd
$(ACME_SERVER):
	@mkdir -p $(@D)
	@if command -v go >/dev/null; then GOBIN=$(abspath $(@D)) scripts/step "ACME server of the tests" build/pebble.log go install $(PEBBLE)/pebble@v2.10.3 $(PEBBLE)/pebble-challtestsrv@v2.10.3; else echo "no Go:"; false; fi || echo "no ACME server: its tests are skipped"

include tests/cluster/cluster.mk

proofs: build $(FAST_TEST_PROGRAMS) $(FUZZ_TARGETS) ## The long proofs: kill -9, full disks, fuzzing
	$(BIN)/pytest -m "proof and not cluster"

lint: build ## Format, types, layers, proto, stub and generated code
	./scripts/lint

docs: $(BIN)/.installed ## Build the documentation site in build/site
	@mkdir -p build
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build >build/docs.log 2>&1 || { cat build/docs.log; exit 1; }
	@echo "build/site/index.html"

bench: ## Measure, with a baseline beside each figure; JSON and tables in bench/results
	@$(MAKE) --no-print-directory build PROFILE=release
	$(BIN)/python -m bench.run

generate: $(BIN)/.installed ## Write the code and the pages that are derived from proto/
	$(BIN)/python proto/generate.py
	$(BIN)/python docs/generate.py

lock: $(BIN)/.installed ## Resolve requirements/*.in anew into requirements/*.lock
	./scripts/lock

clean: ## Remove everything that was built
	rm -rf $(VENV) target build pyservice/bin pyservice/_native*.so bench/results
