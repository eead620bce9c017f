//! A log that all append to, on all mounts: no record is lost, doubled or torn, and each writer's
//! are in order. Only the last ones before its mount was killed may be lost, as far as the writer
//! had not synced: appends are held back while nobody else has the log.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
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
    /// So many were there when the log was synced last.
    pub synced: u64,
    /// Numbers of which only so many bytes had room.
    pub torn: BTreeMap<u64, usize>,
    /// The mount was killed then.
    pub killed: bool,
    /// One more was under way when it was.
    pub unsure: bool,
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
    written.killed = matches!(ended, Err(Stop::Gone));
    written.unsure &= ended.is_err();
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
        let count = count.unwrap_or(0);
        if (1..record.len()).contains(&count) {
            work.check(work.has_been_full(), format!("{count} of {} appended", record.len()))?;
            written.torn.insert(written.records, count);
        }
        written.records += u64::from(count > 0);
        if work.random.chance(3) {
            work.surely(&"fsync the log", || file.sync_all())?;
            written.synced = written.records;
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
        let found = by_writer.values().find_map(|written| {
            let number = next[&written.writer];
            let whole = record(written.writer, number);
            let length = written.torn.get(&number).copied().unwrap_or(whole.len());
            let known = number < written.records || (written.unsure && number == written.records);
            (known && rest.starts_with(&whole[..length])).then_some((written.writer, length))
        });
        let Some((writer, length)) = found else { return Err(describe(&log, at, &next)) };
        *next.get_mut(&writer).expect("known") += 1;
        at += length;
    }
    for written in writers {
        let found = next[&written.writer];
        let least = if written.killed { written.synced } else { written.records };
        let most = written.records + u64::from(written.unsure);
        if !(least..=most).contains(&found) {
            let Written { writer, records, synced, .. } = written;
            return Err(format!("of {writer}, {found} records of {records} are in the log, {synced} were synced"));
        }
    }
    Ok(log.len() as u64)
}

fn describe(log: &[u8], at: usize, next: &BTreeMap<u64, u64>) -> String {
    let word = |place: usize| {
        log.get(at + place..at + place + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
    };
    let what = match log[at..].starts_with(MAGIC) {
        true => format!("record {} of {}", word(16), word(8)),
        false => format!("{:?}", log[at..].iter().take(32).collect::<Vec<_>>()),
    };
    format!("at {at} of {} the log has {what}, where these are due: {next:?}", log.len())
}
