//! Mounts through routers, as processes on hosts of networks of their own: what they carry, and
//! what becomes of them when routers are killed, stopped, drained and cut off.

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/common.rs"]
mod common;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/lab.rs"]
mod lab;
mod load;
mod networks;
mod rails;
mod slow;
mod through;
mod trouble;
