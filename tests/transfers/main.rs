//! `aqueduct cp`, `sync` and `verify` as processes, between directories and exports of real
//! servers.

mod agents;
mod claims;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/collector.rs"]
mod collector;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/common.rs"]
mod common;
mod deleting;
mod doubt;
mod encrypted;
mod flushed;
mod kept;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/lab.rs"]
mod lab;
mod manifests;
mod parts;
mod replacing;
mod resume;
mod slurm;
mod spans;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/sys.rs"]
mod sys;
mod third;
mod tree;
mod whole;
