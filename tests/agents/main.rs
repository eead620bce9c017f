//! Agents of one host, for real: namespaces, interfaces, control groups, servers in them.

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/common.rs"]
mod common;
mod containers;
mod group;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/lab.rs"]
mod lab;
mod machines;
mod processes;
mod trouble;
