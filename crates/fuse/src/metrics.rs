//! What the kernel asks for and how long that takes: rows of the table of `aqueduct-metrics`.

use std::time::{Duration, Instant};

use aqueduct_metrics::{Collect, Counter, Histogram, Indexed, Recorder, Snapshot, table};

use crate::abi::{notify, opcode};

/// The opcodes that have answers, by their number.
const NAMES: [&str; opcode::COPY_FILE_RANGE_64 as usize + 1] = {
    let mut names = ["other"; opcode::COPY_FILE_RANGE_64 as usize + 1];
    let mut at = 0;
    while at < KNOWN.len() {
        names[KNOWN[at].0 as usize] = KNOWN[at].1;
        at += 1;
    }
    names
};

const KNOWN: [(u32, &str); 41] = [
    (opcode::LOOKUP, "LOOKUP"),
    (opcode::GETATTR, "GETATTR"),
    (opcode::SETATTR, "SETATTR"),
    (opcode::READLINK, "READLINK"),
    (opcode::SYMLINK, "SYMLINK"),
    (opcode::MKNOD, "MKNOD"),
    (opcode::MKDIR, "MKDIR"),
    (opcode::UNLINK, "UNLINK"),
    (opcode::RMDIR, "RMDIR"),
    (opcode::RENAME, "RENAME"),
    (opcode::RENAME2, "RENAME2"),
    (opcode::LINK, "LINK"),
    (opcode::OPEN, "OPEN"),
    (opcode::READ, "READ"),
    (opcode::WRITE, "WRITE"),
    (opcode::STATFS, "STATFS"),
    (opcode::RELEASE, "RELEASE"),
    (opcode::FSYNC, "FSYNC"),
    (opcode::SETXATTR, "SETXATTR"),
    (opcode::GETXATTR, "GETXATTR"),
    (opcode::LISTXATTR, "LISTXATTR"),
    (opcode::REMOVEXATTR, "REMOVEXATTR"),
    (opcode::FLUSH, "FLUSH"),
    (opcode::OPENDIR, "OPENDIR"),
    (opcode::READDIR, "READDIR"),
    (opcode::READDIRPLUS, "READDIRPLUS"),
    (opcode::RELEASEDIR, "RELEASEDIR"),
    (opcode::FSYNCDIR, "FSYNCDIR"),
    (opcode::GETLK, "GETLK"),
    (opcode::SETLK, "SETLK"),
    (opcode::SETLKW, "SETLKW"),
    (opcode::ACCESS, "ACCESS"),
    (opcode::CREATE, "CREATE"),
    (opcode::TMPFILE, "TMPFILE"),
    (opcode::DESTROY, "DESTROY"),
    (opcode::IOCTL, "IOCTL"),
    (opcode::FALLOCATE, "FALLOCATE"),
    (opcode::LSEEK, "LSEEK"),
    (opcode::COPY_FILE_RANGE, "COPY_FILE_RANGE"),
    (opcode::COPY_FILE_RANGE_64, "COPY_FILE_RANGE_64"),
    (opcode::STATX, "STATX"),
];

/// The notifications, by their number.
const NOTIFICATIONS: [&str; notify::INC_EPOCH as usize + 1] = {
    let mut names = ["other"; notify::INC_EPOCH as usize + 1];
    names[notify::INVAL_INODE as usize] = "inode";
    names[notify::INVAL_ENTRY as usize] = "entry";
    names[notify::DELETE as usize] = "delete";
    names[notify::RETRIEVE as usize] = "retrieve";
    names[notify::INC_EPOCH as usize] = "epoch";
    names
};

/// What an opcode is called.
pub(crate) fn name_of(opcode: u32) -> &'static str {
    NAMES.get(opcode as usize).copied().unwrap_or("other")
}

/// Of one mount.
pub(crate) struct Metrics {
    requests: Indexed<Histogram>,
    errors: Indexed<Counter>,
    notifications: Indexed<Counter>,
    /// What came by /dev/fuse, and by io_uring.
    pub(crate) by_device: Counter,
    pub(crate) by_ring: Counter,
    /// Inodes of which the kernel said that it forgets them.
    pub(crate) forgotten: Counter,
    pub(crate) interrupts: Counter,
    pub(crate) bytes_read: Counter,
    pub(crate) bytes_written: Counter,
    /// Requests by how many were under way.
    pub(crate) activity: Recorder,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            requests: Indexed::new(&NAMES, Histogram::sharded),
            errors: Indexed::new(&NAMES, Counter::default),
            notifications: Indexed::new(&NOTIFICATIONS, Counter::default),
            by_device: Counter::sharded(),
            by_ring: Counter::sharded(),
            forgotten: Counter::sharded(),
            interrupts: Counter::default(),
            bytes_read: Counter::sharded(),
            bytes_written: Counter::sharded(),
            activity: Recorder::default(),
        }
    }
}

impl Metrics {
    /// A request has come. A lock may be waited for as long as others like.
    pub(crate) fn begun(&self, opcode: u32, now: Instant) {
        if opcode != opcode::SETLKW {
            self.activity.begin(now);
        }
    }

    /// A request was answered that took so long.
    pub(crate) fn answered(&self, opcode: u32, took: Duration, now: Instant) {
        if opcode != opcode::SETLKW {
            self.activity.end(now, took);
        }
        self.requests.at(opcode as usize).record_duration(took);
    }

    /// A request was answered with an error.
    pub(crate) fn failed(&self, opcode: u32) {
        self.errors.at(opcode as usize).increment();
    }

    /// The kernel is told something.
    pub(crate) fn notified(&self, code: i32) {
        self.notifications.at(code as usize).increment();
    }
}

impl Collect for Metrics {
    fn collect(&self, into: &mut Snapshot) {
        into.put_indexed(&table::FUSE_REQUEST_SECONDS, &self.requests);
        into.put_indexed(&table::FUSE_ERRORS, &self.errors);
        into.put_indexed(&table::FUSE_NOTIFICATIONS, &self.notifications);
        into.put(&table::FUSE_UPCALLS, &["/dev/fuse"], &self.by_device);
        into.put(&table::FUSE_UPCALLS, &["io_uring"], &self.by_ring);
        into.put(&table::FUSE_FORGOTTEN, &[], &self.forgotten);
        into.put(&table::FUSE_INTERRUPTS, &[], &self.interrupts);
        into.put(&table::FUSE_BYTES_READ, &[], &self.bytes_read);
        into.put(&table::FUSE_BYTES_WRITTEN, &[], &self.bytes_written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opcode_has_its_name() {
        for (number, name) in KNOWN {
            assert_eq!(NAMES[number as usize], name);
        }
        assert_eq!(NAMES.iter().filter(|name| **name != "other").count(), KNOWN.len());
        let metrics = Metrics::default();
        metrics.failed(u32::MAX);
        metrics.answered(u32::MAX, Duration::ZERO, Instant::now());
        metrics.notified(-1);
        assert_eq!(metrics.errors.at(usize::MAX).get(), 1);
    }
}
