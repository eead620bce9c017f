//! Asking the file system for what will be read next ([`crate::ahead`] says what that is), and counting what came of it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aqueduct_fs::DataCounters;
use aqueduct_metrics::Counter;
use rustix::fs::Advice;
use rustix::io::ReadWriteFlags;

use crate::ahead::{Around, Ask, Plan, Seen};
use crate::lock::lock;
use crate::open_file::OpenFile;

/// Reads up to here are not looked for in the page cache before, which takes 0.3 us, but timed. A larger one may wait for its receiver as well.
pub(crate) const SMALL_READ: u64 = 16 << 10;

/// A small read that takes longer has waited for a disk: the page cache gives 16 KiB in 5 us, and the fastest disks take 60.
const SMALL_WAIT: Duration = Duration::from_micros(60);

/// What the kernel takes in one request where nothing says how much that is: it drops the rest without a word.
const CHUNK_MIN: u64 = 128 << 10;

/// The most in one system call, so that each is short.
const CHUNK_MAX: u64 = 1 << 20;

/// The part of the machine's memory that may be asked for ahead and not have been read: an eighth, since the page cache has other users.
const MEMORY_SHARE: u64 = 8;

/// After twice this time nobody counts on what was asked for and not read.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// The read-ahead of one export.
pub(crate) struct Prefetch {
    is_on: bool,
    device: u64,
    chunk: u64,
    /// What the kernel reads ahead of one stream.
    kernel: u64,
    began: Instant,
    /// Nanoseconds; 0: not known yet.
    latency: AtomicU64,
    room: Room,
    asked: Counter,
    used: Counter,
    wasted: Counter,
    waits: Counter,
    streams: AtomicUsize,
    writes: Counter,
    written: Counter,
    continued: Counter,
}

/// What is left to do when a read has been answered.
pub(crate) enum Later {
    Nothing,
    Ask(Ask),
    /// A small read began then.
    Time(Instant),
    /// A small read took so long.
    Note(Duration),
}

impl Later {
    /// The data have been read, and perhaps not been sent.
    pub(crate) fn timed(self) -> Later {
        match self {
            Later::Time(began) => Later::Note(began.elapsed()),
            later => later,
        }
    }
}

impl Prefetch {
    /// For files on the file system of `device`.
    pub(crate) fn new(is_on: bool, device: u64) -> Prefetch {
        let (chunk, kernel) = kernel_sizes(device);
        Prefetch {
            is_on,
            device,
            chunk,
            kernel,
            began: Instant::now(),
            latency: AtomicU64::new(0),
            room: Room::new(),
            asked: Counter::default(),
            used: Counter::default(),
            wasted: Counter::default(),
            waits: Counter::default(),
            streams: AtomicUsize::new(0),
            writes: Counter::sharded(),
            written: Counter::sharded(),
            continued: Counter::sharded(),
        }
    }

    /// Before `length` bytes are read from `at`, which the file of `size` bytes has. Returns when they are there or nearly, so that who sends them holds up no
    /// other reply of the connection.
    pub(crate) fn before(&self, open: &OpenFile, at: u64, length: u64, size: u64) -> Later {
        if !self.is_on || open.is_memory {
            return Later::Nothing;
        }
        if length <= SMALL_READ {
            return if length < size { Later::Time(Instant::now()) } else { Later::Nothing };
        }
        let (fd, last) = (open.fd.as_fd(), at + length - 1);
        let waits = !is_present(fd, at) || length > CHUNK_MIN && !is_present(fd, last);
        if !waits && length == size {
            return Later::Nothing;
        }
        let plan = self.note(open, (at, length, size), waits);
        if !waits {
            return plan.ask.map_or(Later::Nothing, Later::Ask);
        }
        if plan.leave {
            wait_for(fd, at);
            return Later::Nothing;
        }
        let began = Instant::now();
        self.will_need(open, at, length);
        if let Some(ask) = plan.ask {
            self.issue(open, &ask);
        }
        wait_for(fd, at);
        if !plan.late {
            self.learn(began.elapsed());
        }
        wait_for(fd, last);
        Later::Nothing
    }

    /// Before a small read.
    pub(crate) fn before_small(&self, open: &OpenFile) -> Later {
        if self.is_on && !open.is_memory { Later::Time(Instant::now()) } else { Later::Nothing }
    }

    /// After a small read, of so many bytes from `at`. The file ended there if `ended`.
    pub(crate) fn after_small(&self, open: &OpenFile, later: Later, (at, length): (u64, u64), ended: bool) {
        if length == 0 || matches!(later, Later::Nothing) {
            return;
        }
        let size = open.size_seen(at + length, ended);
        if length < size {
            self.after(open, later, (at, length, size));
        }
    }

    /// After the read was answered.
    pub(crate) fn after(&self, open: &OpenFile, later: Later, read: (u64, u64, u64)) {
        match later {
            Later::Nothing | Later::Time(_) => {}
            Later::Ask(ask) => self.issue(open, &ask),
            Later::Note(took) => {
                let waits = took > SMALL_WAIT;
                let plan = self.note(open, read, waits);
                if waits && !plan.late && !plan.leave {
                    self.learn(took);
                }
                if let Some(ask) = plan.ask {
                    self.issue(open, &ask);
                }
            }
        }
    }

    /// Takes a read in, and says what to do.
    fn note(&self, open: &OpenFile, (at, length, size): (u64, u64, u64), waits: bool) -> Plan {
        let now = self.began.elapsed();
        let latency = Duration::from_nanos(self.latency.load(Ordering::Relaxed));
        let around = Around { size, latency, room: self.room.left(now), kernel: self.kernel };
        let mut streams = lock(&open.ahead);
        if open.ended.load(Ordering::SeqCst) {
            return Plan::default(); // what it had is counted already
        }
        let streams = streams.get_or_insert_default();
        let known = streams.known();
        let plan = streams.read(Seen { at, length, waits, now }, &around);
        self.count_streams(known, streams.known());
        if waits {
            self.waits.increment();
        }
        if plan.used + plan.wasted > 0 {
            self.used.add(plan.used);
            self.wasted.add(plan.wasted);
            self.room.give_back(plan.used + plan.wasted, now);
        }
        plan
    }

    fn count_streams(&self, before: usize, after: usize) {
        if after > before {
            self.streams.fetch_add(after - before, Ordering::Relaxed);
        } else if before > after {
            self.streams.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    fn learn(&self, latency: Duration) {
        let sample = latency.as_nanos() as u64;
        let mean = self.latency.load(Ordering::Relaxed);
        // Two that learn at once lose one of the samples.
        let mean = if mean == 0 { sample } else { mean - mean / 8 + sample / 8 };
        self.latency.store(mean, Ordering::Relaxed);
    }

    fn issue(&self, open: &OpenFile, ask: &Ask) {
        if ask.verify && is_present(open.fd.as_fd(), ask.at) {
            if let Some(streams) = &mut *lock(&open.ahead) {
                streams.present(ask);
            }
            return;
        }
        self.asked.add(ask.bytes());
        self.room.take(ask.bytes(), self.began.elapsed());
        ask.pieces().for_each(|(at, length)| self.will_need(open, at, length));
    }

    fn will_need(&self, open: &OpenFile, at: u64, length: u64) {
        let chunk = if open.inode.device == self.device { self.chunk } else { CHUNK_MIN };
        let end = at + length;
        let mut from = at;
        while from < end {
            // Pieces end where chunks do, so that requests of the disk are whole.
            let to = (from + 1).next_multiple_of(chunk).min(end);
            // It is an advice: a file system that cannot take it reads as it would without.
            let _ = rustix::fs::fadvise(&open.fd, from, std::num::NonZeroU64::new(to - from), Advice::WillNeed);
            from = to;
        }
    }

    /// The open has ended.
    pub(crate) fn ended(&self, open: &OpenFile) {
        if let Some(streams) = lock(&open.ahead).take() {
            let unread = streams.unread();
            self.count_streams(streams.known(), 0);
            self.wasted.add(unread);
            self.room.give_back(unread, self.began.elapsed());
        }
    }

    /// A write of so many bytes has been made there; `None`: at the end of the file, wherever that was.
    pub(crate) fn wrote(&self, open: &OpenFile, at: Option<u64>, count: u32) {
        let count = u64::from(count);
        self.writes.increment();
        self.written.add(count);
        if at.is_none_or(|at| open.written_to.swap(at + count, Ordering::Relaxed) == at) {
            self.continued.increment();
        }
    }

    pub(crate) fn counters(&self) -> DataCounters {
        DataCounters {
            reads_ahead: self.is_on,
            streams: self.streams.load(Ordering::Relaxed) as u64,
            latency: Duration::from_nanos(self.latency.load(Ordering::Relaxed)),
            waits: self.waits.get(),
            asked: self.asked.get(),
            used: self.used.get(),
            wasted: self.wasted.get(),
            writes: self.writes.get(),
            written: self.written.get(),
            continued: self.continued.get(),
            ..DataCounters::default()
        }
    }
}

/// Whether a byte is in the page cache. Where the file system cannot say, as if it were.
fn is_present(fd: BorrowedFd<'_>, at: u64) -> bool {
    let mut byte = [0];
    let seen = rustix::io::preadv2(fd, &mut [std::io::IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
    seen != Err(rustix::io::Errno::AGAIN)
}

/// Waits until a byte is there. An error is met again by who reads.
fn wait_for(fd: BorrowedFd<'_>, at: u64) {
    let _ = rustix::io::pread(fd, &mut [0; 1], at);
}

/// What the kernel takes in one request, and what it reads ahead by itself. It takes the larger of what it reads ahead and what the disk does at once.
fn kernel_sizes(device: u64) -> (u64, u64) {
    let name = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let block = PathBuf::from("/sys/dev/block").join(&name);
    let bytes = |files: [PathBuf; 2]| {
        let kib = |file| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        files.into_iter().find_map(kib).map(|kib| kib.saturating_mul(1024))
    };
    // A partition's are those of its disk.
    let queue = |file: &str| [block.join("queue").join(file), block.join("../queue").join(file)];
    let own = bytes([PathBuf::from("/sys/class/bdi").join(&name).join("read_ahead_kb"), PathBuf::new()]);
    let ahead = own.or_else(|| bytes(queue("read_ahead_kb"))).unwrap_or(CHUNK_MIN);
    let chunk = ahead.max(bytes(queue("max_sectors_kb")).unwrap_or(0)).clamp(CHUNK_MIN, CHUNK_MAX);
    (chunk - chunk % CHUNK_MIN, ahead)
}

/// What all opens together may still ask for. What was asked for long ago counts no more: whoever has stopped reading in the middle of a file may keep it open for
/// days, and the kernel has taken the memory back.
struct Room {
    limit: u64,
    span: AtomicU64,
    now: AtomicI64,
    before: AtomicI64,
}

impl Room {
    fn new() -> Room {
        let memory = rustix::system::sysinfo();
        let limit = (memory.totalram as u64).saturating_mul(u64::from(memory.mem_unit)) / MEMORY_SHARE;
        Room { limit, span: AtomicU64::new(0), now: AtomicI64::new(0), before: AtomicI64::new(0) }
    }

    fn turn(&self, now: Duration) {
        let span = now.as_secs() / FORGOTTEN_AFTER.as_secs();
        let last = self.span.load(Ordering::Relaxed);
        if span > last && self.span.compare_exchange(last, span, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let latest = self.now.swap(0, Ordering::Relaxed);
            self.before.store(if span == last + 1 { latest } else { 0 }, Ordering::Relaxed);
        }
    }

    fn left(&self, now: Duration) -> u64 {
        self.turn(now);
        let out = self.now.load(Ordering::Relaxed) + self.before.load(Ordering::Relaxed);
        self.limit.saturating_sub(out.max(0) as u64)
    }

    fn take(&self, bytes: u64, now: Duration) {
        self.turn(now);
        self.now.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: u64, now: Duration) {
        self.take(0, now);
        self.now.fetch_sub(bytes as i64, Ordering::Relaxed);
    }
}
