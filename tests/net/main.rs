//! What is said of a network, between hosts of a lab: namespaces joined by wires.

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/common.rs"]
mod common;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/lab.rs"]
mod lab;
mod probe;
mod rails;
mod routed;
mod shown;
mod wires;
