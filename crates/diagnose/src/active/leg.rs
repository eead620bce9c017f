//! One leg of a copy, run by several threads for a while: each thread is in one state at a time,
//! so that what is measured adds up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aqueduct_fs::{Errno, SumKind};
use aqueduct_node::{Asker, PADDING_MAX};
use aqueduct_transfer::{File, STEP};
use bytes::Bytes;

use super::ends::{Source, Target};

/// What a leg does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leg {
    /// Reads, and drops what was read.
    Read,
    /// Writes made-up data.
    Write,
    /// Reads and writes.
    All,
    /// Has the source's server read and sum up what lies there: nothing travels.
    There,
    /// Reads one piece again and again, which the source's server has in memory.
    From,
    /// Sends what the destination's server drops.
    To,
}

/// How a leg is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    pub(crate) leg: Leg,
    pub(crate) threads: usize,
    /// Bytes of an operation, at most.
    pub(crate) piece: usize,
    /// All its threads together move so many bytes in a second at most.
    pub(crate) pace: Option<f64>,
    /// After each operation in these states its thread sleeps for this share of what that took.
    pub(crate) lingers: Option<(&'static [State], f64)>,
}

impl Load {
    /// As a copy does it.
    pub(crate) fn usual(leg: Leg, threads: usize) -> Load {
        Load { leg, threads, piece: STEP, pace: None, lingers: None }
    }
}

/// What a thread does at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Opens files of the source.
    Open,
    /// Reads.
    Read,
    /// Makes and closes files.
    Create,
    /// Writes.
    Write,
    /// Makes stable.
    Flush,
    /// Anything else.
    Own,
}

/// The number of states.
pub const STATES: usize = 6;

/// What a leg did within a measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slice {
    /// Bytes that were read or written; of both, read.
    pub bytes: u64,
    /// Files that were opened or made.
    pub files: u64,
    /// Pieces.
    pub operations: u64,
    /// How long.
    pub seconds: f64,
    /// The time of all threads in each [`State`].
    pub states: [f64; STATES],
}

impl Slice {
    /// Bytes in a second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds } else { 0.0 }
    }
}

/// How it went.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    /// Some did not come back, in this state.
    Hangs(State),
    /// The first failure.
    Failed(State, Errno),
}

struct Shared {
    ends: AtomicBool,
    counts: [AtomicU64; 3],
    states: [AtomicU64; STATES],
    /// The state of each thread now.
    present: Vec<AtomicU8>,
    running: AtomicUsize,
    failure: std::sync::Mutex<Option<(State, Errno)>>,
}

/// A leg that runs.
pub(crate) struct Running {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

const ALL: [State; STATES] = [State::Open, State::Read, State::Create, State::Write, State::Flush, State::Own];

/// How long threads may take to come back.
const RETURN_MAX: Duration = Duration::from_secs(8);

/// A file is made stable when so many bytes were written to it at first, and after twice as many
/// each time while that is quick: a slow disk would take minutes for what memory takes at once.
const FLUSH_FIRST: u64 = 1 << 20;
const FLUSH_LAST: u64 = 32 << 20;
const FLUSH_QUICK: Duration = Duration::from_millis(50);

/// How long a server may take to answer what is sent to be dropped.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A thread sleeps so long at a time at most, so that it ends when it is to.
const LINGER_MAX: Duration = Duration::from_millis(500);

impl Running {
    /// Starts its threads.
    pub(crate) fn start(load: Load, source: &Arc<Source>, target: &Arc<Target>) -> Running {
        let threads = load.threads;
        let shared = Arc::new(Shared {
            ends: AtomicBool::new(false),
            counts: Default::default(),
            states: Default::default(),
            present: (0..threads).map(|_| AtomicU8::new(State::Own as u8)).collect(),
            running: AtomicUsize::new(threads),
            failure: std::sync::Mutex::default(),
        });
        let spawn = |number: usize| {
            let (shared, source, target) = (shared.clone(), source.clone(), target.clone());
            let work = move || {
                let mut worker = Worker::new(&shared, number, (&source, &target), load);
                let result = worker.run();
                if let Err((state, error)) = result {
                    aqueduct_worker::lock(&shared.failure).get_or_insert((state, error));
                }
                worker.enter(State::Own);
                drop(worker);
                shared.running.fetch_sub(1, Ordering::SeqCst);
            };
            thread::Builder::new().name(format!("leg-{number}")).spawn(work).ok()
        };
        Running { threads: (0..threads).filter_map(spawn).collect(), shared }
    }

    /// What was done so far; its time is for the caller to say.
    pub(crate) fn so_far(&self) -> Slice {
        let count = |at: usize| self.shared.counts[at].load(Ordering::Relaxed);
        let states = self.shared.states.each_ref().map(|nanos| nanos.load(Ordering::Relaxed) as f64 / 1e9);
        Slice { bytes: count(0), files: count(1), operations: count(2), seconds: 0.0, states }
    }

    pub(crate) fn has_failed(&self) -> bool {
        aqueduct_worker::lock(&self.shared.failure).is_some()
    }

    /// Ends it. Threads that hang are left behind.
    pub(crate) fn end(self) -> Outcome {
        self.shared.ends.store(true, Ordering::SeqCst);
        let since = Instant::now();
        while self.shared.running.load(Ordering::SeqCst) > 0 && since.elapsed() < RETURN_MAX {
            thread::sleep(Duration::from_millis(1));
        }
        if let Some((state, error)) = *aqueduct_worker::lock(&self.shared.failure) {
            return Outcome::Failed(state, error);
        }
        if self.shared.running.load(Ordering::SeqCst) > 0 {
            let mut present = self.shared.present.iter().map(|state| ALL[usize::from(state.load(Ordering::SeqCst))]);
            let stuck = present.rfind(|state| *state != State::Own);
            return Outcome::Hangs(stuck.unwrap_or(State::Own));
        }
        for thread in self.threads {
            let _ = thread.join(); // it has told
        }
        Outcome::Done
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    number: usize,
    source: &'a Source,
    target: &'a Target,
    state: State,
    since: Instant,
    read: Option<(usize, Arc<dyn File>)>,
    written: Option<Written>,
    data: Vec<u8>,
    load: Load,
    began: Instant,
    asker: Option<Asker>,
}

struct Written {
    file: Arc<dyn File>,
    name: Vec<u8>,
    length: u64,
    unstable: u64,
    flush_at: u64,
}

type Result<T> = std::result::Result<T, (State, Errno)>;

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared, number: usize, (source, target): (&'a Source, &'a Target), load: Load) -> Worker<'a> {
        let (state, since) = (State::Own, Instant::now());
        // What does not compress.
        let mut data = vec![0; load.piece];
        blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut data);
        let (read, written, asker) = (None, None, None);
        Worker { shared, number, source, target, state, since, read, written, data, load, began: since, asker }
    }

    fn enter(&mut self, state: State) {
        let now = Instant::now();
        let spent = (now - self.since).as_nanos() as u64;
        self.shared.states[self.state as usize].fetch_add(spent, Ordering::Relaxed);
        self.shared.present[self.number].store(state as u8, Ordering::Relaxed);
        (self.state, self.since) = (state, now);
    }

    fn within<T>(
        &mut self,
        state: State,
        work: impl FnOnce(&Worker<'_>) -> std::result::Result<T, Errno>,
    ) -> Result<T> {
        self.enter(state);
        let began = self.since;
        let result = work(self);
        // What it sleeps counts as what it lingers at.
        if let Some((_, share)) = self.load.lingers.filter(|(states, _)| states.contains(&state)) {
            thread::sleep(began.elapsed().min(LINGER_MAX).mul_f64(share));
        }
        self.enter(State::Own);
        result.map_err(|error| (state, error))
    }

    fn count(&self, what: usize, by: u64) {
        self.shared.counts[what].fetch_add(by, Ordering::Relaxed);
    }

    fn run(&mut self) -> Result<()> {
        while !self.shared.ends.load(Ordering::Relaxed) {
            let length = match self.load.leg {
                Leg::Write => self.write_made_up()?,
                Leg::Read => self.read(self.source.next())?.len(),
                Leg::From => self.read(self.source.first())?.len(),
                Leg::There => self.sum()?,
                Leg::To => self.send()?,
                Leg::All => {
                    let data = self.read(self.source.next())?;
                    let length = data.len();
                    self.write(data.into())?;
                    length
                }
            };
            self.count(0, length as u64);
            self.count(2, 1);
            if length == 0 {
                break; // it cannot be done here
            }
            self.keep_pace();
        }
        self.close()
    }

    /// Waits until what all threads have moved is due.
    fn keep_pace(&mut self) {
        let Some(rate) = self.load.pace else { return };
        let due = Duration::from_secs_f64(self.shared.counts[0].load(Ordering::Relaxed) as f64 / rate.max(1.0));
        while self.began.elapsed() < due && !self.shared.ends.load(Ordering::Relaxed) {
            thread::sleep(due.saturating_sub(self.began.elapsed()).min(LINGER_MAX));
        }
    }

    /// Of small files: the size that one is made with.
    fn small(&self) -> Option<u64> {
        Some(self.source.mean_size()).filter(|size| *size < STEP as u64 / 8).map(|size| size.max(1))
    }

    fn write_made_up(&mut self) -> Result<usize> {
        let length = self.small().map_or(self.data.len(), |size| self.data.len().min(size as usize));
        self.write(Bytes::copy_from_slice(&self.data[..length]))?;
        Ok(length)
    }

    /// Has the source's server sum up a piece; 0: it does not do that.
    fn sum(&mut self) -> Result<usize> {
        let (index, offset, length) = self.source.next();
        let file = self.open(index)?;
        let range = (offset, offset + length as u64);
        let summed = self.within(State::Read, |_| file.sum(range, SumKind::Xxh3, false))?;
        Ok(if summed.is_some() { length } else { 0 })
    }

    /// Sends a question that is as long as may be to the destination's server; 0: there is none.
    fn send(&mut self) -> Result<usize> {
        let Some((server, (key, routes))) = &self.target.server else { return Ok(0) };
        let asker = match self.asker.take() {
            Some(asker) => Ok(asker),
            None => Asker::connect(server, key.clone(), routes.clone(), ANSWER_MAX),
        };
        let mut asker = asker.map_err(|_| (State::Own, Errno::EHOSTUNREACH))?;
        asker.ping(PADDING_MAX, ANSWER_MAX).map_err(|_| (State::Own, Errno::ETIMEDOUT))?;
        self.asker = Some(asker);
        Ok(PADDING_MAX)
    }

    fn open(&mut self, index: usize) -> Result<Arc<dyn File>> {
        if let Some((_, file)) = self.read.as_ref().filter(|(open, _)| *open == index) {
            return Ok(file.clone());
        }
        self.read = None;
        let file = self.within(State::Open, |worker| worker.source.open(index))?;
        self.count(1, 1);
        self.read = Some((index, file.clone()));
        Ok(file)
    }

    fn read(&mut self, (index, offset, length): (usize, u64, usize)) -> Result<Vec<u8>> {
        let file = self.open(index)?;
        let mut buffer = Vec::with_capacity(length);
        self.within(State::Read, |_| file.read(offset, length, &mut buffer).map(|()| buffer))
    }

    fn write(&mut self, data: Bytes) -> Result<()> {
        let written = match self.written.take() {
            Some(written) => written,
            None => {
                let (file, name) = self.within(State::Create, |worker| worker.target.create())?;
                self.count(1, 1);
                Written { file, name, length: 0, unstable: 0, flush_at: FLUSH_FIRST }
            }
        };
        let (length, offset) = (data.len() as u64, written.length);
        self.within(State::Write, |_| written.file.write(offset, data))?;
        let at = if offset + length >= self.target.length_max { 0 } else { offset + length };
        self.written = Some(Written { length: at, unstable: written.unstable + length, ..written });
        self.flush()?;
        if self.small().is_some() { self.close() } else { Ok(()) }
    }

    /// Makes what was written stable, now and then.
    fn flush(&mut self) -> Result<()> {
        let Some(written) = self.written.as_mut().filter(|written| written.unstable >= written.flush_at) else {
            return Ok(());
        };
        written.unstable = 0;
        if self.target.is_volatile {
            return Ok(());
        }
        let (file, since) = (written.file.clone(), Instant::now());
        self.within(State::Flush, |_| file.sync())?;
        if let Some(written) = self.written.as_mut().filter(|_| since.elapsed() < FLUSH_QUICK) {
            written.flush_at = (written.flush_at * 2).min(FLUSH_LAST);
        }
        Ok(())
    }

    /// Closes and removes the file that is written.
    fn close(&mut self) -> Result<()> {
        let Some(Written { file, name, .. }) = self.written.take() else { return Ok(()) };
        self.within(State::Create, |worker| {
            drop(file);
            worker.target.directory.unlink(&name)
        })
    }
}
