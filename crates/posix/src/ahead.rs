//! Which bytes of an open file will be read next. Pure: no clock and no system calls, so that a test plays any schedule against it.
//!
//! What is found in the page cache costs a look and nothing else: only a stream of which a read had to wait for the file system is read ahead of. Reads may come
//! in any order within a few of their lengths, as they do where a client asks for several at once over several connections.

use std::time::Duration;

/// Streams of one open: as many as threads commonly read one file through one descriptor. They take 1 KiB.
pub(crate) const STREAMS_MAX: usize = 8;

/// The least that is asked for ahead: what the kernel reads ahead by itself unless told otherwise.
pub(crate) const WINDOW_MIN: u64 = 128 << 10;

/// What a stream begins with, unless what was asked for lately was not read.
const WINDOW_FIRST: u64 = 1 << 20;

/// The most that is asked for ahead of one stream: what 1 GB/s takes with a latency of 4 ms, with the factor [`SLACK`].
pub(crate) const WINDOW_MAX: u64 = 16 << 20;

/// The most that one open has asked for and not read yet, over all its streams.
pub(crate) const UNREAD_MAX: u64 = 32 << 20;

/// Records of a strided stream that one request asks for, each in a system call of its own.
const RECORDS_MAX: u64 = 32;

/// How far from its place in a stream a read may come, in its own lengths: a client has at most so many requests of 1 MiB under way for one reader.
const DISORDER: u64 = 8;

/// How much larger than latency times rate a window may grow: the rate that is measured may be what the window allowed.
const SLACK: u64 = 4;

/// A rate is measured over at least this time and [`RATE_BYTES_MIN`].
const RATE_SPAN: Duration = Duration::from_millis(10);

/// See [`RATE_SPAN`].
const RATE_BYTES_MIN: u64 = 1 << 20;

/// So many windows without a wait, and one that is larger than it need be is halved.
const EASY_WINDOWS: u64 = 8;

/// No file is longer (loff_t).
const OFFSET_MAX: u64 = i64::MAX as u64;

/// After so many bytes asked for it is looked whether they are in the page cache anyway.
const VERIFY_EVERY: u64 = 32 << 20;

/// What came of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) at: u64,
    pub(crate) length: u64,
    /// It had to wait for the file system, or will have to.
    pub(crate) waits: bool,
    /// By any clock.
    pub(crate) now: Duration,
}

/// What bounds the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around {
    /// Of the file.
    pub(crate) size: u64,
    /// Between asking the file system for data and having them; zero: not known.
    pub(crate) latency: Duration,
    /// Bytes that all opens together may still ask for.
    pub(crate) room: u64,
    /// Bytes that the kernel reads ahead by itself of one stream.
    pub(crate) kernel: u64,
}

/// Bytes to be asked for: `count` pieces of `length`, `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) at: u64,
    pub(crate) length: u64,
    pub(crate) stride: u64,
    pub(crate) count: u64,
    /// They may be in the page cache: see first, and say so by [`Streams::present`].
    pub(crate) verify: bool,
}

impl Ask {
    pub(crate) fn bytes(&self) -> u64 {
        self.length * self.count
    }

    /// The pieces, each as its first byte and length.
    pub(crate) fn pieces(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.count).map(move |piece| (self.at + piece * self.stride, self.length))
    }
}

/// What a read changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) ask: Option<Ask>,
    /// Bytes of this read that had been asked for.
    pub(crate) used: u64,
    /// Bytes asked for that nobody will read, as far as can be told.
    pub(crate) wasted: u64,
    /// It waited although it had been asked for.
    pub(crate) late: bool,
    /// What the kernel reads ahead by itself is enough for its stream: asking for the read's own bytes would only keep the kernel from that.
    pub(crate) leave: bool,
}

/// One sequence of reads.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Where it began.
    start: u64,
    /// The end of its furthest read.
    front: u64,
    /// Bytes read.
    read: u64,
    reads: u64,
    /// Between the beginnings of its records; 0: they adjoin.
    stride: u64,
    /// Up to here it was asked for; of a strided one, the next record that was not.
    asked: u64,
    /// Bytes asked for and not read.
    unread: u64,
    window: u64,
    /// The window does not grow again before this is reached.
    grows_at: u64,
    /// Bytes read since one had to wait.
    easy: u64,
    /// A read has waited: it is worth asking.
    cold: bool,
    unverified: u64,
    /// Bytes a second; 0: not known yet.
    rate: u64,
    rate_from: Duration,
    rate_bytes: u64,
    /// The count of reads at its latest.
    used_at: u64,
}

/// The latest reads that belong to no stream: three as far apart as each other begin a strided one.
#[derive(Clone, Copy, Debug, Default)]
struct Trail {
    at: u64,
    length: u64,
    stride: u64,
    repeats: u32,
}

/// The streams of one open.
#[derive(Debug)]
pub(crate) struct Streams {
    streams: [Stream; STREAMS_MAX],
    trail: Trail,
    reads: u64,
    window_first: u64,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams { streams: Default::default(), trail: Trail::default(), reads: 0, window_first: WINDOW_FIRST }
    }
}

impl Stream {
    fn new(seen: &Seen, stride: u64) -> Stream {
        let end = seen.at + seen.length;
        let asked = if stride > 0 { seen.at + stride } else { end };
        Stream { start: seen.at, front: end, stride, asked, rate_from: seen.now, ..Stream::default() }
    }

    /// Whether its next reads can be told: it came so far without large gaps, or begins where files are read from.
    fn is_known(&self) -> bool {
        self.stride > 0
            || self.reads > 0
                && (self.start == 0 || self.reads > 1)
                && self.read.saturating_mul(2) >= self.front - self.start
    }

    fn has(&self, seen: &Seen) -> bool {
        if self.reads == 0 {
            return false;
        }
        if self.stride > 0 {
            return seen.length <= self.stride
                && seen.at >= self.start
                && (seen.at - self.start).is_multiple_of(self.stride)
                && seen.at.abs_diff(self.front) <= self.stride.saturating_mul(DISORDER);
        }
        let reach = seen.length.saturating_mul(DISORDER).min(WINDOW_MAX);
        seen.at >= self.start && seen.at.abs_diff(self.front) <= reach
    }

    /// Takes a read in.
    fn take(&mut self, seen: &Seen, count: u64) -> Plan {
        let used = self.unread.min(if seen.at < self.asked { seen.length } else { 0 });
        self.unread -= used;
        let late = seen.waits && seen.at < self.asked && used > 0;
        self.front = self.front.max(seen.at + seen.length);
        self.read = self.read.saturating_add(seen.length);
        self.reads += 1;
        self.used_at = count;
        self.cold |= seen.waits;
        self.easy = if seen.waits { 0 } else { self.easy.saturating_add(seen.length) };
        self.rate_bytes = self.rate_bytes.saturating_add(seen.length);
        let span = seen.now.saturating_sub(self.rate_from);
        if span >= RATE_SPAN && self.rate_bytes >= RATE_BYTES_MIN {
            let rate = (u128::from(self.rate_bytes) * 1_000_000 / span.as_micros().max(1)) as u64;
            self.rate = if self.rate == 0 { rate } else { (self.rate + rate) / 2 };
            (self.rate_from, self.rate_bytes) = (seen.now, 0);
        }
        Plan { used, late, ..Plan::default() }
    }

    /// Latency times rate: with less ahead, reads must wait.
    fn need(&self, latency: Duration) -> Option<u64> {
        let need = u128::from(self.rate) * latency.as_micros() / 1_000_000;
        (self.rate > 0 && !latency.is_zero()).then(|| need.min(u128::from(WINDOW_MAX)) as u64)
    }

    /// Whether the kernel's own read-ahead is enough. It is the better one where it is: it takes larger pages, at half the processor's time.
    fn is_covered(&self, length: u64, around: &Around) -> bool {
        let covers = |need| need < around.kernel / 2;
        self.stride == 0 && length <= around.kernel && self.need(around.latency).is_some_and(covers)
    }

    fn resize(&mut self, length: u64, late: bool, first: u64, latency: Duration) {
        let least = WINDOW_MIN.max(length.saturating_mul(2)).min(WINDOW_MAX);
        if self.window == 0 {
            self.window = first.max(least);
        } else if late && self.front >= self.grows_at {
            if self.need(latency).is_none_or(|need| self.window < need.saturating_mul(SLACK)) {
                self.window = (self.window * 2).min(WINDOW_MAX);
            }
            self.grows_at = self.asked;
        } else if self.easy >= self.window.saturating_mul(EASY_WINDOWS) {
            self.easy = 0;
            if self.need(latency).is_some_and(|need| self.window / 2 > need) {
                self.window = (self.window / 2).max(least);
            }
        }
    }

    /// What to ask for now, at most `room` bytes.
    fn ask(&mut self, length: u64, size: u64, room: u64) -> Option<Ask> {
        let ask = match self.stride {
            0 => {
                let from = self.asked.max(self.front);
                let end = self.front.saturating_add(self.window).min(size);
                let bytes = end.checked_sub(from)?.min(room);
                // In larger pieces than reads are, unless the file ends.
                let piece = (self.window / 4).max(length.min(self.window / 2));
                if bytes == 0 || bytes < piece && end < size {
                    return None;
                }
                self.asked = from + bytes;
                Ask { at: from, length: bytes, stride: 0, count: 1, verify: false }
            }
            stride => {
                let next = self.start.saturating_add((self.front - self.start).next_multiple_of(stride));
                let from = self.asked.max(next);
                let last = self.front.saturating_add((self.window / length.max(1)).saturating_mul(stride)).min(size);
                let count = last.saturating_sub(from).div_ceil(stride).min(RECORDS_MAX).min(room / length.max(1));
                if count == 0 {
                    return None;
                }
                self.asked = from + count * stride;
                Ask { at: from, length, stride, count, verify: false }
            }
        };
        self.unread += ask.bytes();
        self.unverified += ask.bytes();
        let verify = self.unverified >= VERIFY_EVERY;
        if verify {
            self.unverified = 0;
        }
        Some(Ask { verify, ..ask })
    }
}

impl Streams {
    /// Takes a read in, and says what to ask for.
    pub(crate) fn read(&mut self, seen: Seen, around: &Around) -> Plan {
        let end = seen.at.checked_add(seen.length).filter(|end| *end <= OFFSET_MAX);
        if seen.length == 0 || end.is_none() {
            return Plan::default();
        }
        self.reads += 1;
        let (at, wasted) = self.place(&seen);
        let unread: u64 = self.streams.iter().map(|stream| stream.unread).sum();
        let stream = &mut self.streams[at];
        let mut plan = stream.take(&seen, self.reads);
        plan.wasted = wasted;
        if !stream.cold || !stream.is_known() {
            return plan;
        }
        if stream.is_covered(seen.length, around) {
            plan.leave = true;
            return plan;
        }
        // A file's first read says less than several.
        let first = if stream.reads == 1 { WINDOW_MIN } else { self.window_first };
        stream.resize(seen.length, plan.late, first, around.latency);
        let room = UNREAD_MAX.saturating_sub(unread - plan.used).min(around.room);
        plan.ask = stream.ask(seen.length, around.size.min(OFFSET_MAX), room);
        if plan.ask.is_some() && stream.read >= 16 * self.window_first {
            self.window_first = (self.window_first * 2).min(WINDOW_FIRST);
        }
        plan
    }

    /// The stream that a read belongs to, perhaps a new one, and the bytes that are lost with the one in whose place it is.
    fn place(&mut self, seen: &Seen) -> (usize, u64) {
        let found = |known: bool| {
            let of = |(_, stream): &(usize, &Stream)| stream.is_known() == known && stream.has(seen);
            let nearest = self.streams.iter().enumerate().filter(of);
            nearest.min_by_key(|(_, stream)| stream.front.abs_diff(seen.at)).map(|(at, _)| at)
        };
        if let Some(at) = found(true) {
            return (at, 0);
        }
        let stride = seen.at.checked_sub(self.trail.at).filter(|stride| *stride > seen.length);
        let repeats = match stride {
            Some(stride) if (stride, seen.length) == (self.trail.stride, self.trail.length) => self.trail.repeats + 1,
            Some(_) => 1,
            None => 0,
        };
        self.trail = Trail { at: seen.at, length: seen.length, stride: stride.unwrap_or(0), repeats };
        if let Some(stride) = stride.filter(|_| repeats >= 2) {
            return self.replace(Stream::new(seen, stride));
        }
        match found(false) {
            Some(at) => (at, 0),
            None => self.replace(Stream::new(seen, 0)),
        }
    }

    fn replace(&mut self, stream: Stream) -> (usize, u64) {
        // First what is no stream yet; then what has not been read for longest.
        let age = |(_, stream): &(usize, &Stream)| (stream.is_known(), stream.used_at);
        let at = self.streams.iter().enumerate().min_by_key(age).map_or(0, |(at, _)| at);
        let before = std::mem::replace(&mut self.streams[at], stream);
        if before.unread * 2 > before.window {
            self.window_first = (self.window_first / 2).max(WINDOW_MIN);
        }
        (at, before.unread)
    }

    /// What was to be asked for is in the page cache: it was not asked for, and its stream asks no more until it waits again.
    pub(crate) fn present(&mut self, ask: &Ask) {
        let end = if ask.stride > 0 { ask.at + ask.count * ask.stride } else { ask.at + ask.length };
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.asked == end && stream.stride == ask.stride)
        {
            stream.unread = stream.unread.saturating_sub(ask.bytes());
            stream.cold = false;
        }
    }

    /// Streams whose next reads can be told.
    pub(crate) fn known(&self) -> usize {
        self.streams.iter().filter(|stream| stream.is_known()).count()
    }

    /// Bytes asked for and not read.
    pub(crate) fn unread(&self) -> u64 {
        self.streams.iter().map(|stream| stream.unread).sum()
    }
}

#[cfg(test)]
#[path = "ahead_tests.rs"]
mod tests;
