//! A log that all append to, on all mounts: no record is lost, doubled or torn, and each writer's
//! are in order. Appends are held back while nobody else has the log: those since the last fsync
//! may be lost when the mount is killed, or when there was no room, which the writer is told.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::names::bytes;
use super::{Outcome, Stop, Work};

const MAGIC: &[u8; 8] = b"\x00RECORD\xff";

/// Magic, writer, number, length of all.
const HEAD: usize = 32;

/// What a writer has written in one life of its mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Written {
    pub writer: u64,
    pub records: u64,
    /// So many of them nobody holds back any more.
    pub sure: u64,
    /// Some of these may be lost.
    pub doubtful: Vec<Range<u64>>,
    /// Numbers of which only so many bytes had room.
    pub torn: BTreeMap<u64, usize>,
    /// One more was under way when the mount was killed.
    pub unsure: bool,
}

impl Written {
    /// What was held back may be lost.
    fn doubt(&mut self) {
        if self.sure < self.records {
            self.doubtful.push(self.sure..self.records);
            self.sure = self.records;
        }
    }

    /// Whether all of these may be lost.
    fn may_lack(&self, mut numbers: Range<u64>) -> bool {
        numbers.all(|number| self.doubtful.iter().any(|range| range.contains(&number)))
    }

    /// How much of a record may be in the log, if it was ever begun.
    fn begun(&self, number: u64) -> Option<Vec<u8>> {
        let mut record = record(self.writer, number);
        record.truncate(self.torn.get(&number).copied().unwrap_or(usize::MAX));
        (number < self.records || (self.unsure && number == self.records)).then_some(record)
    }
}

/// The record of that number, which is the same whenever it is asked for.
fn record(writer: u64, number: u64) -> Vec<u8> {
    let mixed = writer.wrapping_mul(0x9e37_79b9) ^ number.wrapping_mul(0xd134_2543_de82_ef95);
    let length = HEAD + if mixed.is_multiple_of(16) { mixed as usize % 60_000 } else { (mixed >> 8) as usize % 900 };
    let mut record = MAGIC.to_vec();
    [writer, number, length as u64].iter().for_each(|word| record.extend(word.to_le_bytes()));
    record.extend(bytes(writer, number, 0, length - HEAD));
    record
}

/// A life: appends until the end, or until its mount is killed.
pub fn work(work: &mut Work, life: u64) -> Outcome<()> {
    let writer = (work.part.number as u64 + 1) * 1000 + life;
    let mut written = Written { writer, ..Written::default() };
    let ended = live(work, &mut written);
    written.unsure &= ended.is_err();
    if matches!(ended, Err(Stop::Gone)) {
        written.doubt();
    }
    work.report.log.push(written);
    if matches!(ended, Err(Stop::Gone)) {
        work.await_mount();
    }
    ended
}

fn live(work: &mut Work, written: &mut Written) -> Outcome<()> {
    let path = work.point().join("shared/log");
    let mut file = work.surely(&"open the log", || OpenOptions::new().append(true).open(&path))?;
    while !work.is_over() {
        let record = record(written.writer, written.records);
        written.unsure = true;
        let count = work.must(&format!("append record {}", written.records), || file.write(&record))?;
        written.unsure = false;
        if count.is_none() {
            written.doubt();
        }
        let count = count.unwrap_or(0);
        if (1..record.len()).contains(&count) {
            work.check(work.has_been_full(), format!("{count} of {} appended", record.len()))?;
            written.torn.insert(written.records, count);
        }
        written.records += u64::from(count > 0);
        if work.random.chance(3) {
            match work.must(&"fsync the log", || file.sync_all())? {
                Some(()) => written.sure = written.records,
                None => written.doubt(),
            }
        }
        work.pause();
    }
    Ok(())
}

/// Compares the log with what its writers say; gives its bytes.
pub fn audit(path: &Path, writers: &[Written]) -> Result<u64, String> {
    let log = fs::read(path).map_err(|error| format!("the log: {error}"))?;
    let mut next: BTreeMap<u64, u64> = writers.iter().map(|written| (written.writer, 0)).collect();
    let by_writer: BTreeMap<u64, &Written> = writers.iter().map(|written| (written.writer, written)).collect();
    let mut at = 0;
    while at < log.len() {
        let rest = &log[at..];
        let is = |written: &Written, number| {
            let record = written.begun(number).filter(|record| rest.starts_with(record))?;
            Some((written.writer, number, record.len()))
        };
        // The one that it says it is, behind others that may be lost.
        let said = || {
            let written = by_writer.get(&word(&log, at + 8))?;
            let number = word(&log, at + 16);
            let due = next[&written.writer];
            (number > due && written.may_lack(due..number)).then(|| is(written, number))?
        };
        let due = || by_writer.values().find_map(|written| is(written, next[&written.writer]));
        let Some((writer, number, length)) = due().or_else(said) else { return Err(describe(&log, at, &next)) };
        next.insert(writer, number + 1);
        at += length;
    }
    for written in writers {
        let found = next[&written.writer];
        if !written.may_lack(found..written.records) {
            let Written { writer, records, doubtful, .. } = written;
            return Err(format!("of {writer}, {found} records of {records} are in the log; in doubt: {doubtful:?}"));
        }
    }
    Ok(log.len() as u64)
}

fn word(log: &[u8], at: usize) -> u64 {
    log.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

fn describe(log: &[u8], at: usize, next: &BTreeMap<u64, u64>) -> String {
    let what = match log[at..].starts_with(MAGIC) {
        true => format!("record {} of {}", word(log, at + 16), word(log, at + 8)),
        false => format!("{:?}", log[at..].iter().take(32).collect::<Vec<_>>()),
    };
    format!("at {at} of {} the log has {what}, where these are due: {next:?}", log.len())
}
