# What is built, tested and shown. `make` alone builds.
SHELL := /bin/bash
# rustup's toolchain need not be on the PATH of whoever calls.
export PATH := $(PATH):$(HOME)/.cargo/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
PREFIX ?= /usr/local

PACKAGES_DEMO := git gcc libc6-dev make fuse3 coreutils
PACKAGES_LAB := $(PACKAGES_DEMO) python3 iproute2 nftables ethtool util-linux rsync iperf3
PACKAGES_TEST := $(PACKAGES_LAB) acl attr sqlite3 tar e2fsprogs btrfs-progs quota libcap2-bin psmisc procps crun postgresql openssl python3-lmdb python3-h5py fonts-dejavu-core prometheus slurm-wlm munge qemu-system-x86 kmod xfsprogs
PACKAGES_KERNELS := qemu-system-x86 cpio xz-utils binutils e2fsprogs python3
PACKAGES_BENCH := $(PACKAGES_DEMO) python3 python3-pip tar diffutils rsync iproute2 util-linux procps fio iperf3 sshfs openssh-sftp-server openssh-server openssh-client glusterfs-server glusterfs-client bindfs \
	nfs-ganesha nfs-ganesha-vfs rpcbind libnfs-dev xfsprogs python3-matplotlib

.PHONY: build test lint demo bench bench-compare bench-scale experiment fuzz faults planted-faults soak test-long test-kernels mutations setup setup-demo setup-lab setup-bench setup-kernels setup-fuzz install clean

build:
	cargo build --release --locked

# Everything, with real mounts. Ends with the number of tests passed and failed.
test: setup
	.ci/tests

lint:
	.ci/lint

# A source tree served, mounted and worked on, beside the same work done locally.
# Without the charts and Parquet of `aqueduct bench report`, which take longest to build.
demo: setup-demo
	cargo build --release --locked --no-default-features
	AQUEDUCT=$(TARGET)/release/aqueduct demo/run

# Aqueduct mounted, its client library and its wire alone, beside the local directory, its peers and iperf3: see bench/README.md. ARGS="--runs 1 --size 512" makes it short, ARGS="--only small-files" measures a part.
bench: setup-bench build
	cargo build --release --locked -p aqueduct-load
	bench/run --program $(abspath $(TARGET))/release/aqueduct $(ARGS)

# What got slower or faster, by the records of past runs: the newest beside the ones before. ARGS="--fail-slower 0.9" fails on what is slower.
bench-compare:
	python3 bench/compare.py $(ARGS)

# One server with 1 to 10,000 clients: see docs/scale.md. ARGS="--rows stat --runs 1" measures a part.
bench-scale: setup-demo build
	cargo build --release --locked -p aqueduct-load
	ulimit -n $$(ulimit -Hn) && python3 bench/scale.py --programs $(abspath $(TARGET))/release $(ARGS)

# An experiment, NAME (bottleneck, copies, dvs, fta, interfaces, router, volumes): what a paper
# measured, measured again, with what is expected of it. ARGS="--reduced" takes minutes,
# ARGS="--dry-run" says what would be done. As root.
experiment: setup-lab build
	AQUEDUCT=$(abspath $(TARGET))/release/aqueduct experiments/run $(or $(NAME),dvs) $(ARGS)

# Every parser of foreign bytes under libFuzzer, FUZZ_SECONDS (60) each. ARGS="frame reply" names targets. Takes a C++ compiler.
fuzz: setup-fuzz
	fuzz/run $(ARGS)

# Programs that check all that they do, under random kills, stops, restarts, cuts, delays, full disks and quotas: FAULTS (1000) in all, forty with each seed.
# SEED=7 FAULTS=40 replays one seed, KEEP=3,9 only those of its faults. RECORD=1 writes a line for each seed to tests/faults/records/DATE.jsonl. As root.
faults: setup
	RECORD=$(if $(RECORD),$(CURDIR)/tests/faults/records/$(shell date +%F).jsonl) COMMIT=$(shell git rev-parse --short HEAD) \
	FAULTS=$(or $(FAULTS),$(if $(SEED),,1000)) cargo test --workspace --locked --test faults -- --nocapture nothing_is_lost

# What programs on up to eight mounts did and saw, HISTORIES (10000) of them, under stops, cuts,
# kills and restarts, checked against every order that could be. CACHE=none and CACHE=close-to-
# open are other modes of caching than lease, OPTIONS=... more options of the mounts,
# FIRST_SEED=7000 begins there, SEED=7 plays one seed (HISTORIES=100 as often); WEATHER=60,35,5,6
# is how many in a thousand have a mount that is far away, and troubles of less than half a
# second, of seconds, and longer than a lease; WHOLE=1 prints all of a bad history; THEME=Gathered
# plays only histories of small writes that are held back; ROUTERS=2 has all mounts go through two
# routers in a row, WAYS=2 by two ways side by side, TROUBLE=kill or drain ends routers of these
# in turn, RAILS=2 has each mount use two rails, all as in `make faults` and in the tests of
# mounts. SERVERS=3 STRAIGHT=1 has a volume of three servers, written through all of them; PLAIN=1
# beside it has these share nothing, CONCURRENT=1 has several mounts write one file at the same
# time. KILLS=1 plays only histories in which a server is killed. As root.
soak: setup
	HISTORIES=$(or $(HISTORIES),$(if $(SEED),1,10000)) cargo test --workspace --locked --test histories -- --ignored --nocapture soak

# Copies with planted faults, each diagnosed blind, scored: SEED=7 (1) draws each once, see
# experiments/faults. As root.
planted-faults: setup-lab
	cargo build --locked
	AQUEDUCT=$(abspath $(TARGET))/debug/aqueduct experiments/faults/run --seeds $(or $(SEED),1) $(ARGS)

# What takes longer than `make test`: 1,000 faults, 10,000 histories, the mounts as on older
# kernels, on such kernels, and by rails and routers, all mutations, in parts by seed. Each part
# that passed is done for this commit, as tests/long/records says; run it again to go on.
# ARGS="^soak" chooses parts by their names, DRY=1 only names them. As root.
test-long: setup
	tests/long/run $(ARGS)

# The tests of mounts on kernels of Debian, 5.10, 6.1, 6.12 and the newest, each booted in QEMU: see
# docs/kernels.md. ARGS="5.10" chooses kernels, SUITES="locks:: model::" tests; KVM=1 where QEMU can
# use it. As root.
test-kernels: setup-kernels
	tests/kernels/run $(ARGS)

# What protects users, taken out one by one: a test must fail each time. ARGS="locks" chooses by words of the names, or of their tests.
# JOBS=3 runs so many tests side by side (2); RECORD=1 writes a line for each to
# tests/mutations/records/DATE.jsonl. As root.
mutations: setup
	JOBS=$(or $(JOBS),2) RECORD=$(if $(RECORD),$(CURDIR)/tests/mutations/records/$(shell date +%F).jsonl) tests/mutations/run $(ARGS)

setup:
	@packaging/install-packages --no-start $(PACKAGES_TEST)

setup-demo:
	@packaging/install-packages $(PACKAGES_DEMO)

setup-lab:
	@packaging/install-packages $(PACKAGES_LAB)

setup-bench:
	@packaging/install-packages $(PACKAGES_BENCH)

setup-kernels:
	@packaging/install-packages $(PACKAGES_KERNELS)

setup-fuzz:
	@packaging/install-packages g++

install: build
	packaging/install "$(TARGET)/release/aqueduct" "$(DESTDIR)" "$(PREFIX)"

clean:
	cargo clean
