//! What an inode has besides its data, carried over.

use aqueduct_fs::{Errno, SetAttr, SetTime};
use aqueduct_posix::project::Project;

use crate::side::{ACLS, Directory, Node, Seen, Xattrs, is_internal};

/// Set-user-id and set-group-id: they mean something else with another owner.
const SET_IDS: u32 = 0o6000;

/// What a file has that is made in a directory which nobody else may enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The permissions that no umask takes away.
    pub kept: u32,
}

/// What could not be held, and why.
pub type Lost = Vec<(String, Errno)>;

fn times(seen: &Seen) -> SetAttr {
    let at = |time| Some(SetTime::At(time));
    SetAttr { atime: at(seen.attr.atime), mtime: at(seen.attr.mtime), ..SetAttr::default() }
}

fn is_link(seen: &Seen) -> bool {
    seen.attr.kind() == libc::S_IFLNK
}

/// Gives `target` what `seen` of its source says, and its extended attributes. Only what is
/// refused for good is lost. `given`: what the target has already.
pub fn carry(seen: &Seen, xattrs: &Xattrs, target: &dyn Node, given: Option<Given>) -> Result<Lost, Errno> {
    let owner = SetAttr { uid: Some(seen.attr.uid), gid: Some(seen.attr.gid), ..SetAttr::default() };
    let mode = (!is_link(seen)).then_some(seen.attr.mode & 0o7777);
    if xattrs.is_empty() {
        let has_owner = given.is_some_and(|given| (given.uid, given.gid) == (seen.attr.uid, seen.attr.gid));
        // It was made with these permissions, of which a umask took none.
        let has_mode = has_owner && given.is_some_and(|given| mode.is_some_and(|mode| mode & !given.kept == 0));
        let (uid, gid) = if has_owner { (None, None) } else { (owner.uid, owner.gid) };
        let all = SetAttr { uid, gid, mode: mode.filter(|_| !has_mode), ..times(seen) };
        match target.set(&all) {
            Err(Errno::EPERM | Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EOVERFLOW) => {}
            done => return done.map(|()| Vec::new()),
        }
    }
    let mut lost = Lost::new();
    let keeps_owner = set_owner(&owner, target, &mut lost)?;
    for (name, value) in xattrs {
        if let Err(error) = target.set_xattr(name, Some(value)) {
            lost.push((format!("extended attribute {}", String::from_utf8_lossy(name)), lasting(error)?));
        }
    }
    let mode = mode.map(|mode| if keeps_owner { mode } else { mode & !SET_IDS });
    if !keeps_owner && seen.attr.mode & SET_IDS != 0 && !is_link(seen) {
        lost.push(("set-id bits, since the owner is another".to_owned(), Errno::EPERM));
    }
    if let Some(mode) = mode
        && let Err(error) = target.set(&SetAttr { mode: Some(mode), ..SetAttr::default() })
    {
        lost.push((format!("mode {mode:04o}"), lasting(error)?));
    }
    if let Err(error) = target.set(&times(seen)) {
        lost.push(("times".to_owned(), lasting(error)?));
    }
    Ok(lost)
}

/// Whether the owner is kept. A user who may not give files away may still give them to a group
/// of his.
fn set_owner(owner: &SetAttr, target: &dyn Node, lost: &mut Lost) -> Result<bool, Errno> {
    let Err(error) = target.set(owner) else { return Ok(true) };
    let error = lasting(error)?;
    let of_target = target.seen()?.attr;
    let is_same = |wanted: Option<u32>, is: u32| wanted == Some(is);
    if !is_same(owner.uid, of_target.uid) {
        lost.push((format!("owner {}", owner.uid.unwrap_or_default()), error));
    }
    if !is_same(owner.gid, of_target.gid) && target.set(&SetAttr { uid: None, ..*owner }).is_err() {
        lost.push((format!("group {}", owner.gid.unwrap_or_default()), error));
        return Ok(false);
    }
    Ok(is_same(owner.uid, of_target.uid))
}

/// An error that says that this can never be held; others are errors of the copy.
fn lasting(error: Errno) -> Result<Errno, Errno> {
    match error {
        Errno::EPERM
        | Errno::EACCES
        | Errno::EOPNOTSUPP
        | Errno::EINVAL
        | Errno::E2BIG
        | Errno::ERANGE
        | Errno::EOVERFLOW
        | Errno::ENODATA
        | Errno::ENOSYS => Ok(error),
        // ext4 says so of an attribute that is larger than its place for them.
        Errno::ENOSPC => Ok(error),
        other => Err(other),
    }
}

/// Whether a copy may lose an extended attribute that its source does not have: others are given by
/// its file system, or by the rules of its machine.
fn is_removable(name: &[u8]) -> bool {
    const OWN: [&[u8]; 3] = [b"security.capability", ACLS[0], ACLS[1]];
    let is_given = is_internal(name) || name.starts_with(b"trusted.overlay.");
    OWN.contains(&name) || (!is_given && (name.starts_with(b"user.") || name.starts_with(b"trusted.")))
}

fn has(xattrs: &Xattrs, name: &[u8]) -> bool {
    xattrs.iter().any(|(other, _)| other == name)
}

/// Whether a copy has the extended attributes that are wanted, and none besides that could go.
pub fn are_same_xattrs(wanted: &Xattrs, there: &Xattrs, is_lustre: bool) -> bool {
    let has_all = wanted.iter().filter(|(name, _)| !is_lustre || !is_internal(name)).all(|one| there.contains(one));
    has_all && there.iter().all(|(name, _)| !is_removable(name) || has(wanted, name))
}

/// Removes the extended attributes that `target` has and that are not wanted.
pub fn strip(wanted: &Xattrs, there: &Xattrs, target: &dyn Node) -> Result<Lost, Errno> {
    let mut lost = Lost::new();
    for (name, _) in there.iter().filter(|(name, _)| is_removable(name) && !has(wanted, name)) {
        match target.set_xattr(name, None) {
            Ok(()) | Err(Errno::ENODATA) => {}
            Err(error) => {
                let what = format!("the removal of extended attribute {}", String::from_utf8_lossy(name));
                lost.push((what, lasting(error)?));
            }
        }
    }
    Ok(lost)
}

/// The extended attributes that a copy gets. What Lustre makes itself stays there; of a layout
/// that somebody chose it is told that it does.
pub fn wanted_xattrs(source: &dyn Node, is_lustre: bool) -> Result<(Xattrs, Lost), Errno> {
    let mut xattrs = source.xattrs()?;
    if !is_lustre {
        return Ok((xattrs, Lost::new()));
    }
    xattrs.retain(|(name, _)| !is_internal(name));
    let layout = source.layout()?.and_then(|layout| layout.told());
    Ok((xattrs, layout.map(|layout| (layout, Errno::EOPNOTSUPP)).into_iter().collect()))
}

/// The project of a directory; `None`: what is in it has none. What a `tmpfs` says of them counts
/// for nothing.
pub fn project_of(source: &dyn Directory) -> Option<Project> {
    source.project().ok().flatten().filter(|_| !source.is_volatile())
}

/// The project that a directory gives to what is made in it; 0: none.
pub fn given_in(directory: &dyn Directory) -> Result<u32, Errno> {
    let project = directory.project()?.filter(|project| project.is_inherited);
    Ok(project.map_or(0, |project| project.id))
}

/// Gives `target` the project of its source. One that it has from the directory in which it was
/// made stays: it is by this that the destination counts. `gives`: what that directory gives;
/// `None`: what `target` has is from there, since it was made just now.
pub fn give_project(source: &dyn Node, target: &dyn Node, gives: Option<u32>) -> Result<Lost, Errno> {
    let Some(wanted) = source.project()?.filter(|project| project.id != 0) else { return Ok(Lost::new()) };
    let given = target.project()?.unwrap_or_default();
    // What an administrator has made to count stays counted.
    let wanted = Project { is_inherited: wanted.is_inherited || given.is_inherited, ..wanted };
    let what = || format!("project {}", wanted.id);
    match given {
        _ if given == wanted => Ok(Lost::new()),
        _ if ![0, wanted.id].contains(&given.id) && gives.is_none_or(|gives| gives == given.id) => {
            Ok(vec![(format!("{}, since its directory gives {}", what(), given.id), Errno::EXDEV)])
        }
        _ => match target.set_project(wanted) {
            Ok(()) => Ok(Lost::new()),
            Err(error) => Ok(vec![(what(), lasting(error)?)]),
        },
    }
}

/// Removes the access control lists that a new inode has from the directory in which it was made.
pub fn disinherit(target: &dyn Node) -> Result<(), Errno> {
    for name in ACLS {
        match target.set_xattr(name, None) {
            Ok(()) | Err(Errno::ENODATA | Errno::EOPNOTSUPP | Errno::EACCES | Errno::EINVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether new inodes in a directory get an access control list from it.
pub fn bequeaths(directory: &dyn Node) -> Result<bool, Errno> {
    Ok(directory.xattrs()?.iter().any(|(name, _)| name == ACLS[1]))
}

/// Whether a target has what is carried over, but for what only its own file system gives.
pub fn are_same(source: &Seen, target: &Seen) -> bool {
    let of = |seen: &Seen| {
        let mode = if is_link(seen) { 0 } else { seen.attr.mode };
        (mode, seen.attr.uid, seen.attr.gid)
    };
    of(source) == of(target)
}

/// Times are compared as exactly as the coarser end has them.
pub fn is_same_time(seen: &Seen, present: &Seen) -> bool {
    let (a, b) = (seen.attr.mtime, present.attr.mtime);
    a == b || (a.seconds == b.seconds && (a.nanos == 0 || b.nanos == 0))
}
