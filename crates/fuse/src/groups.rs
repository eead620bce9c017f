//! The supplementary groups of callers. A request carries uid, gid and thread id; the groups stand in /proc.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ahash::HashMap;
use aqueduct_fs::{GROUPS_MAX, Groups};
use aqueduct_worker::lock;

use crate::caller::{self, Caller};

/// How long what was read counts: reading takes some 15 us, a request 20, and a second is the delay that programs (and administrators) accept of setgroups.
const FRESH: Duration = Duration::from_secs(1);

/// Callers remembered: about 100 KiB.
const CALLERS_MAX: usize = 1024;

/// A caller; when its identity changes, its groups may have.
type Key = (u32, u32, u32);

/// Remembers the groups of recent callers.
pub(crate) struct GroupCache {
    known: Mutex<HashMap<Key, (Instant, Groups)>>,
    none: Arc<[u32]>,
}

impl Default for GroupCache {
    fn default() -> GroupCache {
        GroupCache { known: Mutex::default(), none: Arc::new([]) }
    }
}

impl GroupCache {
    /// The groups of thread `tid`, which asks as `uid` and `gid`.
    pub(crate) fn of(&self, tid: u32, uid: u32, gid: u32) -> Groups {
        // The superuser needs none; requests of the kernel's own accord (write-back, release) come as uid 0.
        if uid == 0 {
            return Groups::Known(self.none.clone());
        }
        if tid == 0 {
            return Groups::Resolve;
        }
        let now = Instant::now();
        let key = (tid, uid, gid);
        if let Some((since, groups)) = lock(&self.known).get(&key)
            && now.duration_since(*since) < FRESH
        {
            return groups.clone();
        }
        let groups = resolve(tid, uid, gid);
        let mut known = lock(&self.known);
        if known.len() >= CALLERS_MAX {
            known.retain(|_, (since, _)| now.duration_since(*since) < FRESH);
            if known.len() >= CALLERS_MAX {
                known.clear();
            }
        }
        known.insert(key, (now, groups.clone()));
        groups
    }
}

/// Reads the groups. A thread that is gone, or is somebody else by now (a thread id used again, or a kernel thread that acts for a user),
/// tells nothing about who asked; nor is a list carried that is longer than a request may weigh.
fn resolve(tid: u32, uid: u32, gid: u32) -> Groups {
    match caller::look(tid) {
        Caller::Alive(status) if status.fsuid == uid && status.fsgid == gid && status.groups.len() <= GROUPS_MAX => {
            Groups::Known(status.groups.into())
        }
        _ => Groups::Resolve,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_none_and_strangers_are_resolved_elsewhere() {
        let cache = GroupCache::default();
        assert_eq!(cache.of(1, 0, 0), Groups::Known(Arc::new([])));
        assert_eq!(cache.of(0, 1000, 1000), Groups::Resolve);
        assert_eq!(cache.of(u32::MAX, 1000, 1000), Groups::Resolve);
        // This thread exists, but is not that user.
        assert_eq!(cache.of(std::process::id(), 4_000_000, 4_000_000), Groups::Resolve);
    }

    #[test]
    fn the_cache_is_bounded() {
        let cache = GroupCache::default();
        for uid in 1..3000 {
            cache.of(u32::MAX, uid, 1);
        }
        assert!(lock(&cache.known).len() <= CALLERS_MAX);
    }
}
