//! The two ends of a copy: what is read, and where made-up data go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aqueduct_node::{Failure, Reach};
use aqueduct_transfer::{Access, Directory, File, Listed, Place, Seen};

/// The type bits of a mode, of a regular file and of a directory.
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const TYPE: u32 = 0o170_000;

/// Files of the source that are read at most: enough that they differ, and soon found.
const FILES_MAX: usize = 4096;

/// How long files are looked for.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Unfinished files begin with this. No copy takes one for a file, and what a crash leaves behind
/// can be told.
const NAME: &str = ".aqueduct-part-diagnose-";

/// A file of the source.
pub(crate) struct Sample {
    pub(crate) directory: Arc<dyn Directory>,
    pub(crate) name: Vec<u8>,
    pub(crate) seen: Seen,
}

/// What is read, piece by piece, from the beginning again when all was.
pub(crate) struct Source {
    pub(crate) samples: Arc<Vec<Sample>>,
    /// Where each file begins in all of them, one after the other, in pieces.
    starts: Vec<u64>,
    pieces: u64,
    piece: u64,
    next: AtomicU64,
}

/// Where made-up data are written: a directory of our own, which goes with this.
pub(crate) struct Target {
    parent: Arc<dyn Directory>,
    name: Vec<u8>,
    pub(crate) directory: Arc<dyn Directory>,
    names: AtomicUsize,
    /// Each file grows to so many bytes at most.
    pub(crate) length_max: u64,
    pub(crate) is_volatile: bool,
    /// Its server, if it is at one, and how it is reached.
    pub(crate) server: Option<(String, Reach)>,
}

fn failed(place: &Place, error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("cannot look at {place}"), error, "name a file or directory that can be read there")
}

/// The files of a tree, the first ones that are found.
fn gather(root: &Arc<dyn Directory>, found: &mut Vec<Sample>) {
    let (mut left, began) = (vec![root.clone()], Instant::now());
    while let Some(directory) = left.pop() {
        let mut names = Vec::new();
        let _ = directory.list(&mut |listed| names.push(listed)); // what cannot be read is not
        for Listed { name, kind, .. } in names.into_iter().filter(|listed| !listed.is_part()) {
            if found.len() >= FILES_MAX || began.elapsed() > LOOK_MAX {
                return;
            }
            let Ok(seen) = directory.look(&name) else { continue };
            match if kind == 0 { seen.attr.mode & TYPE } else { kind & TYPE } {
                REGULAR if seen.attr.size > 0 => {
                    found.push(Sample { directory: directory.clone(), name: name.into(), seen });
                }
                DIRECTORY => left.extend(directory.directory(&name)),
                _ => {}
            }
        }
    }
}

impl Source {
    /// Finds what there is to read.
    pub(crate) fn find(place: &Place, access: &Access, piece: u64) -> Result<Source, Failure> {
        let root = place.find(access)?;
        let seen = root.seen().map_err(|error| failed(place, error))?;
        let seen = seen.ok_or_else(|| failed(place, "it does not exist"))?;
        let mut samples = Vec::new();
        match (&root.name, seen.attr.mode & TYPE) {
            (Some(name), REGULAR) if seen.attr.size > 0 => {
                samples.push(Sample { directory: root.parent.clone(), name: name.clone(), seen });
            }
            (_, DIRECTORY) => {
                gather(&root.directory().map_err(|error| failed(place, error))?, &mut samples);
            }
            _ => {}
        }
        if samples.is_empty() {
            let hint = "name a file with data, or a directory with such files, to have something to read";
            return Err(Failure::new(format!("cannot read from {place}"), "there are no data in it", hint));
        }
        Ok(Source::of(Arc::new(samples), piece))
    }

    fn of(samples: Arc<Vec<Sample>>, piece: u64) -> Source {
        let mut pieces = 0;
        let mut starts = Vec::with_capacity(samples.len());
        for sample in samples.iter() {
            starts.push(pieces);
            pieces += sample.seen.attr.size.div_ceil(piece);
        }
        Source { samples, starts, pieces, piece, next: AtomicU64::new(0) }
    }

    /// The same files in pieces of another size.
    pub(crate) fn in_pieces(&self, piece: u64) -> Source {
        Source::of(self.samples.clone(), piece)
    }

    /// The first piece.
    pub(crate) fn first(&self) -> (usize, u64, usize) {
        (0, 0, self.piece.min(self.samples[0].seen.attr.size) as usize)
    }

    /// The next piece: which file, from where, how many bytes.
    pub(crate) fn next(&self) -> (usize, u64, usize) {
        let place = self.next.fetch_add(1, Ordering::Relaxed) % self.pieces.max(1);
        let index = self.starts.partition_point(|start| *start <= place).saturating_sub(1);
        let offset = (place - self.starts[index]) * self.piece;
        let length = self.piece.min(self.samples[index].seen.attr.size.saturating_sub(offset));
        (index, offset, length as usize)
    }

    /// Bytes of a file, in the mean.
    pub(crate) fn mean_size(&self) -> u64 {
        self.bytes() / self.samples.len().max(1) as u64
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.samples.iter().map(|sample| sample.seen.attr.size).sum()
    }

    pub(crate) fn open(&self, index: usize) -> Result<Arc<dyn File>, aqueduct_fs::Errno> {
        let sample = &self.samples[index];
        sample.directory.file(&sample.name, Some(&sample.seen))
    }
}

impl Target {
    /// Makes a directory of our own there. `files`: how many will be filled at a time.
    pub(crate) fn make(place: &Place, access: &Access, files: usize) -> Result<Target, Failure> {
        let refused = |error: aqueduct_fs::Errno| {
            let what = format!("cannot write to {place}");
            Failure::new(what, error, "name a directory that this user may write to, or a new name in one")
        };
        let root = place.find_target(access)?;
        let is_directory = |seen: &Seen| seen.attr.mode & TYPE == DIRECTORY;
        let parent = match root.seen().map_err(refused)? {
            Some(seen) if is_directory(&seen) => root.directory().map_err(refused)?,
            _ => root.parent.clone(),
        };
        let (free, _) = parent.free().map_err(refused)?;
        let mut random = [0; 8];
        let _ = getrandom::fill(&mut random); // another name is as good
        let name = format!("{NAME}{:016x}", u64::from_le_bytes(random)).into_bytes();
        let directory = parent.make_directory(&name).map_err(refused)?;
        let is_volatile = directory.is_volatile();
        // A twentieth of what is free at most.
        let length_max = (free / 20 / files.max(1) as u64).clamp(1 << 20, 64 << 20);
        let server = place.server().map(|server| (server.to_owned(), (access.key.clone(), access.routes.clone())));
        Ok(Target { parent, name, directory, names: AtomicUsize::new(0), length_max, is_volatile, server })
    }

    /// A file of our own there.
    pub(crate) fn create(&self) -> Result<(Arc<dyn File>, Vec<u8>), aqueduct_fs::Errno> {
        let name = format!("{}", self.names.fetch_add(1, Ordering::Relaxed)).into_bytes();
        Ok((self.directory.create(&name)?, name))
    }

    /// Removes all of it, as far as that goes; `false`: something stays behind.
    pub(crate) fn remove(&self) -> bool {
        let mut names = Vec::new();
        let _ = self.directory.list(&mut |listed| names.push(listed.name));
        for name in names {
            let _ = self.directory.unlink(&name);
        }
        self.parent.remove_directory(&self.name).is_ok()
    }

    /// What it is called below the destination.
    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }
}
