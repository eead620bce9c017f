//! This machine: what it is called, and what it lets us have.

use aqueduct_posix::OPENS_MAX;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are kept for all that is neither a connection nor an open file, files of sessions above all; see [`opens_max`].
const DESCRIPTORS_KEPT: u64 = 2048;

/// Fewer open files than this are warned of, also where nobody named a number: a few programs of a
/// few clients have as many.
const OPENS_FEW: usize = 4096;

/// Its name, for the other side's status and log.
pub fn name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "unnamed".to_owned() } else { name.trim().to_owned() }
}

/// How many files each of `exports` may have open: `wanted`, or what is usual, as far as the descriptors of this process allow. Those of `connections` are not
/// given away, unless there are too few for both.
pub fn opens_max(wanted: Option<usize>, exports: usize, connections: usize) -> usize {
    let descriptors = raise_descriptors();
    let (share, named) = (share(descriptors, exports, connections), wanted.is_some());
    let wanted = wanted.unwrap_or(OPENS_MAX).max(1);
    if share < wanted {
        let advice = advice(needed(wanted, exports, connections), descriptors_most());
        let told = format!(
            "only {share} files can be open in each export instead of {wanted}: this process may have {descriptors} descriptors. {advice}"
        );
        if named || share < OPENS_FEW { tracing::warn!("{told}") } else { tracing::info!("{told}") }
    }
    wanted.min(share)
}

/// What to do where `needed` descriptors would be and the kernel lets a process have `most`.
fn advice(needed: u64, most: u64) -> String {
    let (limit, rest) = match needed <= most {
        true => (needed, "or give fewer with opens_max"),
        false => (
            most,
            "which is all that the kernel allows (fs.nr_open), and serve fewer exports with one process, or give fewer with opens_max",
        ),
    };
    format!("Raise the hard limit to {limit} (LimitNOFILE= of the service, or ulimit -Hn), {rest}")
}

/// The most descriptors that a hard limit may be.
fn descriptors_most() -> u64 {
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
    most.and_then(|most| most.trim().parse().ok()).unwrap_or(u64::MAX)
}

/// The descriptors with which each export may have so many files open.
fn needed(opens: usize, exports: usize, connections: usize) -> u64 {
    let opens = (opens as u64).saturating_mul(exports.max(1) as u64);
    let kept = DESCRIPTORS_KEPT + connections as u64;
    // Up to there connections have to share with files, half of all.
    if opens < kept { opens.saturating_mul(2) } else { opens.saturating_add(kept) }
}

fn share(descriptors: u64, exports: usize, connections: usize) -> usize {
    let room = descriptors - (DESCRIPTORS_KEPT + connections as u64).min(descriptors / 2);
    (usize::try_from(room).unwrap_or(usize::MAX) / exports.max(1)).max(1)
}

/// Raises the limit on open files as far as it goes, and returns it.
pub fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let now = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    now.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_descriptors_are_advised_than_the_kernel_allows() {
        assert!(advice(500, 1000).contains("limit to 500 ("));
        let told = advice(5000, 1000);
        assert!(told.contains("limit to 1000 (") && told.contains("fs.nr_open"), "{told}");
    }

    #[test]
    fn exports_share_what_descriptors_there_are() {
        assert_eq!(share(524_288, 2, 65_536), (524_288 - 2048 - 65_536) / 2);
        assert_eq!(share(20_000, 1, 65_536), 10_000);
        assert_eq!(share(1024, 1, 0), 512);
        assert_eq!(share(0, 3, 65_536), 1);
        assert_eq!(opens_max(Some(7), 1, 1), 7);
        for (opens, exports, connections) in [(65_536, 1, 65_536), (65_536, 3, 65_536), (100, 1, 65_536), (100, 1, 0)] {
            let needed = needed(opens, exports, connections);
            assert!(share(needed, exports, connections) >= opens, "{needed}");
            assert!(share(needed - 2 * exports as u64, exports, connections) < opens, "{needed} is more than it takes");
        }
    }
}
