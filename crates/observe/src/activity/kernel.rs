//! Files of /proc and /sys that every Linux has.

use super::reading::{Readings, number};

/// Bytes of a sector in /proc/diskstats, whatever the disk's are (block/stat.rst of the kernel).
const SECTOR: u64 = 512;

/// Microseconds of a tick in /proc/stat: USER_HZ is 100 in the kernel's interface to programs.
const TICK: u64 = 10_000;

/// A column of a line: its place, its name, and what one of it is in the unit of the name.
type Column = (usize, &'static str, u64);

/// Of /proc/diskstats (iostats.rst). What is under way now is left out: it does not grow.
const DISK: [Column; 12] = [
    (3, "read_operations", 1),
    (4, "read_merges", 1),
    (5, "read_bytes", SECTOR),
    (6, "read_microseconds", 1000),
    (7, "write_operations", 1),
    (8, "write_merges", 1),
    (9, "write_bytes", SECTOR),
    (10, "write_microseconds", 1000),
    (12, "busy_microseconds", 1000),
    (13, "queued_microseconds", 1000),
    (18, "flush_operations", 1),
    (19, "flush_microseconds", 1000),
];

/// Of /proc/net/dev, after the name.
const INTERFACE: [Column; 8] = [
    (0, "receive_bytes", 1),
    (1, "receive_packets", 1),
    (2, "receive_errors", 1),
    (3, "receive_drops", 1),
    (8, "transmit_bytes", 1),
    (9, "transmit_packets", 1),
    (10, "transmit_errors", 1),
    (11, "transmit_drops", 1),
];

/// Of /proc/stat; the time of guests is in user already.
const PROCESSOR: [Column; 8] = [
    (1, "user_microseconds", TICK),
    (2, "nice_microseconds", TICK),
    (3, "system_microseconds", TICK),
    (4, "idle_microseconds", TICK),
    (5, "iowait_microseconds", TICK),
    (6, "irq_microseconds", TICK),
    (7, "softirq_microseconds", TICK),
    (8, "steal_microseconds", TICK),
];

/// What says of TCP how a path fares (/proc/net/snmp and netstat; snmp_counter.rst).
const PROTOCOL: [&str; 14] = [
    "InSegs",
    "OutSegs",
    "RetransSegs",
    "InErrs",
    "TCPLostRetransmit",
    "TCPFastRetrans",
    "TCPSlowStartRetrans",
    "TCPTimeouts",
    "TCPLossProbes",
    "TCPSpuriousRTOs",
    "TCPDSACKRecv",
    "TCPRcvCollapsed",
    "TCPZeroWindowDrop",
    "ListenDrops",
];

/// Of /proc/fs/xfs/stat, by the key of the line; `xpc` is in bytes (xfs_stats.h).
const XFS: [(&str, Column); 11] = [
    ("extent_alloc", (2, "allocated_blocks", 1)),
    ("extent_alloc", (4, "freed_blocks", 1)),
    ("trans", (1, "synchronous_transactions", 1)),
    ("trans", (2, "asynchronous_transactions", 1)),
    ("log", (1, "log_writes", 1)),
    // Blocks of the log are sectors (BBSIZE).
    ("log", (2, "log_bytes", SECTOR)),
    ("log", (4, "log_forces", 1)),
    ("rw", (1, "write_calls", 1)),
    ("rw", (2, "read_calls", 1)),
    ("xpc", (2, "write_bytes", 1)),
    ("xpc", (3, "read_bytes", 1)),
];

fn columns(readings: &mut Readings, source: &'static str, target: &str, words: &[&str], columns: &[Column]) {
    for &(at, name, unit) in columns {
        if let Some(value) = number(words, at) {
            readings.add(source, target, name, value.saturating_mul(unit));
        }
    }
}

/// Reads /proc/diskstats; disks that have never done anything are left out.
pub fn diskstats(text: &str, readings: &mut Readings) {
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (Some(name), Some(reads), Some(writes)) = (words.get(2), number(&words, 3), number(&words, 7)) else {
            continue;
        };
        if reads > 0 || writes > 0 {
            columns(readings, "disk", name, &words, &DISK);
        }
    }
}

/// Reads /proc/fs/xfs/stat, which is of all file systems together.
pub fn xfs(text: &str, readings: &mut Readings) {
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for (_, column) in XFS.iter().filter(|(key, _)| words.first() == Some(key)) {
            columns(readings, "xfs", "all", &words, &[*column]);
        }
    }
}

/// Reads a file of /sys/fs/ext4/DEVICE/ by its name; others than those that grow say nothing.
pub fn ext4(device: &str, file: &str, text: &str, readings: &mut Readings) {
    let (counter, unit) = match file {
        // KiB since the file system was made.
        "lifetime_write_kbytes" => ("write_bytes", 1024),
        "errors_count" => ("errors", 1),
        "warning_count" => ("warnings", 1),
        _ => return,
    };
    if let Ok(value) = text.trim().parse::<u64>() {
        readings.add("ext4", device, counter, value.saturating_mul(unit));
    }
}

/// Reads /proc/stat: all processors together (`all`) and each (`cpu0`).
pub fn processors(text: &str, readings: &mut Readings) {
    for line in text.lines().filter(|line| line.starts_with("cpu")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let target = if words[0] == "cpu" { "all" } else { words[0] };
        columns(readings, "cpu", target, &words, &PROCESSOR);
    }
}

/// Reads /proc/schedstat: how long tasks ran and waited for each processor (sched-stats.rst).
pub fn schedstat(text: &str, readings: &mut Readings) {
    for line in text.lines().filter(|line| line.starts_with("cpu")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Nanoseconds.
        for (at, name) in [(7, "running_microseconds"), (8, "waiting_microseconds")] {
            if let Some(value) = number(&words, at) {
                readings.add("schedule", words[0], name, value / 1000);
            }
        }
        columns(readings, "schedule", words[0], &words, &[(9, "slices", 1)]);
    }
}

/// Reads a file of /proc/pressure (psi.rst): time in which some, or all, of what could run waited.
pub fn pressure(resource: &str, text: &str, readings: &mut Readings) {
    for line in text.lines() {
        let counter = match line.split_whitespace().next() {
            Some("some") => "some_microseconds",
            Some("full") => "full_microseconds",
            _ => continue,
        };
        let total = line.rsplit_once("total=").and_then(|(_, total)| total.trim().parse().ok());
        if let Some(value) = total {
            readings.add("pressure", resource, counter, value);
        }
    }
}

/// Reads /proc/net/dev, of the network namespace of this process.
pub fn interfaces(text: &str, readings: &mut Readings) {
    for line in text.lines() {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let words: Vec<&str> = rest.split_whitespace().collect();
        columns(readings, "net", name.trim(), &words, &INTERFACE);
    }
}

/// Reads /proc/net/snmp or /proc/net/netstat: a line of names, then one of values.
pub fn protocols(text: &str, readings: &mut Readings) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let is_tcp = |line: &str| line.starts_with("Tcp:") || line.starts_with("TcpExt:");
        if !is_tcp(names) || !is_tcp(values) {
            continue;
        }
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            if let (true, Ok(value)) = (PROTOCOL.contains(&name), value.parse()) {
                readings.add("tcp", "all", name, value);
            }
        }
    }
}
