//! As whom a thread acts: the kernel decides about permissions, so the thread takes on the caller's identity, by raw system calls that change
//! this one thread.
//!
//! A caller other than root has its file system uid and gid, its groups, and no effective capability at all: without CAP_SYS_RESOURCE quotas
//! and reserved blocks bind, without CAP_SYS_ADMIN `trusted.*` attributes stay hidden, without CAP_FSETID a write clears the setuid bit. The
//! permitted set stays, so that a capability can come back. The identity stays after the operation, since the next is often the same caller's;
//! [`restore`] ends it.
//!
//! A process that may not change identities (a plain user's) does everything as itself and refuses the operations of other users.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use aqueduct_fs::{Credential, Errno, Groups};
use rustix::fs::Mode;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// How long groups from the user database are believed, in seconds: a change of membership takes effect within a minute, and a slow directory
/// service is asked once a minute for each user.
const GROUPS_SECONDS_MAX: u64 = 60;

/// The most users whose groups are remembered: with 1,024 groups each, 4 MiB.
const GROUPS_USERS_MAX: usize = 1024;

/// What this process was when it first asked.
struct Process {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
    effective: CapabilitySet,
    permitted: CapabilitySet,
    inheritable: CapabilitySet,
}

impl Process {
    fn may_switch(&self) -> bool {
        self.uid == 0 && self.permitted.contains(CapabilitySet::SETUID | CapabilitySet::SETGID)
    }
}

#[derive(Clone, PartialEq, Eq)]
struct Identity {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
}

#[derive(Default)]
struct Thread {
    /// `None`: not known, because a new thread inherits what its parent had.
    identity: Option<Identity>,
    /// Whether the umask is this thread's own; `None`: not tried yet.
    own_umask: Option<bool>,
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::new(Thread::default());
}

fn process() -> &'static Process {
    static PROCESS: OnceLock<Process> = OnceLock::new();
    PROCESS.get_or_init(|| {
        let none = CapabilitySet::empty();
        let sets = rustix::thread::capabilities(None).unwrap_or(CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        });
        Process {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: crate::sys::groups().unwrap_or_default().into(),
            effective: sets.effective,
            permitted: sets.permitted,
            inheritable: sets.inheritable,
        }
    })
}

/// Remembers what the process is. Called while no thread has taken on another identity yet.
pub(crate) fn initialise() {
    process();
}

/// Whether callers are told apart (the process is root's).
pub(crate) fn may_switch() -> bool {
    process().may_switch()
}

fn set_effective(effective: CapabilitySet) -> Result<(), Errno> {
    let own = process();
    let sets = CapabilitySets { effective, permitted: own.permitted, inheritable: own.inheritable };
    rustix::thread::set_capabilities(None, sets).map_err(Errno::from)
}

/// This thread acts as `credential` from now on.
pub(crate) fn act_as(credential: &Credential) -> Result<(), Errno> {
    if !may_switch() {
        return if credential.uid == process().uid { Ok(()) } else { Err(Errno::EPERM) };
    }
    THREAD.with_borrow_mut(|thread| {
        if thread.identity.as_ref().is_some_and(|identity| is_same(identity, credential)) {
            return Ok(());
        }
        let groups = match &credential.groups {
            Groups::Known(groups) => groups.clone(),
            Groups::Resolve => {
                switch(thread, own_identity())?;
                groups_of(credential)
            }
        };
        let identity = Identity { uid: credential.uid, gid: credential.gid, groups };
        if thread.identity.as_ref() == Some(&identity) { Ok(()) } else { switch(thread, identity) }
    })
}

/// As [`act_as`] for an operation on an open file, whose open has been permitted: a process that cannot change identities does it as itself
/// for whoever asks, since the kernel writes mapped pages back as nobody in particular.
pub(crate) fn act_through_open(credential: &Credential) -> Result<(), Errno> {
    if may_switch() { act_as(credential) } else { Ok(()) }
}

/// Gives the calling thread the identity that the process had at first. Whoever lends a thread to [`Posix`](crate::Posix) calls it before the
/// thread does something else that depends on who it is.
pub fn restore() {
    if may_switch() {
        // It can only fail where the switch away failed too.
        let _ = THREAD.with_borrow_mut(|thread| switch(thread, own_identity()));
    }
}

fn own_identity() -> Identity {
    let own = process();
    Identity { uid: own.uid, gid: own.gid, groups: own.groups.clone() }
}

fn is_same(identity: &Identity, credential: &Credential) -> bool {
    identity.uid == credential.uid
        && identity.gid == credential.gid
        && match &credential.groups {
            Groups::Known(groups) => Arc::ptr_eq(groups, &identity.groups) || *groups == identity.groups,
            Groups::Resolve => false,
        }
}

fn switch(thread: &mut Thread, identity: Identity) -> Result<(), Errno> {
    thread.identity = None;
    let own = process();
    set_effective(own.permitted)?;
    crate::sys::set_groups(&identity.groups)?;
    crate::sys::set_fsgid(identity.gid)?;
    crate::sys::set_fsuid(identity.uid)?;
    // The change of uid touches the effective set in both directions, so it is always set afterwards.
    set_effective(if identity.uid == own.uid { own.effective } else { CapabilitySet::empty() })?;
    thread.identity = Some(identity);
    Ok(())
}

/// Runs `operation` with the right to read and search everywhere, which decoding handles takes, and with no other right that the thread lacks.
pub(crate) fn with_search_right<T>(operation: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let own = process();
    if !own.may_switch() {
        return operation();
    }
    let lacks = THREAD.with_borrow_mut(|thread| match &thread.identity {
        Some(identity) => Ok(identity.uid != own.uid),
        None => switch(thread, own_identity()).map(|()| false),
    })?;
    if !lacks {
        return operation();
    }
    set_effective(CapabilitySet::DAC_READ_SEARCH)?;
    let result = operation();
    set_effective(CapabilitySet::empty())?;
    result
}

/// Runs `operation` as the superuser, and then takes `credential` on again.
pub(crate) fn as_root<T>(credential: &Credential, operation: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    act_through_open(&Credential::root())?;
    let result = operation();
    act_through_open(credential)?;
    result
}

/// Runs `operation`, which makes something with permissions `mode`, under the caller's umask: the kernel applies it, unless the directory's
/// default ACL takes its place.
pub(crate) fn with_umask<T>(mode: u32, umask: u32, operation: impl FnOnce(u32) -> T) -> T {
    let own = THREAD.with_borrow_mut(|thread| *thread.own_umask.get_or_insert_with(crate::sys::unshare_umask));
    if !own {
        return operation(mode & !(umask & 0o777));
    }
    let before = rustix::process::umask(Mode::from_raw_mode(umask & 0o777));
    let result = operation(mode);
    rustix::process::umask(before);
    result
}

/// The groups of a user by the user database, remembered for a while.
fn groups_of(credential: &Credential) -> Arc<[u32]> {
    type Known = HashMap<(u32, u32), (Instant, Arc<[u32]>)>;
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    let known = KNOWN.get_or_init(Mutex::default);
    let key = (credential.uid, credential.gid);
    let fresh = |(asked, _): &&(Instant, Arc<[u32]>)| asked.elapsed() < Duration::from_secs(GROUPS_SECONDS_MAX);
    if let Some((_, groups)) = crate::lock(known).get(&key).filter(fresh) {
        return groups.clone();
    }
    let groups: Arc<[u32]> = crate::sys::groups_of_user(credential.uid, credential.gid).into();
    let mut known = crate::lock(known);
    if known.len() >= GROUPS_USERS_MAX {
        known.clear();
    }
    known.insert(key, (Instant::now(), groups.clone()));
    groups
}
