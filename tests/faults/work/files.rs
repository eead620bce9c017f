//! Large files: every byte that was written is checked, through the descriptor and through other mounts.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::names::{bytes, first_difference};
use super::{Outcome, Stop, Work, settles};
use crate::sys;

const FILES: usize = 3;

/// A file's size at most.
const SIZE_MAX: usize = 4 << 20;

/// What is mapped: written as a whole before, so that a store needs no room.
const MAPPED: usize = 64 << 10;

struct Held {
    name: String,
    file: File,
    content: Vec<u8>,
}

/// A write that may have been done in part when its mount was killed.
struct Unsure {
    name: String,
    offset: usize,
    content: Vec<u8>,
}

/// A life, as those of `names`.
pub fn work(work: &mut Work, life: u64) -> Outcome<()> {
    let folder = work.folder(life)?;
    let mut held = Vec::new();
    let mut unsure = None;
    let ended = live(work, &folder, &mut held, &mut unsure);
    let beliefs: Vec<_> = held.into_iter().map(|held| (held.name, held.content)).collect();
    if matches!(ended, Err(Stop::Gone)) {
        work.await_mount();
    }
    if !matches!(ended, Err(Stop::Finding(_))) {
        let root = work.part.export.join(&folder);
        settles(|| beliefs.iter().try_for_each(|(name, content)| matches(&root, name, content, unsure.as_ref())))?;
        work.report.bytes += beliefs.iter().map(|(_, content)| content.len() as u64).sum::<u64>();
    }
    ended
}

fn live(work: &mut Work, folder: &str, held: &mut Vec<Held>, unsure: &mut Option<Unsure>) -> Outcome<()> {
    while held.len() < FILES && !work.is_over() {
        let name = held.len().to_string();
        let path = work.point().join(folder).join(&name);
        let made = || OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        if let Some(file) = work.must(&format!("create {name}"), made)? {
            held.push(Held { name, file, content: Vec::new() });
        }
    }
    let mut version = 1;
    while !work.is_over() {
        let number = work.random.below(FILES);
        let chosen = &mut held[number];
        match work.random.below(20) {
            0..9 => write(work, chosen, &mut version, unsure)?,
            9..14 => read(work, chosen)?,
            14..17 => look(work, folder, chosen)?,
            17 => resize(work, chosen, unsure)?,
            18 => work.surely(&"fsync", || chosen.file.sync_all())?,
            _ => map(work, folder, chosen, &mut version)?,
        }
        work.pause();
    }
    Ok(())
}

fn write(work: &mut Work, held: &mut Held, version: &mut u64, unsure: &mut Option<Unsure>) -> Outcome<()> {
    let most = *work.random.pick(&[300, 8 << 10, 200 << 10, 3 << 19]);
    let (offset, length) = (work.random.below(SIZE_MAX / 2), 1 + work.random.below(most));
    let content = bytes(work.part.seed, *version, offset, length);
    *version += 1;
    let what = format!("write {length} at {offset} of {}", held.name);
    *unsure = Some(Unsure { name: held.name.clone(), offset, content: content.clone() });
    let count = work.must(&what, || held.file.write_at(&content, offset as u64))?;
    let count = count.unwrap_or(0);
    if count > 0 {
        held.content.resize(held.content.len().max(offset + count), 0);
        held.content[offset..offset + count].copy_from_slice(&content[..count]);
    }
    // A part is written where there is no room for more.
    if (1..length).contains(&count) {
        let errno = work.ask(&what, || held.file.write_at(&content[count..], (offset + count) as u64))?;
        match errno {
            Ok(more) => {
                let end = offset + count + more;
                held.content.resize(held.content.len().max(end), 0);
                held.content[offset + count..end].copy_from_slice(&content[count..count + more]);
            }
            Err(errno) => work.check(Work::is_refusal(errno), format!("{what}: {count} written, then {errno}"))?,
        }
    }
    *unsure = None;
    Ok(())
}

fn read(work: &mut Work, held: &Held) -> Outcome<()> {
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
    let differs = first_difference(&got, wanted).map(|at| at + offset);
    work.check(differs.is_none(), format!("file {} differs at {differs:?} (read {length} at {offset})", held.name))
}

fn look(work: &mut Work, folder: &str, held: &Held) -> Outcome<()> {
    let got =
        work.look(&format!("read all of {}", held.name), |point| fs::read(point.join(folder).join(&held.name)))?;
    work.report.bytes += got.len() as u64;
    let differs = first_difference(&got, &held.content);
    let lengths = (got.len(), held.content.len());
    work.check(differs.is_none(), format!("file {} differs at {differs:?}, lengths {lengths:?}", held.name))
}

fn resize(work: &mut Work, held: &mut Held, unsure: &mut Option<Unsure>) -> Outcome<()> {
    let length = work.random.below(SIZE_MAX / 2);
    let kept = held.content.len().min(length);
    // What is cut off may be there still.
    *unsure = Some(Unsure { name: held.name.clone(), offset: kept, content: vec![0; length - kept] });
    let what = format!("truncate {} to {length}", held.name);
    if work.must(&what, || held.file.set_len(length as u64))?.is_some() {
        held.content.resize(length, 0);
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
    let (at, value) = (work.random.below(MAPPED), 2 + (*version % 200) as u8);
    *version += 1;
    work.surely(&"store into the mapping", || sys::store_shared(file.as_fd(), MAPPED, at, value))?;
    let got = work.look(&"read the mapped file", |point| fs::read(point.join(&path)))?;
    work.report.bytes += MAPPED as u64;
    let right =
        got.len() == MAPPED && got.iter().enumerate().all(|(place, byte)| *byte == if place == at { value } else { 1 });
    work.check(right, format!("the mapped file has not {value} at {at}, or something else"))
}

/// Compares a file on the server's own directory.
fn matches(root: &Path, name: &str, content: &[u8], unsure: Option<&Unsure>) -> Result<(), String> {
    let got = fs::read(root.join(name)).map_err(|error| format!("{name} on the server: {error}"))?;
    let Some(at) = first_difference(&got, content) else { return Ok(()) };
    let text = format!("{name} on the server differs at {at}, lengths {:?}", (got.len(), content.len()));
    let Some(unsure) = unsure.filter(|unsure| unsure.name == name) else { return Err(text) };
    let end = unsure.offset + unsure.content.len();
    let lengths = [content.len(), content.len().max(end), end];
    let right = |(at, byte): (usize, &u8)| {
        let old = content.get(at).copied().unwrap_or(0);
        let new = at.checked_sub(unsure.offset).and_then(|at| unsure.content.get(at));
        *byte == old || Some(byte) == new
    };
    if got.len() >= content.len().min(end) && got.len() <= lengths[1] && got.iter().enumerate().all(right) {
        return Ok(());
    }
    Err(format!("{text}, and not by the write of {} at {}", unsure.content.len(), unsure.offset))
}
