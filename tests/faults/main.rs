//! Programs that check all that they do, on several mounts of one server, while random faults happen to everything: `make faults`.
//!
//! A *run* is one seed: a server, its mounts, programs as processes of their own, and a plan of faults. `SEED` and `FAULTS` replay one, `KEEP` leaves faults
//! of its plan out. Without either a short sample of fixed seeds runs.

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/common.rs"]
mod common;
mod disk;
mod plan;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/proxy.rs"]
mod proxy;
mod run;
mod suite;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/sys.rs"]
mod sys;
mod work;
