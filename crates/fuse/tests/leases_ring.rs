//! The tests of `leases.rs` with requests that come by io_uring, where the kernel offers it.

#[path = "leases.rs"]
mod leases;
