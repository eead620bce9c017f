//! Attributes that this client sets under an exclusive lease, and answers before the server has: whether the server surely lets the caller, and what they are
//! then. Pure.
//!
//! That can be said of a file's own owner, and of root where it is root at the server as well, who set times, permissions, and the owner and group that the file
//! has. What has more effects (set-id bits, access control lists, capabilities, another owner), or may have, only the server decides on.

use aqueduct_fs::{Attr, Credential, SetAttr, SetTime};

use super::inode::Inode;
use super::view::View;

/// The permissions that have no effects beside.
const PLAIN: u32 = 0o777;

/// All that a chmod sets.
const MODE: u32 = 0o7777;

/// Whether a change is of a kind that may be held back.
pub(super) fn may_be_held(set: &SetAttr) -> bool {
    let is_known = |time: Option<SetTime>| match time {
        None => true,
        Some(SetTime::At(time)) => time.nanos < 1_000_000_000,
        Some(SetTime::Now) => false, // by the server's clock
    };
    let is_plain = set.mode.is_none_or(|mode| mode & !PLAIN == 0);
    *set != SetAttr::default() && set.size.is_none() && is_plain && is_known(set.atime) && is_known(set.mtime)
}

/// Whether a change may concern who opens the file.
pub(super) fn is_of_rights(set: &SetAttr) -> bool {
    set.mode.is_some() || set.uid.is_some() || set.gid.is_some()
}

/// Who changes attributes.
#[derive(Clone, Copy)]
pub(super) struct Setter<'a> {
    pub(super) credential: &'a Credential,
    /// Root is root at the server.
    pub(super) is_root: bool,
}

impl Setter<'_> {
    fn may_set(&self, attr: &Attr) -> bool {
        let uid = self.credential.uid;
        if uid == 0 { self.is_root } else { uid == attr.uid }
    }
}

impl Inode {
    /// Sets attributes of a file that has been written so far. `None`: only the server can say whether that may be.
    pub(super) fn set_own(&mut self, by: Setter<'_>, set: &SetAttr, end: u64, view: &View) -> Option<Attr> {
        let kept = self.attr.as_ref().filter(|kept| self.is_own && view.left(kept.at).is_some())?;
        let mut attr = kept.value;
        let changes_owner = set.uid.is_some_and(|uid| uid != attr.uid) || set.gid.is_some_and(|gid| gid != attr.gid);
        let is_plain = attr.is_regular() && attr.mode & MODE & !PLAIN == 0;
        if !is_plain || changes_owner || !by.may_set(&attr) {
            return None;
        }
        let may_have = |name: &[u8]| !self.lacks(name, view);
        if set.mode.is_some() && may_have(b"system.posix_acl_access") {
            return None; // which a chmod changes too
        }
        if (set.uid.is_some() || set.gid.is_some()) && may_have(b"security.capability") {
            return None; // which a chown takes away
        }
        attr.size = attr.size.max(end);
        attr.mode = set.mode.map_or(attr.mode, |mode| attr.mode & !MODE | mode);
        for (time, to) in [(set.atime, &mut attr.atime), (set.mtime, &mut attr.mtime)] {
            if let Some(SetTime::At(at)) = time {
                *to = at;
            }
        }
        if is_of_rights(set) {
            self.verdicts.clear();
        }
        self.attr.iter_mut().for_each(|kept| kept.value = attr);
        Some(attr)
    }

    /// It has been written so far.
    pub(super) fn grow_own(&mut self, end: u64) {
        if self.is_own {
            self.attr.iter_mut().for_each(|kept| kept.value.size = kept.value.size.max(end));
        }
    }

    /// What it will be is not known any more.
    pub(super) fn forget_own(&mut self) {
        if std::mem::take(&mut self.is_own) {
            self.attr = None;
        }
    }
}
