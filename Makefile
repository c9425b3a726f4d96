# Shortcuts; each is one command or one script that can be run without make. `make` alone lists them.

CARGO ?= cargo

.PHONY: help setup demo build lib header test bench conformance fmt lint doc clean

help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what the other targets need (Debian and Ubuntu, as root), or say what is missing.
	@scripts/setup.sh

demo: ## Play the manual container, with the real driver or a simulated one.
	@scripts/demo.sh

build: ## Build nvidia-container-cli as it is shipped.
	$(CARGO) build --release -p nvc-cli

lib: ## Build the C library as it is shipped: target/release/libnvidia-container.*
	@scripts/build-capi.sh

header: ## Write include/nvc.h anew from the sources.
	UPDATE=1 $(CARGO) test -p nvc-tests --test capi_header

test: ## Run all tests; the privileged ones when root.
	@scripts/test.sh

bench: ## Print the figures of the release binary (root, ../shared/conformance).
	@scripts/bench.sh

conformance: ## Compare the release binary with recorded results of upstream (root, ../shared/conformance).
	@scripts/conformance.sh

fmt: ## Format all sources.
	$(CARGO) fmt --all

lint: ## Check formatting and lints, without changing anything.
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc: ## Build the library's documentation.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps -p libnvc

clean: ## Remove what was built.
	$(CARGO) clean
