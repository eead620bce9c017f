//! A program that writes records in small pieces, and says beside what of it is written and synced.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::sys;

/// Of a record.
const SIZE: usize = 16;

/// How often it syncs, and how often it closes the file and opens it again.
const SYNCED_EVERY: u64 = 100;
const OPENED_EVERY: u64 = 1500;

fn record(number: u64) -> [u8; SIZE] {
    let mut record = [0; SIZE];
    record[..8].copy_from_slice(&number.to_le_bytes());
    record[8..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    record
}

/// For `time`, one record after the other, from number 1 on, and the number of the last one into the file's head. `progress` is a local file. Returns their
/// number once the file is closed.
pub fn write(path: &Path, progress: &Path, time: Duration) -> io::Result<u64> {
    let (started, progress) = (Instant::now(), File::create(progress)?);
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    let mut number = 0;
    while started.elapsed() < time {
        number += 1;
        let (data, at) = (record(number), number * SIZE as u64);
        // In two pieces, the second one first.
        file.write_all_at(&data[8..], at + 8)?;
        file.write_all_at(&data[..8], at)?;
        file.write_all_at(&number.to_le_bytes(), 0)?;
        progress.write_all_at(&number.to_le_bytes(), 0)?;
        if number % SYNCED_EVERY == 0 {
            file.sync_all()?;
            progress.write_all_at(&number.to_le_bytes(), 8)?;
        }
        if number % OPENED_EVERY == 0 {
            sys::close(file)?;
            file = File::options().read(true).write(true).open(path)?;
        }
    }
    sys::close(file).map(|()| number)
}

fn number_at(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    // Nothing is there yet.
    let _ = file.read_exact_at(&mut bytes, at);
    u64::from_le_bytes(bytes)
}

/// How many are written, as the program has said.
pub fn written(progress: &Path) -> u64 {
    File::open(progress).map_or(0, |file| number_at(&file, 0))
}

/// How many are synced.
pub fn synced(progress: &Path) -> u64 {
    File::open(progress).map_or(0, |file| number_at(&file, 8))
}

/// What a client that died had synced, up to `synced`, is whole. Of what it wrote after that each
/// write is there or is not, in whatever order: nothing else may be there.
pub fn check_synced(file: &File, synced: u64) -> Result<(), String> {
    let (head, length) = (number_at(file, 0), file.metadata().map_err(|error| error.to_string())?.len());
    if head < synced {
        return Err(format!("{head} instead of {synced}"));
    }
    let mut bytes = vec![0; (length as usize).saturating_sub(SIZE)];
    file.read_exact_at(&mut bytes, SIZE as u64).map_err(|error| error.to_string())?;
    if (bytes.len() as u64) < synced * SIZE as u64 {
        return Err(format!("{length} bytes for {synced} records"));
    }
    const HALF: usize = SIZE / 2;
    for (index, found) in bytes.chunks(HALF).enumerate() {
        let (number, half) = (1 + (index / 2) as u64, index % 2 * HALF);
        let is_there = *found == record(number)[half..][..found.len()];
        let is_lost = number > synced && found.iter().all(|byte| *byte == 0);
        if !is_there && !is_lost {
            return Err(format!("half {} of record {number}, {synced} synced, is {found:02x?}", index % 2));
        }
    }
    Ok(())
}

/// All up to `count` are there; what is behind is there before the head says so.
pub fn check(file: &File, count: u64, whole: bool) -> Result<u64, String> {
    let head = number_at(file, 0);
    if head < count {
        return Err(format!("{head} instead of {count}"));
    }
    let first = if whole { 1 } else { head.saturating_sub(200).max(1) };
    let mut bytes = vec![0; (head + 1 - first) as usize * SIZE];
    file.read_exact_at(&mut bytes, first * SIZE as u64).map_err(|error| format!("record {head}: {error}"))?;
    for (number, found) in (first..).zip(bytes.chunks_exact(SIZE)) {
        if found != record(number) {
            return Err(format!("record {number} of {head} is {found:02x?}"));
        }
    }
    Ok(head)
}
