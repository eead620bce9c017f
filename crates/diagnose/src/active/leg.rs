//! One leg of a copy, run by several threads for a while: each thread is in one state at a time,
//! so that what is measured adds up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aqueduct_fs::Errno;
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

impl Running {
    /// Starts so many threads.
    pub(crate) fn start(leg: Leg, threads: usize, source: &Arc<Source>, target: &Arc<Target>) -> Running {
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
                let mut worker = Worker::new(&shared, number, (&source, &target));
                let result = worker.run(leg);
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
    fn new(shared: &'a Shared, number: usize, (source, target): (&'a Source, &'a Target)) -> Worker<'a> {
        let (state, since) = (State::Own, Instant::now());
        // What does not compress.
        let mut data = vec![0; STEP];
        blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut data);
        Worker { shared, number, source, target, state, since, read: None, written: None, data }
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
        let result = work(self);
        self.enter(State::Own);
        result.map_err(|error| (state, error))
    }

    fn count(&self, what: usize, by: u64) {
        self.shared.counts[what].fetch_add(by, Ordering::Relaxed);
    }

    fn run(&mut self, leg: Leg) -> Result<()> {
        // The size that a file is made with, if files are small.
        let small = Some(self.source.mean_size()).filter(|size| *size < STEP as u64 / 8).map(|size| size.max(1));
        while !self.shared.ends.load(Ordering::Relaxed) {
            let length = match leg {
                Leg::Write => {
                    let length = small.map_or(STEP, |size| size as usize);
                    self.write(Bytes::copy_from_slice(&self.data[..length]), small.is_some())?;
                    length
                }
                Leg::Read => self.read()?.len(),
                Leg::All => {
                    let data = self.read()?;
                    let length = data.len();
                    self.write(data.into(), small.is_some())?;
                    length
                }
            };
            self.count(0, length as u64);
            self.count(2, 1);
        }
        self.close()
    }

    fn read(&mut self) -> Result<Vec<u8>> {
        let (index, offset, length) = self.source.next();
        let file = match &self.read {
            Some((open, file)) if *open == index => file.clone(),
            _ => {
                self.read = None;
                let file = self.within(State::Open, |worker| worker.source.open(index))?;
                self.count(1, 1);
                self.read = Some((index, file.clone()));
                file
            }
        };
        let mut buffer = Vec::with_capacity(length);
        self.within(State::Read, |_| file.read(offset, length, &mut buffer).map(|()| buffer))
    }

    fn write(&mut self, data: Bytes, is_whole: bool) -> Result<()> {
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
        if is_whole { self.close() } else { Ok(()) }
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
