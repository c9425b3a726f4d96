# Shortcuts; each is one command or one script that can be run without make. `make` alone lists them.

CARGO ?= cargo
export DESTDIR PREFIX LIBDIR LIBEXECDIR

.PHONY: help setup demo build lib header install uninstall deb rpm check test test-gpu test-long test-fresh test-engines test-kubernetes test-units test-suites test-old-kernel test-arm64 fuzz miri asan test-packages reproducible bench conformance fmt lint doc clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install the packages that other targets need (Debian and Ubuntu, as root), or list the missing ones.
	@scripts/setup.sh

demo: ## Configure a container made by hand, with the real driver or a simulated one.
	@scripts/demo.sh

build: ## Build everything that is shipped: programs, the C library, man pages, completions.
	@scripts/build/all.sh

install: ## Install the build, to DESTDIR= and LIBDIR=; PREFIX= must be that of the build.
	@scripts/build/install.sh

uninstall: ## Remove the files that `make install` with the same variables installed.
	@scripts/build/install.sh --uninstall

deb: ## Build Debian packages into target/packages.
	@scripts/packages/build.sh deb

rpm: ## Build RPM packages into target/packages.
	@scripts/packages/build.sh rpm

lib: ## Build the C library as shipped: target/release/libnvidia-container.*
	@scripts/build/capi.sh

header: ## Regenerate include/nvc.h from the sources.
	UPDATE=1 $(CARGO) test -p nvc-tests --test capi_header

check: ## Check formatting and lints and run the unit tests that need no root: some minutes, for the inner loop.
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) test --workspace --lib

test: ## Run all tests; as root, the privileged ones too.
	@scripts/test.sh

test-long: ## Run all tests with many more cases: hostile trees, races, faults, old kernels, load (about an hour).
	@NVC_TEST_LONG=1 scripts/test.sh

test-gpu: ## Pack a folder that tests everything on a machine with a GPU, without a compiler or a network there.
	@scripts/test/gpu.sh

test-fresh: ## Run `make demo` and `make test` on fresh Debian 12 and 13 roots (root, debootstrap, network; an hour).
	@scripts/test/fresh.sh

test-engines: ## Run the programs under the engines of Debian 12, trixie and forky, also under systemd (root, debootstrap, network once).
	@scripts/test/engines.sh
	@scripts/test/recipes.sh

test-kubernetes: ## Run the DRA driver on a real Kubernetes (root, debootstrap, Go 1.26, network once).
	@scripts/test/kubernetes.sh

test-units: ## Run the systemd units with systemd as PID 1: boots, refresh, daemon-reload, socket (root; as test-engines).
	@scripts/test/units.sh
	@scripts/test/boots.sh
	@scripts/test/purge.sh
	@scripts/test/breakdowns.sh

test-suites: ## Run runc's and crun's own tests through the runtime and compare (root, network once; after make build).
	@scripts/test/suites.sh

test-old-kernel: ## Run end-to-end tests on a real Linux 5.10 in an emulator (x86_64, root, slow).
	@scripts/test/old-kernel.sh

test-arm64: ## Cross-build the arm64 packages; run them and the pure unit tests under qemu-user (x86_64, root once).
	@scripts/test/arm64.sh

fuzz: ## Run each fuzz target for 20 s; `scripts/test/fuzz.sh SECONDS TARGET...` for more.
	@scripts/test/fuzz.sh

miri: ## Run the unit tests of the pure modules under Miri (nightly).
	@scripts/test/miri.sh

asan: ## Run the C tests on a C library built with the address sanitizer (nightly, clang, root).
	@scripts/test/asan.sh

bench: ## Measure the release binary; write the tables of docs/performance.md (root).
	@scripts/bench/tables.sh

conformance: ## Compare the release binary with recorded results of upstream (root, ../shared/conformance).
	@scripts/test/conformance.sh

test-packages: ## Build the packages and check them: in a fresh Debian, with lintian and with rpmlint (as root).
	@scripts/setup.sh packages
	@scripts/packages/build.sh
	@scripts/packages/check.sh

reproducible: ## Build the packages twice, in different places, and compare them.
	@scripts/packages/reproducible.sh

fmt: ## Format all sources.
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml

lint: ## Check formatting and lints, without changing anything.
	$(CARGO) fmt --all -- --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml -- --check
	$(CARGO) metadata --manifest-path fuzz/Cargo.toml --locked --format-version 1 > /dev/null
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc: ## Build the library's documentation.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps -p libnvc

clean: ## Remove all build results.
	$(CARGO) clean
