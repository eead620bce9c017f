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
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
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

    /// What lets a thread search every directory: the right to just that or, where root has been left without it (most containers), the larger one.
    fn search_right(&self) -> CapabilitySet {
        let narrow = CapabilitySet::DAC_READ_SEARCH;
        if self.permitted.contains(narrow) { narrow } else { self.permitted & CapabilitySet::DAC_OVERRIDE }
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
    /// Whether the right to search everywhere was left raised, see [`look`].
    searching: bool,
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

/// This thread acts as `credential` from now on, until [`restore`]. EPERM: this process may not.
pub fn act_as(credential: &Credential) -> Result<(), Errno> {
    if !may_switch() {
        return if credential.uid == process().uid { Ok(()) } else { Err(Errno::EPERM) };
    }
    THREAD.with_borrow_mut(|thread| {
        if thread.identity.as_ref().is_some_and(|identity| is_same(identity, credential)) {
            return stop_searching(thread);
        }
        let groups = match &credential.groups {
            Groups::Known(groups) => groups.clone(),
            Groups::Resolve => resolve(thread, credential)?,
            Groups::ResolveSquashed(anonymous) => {
                let groups = resolve(thread, credential)?;
                groups.iter().map(|&gid| if gid == 0 { *anonymous } else { gid }).collect()
            }
        };
        let identity = Identity { uid: credential.uid, gid: credential.gid, groups };
        if thread.identity.as_ref() == Some(&identity) { stop_searching(thread) } else { switch(thread, identity) }
    })
}

/// A user of this machine by name, with all groups, as the user database has them.
pub fn user(name: &str) -> Option<Credential> {
    let (uid, gid) = crate::sys::user_by_name(name)?;
    Some(Credential { uid, gid, groups: Groups::Known(crate::sys::groups_of_user(uid, gid).into()) })
}

/// The name of a user of this machine.
pub fn name_of_user(uid: u32) -> Option<String> {
    crate::sys::user_name(uid)?.into_string().ok()
}

/// Runs `operation`, which finds an inode and looks at it and so needs nobody's permission: as whoever this thread is, with the right to decode
/// handles, which stays raised until the next operation of another kind. So looking at many inodes costs no change of identity.
///
/// Only a file system that keeps users out altogether (FUSE without allow_other) says EACCES; then the caller's identity decides.
pub(crate) fn look<T>(credential: &Credential, operation: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    if may_switch() {
        THREAD.with_borrow_mut(|thread| {
            if thread.identity.is_none() {
                switch(thread, own_identity())?;
            }
            if lacks_search(thread) {
                set_effective(process().search_right())?;
                thread.searching = true;
            }
            Ok::<_, Errno>(())
        })?;
        match operation() {
            Err(Errno::EACCES) => {}
            result => return result,
        }
    }
    act_as(credential)?;
    operation()
}

fn lacks_search(thread: &Thread) -> bool {
    !thread.searching && thread.identity.as_ref().is_none_or(|identity| identity.uid != process().uid)
}

fn stop_searching(thread: &mut Thread) -> Result<(), Errno> {
    if thread.searching {
        set_effective(CapabilitySet::empty())?;
        thread.searching = false;
    }
    Ok(())
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
            Groups::Resolve | Groups::ResolveSquashed(_) => false,
        }
}

/// The groups of a user, as this machine knows them.
fn resolve(thread: &mut Thread, credential: &Credential) -> Result<Arc<[u32]>, Errno> {
    if let Some(groups) = remembered_groups(credential) {
        return Ok(groups);
    }
    // The user database may only answer root.
    switch(thread, own_identity())?;
    Ok(ask_for_groups(credential))
}

fn switch(thread: &mut Thread, identity: Identity) -> Result<(), Errno> {
    let before = thread.identity.take();
    thread.searching = false;
    let own = process();
    set_effective(own.permitted)?;
    if before.as_ref().is_none_or(|before| before.groups != identity.groups) {
        crate::sys::set_groups(&identity.groups)?;
    }
    if before.is_none_or(|before| before.gid != identity.gid) {
        crate::sys::set_fsgid(identity.gid)?;
    }
    crate::sys::set_fsuid(identity.uid)?;
    // The change of uid touches the effective set in both directions, so it is always set afterwards.
    set_effective(if identity.uid == own.uid { own.effective } else { CapabilitySet::empty() })?;
    thread.identity = Some(identity);
    Ok(())
}

/// Runs `operation` with the right to read and search everywhere, which decoding handles takes, and with no other right that the thread lacks.
pub(crate) fn with_search_right<T>(operation: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    if !may_switch() {
        return operation();
    }
    let lacks = THREAD.with_borrow_mut(|thread| {
        if thread.identity.is_none() {
            switch(thread, own_identity())?;
        }
        Ok::<_, Errno>(lacks_search(thread))
    })?;
    if !lacks {
        return operation();
    }
    set_effective(process().search_right())?;
    let result = operation();
    set_effective(CapabilitySet::empty())?;
    result
}

/// Runs `operation` as the caller, with the right to change the capabilities of files and no other
/// that the caller lacks.
pub(crate) fn with_file_capabilities<T>(operation: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let is_caller = |thread: &Thread| thread.identity.as_ref().is_some_and(|identity| identity.uid != process().uid);
    if !may_switch() || !THREAD.with_borrow(is_caller) {
        return operation();
    }
    set_effective(process().permitted & CapabilitySet::SETFCAP)?;
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

type KnownGroups = HashMap<(u32, u32), (Instant, Arc<[u32]>)>;

fn known_groups() -> MutexGuard<'static, KnownGroups> {
    static KNOWN: OnceLock<Mutex<KnownGroups>> = OnceLock::new();
    crate::lock::lock(KNOWN.get_or_init(Mutex::default))
}

/// The groups of a user, if the user database was asked for them not long ago.
fn remembered_groups(credential: &Credential) -> Option<Arc<[u32]>> {
    let known = known_groups();
    let (asked, groups) = known.get(&(credential.uid, credential.gid))?;
    (asked.elapsed() < Duration::from_secs(GROUPS_SECONDS_MAX)).then(|| groups.clone())
}

/// The groups of a user by the user database, which may take its time.
fn ask_for_groups(credential: &Credential) -> Arc<[u32]> {
    let groups: Arc<[u32]> = crate::sys::groups_of_user(credential.uid, credential.gid).into();
    let mut known = known_groups();
    if known.len() >= GROUPS_USERS_MAX {
        known.clear();
    }
    known.insert((credential.uid, credential.gid), (Instant::now(), groups.clone()));
    groups
}
