//! A program that writes into files of its own in every way and knows what has to be in them, byte for byte: nothing of it is synced unless it says so,
//! and all of it has to be there, whatever happens to the server's machine meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aqueduct_model::Random;

use crate::sys;

const FILES: usize = 6;

/// Files grow to about this size, so that their pages are written to again and again.
const SIZE_MAX: usize = 600_000;

/// Some writes are larger than what travels with control messages.
const LENGTH_MAX: usize = 150_000;

struct Page {
    path: PathBuf,
    file: File,
    end: File,
    content: Vec<u8>,
}

fn open(path: &Path) -> io::Result<(File, File)> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    Ok((file, OpenOptions::new().append(true).open(path)?))
}

fn said<T>(result: io::Result<T>, what: &str) -> io::Result<T> {
    result.map_err(|error| io::Error::other(format!("{what}: {error}")))
}

impl Page {
    fn new(path: PathBuf) -> io::Result<Page> {
        let (file, end) = open(&path)?;
        Ok(Page { path, file, end, content: Vec::new() })
    }

    fn put(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        self.content.resize(self.content.len().max(end), 0);
        self.content[at..end].copy_from_slice(data);
    }

    /// One change.
    fn scribble(&mut self, random: &mut Random, number: u64) -> io::Result<()> {
        let length = if random.below(4) == 0 { random.below(LENGTH_MAX) + 1 } else { random.below(3000) + 1 };
        let data: Vec<u8> = (0..length).map(|at| (number.wrapping_mul(31) + at as u64) as u8).collect();
        let at = random.below(SIZE_MAX);
        match random.below(20) {
            0 => {
                said(self.file.set_len(at as u64), "truncate")?;
                self.content.resize(at, 0);
            }
            1 if !self.content.is_empty() => {
                let at = random.below(self.content.len());
                said(sys::store_shared(self.file.as_fd(), self.content.len(), at, number as u8), "store and msync")?;
                self.content[at] = number as u8;
            }
            2 => said(self.file.sync_data(), "fdatasync")?,
            3 => (self.file, self.end) = said(open(&self.path), "close and open")?,
            4 => {
                self.file = said(OpenOptions::new().read(true).write(true).truncate(true).open(&self.path), "O_TRUNC")?;
                self.content.clear();
            }
            5 => {
                said(fs::remove_file(&self.path), "unlink")?;
                (self.file, self.end) = said(open(&self.path), "create again")?;
                self.content.clear();
            }
            6..=10 if self.content.len() < SIZE_MAX => {
                said(self.end.write_all(&data), "append")?;
                self.content.extend_from_slice(&data);
            }
            _ => {
                said(self.file.write_all_at(&data, at as u64), "write")?;
                self.put(at, &data);
            }
        }
        Ok(())
    }

    fn check(&self, number: u64) -> io::Result<()> {
        let found = said(fs::read(&self.path), "read")?;
        let differs = found.iter().zip(&self.content).position(|(found, expected)| found != expected);
        if found.len() == self.content.len() && differs.is_none() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{} after {number} changes: {} bytes instead of {}, the first other one at {differs:?}",
            self.path.display(),
            found.len(),
            self.content.len()
        )))
    }
}

/// Works for `time`; returns the number of changes.
pub fn work(directory: &Path, time: Duration) -> io::Result<u64> {
    let started = Instant::now();
    let mut random = Random::new(u64::from(std::process::id()));
    let mut pages: Vec<Page> =
        (0..FILES).map(|number| Page::new(directory.join(format!("page{number}")))).collect::<Result<_, _>>()?;
    let mut number = 0;
    while started.elapsed() < time {
        let page = &mut pages[random.below(FILES)];
        page.scribble(&mut random, number)?;
        number += 1;
        if number % 16 == 0 {
            page.check(number)?;
        }
    }
    pages.iter().try_for_each(|page| page.check(number))?;
    Ok(number)
}
