//! The inner loop: one rank's transfers, one after the other. It neither allocates nor prints nor locks.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::api::Transfers;
use super::clock::{self, Nanos};
use super::data::{Difference, Signature};
use super::pattern::Pattern;
use super::tally::{Histogram, Series};

/// The most places of wrong data that a rank shows of one phase; it counts all.
pub const DAMAGE_SHOWN_MAX: usize = 8;

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Written, and timed.
    Write,
    /// Read, and timed.
    Read,
    /// Read and compared; timed where that was asked for with `-R`.
    Check,
}

/// What one phase is to do.
pub struct Work<'a> {
    /// What with.
    pub kind: Kind,
    /// Where.
    pub pattern: Pattern,
    /// Bytes of each transfer.
    pub transfer: u64,
    /// The data's mark.
    pub signature: Signature,
    /// Of reads that are compared: a buffer filled with the mark.
    pub expected: &'a mut [u8],
    /// So many transfers and no more.
    pub limit: u64,
    /// No transfer begins later.
    pub deadline: Option<Nanos>,
    /// fsync after each write.
    pub sync_each: bool,
    /// End at the first wrong data.
    pub quit_on_error: bool,
    /// Bytes so far, for those who watch.
    pub moved: &'a AtomicU64,
}

/// What a phase counts; made once, used for each.
pub struct Tally {
    /// Bytes over time.
    pub series: Series,
    /// How long transfers took, if that was asked for.
    pub latencies: Option<Histogram>,
    /// Wrong data: where, and what.
    pub damage: Vec<(u64, Difference)>,
    /// Words that are wrong, in all.
    pub wrong: u64,
    /// Transfers that are complete.
    pub done: u64,
    /// What each buffer's transfer is: its place in the file, and when it began.
    slots: Vec<(u64, Nanos)>,
    /// Buffers that nobody uses.
    free: Vec<usize>,
}

impl Tally {
    /// For so many transfers under way.
    pub fn new(depth: usize, latency: bool) -> Tally {
        Tally {
            series: Series::new(),
            latencies: latency.then(Histogram::new),
            damage: Vec::with_capacity(DAMAGE_SHOWN_MAX),
            wrong: 0,
            done: 0,
            slots: vec![(0, 0); depth],
            free: Vec::with_capacity(depth),
        }
    }

    /// Forgets all, for the next phase.
    pub fn start(&mut self, now: Nanos) {
        self.series.start(now);
        self.latencies.iter_mut().for_each(Histogram::clear);
        self.damage.clear();
        (self.wrong, self.done) = (0, 0);
        self.free.clear();
        self.free.extend((0..self.slots.len()).rev());
    }
}

impl Work<'_> {
    /// Runs until all is done, the deadline has passed, or `stop` says that it is enough, which is asked once in a tick of the kernel's clock. It can go on
    /// from there, with another limit and deadline.
    pub fn run<T: Transfers>(
        &mut self,
        transfers: &mut T,
        tally: &mut Tally,
        stop: &mut dyn FnMut() -> bool,
    ) -> io::Result<()> {
        let (mut started, mut asked) = (tally.done, 0);
        let mut ends = false;
        loop {
            while !ends && started < self.limit && !tally.free.is_empty() {
                let Some(offset) = self.pattern.next() else {
                    break;
                };
                let slot = tally.free.pop().unwrap_or_default();
                if self.kind == Kind::Check {
                    transfers.invalidate(slot); // no part of what the transfer takes
                }
                let began = if tally.latencies.is_some() { clock::now() } else { 0 };
                tally.slots[slot] = (offset, began);
                self.start(transfers, slot, offset)?;
                started += 1;
            }
            if tally.free.len() == tally.slots.len() {
                return Ok(());
            }
            let slot = transfers.wait()?;
            self.complete(transfers, slot, tally)?;
            tally.free.push(slot);
            let now = clock::tick();
            tally.series.add(now, self.transfer);
            if now != asked {
                ends = stop() || self.deadline.is_some_and(|deadline| now >= deadline);
                asked = now;
            }
            ends |= self.quit_on_error && tally.wrong > 0;
        }
    }

    #[inline]
    fn start<T: Transfers>(&self, transfers: &mut T, slot: usize, offset: u64) -> io::Result<()> {
        match self.kind {
            Kind::Write => transfers.start_write(slot, offset, self.signature.has_place().then_some(&self.signature)),
            Kind::Read | Kind::Check => transfers.start_read(slot, offset),
        }
    }

    #[inline]
    fn complete<T: Transfers>(&mut self, transfers: &mut T, slot: usize, tally: &mut Tally) -> io::Result<()> {
        let (offset, began) = tally.slots[slot];
        if self.kind == Kind::Write && self.sync_each {
            transfers.sync()?;
        }
        if let Some(latencies) = &mut tally.latencies {
            latencies.add(clock::now() - began);
        }
        if self.kind == Kind::Check {
            if self.signature.has_place() {
                self.signature.place(self.expected, offset);
            }
            if let Some(difference) = transfers.compare(slot, self.expected) {
                tally.wrong += difference.words;
                if tally.damage.len() < DAMAGE_SHOWN_MAX {
                    tally.damage.push((offset, difference));
                }
            }
        }
        tally.done += 1;
        self.moved.store(tally.done * self.transfer, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::data::Packet;
    use super::super::pattern::Layout;
    use super::*;

    /// Longer than a transfer of nothing takes.
    const FILLING: Duration = Duration::from_millis(500);

    /// Takes long to fill its buffer, and no time to read.
    struct Slow;

    impl Transfers for Slow {
        fn create(&mut self, _: &str) -> io::Result<()> {
            Ok(())
        }
        fn open(&mut self, _: &str) -> io::Result<()> {
            Ok(())
        }
        fn close(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn depth(&self) -> usize {
            1
        }
        fn fill(&mut self, _: &Signature) {}
        fn invalidate(&mut self, _: usize) {
            std::thread::sleep(FILLING);
        }
        fn start_write(&mut self, _: usize, _: u64, _: Option<&Signature>) -> io::Result<()> {
            Ok(())
        }
        fn start_read(&mut self, _: usize, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn wait(&mut self) -> io::Result<usize> {
            Ok(0)
        }
        fn compare(&mut self, _: usize, _: &[u8]) -> Option<Difference> {
            None
        }
    }

    #[test]
    fn what_prepares_a_check_is_no_part_of_a_transfer() {
        let layout = Layout { ranks: 1, segments: 1, block: 8, transfer: 8, file_per_rank: true, random: None };
        let moved = AtomicU64::new(0);
        let mut work = Work {
            kind: Kind::Check,
            pattern: layout.pattern(0),
            transfer: 8,
            signature: Signature { packet: Packet::Timestamp, stamp: 1, rank: 0 },
            expected: &mut [0; 8],
            limit: u64::MAX,
            deadline: None,
            sync_each: false,
            quit_on_error: false,
            moved: &moved,
        };
        let mut tally = Tally::new(1, true);
        tally.start(clock::now());
        work.run(&mut Slow, &mut tally, &mut || false).unwrap();
        let longest = tally.latencies.map(|latencies| latencies.max()).unwrap();
        assert!(longest < FILLING.as_secs_f64(), "{longest}");
    }
}
