//! This process: what it may have, and what it has used.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::failure::Failure;

/// Descriptors for all that is not a connection: standard streams, and two of each worker.
const DESCRIPTORS_KEPT: u64 = 192;

/// Raises the limit on open files to what is needed for `connections`.
pub fn raise_descriptors(connections: u64) -> Result<(), Failure> {
    let needed = connections + DESCRIPTORS_KEPT;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), maximum: limit.maximum.map(|maximum| maximum.max(needed)) };
    setrlimit(Resource::Nofile, raised).map_err(|error| {
        let most = limit.maximum.unwrap_or(u64::MAX);
        format!(
            "cannot have {needed} files open, as {connections} connections need: this process may have {most} ({error}); raise its hard limit (ulimit -Hn), or share the clients among more --processes"
        )
    })
}

/// The processor time that this process has used, of all its threads.
pub fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// The most memory that this process has had, in KiB.
pub fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
