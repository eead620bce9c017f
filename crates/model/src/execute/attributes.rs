//! Attributes and extended attributes.

use rustix::fs::{self, Access, AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::hand::{Hand, Step, done};
use crate::op::{Attribute, Path, Target, Time};
use crate::outcome::{Attributes, Outcome};

/// Larger than any value of the universe.
const VALUE_MAX: usize = 4096;

fn flags(target: &Target) -> AtFlags {
    match target {
        Target::Link(_) => AtFlags::SYMLINK_NOFOLLOW,
        _ => AtFlags::empty(),
    }
}

impl Hand {
    /// The root keeps its mode and owner: a mount without `default_permissions` learns only from a LOOKUP who may pass through a directory, and `.`
    /// needs none.
    fn spare_root(&self, target: &Target) -> Result<(), Outcome> {
        let stat = match target {
            Target::Open(slot) => fs::fstat(self.slot(*slot)?),
            Target::Path(path) | Target::Link(path) => fs::statat(CWD, path.0.as_slice(), AtFlags::empty()),
        };
        let root = fs::statat(CWD, "/", AtFlags::empty())?;
        match stat {
            Ok(stat) if stat.st_ino == root.st_ino && stat.st_dev == root.st_dev => Err(Outcome::Skipped("the root")),
            _ => Ok(()),
        }
    }

    pub(super) fn attribute(&mut self, attribute: &Attribute) -> Step {
        match attribute {
            Attribute::Mode { target, .. } | Attribute::Owner { target, .. } => self.spare_root(target)?,
            Attribute::SetXattr { target, name, .. } if name.starts_with("system.") => self.spare_root(target)?,
            _ => {}
        }
        match attribute {
            Attribute::Stat { target } => {
                let stat = match target {
                    Target::Open(slot) => fs::fstat(self.slot(*slot)?)?,
                    Target::Path(path) | Target::Link(path) => fs::statat(CWD, path.0.as_slice(), flags(target))?,
                };
                Ok(Outcome::Attributes(Attributes::new(&stat)))
            }
            Attribute::Mode { target, mode } => {
                let mode = Mode::from_raw_mode(*mode);
                match target {
                    Target::Open(slot) => done(fs::fchmod(self.slot(*slot)?, mode)),
                    Target::Path(path) | Target::Link(path) => {
                        done(fs::chmodat(CWD, path.0.as_slice(), mode, AtFlags::empty()))
                    }
                }
            }
            Attribute::Owner { target, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                match target {
                    Target::Open(slot) => done(fs::fchown(self.slot(*slot)?, uid, gid)),
                    Target::Path(path) | Target::Link(path) => {
                        done(fs::chownat(CWD, path.0.as_slice(), uid, gid, flags(target)))
                    }
                }
            }
            Attribute::Times { target, access, change } => {
                let times = Timestamps { last_access: time(*access), last_modification: time(*change) };
                match target {
                    Target::Open(slot) => done(fs::futimens(self.slot(*slot)?, &times)),
                    Target::Path(path) | Target::Link(path) => {
                        done(fs::utimensat(CWD, path.0.as_slice(), &times, flags(target)))
                    }
                }
            }
            Attribute::Access { path, mode, effective } => {
                let flags = if *effective { AtFlags::EACCESS } else { AtFlags::empty() };
                done(fs::accessat(CWD, path.0.as_slice(), Access::from_bits_retain(*mode), flags))
            }
            _ => self.xattr(attribute),
        }
    }

    fn xattr(&mut self, attribute: &Attribute) -> Step {
        match attribute {
            Attribute::SetXattr { target, name, value, create, replace } => {
                let mut flags = XattrFlags::empty();
                flags.set(XattrFlags::CREATE, *create);
                flags.set(XattrFlags::REPLACE, *replace);
                done(match target {
                    Target::Open(slot) => fs::fsetxattr(self.slot(*slot)?, *name, value, flags),
                    Target::Path(path) => fs::setxattr(path.0.as_slice(), *name, value, flags),
                    Target::Link(path) => fs::lsetxattr(path.0.as_slice(), *name, value, flags),
                })
            }
            Attribute::GetXattr { target, name } => {
                let mut value = vec![0u8; VALUE_MAX];
                let length = match target {
                    Target::Open(slot) => fs::fgetxattr(self.slot(*slot)?, *name, &mut value[..])?,
                    Target::Path(path) => fs::getxattr(path.0.as_slice(), *name, &mut value[..])?,
                    Target::Link(path) => fs::lgetxattr(path.0.as_slice(), *name, &mut value[..])?,
                };
                value.truncate(length);
                Ok(Outcome::Bytes(value))
            }
            Attribute::ListXattr { target } => self.list_xattr(target),
            Attribute::RemoveXattr { target, name } => done(match target {
                Target::Open(slot) => fs::fremovexattr(self.slot(*slot)?, *name),
                Target::Path(path) => fs::removexattr(path.0.as_slice(), *name),
                Target::Link(path) => fs::lremovexattr(path.0.as_slice(), *name),
            }),
            other => unreachable!("{other:?} is no extended attribute's"),
        }
    }

    fn list_xattr(&self, target: &Target) -> Step {
        let mut names = vec![0u8; VALUE_MAX];
        let length = match target {
            Target::Open(slot) => fs::flistxattr(self.slot(*slot)?, &mut names[..])?,
            Target::Path(path) => fs::listxattr(path.0.as_slice(), &mut names[..])?,
            Target::Link(path) => fs::llistxattr(path.0.as_slice(), &mut names[..])?,
        };
        let ours = |name: &&[u8]| [&b"user."[..], b"trusted.", b"system.posix_acl"].iter().any(|p| name.starts_with(p));
        let mut names: Vec<_> = names[..length].split(|&b| b == 0).filter(ours).map(|name| name.to_vec()).collect();
        names.sort();
        let listed = names.into_iter().map(|name| (Path(name), fs::FileType::Unknown));
        Ok(Outcome::Names(listed.collect()))
    }
}

fn time(time: Time) -> Timespec {
    match time {
        Time::Now => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
        Time::Omit => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
        Time::At(seconds, nanoseconds) => Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    }
}

/// The extended attributes of a path that the sweep compares.
pub fn xattr_values(path: &[u8], names: &[&str]) -> Result<Vec<(String, Vec<u8>)>, Errno> {
    let mut found = Vec::new();
    for name in names {
        let mut value = vec![0u8; VALUE_MAX];
        match fs::lgetxattr(path, *name, &mut value[..]) {
            Ok(length) => found.push((name.to_string(), value[..length].to_vec())),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(found)
}
