//! What the kernel may keep at all.

use crate::abi;
use crate::config::{CacheMode, Config, Names};
use crate::negotiated::Negotiated;

/// What the kernel may keep at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Answers say what may be kept.
    pub(crate) leases: bool,
    /// Attributes too: the kernel does not believe those of an answer that crosses a recall (Linux
    /// 5.10).
    pub(crate) attributes: bool,
    /// Names too, as long as none has to be forgotten ([`crate::keeping`]): they can be recalled,
    /// and the kernel checks permission on the way along them.
    pub(crate) names: bool,
    /// Instead, or meanwhile, names of directories that are asked for often, for a moment: they
    /// are not recalled, and whoever changes one waits ([`crate::hot_names`]).
    pub(crate) hot_names: bool,
    /// Instead of both, names for a moment in which they may be old.
    pub(crate) fleeting_names: bool,
    /// What may be read(2) from pages is true: such as no lease covers are dropped before.
    pub(crate) pages: bool,
    /// Files that are open for direct I/O can be mapped shared (Linux 6.6). Where they cannot,
    /// whatever may be read is opened cached.
    pub(crate) maps_direct: bool,
}

impl Policy {
    pub(crate) fn new(config: &Config, negotiated: &Negotiated) -> Policy {
        let has = |flag| negotiated.flags.contains(flag);
        let leases = config.cache == CacheMode::Lease;
        let maps_direct = has(abi::InitFlags::DIRECT_IO_ALLOW_MMAP);
        let attributes = leases && negotiated.minor >= abi::MINOR_ATTRIBUTES;
        let checked = has(abi::InitFlags::POSIX_ACL);
        let recalled = negotiated.minor >= abi::MINOR_EPOCH && config.names != Names::Ask;
        let fleeting_names = leases && !recalled && checked && config.names == Names::Timeout;
        Policy {
            leases,
            attributes,
            names: leases && recalled && checked,
            hot_names: attributes && checked && !fleeting_names,
            fleeting_names,
            pages: leases || config.cache == CacheMode::None && !maps_direct,
            maps_direct,
        }
    }
}
