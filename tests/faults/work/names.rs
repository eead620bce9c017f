//! Names, attributes and small files: each operation's result is known before it is done.

mod belief;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags};

use super::{Outcome, Stop, Work, settles};
use crate::sys;
use belief::{Belief, HELD, Op, draw};

pub use belief::{bytes, first_difference};

/// A life: works until the end, or until its mount is killed; then looks at what there is on the server.
pub fn work(work: &mut Work, life: u64) -> Outcome<()> {
    let folder = work.folder(life)?;
    let mut belief = Belief::new(work.part.user.is_some(), work.part.limited);
    let mut held: [Option<File>; HELD] = Default::default();
    let mut next = None;
    let mut ended = Ok(());
    while ended.is_ok() && !work.is_over() {
        ended = step(work, &folder, &mut belief, &mut next, &mut held);
        work.pause();
    }
    let closes = held.map(|file| file.is_none_or(|file| sys::close(file).is_ok()));
    if matches!(ended, Err(Stop::Gone)) {
        work.await_mount();
    }
    if !matches!(ended, Err(Stop::Finding(_))) {
        let root = work.part.export.join(&folder);
        // The close that was under way when the mount was killed says nothing, and its descriptor
        // is not among these.
        belief.may_lack = matches!(ended, Err(Stop::Gone)) || !closes.iter().all(|closed| *closed);
        let mut alternative = next.filter(|_| ended.is_err()).unwrap_or_else(|| belief.clone());
        alternative.may_lack = belief.may_lack;
        settles(|| belief.matches(&root).or_else(|first| alternative.matches(&root).map_err(|_| first)))?;
    }
    ended
}

/// One operation; `next` is what holds once it is done.
fn step(
    work: &mut Work,
    folder: &str,
    belief: &mut Belief,
    next: &mut Option<Belief>,
    held: &mut [Option<File>; HELD],
) -> Outcome<()> {
    let seed = work.part.seed;
    let op = match draw(belief, &mut work.random) {
        Op::Create { slot, .. } | Op::Open { slot, .. } if held[slot].is_some() => Op::Close { slot },
        op => op,
    };
    let closes = if let Op::Close { slot } = op { belief.opened(slot) } else { None };
    if let Op::Look = op {
        return look(work, folder, belief, held);
    }
    let Some(expected) = belief.after(&op, seed) else { return Ok(()) };
    let root = work.point().join(folder);
    let length = if let Op::Write { length, .. } = op { length } else { 0 };
    *next = expected.as_ref().ok().cloned();
    let mut got = work.ask(&format!("{op:?}"), || perform(&root, &op, belief, held, seed))?;
    // btrfs does these before it finds that it has no room to write them down.
    let half_done = matches!(op, Op::Chmod { .. } | Op::Times { .. } | Op::Resize { .. } | Op::Truncate { .. });
    while half_done && got.is_err_and(Work::is_refusal) {
        work.pause();
        got = work.ask(&format!("{op:?} again"), || perform(&root, &op, belief, held, seed))?;
    }
    *next = None;
    match (expected, got) {
        (Ok(after), Ok(count)) if count == length => {
            *belief = after;
            closes.into_iter().for_each(|id| belief.settle(id));
        }
        (Ok(_), Ok(count)) => {
            // There was room for a part.
            let Op::Write { slot, offset, .. } = op else { unreachable!("only writes have a length") };
            let short = Op::Write { slot, offset, length: count };
            *belief = belief.after(&short, seed).and_then(Result::ok).expect("as the long one");
        }
        (Err(wanted), Err(errno)) if wanted == errno => {}
        (expected, Err(errno)) if Work::is_refusal(errno) => {
            // Closed it is.
            if let (Some(_), Ok(after)) = (closes, expected) {
                *belief = after;
            }
            belief.forget_times();
            read_what_is_left(work, &root, belief, held)?;
        }
        (Ok(_), Err(errno)) => return Err(work.unexpected(&format!("{op:?}"), errno)),
        (Err(wanted), got) => {
            let wanted = io::Error::from_raw_os_error(wanted);
            return work.check(false, format!("{op:?} gave {got:?}, where '{wanted}' is due"));
        }
    }
    Ok(())
}

/// The one system call that changes something; for a write the number of bytes.
fn perform(root: &Path, op: &Op, belief: &Belief, held: &mut [Option<File>; HELD], seed: u64) -> io::Result<usize> {
    let at = |name: &String| root.join(name);
    match op {
        Op::Create { path, mode, slot } => {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create_new(true).mode(*mode).open(at(path))?;
            held[*slot] = Some(file);
        }
        Op::Open { path, slot } => held[*slot] = Some(OpenOptions::new().read(true).write(true).open(at(path))?),
        Op::Close { slot } => held[*slot].take().map_or(Ok(()), sys::close)?,
        Op::Mkdir { path } => fs::create_dir(at(path))?,
        Op::Fifo { path } => rustix::fs::mknodat(CWD, at(path), FileType::Fifo, Mode::from_raw_mode(0o644), 0)?,
        Op::Symlink { text, path } => symlink(text, at(path))?,
        Op::Link { path, to } => fs::hard_link(at(path), at(to))?,
        Op::Unlink { path } => fs::remove_file(at(path))?,
        Op::Rmdir { path } => fs::remove_dir(at(path))?,
        Op::Rename { path, to, exchange, no_replace } => {
            let mut flags = RenameFlags::empty();
            flags.set(RenameFlags::EXCHANGE, *exchange);
            flags.set(RenameFlags::NOREPLACE, *no_replace);
            rustix::fs::renameat_with(CWD, at(path), CWD, at(to), flags)?;
        }
        Op::Write { slot, offset, length } => {
            let content = bytes(seed, belief.version, *offset, *length);
            return file(held, *slot).write_at(&content, *offset as u64);
        }
        Op::Resize { slot, length } => file(held, *slot).set_len(*length as u64)?,
        Op::Truncate { path } => drop(OpenOptions::new().write(true).truncate(true).open(at(path))?),
        Op::Chmod { path, mode } => fs::set_permissions(at(path), Permissions::from_mode(*mode))?,
        Op::Times { path, seconds } => {
            let time = Timespec { tv_sec: *seconds, tv_nsec: 5 };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(CWD, at(path), &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Op::SetXattr { path, name, value, create, replace } => {
            let mut flags = XattrFlags::empty();
            flags.set(XattrFlags::CREATE, *create);
            flags.set(XattrFlags::REPLACE, *replace);
            rustix::fs::setxattr(at(path), *name, value.as_bytes(), flags)?;
        }
        Op::RemoveXattr { path, name } => rustix::fs::removexattr(at(path), *name)?,
        Op::Sync { slot } => file(held, *slot).sync_all()?,
        Op::Look => {}
    }
    Ok(0)
}

fn file(held: &[Option<File>; HELD], slot: usize) -> &File {
    held[slot].as_ref().expect("believed to be open")
}

/// Compares a descriptor, a name, or everything, through any mount.
fn look(work: &mut Work, folder: &str, belief: &mut Belief, held: &[Option<File>; HELD]) -> Outcome<()> {
    let slot = work.random.below(HELD);
    if let (Some(file), Some(node)) = (&held[slot], belief.held(slot)) {
        let content = work.surely(&format!("read the descriptor {slot}"), || {
            let mut content = vec![0; 20 << 10];
            let count = file.read_at(&mut content, 0)?;
            content.truncate(count);
            Ok((content, file.metadata()?))
        })?;
        work.report.bytes += content.0.len() as u64;
        let differs = first_difference(&content.0, &node.content);
        let lengths = (content.0.len(), node.content.len());
        if differs.is_some() {
            let text = format!("descriptor {slot} differs at {differs:?}, lengths {lengths:?}");
            return excuse(work, folder, belief, held, text);
        }
        work.check(content.1.nlink() == u64::from(node.links), format!("descriptor {slot} has other links"))?;
        return work.check(content.1.mode() & 0o7777 == node.mode, format!("descriptor {slot} has another mode"));
    }
    let shown = Rc::new(belief.clone());
    // A look at everything is no single operation: only nobody else changes it.
    let bytes = belief.bytes();
    let found = work.look(&"compare everything", |point| match shown.look(&point.join(folder)) {
        Err(belief::Difference::Io(error)) => Err(error),
        Err(belief::Difference::Wrong(text)) => Ok(Err(text)),
        Ok(()) => Ok(Ok(())),
    })?;
    work.report.bytes += bytes;
    found.or_else(|text| excuse(work, folder, belief, held, text))
}

/// Something is not as believed: then there was no room for what was held back, of which its writer is told next.
fn excuse(
    work: &mut Work,
    folder: &str,
    belief: &mut Belief,
    held: &[Option<File>; HELD],
    text: String,
) -> Outcome<()> {
    let mut told = false;
    for file in held.iter().flatten() {
        told |= work.must(&"fsync what differs", || file.sync_all())?.is_none();
    }
    work.check(told, text)?;
    let root = work.point().join(folder);
    read_what_is_left(work, &root, belief, held)
}

/// There was no room: of what was neither synced nor closed some may be lost.
fn read_what_is_left(work: &mut Work, root: &Path, belief: &mut Belief, held: &[Option<File>; HELD]) -> Outcome<()> {
    for (id, slot, path) in belief.unsettled() {
        let got = match (slot.and_then(|slot| held[slot].as_ref()), path) {
            (Some(file), _) => work.surely(&"read what is left", || {
                let mut content = vec![0; 20 << 10];
                let count = file.read_at(&mut content, 0)?;
                content.truncate(count);
                Ok(content)
            })?,
            (None, Some(path)) => {
                work.surely(&format!("read what is left of {path}"), || fs::read(root.join(&path)))?
            }
            // Closed, and its mode lets nobody read it: it is looked at when another mode does.
            (None, None) => {
                belief.is_unsure_of(id);
                continue;
            }
        };
        work.report.bytes += got.len() as u64;
        let what =
            format!("of file {id} {} bytes are left, which were never written, or what was synced is lost", got.len());
        work.check(belief.is_left_with(id, got), what)?;
    }
    Ok(())
}
