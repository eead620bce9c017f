//! This machine: what it is called, and what it lets us have.

use aqueduct_posix::OPENS_MAX;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are kept for all that is neither a connection nor an open file, files of sessions above all; see [`opens_max`].
const DESCRIPTORS_KEPT: u64 = 2048;

/// Its name, for the other side's status and log.
pub fn name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "unnamed".to_owned() } else { name.trim().to_owned() }
}

/// How many files each of `exports` may have open: `wanted`, or what is usual, as far as the descriptors of this process allow. Those of `connections` are not
/// given away, unless there are too few for both.
pub fn opens_max(wanted: Option<usize>, exports: usize, connections: usize) -> usize {
    let share = share(raise_descriptors(), exports, connections);
    if let Some(wanted) = wanted.filter(|wanted| *wanted > share) {
        tracing::warn!(wanted, share, "the limit on open files (ulimit -n) allows fewer than opens_max: raise it");
    }
    wanted.unwrap_or(OPENS_MAX).clamp(1, share)
}

fn share(descriptors: u64, exports: usize, connections: usize) -> usize {
    let room = descriptors - (DESCRIPTORS_KEPT + connections as u64).min(descriptors / 2);
    (usize::try_from(room).unwrap_or(usize::MAX) / exports.max(1)).max(1)
}

/// Raises the limit on open files as far as it goes, and returns it.
fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let now = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    now.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_share_what_descriptors_there_are() {
        assert_eq!(share(524_288, 2, 65_536), (524_288 - 2048 - 65_536) / 2);
        assert_eq!(share(20_000, 1, 65_536), 10_000);
        assert_eq!(share(1024, 1, 0), 512);
        assert_eq!(share(0, 3, 65_536), 1);
        assert_eq!(opens_max(Some(7), 1, 1), 7);
    }
}
