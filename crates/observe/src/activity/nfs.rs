//! /proc/self/mountstats: what each NFS mount has asked its server.

use super::reading::{Readings, number};

/// Of the line `bytes:` (nfs_iostat.h); "server" is what crossed the network.
const BYTES: [(usize, &str); 6] = [
    (1, "read_bytes"),
    (2, "write_bytes"),
    (3, "direct_read_bytes"),
    (4, "direct_write_bytes"),
    (5, "server_read_bytes"),
    (6, "server_write_bytes"),
];

/// Of each operation's line (rpc_iostat), after its name; times are in milliseconds.
const OPERATION: [(usize, &str, u64); 8] = [
    (1, "operations", 1),
    (2, "transmissions", 1),
    (3, "timeouts", 1),
    (4, "sent_bytes", 1),
    (5, "received_bytes", 1),
    (6, "queued_microseconds", 1000),
    (7, "answer_microseconds", 1000),
    (8, "total_microseconds", 1000),
];

/// Reads it. A target is a mount point; operations that were never asked for are left out.
///
/// Some kernels let a counter run below zero: what is beyond half of the range is left out.
pub fn mountstats(text: &str, readings: &mut Readings) {
    let (mut mount, mut is_operations) = (None, false);
    for line in text.lines() {
        if line.starts_with("device ") {
            (mount, is_operations) = (mount_of(line), false);
        }
        let Some(target) = mount else { continue };
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.first() {
            Some(&"bytes:") => {
                for (at, name) in BYTES {
                    add(readings, target, name.to_owned(), number(&words, at), 1);
                }
            }
            Some(&"per-op") => is_operations = true,
            Some(word) if is_operations && number(&words, 1).is_some_and(|count| count > 0) => {
                let Some(name) = word.strip_suffix(':') else { continue };
                for (at, column, unit) in OPERATION {
                    add(readings, target, format!("{}_{column}", name.to_lowercase()), number(&words, at), unit);
                }
            }
            _ => {}
        }
    }
}

fn add(readings: &mut Readings, target: &str, counter: String, value: Option<u64>, unit: u64) {
    if let Some(value) = value.filter(|value| i64::try_from(*value).is_ok()) {
        readings.add("nfs", target, counter, value.saturating_mul(unit));
    }
}

/// Where it is mounted, with blanks as the kernel writes them (\040); `None`: it is not NFS.
fn mount_of(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let kind = *words.get(7)?;
    (words.get(2..4)? == ["mounted", "on"] && kind.starts_with("nfs")).then(|| words[4])
}
