//! What the kernel may keep of one answer, and what stands behind it.

use std::time::Duration;

use aqueduct_fs::{Hold, Keep};

use crate::nodes::Marks;
use crate::policy::Policy;

/// What an answer lets the kernel keep has to reach it within this time: timeouts begin when the
/// kernel reads them, and a server gives away what a silent client holds two seconds after it ran
/// out.
const STALE_AFTER: Duration = Duration::from_millis(100);

/// For how long a name is kept that cannot be recalled and may be old: the time that NFS and
/// FUSE file systems without leases use.
const FLEETING: Duration = Duration::from_secs(1);

/// What the kernel may keep of one answer.
pub(crate) struct Kept {
    pub(crate) attributes: Duration,
    is_written: bool,
    pub(crate) names: Duration,
    /// For how long at most a name of a directory that is asked for often.
    pub(crate) hot_names: Duration,
    pub(crate) data: bool,
    lease: Lease,
}

/// What stands behind what the kernel may keep: to be held until it has been told.
#[derive(Default)]
pub(crate) struct Lease {
    _hold: Option<Hold>,
    /// When it was said, if it ends by itself.
    said: Option<Duration>,
}

impl Kept {
    /// Until these times are over, whatever happens.
    pub(crate) fn fixed(attributes: Duration, names: Duration) -> Kept {
        Kept { attributes, is_written: false, names, hot_names: Duration::ZERO, data: false, lease: Lease::default() }
    }

    /// As long as a lease lasts, of which the policy says what the kernel may keep; of names only
    /// while they are kept.
    pub(crate) fn leased(keep: Keep, policy: Policy, keeps_names: bool) -> Kept {
        let names = match policy {
            Policy { names: true, .. } if keeps_names => keep.names,
            Policy { fleeting_names: true, .. } => keep.names.min(FLEETING),
            _ => Duration::ZERO,
        };
        let attributes = if policy.attributes { keep.attributes } else { Duration::ZERO };
        let hot_names = if policy.hot_names && names.is_zero() { keep.names.min(attributes) } else { Duration::ZERO };
        let ends = attributes > Duration::ZERO || names > Duration::ZERO;
        let lease = Lease { _hold: keep.hold, said: ends.then(now) };
        let Keep { is_written, data, .. } = keep;
        Kept { attributes, is_written, names, hot_names, data, lease }
    }

    /// For how long the attributes of a node may be used. Who reads a file from pages that may be
    /// changed under him has to ask before each read: the kernel takes the end of what was read
    /// before it was written for zeros, once it knows of the greater size.
    pub(crate) fn attributes_of_file(&self, marks: Marks) -> Duration {
        let asks = marks.reads_unleased_pages() || self.is_written && marks.cached_opens > 0;
        if asks { Duration::ZERO } else { self.attributes }
    }

    /// Without the attributes: the kernel believes those that come with what it has made or
    /// changed whatever it was told meanwhile.
    pub(crate) fn of_change(mut self, policy: Policy) -> Kept {
        if policy.leases {
            self.attributes = Duration::ZERO;
        }
        self
    }

    pub(crate) fn into_lease(self) -> Lease {
        self.lease
    }
}

impl Lease {
    /// Behind pages, which end with the lease only.
    pub(crate) fn of_pages(hold: Hold) -> Lease {
        Lease { _hold: Some(hold), said: None }
    }

    /// Whether it is too late to tell the kernel, or to have told it.
    pub(crate) fn is_stale(&self) -> bool {
        self.said.is_some_and(|said| now().saturating_sub(said) > STALE_AFTER)
    }
}

/// By the clock that goes on while the machine sleeps.
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
