# make demo: see it work.  make test: run all tests.  make bench: measure it beside others.
SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: help demo test bench lint build setup install clean

help:
	@echo "make demo    install what is missing, build, serve a source tree, mount it, work on it, show a table"
	@echo "make test    install what is missing, run all tests (root, for real mounts)"
	@echo "make bench   measure beside the local directory, sshfs, GlusterFS and iperf3"
	@echo "make build   the release binary, target/release/aqueduct"
	@echo "make install the binary, mount helpers, manual pages and completions below PREFIX (/usr/local)"
	@echo "make lint    formatting, clippy and documentation only"

setup:
	@scripts/setup test

build:
	cargo build --release

demo:
	@scripts/setup demo
	@demo/run

test:
	@scripts/setup test
	@scripts/test

bench:
	@scripts/setup bench
	@bench/run

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

install: build
	@packaging/install "$${PREFIX:-/usr/local}"

clean:
	cargo clean
