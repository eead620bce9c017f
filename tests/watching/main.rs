//! What servers, mounts and routers tell to those who watch them, on real processes.

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/collector.rs"]
mod collector;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/common.rs"]
mod common;
mod diagnosing;
mod exporting;
mod observing;
mod packaged;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/proxy.rs"]
mod proxy;
mod top;
mod tracing;
