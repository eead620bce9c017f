//! Compares a tree with the manifest of a copy, on either side, at any time.

use std::collections::{HashMap, HashSet};
use std::io::{self, Seek};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use aqueduct_fs::{Errno, SumKind};
use aqueduct_worker::lock;
use serde::Serialize;

use crate::hash::{self, Hash, WHOLE_MAX};
use crate::manifest::{Line, ManifestError, Provenance, Text, kind_name};
use crate::manifest_table;
use crate::outcome::{Told, Trouble, Trying, shown};
use crate::side::{Access, Directory, File, Place, STEP, Seen};
use crate::{Failure, outcome::Fault};

/// Lines that wait for a thread.
const WAITING_MAX: usize = 256;

/// What came of comparing.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// Names that are as the manifest says.
    pub good: u64,
    /// Bytes of files that were read.
    pub bytes: u64,
    /// Names that are not, or are there and not in the manifest: the first of them.
    pub troubles: Vec<Trouble>,
    /// How many.
    pub trouble_count: u64,
}

/// What all threads share.
struct Comparing {
    root: Arc<dyn Directory>,
    told: Told,
    good: Mutex<(u64, u64)>,
    known: Mutex<HashSet<[u8; 16]>>,
    /// Of inodes with several names: the first of them, as the manifest has it.
    firsts: Mutex<HashMap<[u8; 16], Vec<u8>>>,
}

/// By what a path is remembered, whatever its length.
fn mark(path: &[u8]) -> [u8; 16] {
    let mut mark = [0; 16];
    mark.copy_from_slice(&blake3::hash(path).as_bytes()[..16]);
    mark
}

/// Compares what is below a place with a manifest, with so many threads.
pub fn verify(
    input: std::fs::File,
    name: &str,
    place: &Place,
    access: &Access,
    threads: usize,
) -> Result<Verified, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        let hint = "check the path: the manifest's names are looked for below it";
        Failure::new(format!("cannot compare {place} with the manifest"), error, hint)
    };
    let root = place.find_target(access)?.directory().map_err(|error| failed(&error))?;
    let (told, good, known, firsts) = Default::default();
    let comparing = Comparing { root, told, good, known, firsts };
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let receiver = Mutex::new(receiver);
    let read = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(|| compare_all(&comparing, &receiver))).collect();
        let read = manifest_table::read(input, |line| {
            let path = line.path.bytes().ok_or_else(|| io::Error::other("a path is no base64"))?;
            lock(&comparing.known).insert(mark(&path));
            sender.send((path, line)).map_err(io::Error::other)
        });
        drop(sender);
        let joined: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        // What such a thread had was not compared: nobody may take it for good.
        joined.into_iter().for_each(|joined| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        read
    });
    tell_incomplete(&read.map_err(|error| cannot_believe(name, &error))?, &comparing.told);
    let root = comparing.root.clone();
    find_strange(&comparing, &*root, &mut Vec::new());
    let Comparing { told, good, .. } = comparing;
    let (good, bytes) = good.into_inner().unwrap_or_else(|poison| poison.into_inner());
    let (troubles, trouble_count) = told.into_troubles();
    Ok(Verified { good, bytes, troubles, trouble_count })
}

fn cannot_believe(name: &str, error: &ManifestError) -> Failure {
    let hint = "fetch the manifest again from where it was kept; without it nothing can be certified";
    Failure::new(format!("cannot believe the manifest {name}"), error, hint)
}

/// Tells that names are missing in a manifest which the copy should have had.
fn tell_incomplete(provenance: &Provenance, told: &Told) {
    let count = provenance.troubles;
    if count > 0 {
        let why = format!("{count} names could not be copied and are not in the manifest: copy them and write it anew");
        told.trouble(b"", &Fault::new("comparing the whole", why));
    }
}

/// Gives each line that `b3sum --check` reads to `print`: of all files, further names with the
/// hash of their file. What cannot be written in such a line is returned, and how much it is.
pub fn b3sum(
    mut input: std::fs::File,
    name: &str,
    mut print: impl FnMut(&str),
) -> Result<(Vec<Trouble>, u64), Failure> {
    let (told, mut firsts) = (Told::default(), HashMap::new());
    // Only this pass says that it can be believed, and which files have further names.
    let again = input.try_clone();
    let read = manifest_table::read(again.map_err(|error| cannot_believe(name, &error.into()))?, |line| {
        firsts.extend(line.link.as_ref().and_then(Text::bytes).map(|first| (mark(&first), None)));
        Ok(())
    });
    tell_incomplete(&read.map_err(|error| cannot_believe(name, &error))?, &told);
    input.rewind().map_err(|error| cannot_believe(name, &error.into()))?;
    let read = manifest_table::read(input, |line| {
        if line.kind != kind_name(libc::S_IFREG) {
            return Ok(());
        }
        let path = line.path.bytes().unwrap_or_default();
        if let Some(hash) = firsts.get_mut(&mark(&path)) {
            hash.clone_from(&line.b3);
        }
        let of_first = line.link.as_ref().and_then(Text::bytes).and_then(|first| firsts.get(&mark(&first)));
        let hash = line.b3.as_ref().or(of_first.and_then(Option::as_ref));
        match (hash, std::str::from_utf8(&path)) {
            (Some(hash), Ok(path)) if !path.contains(char::REPLACEMENT_CHARACTER) => print(&sum_line(hash, path)),
            (None, _) => told.trouble(&path, &Fault::new("printing its hash", "the manifest has none of it")),
            (Some(_), _) => told.trouble(&path, &Fault::new("printing its hash", "b3sum reads no such name: no UTF-8")),
        }
        Ok(())
    });
    read.map_err(|error| cannot_believe(name, &error))?;
    Ok(told.into_troubles())
}

/// A line as `b3sum` prints it.
fn sum_line(hash: &str, path: &str) -> String {
    let is_special = path.contains(['\\', '\n', '\r']);
    let escaped = path.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
    format!("{}{hash}  {escaped}", if is_special { "\\" } else { "" })
}

/// Names that are there and not in the manifest. Of a root that is not in it, since a name was
/// copied into it, the manifest says nothing: other names there are others'.
fn find_strange(comparing: &Comparing, directory: &dyn Directory, path: &mut Vec<u8>) {
    let mut below = Vec::new();
    let is_anybodys = path.is_empty() && !lock(&comparing.known).contains(&mark(b""));
    let listed = directory.list(&mut |listed| {
        if listed.is_part() {
            return; // of a copy into the tree that has not ended
        }
        let path = crate::job::below(path, &listed.name);
        let known = lock(&comparing.known);
        if !known.contains(&mark(&path)) {
            if is_anybodys {
                return;
            }
            comparing.told.trouble(&path, &Fault::new("comparing it", "it is there, and not in the manifest"));
        } else if listed.kind == libc::S_IFDIR {
            below.push(listed.name);
        }
    });
    if let Err(error) = listed {
        comparing.told.trouble(path, &Fault::new("listing it", error));
    }
    for name in below {
        let length = path.len();
        *path = crate::job::below(path, &name);
        match directory.directory(&name) {
            Ok(directory) => find_strange(comparing, &*directory, path),
            Err(error) => comparing.told.trouble(path, &Fault::new("opening it", error)),
        }
        path.truncate(length);
    }
}

fn compare_all(comparing: &Comparing, lines: &Mutex<Receiver<(Vec<u8>, Line)>>) {
    let mut last = (Vec::new(), comparing.root.clone());
    let mut buffer = Vec::new();
    loop {
        let next = lock(lines).recv();
        let Ok((path, line)) = next else { return };
        match compare(comparing, &path, &line, &mut last, &mut buffer) {
            Ok(bytes) => {
                let mut good = lock(&comparing.good);
                *good = (good.0 + 1, good.1 + bytes);
            }
            Err(fault) => comparing.told.trouble(&path, &fault),
        }
    }
}

/// Opens the directory in which a path lies. Names that follow each other mostly lie in one.
fn directory_of(
    comparing: &Comparing,
    path: &[u8],
    last: &mut (Vec<u8>, Arc<dyn Directory>),
) -> Result<Arc<dyn Directory>, Errno> {
    if last.0 != path {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let found = names.into_iter().try_fold(comparing.root.clone(), |directory, name| directory.directory(name))?;
        *last = (path.to_vec(), found);
    }
    Ok(last.1.clone())
}

fn compare(
    comparing: &Comparing,
    path: &[u8],
    line: &Line,
    last: &mut (Vec<u8>, Arc<dyn Directory>),
    buffer: &mut Vec<u8>,
) -> Result<u64, Fault> {
    let differs = |what: &'static str, is: String, should: String| {
        Err(Fault::new("comparing it", format!("{what} is {is}, and was {should}")))
    };
    let tried = |result: Result<_, Errno>| result.map_err(|error| Fault::new("opening it", error));
    let cut = path.iter().rposition(|byte| *byte == b'/');
    let (above, name) = cut.map_or((&path[..0], path), |at| (&path[..at], &path[at + 1..]));
    let directory = directory_of(comparing, above, last).map_err(|error| Fault::new("opening its directory", error))?;
    let looked = if path.is_empty() { directory.seen() } else { directory.look(name) };
    let seen = looked.map_err(|error| Fault::new("looking at it", error))?;
    let is_file = seen.attr.is_regular();
    if kind_name(seen.attr.kind()) != line.kind {
        return differs("its type", kind_name(seen.attr.kind()).to_owned(), line.kind.clone());
    }
    if let Some(size) = line.size.filter(|size| is_file && *size != seen.attr.size) {
        return differs("its size", seen.attr.size.to_string(), size.to_string());
    }
    let file = if is_file { Some(tried(directory.file(name, Some(&seen)))?) } else { None };
    if let (Some(b3), Some(file)) = (&line.b3, &file) {
        let hash = hash_of(&**file, seen.attr.size, buffer).map_err(|error| Fault::new("reading it", error))?;
        is_still(&**file, &seen)?;
        if hash.to_hex().as_str() != b3 {
            return differs("the hash of its content", hash.to_hex().to_string(), b3.clone());
        }
    }
    let text = match line.target {
        Some(_) => Some(directory.read_link(name).map_err(|error| Fault::new("reading the link", error))?),
        None => None,
    };
    let xattrs = match &file {
        Some(file) => file.xattrs(),
        None if path.is_empty() => directory.xattrs(),
        None => directory.other(name).and_then(|node| node.xattrs()),
    };
    let xattrs = xattrs.map_err(|error| Fault::new("reading its extended attributes", error))?;
    let is =
        Line { b3: line.b3.clone(), link: line.link.clone(), ..Line::new(path, &seen, &xattrs, None, text.as_deref()) };
    if let Some(difference) = difference(&is, line) {
        return Err(Fault::new("comparing it", difference));
    }
    let mut first = path.to_vec();
    if let Some(link) = &line.link {
        first = link.bytes().ok_or_else(|| Fault::new("comparing it", "its link is no base64"))?;
        compare_link(comparing, &first, &seen)?;
    }
    if !seen.attr.is_directory() && seen.attr.nlink > 1 {
        is_no_others(comparing, first, &seen)?;
    }
    Ok(if line.b3.is_some() { seen.attr.size } else { 0 })
}

fn compare_link(comparing: &Comparing, first: &[u8], seen: &Seen) -> Result<(), Fault> {
    let cut = first.iter().rposition(|byte| *byte == b'/');
    let (above, name) = cut.map_or((&first[..0], first), |at| (&first[..at], &first[at + 1..]));
    let mut last = (Vec::new(), comparing.root.clone());
    let found = directory_of(comparing, above, &mut last).and_then(|directory| directory.look(name));
    let found = found.map_err(|error| Fault::new("looking at the first name of it", error))?;
    if found.identity() == seen.identity() {
        return Ok(());
    }
    Err(Fault::new("comparing it", format!("it is no name of the same file as {}", shown(first))))
}

/// Names that the manifest has as different files may be one by now: who writes to one of them
/// changes all.
fn is_no_others(comparing: &Comparing, first: Vec<u8>, seen: &Seen) -> Result<(), Fault> {
    let mut firsts = lock(&comparing.firsts);
    let known = firsts.entry(mark(&seen.identity())).or_insert_with(|| first.clone());
    if *known == first {
        return Ok(());
    }
    Err(Fault::new("comparing it", format!("it is a name of the same file as {}, and was none", shown(known))))
}

/// The first thing in which two lines differ, as text.
fn difference(is: &Line, was: &Line) -> Option<String> {
    let text =
        |text: &Option<Text>| text.as_ref().map(|text| shown(&text.bytes().unwrap_or_default())).unwrap_or_default();
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_default();
    let pairs = [
        ("its mode", mode(&is.mode), mode(&was.mode)),
        ("its owner", is.uid.to_string(), was.uid.to_string()),
        ("its group", is.gid.to_string(), was.gid.to_string()),
        ("its time", is.mtime.clone(), was.mtime.clone()),
        ("where it points to", text(&is.target), text(&was.target)),
        ("its device number", mode(&is.device), mode(&was.device)),
    ];
    let found = pairs.into_iter().find(|(_, is, was)| is != was);
    let found = found.map(|(what, is, was)| format!("{what} is {is}, and was {was}"));
    found.or_else(|| (is.xattrs != was.xattrs).then(|| "its extended attributes are others".to_owned()))
}

/// Whether an open file is what was seen before it was read: else what was read of it is of no
/// one moment.
pub fn is_still(file: &dyn File, seen: &Seen) -> Result<(), Fault> {
    file.seen().trying("looking at it again")?.is_as(seen).then_some(()).ok_or_else(Fault::changed)
}

/// The hash of a file, in the chunks in which it would be copied, each made where it lies if that
/// can be.
pub fn hash_of(file: &dyn File, size: u64, buffer: &mut Vec<u8>) -> Result<Hash, Errno> {
    let chunk = if size > WHOLE_MAX { hash::chunk_length(size) } else { WHOLE_MAX };
    if size <= chunk {
        return match file.sum((0, size), SumKind::Blake3, false)? {
            Some(sum) => Ok(Hash::from_bytes(sum.value)),
            None => Ok(read_hash(file, (0, size), buffer)?.finalize()),
        };
    }
    let mut values = Vec::new();
    for start in (0..size).step_by(usize::try_from(chunk).map_err(|_| Errno::EFBIG)?) {
        let range = (start, start.saturating_add(chunk).min(size));
        values.push(match file.sum(range, SumKind::Blake3Part, false)? {
            Some(sum) => sum.value,
            None => hash::value(&read_hash(file, range, buffer)?),
        });
    }
    Ok(hash::merge(&values, chunk, size))
}

fn read_hash(file: &dyn File, (start, end): (u64, u64), buffer: &mut Vec<u8>) -> Result<blake3::Hasher, Errno> {
    let (mut hasher, mut at) = (hash::of_chunk(start), start);
    while at < end {
        file.read(at, (end - at).min(STEP as u64) as usize, buffer)?;
        if buffer.is_empty() {
            return Err(Errno::ENODATA);
        }
        hasher.update(buffer);
        at += buffer.len() as u64;
    }
    Ok(hasher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_or_exchanged_since_it_was_seen_is_not_still_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("f"), "one").unwrap();
        let place = Place::parse(folder.path().as_os_str()).unwrap();
        let access = Access::new(None, aqueduct_wire::Checksums::Auto, 1);
        let directory = place.find_target(&access).unwrap().directory().unwrap();
        let seen = crate::settled::settled(&*directory.file(b"f", None).unwrap()).unwrap();
        let still = || is_still(&*directory.file(b"f", None).unwrap(), &seen);
        still().unwrap();
        std::fs::write(at("other"), "one").unwrap();
        std::fs::rename(at("f"), at("kept")).unwrap();
        std::fs::rename(at("other"), at("f")).unwrap();
        still().unwrap_err();
        std::fs::rename(at("kept"), at("f")).unwrap();
        // Its times are set back, but for that of the change.
        let modified = std::fs::metadata(at("f")).unwrap().modified().unwrap();
        std::fs::write(at("f"), "two").unwrap();
        std::fs::File::options().write(true).open(at("f")).unwrap().set_modified(modified).unwrap();
        still().unwrap_err();
    }
}
