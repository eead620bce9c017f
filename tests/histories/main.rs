//! Histories of what programs on several mounts of one server did and saw, recorded and checked: every object is linearizable, or what the mode of caching
//! promises is kept. `make soak`.
//!
//! A *history* is one seed: which mounts and workers, what they do, and what happens to them meanwhile. Many short ones run on the same mounts, each going on
//! with what the ones before it left.

mod checker;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/common.rs"]
mod common;
mod history;
mod plan;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/proxy.rs"]
mod proxy;
mod run;
mod suite;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/sys.rs"]
mod sys;
mod trouble;
mod worker;
