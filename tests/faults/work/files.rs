//! Large files: every byte that was written is checked, through the descriptor and through other mounts. Who has been told that there is no room, or whose
//! mount was killed, may have lost what he had not synced or seen elsewhere.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::content::Content;
use super::names::{bytes, first_difference};
use super::{Outcome, Stop, Work, settles};
use crate::sys;

const FILES: usize = 3;

/// A file's size at most.
const SIZE_MAX: usize = 4 << 20;

/// Pieces that are written one after the other, and their length at most.
const PIECES_MAX: usize = 40;
const PIECE_MAX: usize = 600;

/// What is mapped: written as a whole before, so that a store needs no room.
const MAPPED: usize = 64 << 10;

struct Held {
    name: String,
    file: File,
    content: Content,
}

/// A change that may have been done in part when its mount was killed.
struct Unsure {
    name: String,
    change: Change,
}

enum Change {
    Write(usize, Vec<u8>),
    Resize(usize),
}

/// A life, as those of `names`.
pub fn work(work: &mut Work, life: u64) -> Outcome<()> {
    let folder = work.folder(life)?;
    let mut held = Vec::new();
    let mut unsure = None;
    let ended = live(work, &folder, &mut held, &mut unsure);
    let close = |held: Held| (held.name, held.content, sys::close(held.file).is_ok());
    let beliefs: Vec<_> = held.into_iter().map(close).collect();
    if matches!(ended, Err(Stop::Gone)) {
        work.await_mount();
    }
    if !matches!(ended, Err(Stop::Finding(_))) {
        let root = work.part.export.join(&folder);
        let unsure = unsure.as_ref();
        settles(|| {
            beliefs.iter().try_for_each(|(name, content, closed)| matches(&root, (name, content), *closed, unsure))
        })?;
        work.report.bytes += beliefs.iter().map(|(_, content, _)| content.len() as u64).sum::<u64>();
    }
    ended
}

fn live(work: &mut Work, folder: &str, held: &mut Vec<Held>, unsure: &mut Option<Unsure>) -> Outcome<()> {
    while held.len() < FILES && !work.is_over() {
        let name = held.len().to_string();
        let path = work.point().join(folder).join(&name);
        let made = || OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        if let Some(file) = work.must(&format!("create {name}"), made)? {
            held.push(Held { name, file, content: Content::default() });
        }
    }
    let mut version = 1;
    while !work.is_over() {
        let number = work.random.below(FILES);
        let chosen = &mut held[number];
        match work.random.below(20) {
            0..5 => write(work, chosen, &mut version, unsure)?,
            5..9 => write_on(work, chosen, &mut version, unsure)?,
            9..14 => read(work, chosen)?,
            14..17 => look(work, folder, chosen)?,
            17 => resize(work, chosen, unsure)?,
            18 => _ = sync(work, chosen)?,
            _ => map(work, folder, chosen, &mut version)?,
        }
        work.pause();
    }
    Ok(())
}

fn write(work: &mut Work, held: &mut Held, version: &mut u64, unsure: &mut Option<Unsure>) -> Outcome<()> {
    let most = *work.random.pick(&[300, 8 << 10, 200 << 10, 3 << 19]);
    let (offset, length) = (work.random.below(SIZE_MAX / 2), 1 + work.random.below(most));
    write_at(work, held, (offset, length), version, unsure)
}

/// Small pieces one after the other, which a client may gather.
fn write_on(work: &mut Work, held: &mut Held, version: &mut u64, unsure: &mut Option<Unsure>) -> Outcome<()> {
    let mut offset = if work.random.chance(50) { held.content.len() } else { work.random.below(SIZE_MAX / 2) };
    for _ in 0..1 + work.random.below(PIECES_MAX) {
        let length = 1 + work.random.below(PIECE_MAX);
        if offset + length > SIZE_MAX {
            break;
        }
        write_at(work, held, (offset, length), version, unsure)?;
        offset += length;
    }
    Ok(())
}

fn write_at(
    work: &mut Work,
    held: &mut Held,
    (offset, length): (usize, usize),
    version: &mut u64,
    unsure: &mut Option<Unsure>,
) -> Outcome<()> {
    let content = bytes(work.part.seed, *version, offset, length);
    *version += 1;
    let what = format!("write {length} at {offset} of {}", held.name);
    *unsure = Some(Unsure { name: held.name.clone(), change: Change::Write(offset, content.clone()) });
    let count = work.must(&what, || held.file.write_at(&content, offset as u64))?;
    let Some(count) = count else {
        *unsure = None;
        return read_all(work, held);
    };
    held.content.write(offset, &content[..count]);
    // A part is written where there is no room for more.
    if (1..length).contains(&count) {
        let errno = work.ask(&what, || held.file.write_at(&content[count..], (offset + count) as u64))?;
        match errno {
            Ok(more) => held.content.write(offset + count, &content[count..count + more]),
            Err(errno) => {
                work.check(Work::is_refusal(errno), format!("{what}: {count} written, then {errno}"))?;
                *unsure = None;
                return read_all(work, held);
            }
        }
    }
    *unsure = None;
    Ok(())
}

/// Whether what was written is safe now; if not, what is left of it is what there is.
fn sync(work: &mut Work, held: &mut Held) -> Outcome<bool> {
    let is_safe = work.must(&format!("fsync {}", held.name), || held.file.sync_all())?.is_some();
    if is_safe {
        held.content.settle();
    } else {
        read_all(work, held)?;
    }
    Ok(is_safe)
}

/// Its writer was told that there is no room: some of what was held back may be lost.
fn read_all(work: &mut Work, held: &mut Held) -> Outcome<()> {
    let got = work.surely(&format!("read what is left of {}", held.name), || {
        let mut got = vec![0; SIZE_MAX];
        let count = held.file.read_at(&mut got, 0)?;
        got.truncate(count);
        Ok(got)
    })?;
    let lengths = (got.len(), held.content.len());
    let text = format!("file {} has what was never written, or lost what was synced: lengths {lengths:?}", held.name);
    work.check(held.content.may_be(&got), text)?;
    held.content = Content::of(got);
    Ok(())
}

/// It is not as believed: then there was no room for what was held back, of which its writer is told next.
fn excuse(work: &mut Work, held: &mut Held, text: String) -> Outcome<()> {
    let is_safe = sync(work, held)?;
    work.check(!is_safe, text)
}

fn read(work: &mut Work, held: &mut Held) -> Outcome<()> {
    let offset = work.random.below(held.content.len() + 1);
    let length = *work.random.pick(&[100, 64 << 10, 1 << 20]);
    let (got, _) = work.surely(&format!("read {length} at {offset} of {}", held.name), || {
        let mut got = vec![0; length];
        let count = held.file.read_at(&mut got, offset as u64)?;
        got.truncate(count);
        Ok((got, count))
    })?;
    work.report.bytes += got.len() as u64;
    let wanted = &held.content[offset..held.content.len().min(offset + length)];
    let Some(at) = first_difference(&got, wanted).map(|at| at + offset) else { return Ok(()) };
    let text = format!("file {} differs at {at} (read {length} at {offset})", held.name);
    excuse(work, held, text)
}

fn look(work: &mut Work, folder: &str, held: &mut Held) -> Outcome<()> {
    let got =
        work.look(&format!("read all of {}", held.name), |point| fs::read(point.join(folder).join(&held.name)))?;
    work.report.bytes += got.len() as u64;
    let Some(at) = first_difference(&got, &held.content) else {
        held.content.settle();
        return Ok(());
    };
    let text = format!("file {} differs at {at}, lengths {:?}", held.name, (got.len(), held.content.len()));
    excuse(work, held, text)
}

fn resize(work: &mut Work, held: &mut Held, unsure: &mut Option<Unsure>) -> Outcome<()> {
    let length = work.random.below(SIZE_MAX / 2);
    *unsure = Some(Unsure { name: held.name.clone(), change: Change::Resize(length) });
    let what = format!("truncate {} to {length}", held.name);
    if work.must(&what, || held.file.set_len(length as u64))?.is_some() {
        held.content.resize(length);
    }
    *unsure = None;
    Ok(())
}

/// Stores into a shared mapping of a file of its own, and looks at it through any mount.
fn map(work: &mut Work, folder: &str, held: &Held, version: &mut u64) -> Outcome<()> {
    let path = format!("{folder}/mapped-{}", held.name);
    let place = work.point().join(&path);
    let before = vec![1; MAPPED];
    let mut written = 0;
    let opened = work.must(&"make the mapped file", || {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&place)?;
        Ok(file)
    })?;
    let Some(file) = opened else { return Ok(()) };
    while written < MAPPED {
        let rest = &before[written..];
        let Some(count) = work.must(&"fill the mapped file", || file.write_at(rest, written as u64))? else {
            return Ok(());
        };
        written += count;
    }
    if work.must(&"fsync the mapped file", || file.sync_all())?.is_none() {
        return Ok(());
    }
    let (at, value) = (work.random.below(MAPPED), 2 + (*version % 200) as u8);
    *version += 1;
    work.surely(&"store into the mapping", || sys::store_shared(file.as_fd(), MAPPED, at, value))?;
    let got = work.look(&"read the mapped file", |point| fs::read(point.join(&path)))?;
    work.report.bytes += MAPPED as u64;
    let right =
        got.len() == MAPPED && got.iter().enumerate().all(|(place, byte)| *byte == if place == at { value } else { 1 });
    work.check(right, format!("the mapped file has not {value} at {at}, or something else"))
}

/// Compares a file on the server's own directory. If its close said that all is well, nothing is lost.
fn matches(
    root: &Path,
    (name, content): (&str, &Content),
    closed: bool,
    unsure: Option<&Unsure>,
) -> Result<(), String> {
    let got = fs::read(root.join(name)).map_err(|error| format!("{name} on the server: {error}"))?;
    let Some(at) = first_difference(&got, content) else { return Ok(()) };
    let text = format!("{name} on the server differs at {at}, lengths {:?}", (got.len(), content.len()));
    let mut content = content.clone();
    match unsure.filter(|unsure| unsure.name == name).map(|unsure| &unsure.change) {
        Some(Change::Write(offset, bytes)) => content.write(*offset, bytes),
        Some(Change::Resize(length)) => content.may_resize(*length),
        None => {}
    }
    if !closed && content.may_be(&got) { Ok(()) } else { Err(text) }
}
