//! A program that works on one mount and writes down what it did and saw. It is a process of its own: one that starts servers must have no file on a mount
//! open. It is this test binary once more, told by an environment variable what to be.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use aqueduct_model::Random;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::history::{
    BLOCK, BLOCKS, Call, DIRECTORIES, Event, FILES, How, LOCK, LOG, MODE, NAMES, PAGE, PAGES, PATHS, Place, RECORD,
    Value, WORD, runs, token,
};
use crate::plan::Theme;
use crate::sys::{self, Hold, Request};

pub const TOLD: &str = "AQUEDUCT_HISTORIES_WORKER";

/// How long a worker waits for its mount to be there again.
const MOUNT_COMES: Duration = Duration::from_secs(40);

/// Records of the log that are read, at most.
const RECORDS_MAX: usize = 8192;

/// Descriptors of named files that a worker has at a time.
const HELD: usize = 2;

/// What a worker is told once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    /// Where it gets its orders.
    pub socket: PathBuf,
    /// Where it writes down what it did.
    pub record: PathBuf,
    pub number: usize,
    pub mount: usize,
    pub point: PathBuf,
}

/// What it is told for each history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Makes the folder of some histories.
    Prepare {
        folder: String,
    },
    Work(Box<Work>),
}

/// What it does in a history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Work {
    pub folder: String,
    pub history: u64,
    pub seed: u64,
    pub theme: Theme,
    pub hot: usize,
    /// The name that its mount mostly writes, if that is the theme.
    pub own: usize,
    /// It only looks, at one thing again and again.
    pub watches: bool,
    pub operations: usize,
    pub pause: Duration,
    pub start: u64,
}

/// A line of the record.
#[derive(Serialize, Deserialize)]
enum Line {
    Begin(u64, Call),
    End(u64, Result<Value, i32>),
    /// Something was seen, but not all that it takes to know it.
    Lost,
}

/// A time that all processes of the machine share, in nanoseconds.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What changes nothing, and may be answered from a cache.
#[derive(Clone, Copy, Debug)]
enum Look {
    Stat(usize),
    List(usize),
    /// Opens, reads a block and closes.
    Open(usize, usize),
    /// Blocks through a descriptor.
    Blocks(u32, usize, usize),
    Attributes(u32),
    Log(u32),
}

struct Held {
    handle: u32,
    file: Rc<File>,
    place: Place,
    writes: bool,
}

struct Worker {
    part: Part,
    random: Random,
    record: File,
    /// The folder of the history on the mount, and a path that leads there as long as that mount lives: by its own name there would be nothing, and not an
    /// error, between a mount's end and the next one's begin.
    folder: PathBuf,
    root: PathBuf,
    directory: Option<File>,
    work: Work,
    /// What it looked at last.
    looked: Option<Look>,
    held: Vec<Held>,
    /// The descriptor of the lock, while it is ours.
    locked: Option<Held>,
    handles: u32,
    tokens: usize,
    /// The mount has ended.
    gone: bool,
}

impl Worker {
    /// One system call, written down before and after; what it gave, once `tell` has said what is to be known of it.
    fn ask<T>(
        &mut self,
        call: Call,
        operation: impl FnOnce() -> io::Result<T>,
        tell: impl FnOnce(&T) -> io::Result<Value>,
    ) -> Option<T> {
        self.write(&Line::Begin(now(), call));
        let result = operation();
        let end = now();
        match result {
            Ok(given) => match tell(&given) {
                Ok(value) => {
                    self.write(&Line::End(end, Ok(value)));
                    Some(given)
                }
                Err(_) => {
                    self.write(&Line::Lost);
                    None
                }
            },
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EPROTO);
                self.gone |= matches!(errno, libc::ENOTCONN | libc::ECONNABORTED);
                self.write(&Line::End(end, Err(errno)));
                None
            }
        }
    }

    fn ask_plainly(&mut self, call: Call, operation: impl FnOnce() -> io::Result<()>) -> bool {
        self.ask(call, operation, |()| Ok(Value::Done)).is_some()
    }

    fn write(&mut self, line: &Line) {
        let text = serde_json::to_string(line).unwrap() + "\n";
        self.record.write_all(text.as_bytes()).unwrap();
    }

    fn token(&mut self) -> u64 {
        self.tokens += 1;
        token(self.work.history, self.part.number, self.tokens)
    }

    fn step(&mut self) {
        if let Some(look) = self.looked
            && self.random.chance(20)
        {
            return self.look(look);
        }
        let theme = match self.work.theme {
            Theme::Mixed => {
                *self.random.pick(&[Theme::Data, Theme::Data, Theme::Names, Theme::Log, Theme::Pages, Theme::Locks])
            }
            theme if self.random.chance(85) => theme,
            _ => Theme::Names,
        };
        match theme {
            Theme::Data => self.data(),
            Theme::Gathered => self.gathered(),
            Theme::Names | Theme::Mixed => self.names(),
            Theme::Log => self.log(),
            Theme::Pages => self.pages(),
            Theme::Locks => self.locks(),
        }
    }

    fn look(&mut self, look: Look) {
        let of = |handle: u32| move |held: &Held| held.handle == handle;
        match look {
            Look::Stat(name) => {
                let path = self.root.join(PATHS[name]);
                self.ask(Call::Stat { name }, || fs::metadata(path), |metadata| Ok(attributes(metadata)));
            }
            Look::List(directory) => self.list(directory),
            Look::Open(name, block) => {
                if let Some(at) = self.open(Place::Name(name), How::Read) {
                    self.read_blocks(at, block, 1);
                    self.close(at);
                }
            }
            Look::Blocks(handle, block, count) => {
                if let Some(at) = self.held.iter().position(of(handle)) {
                    self.read_blocks(at, block, count);
                }
            }
            Look::Attributes(handle) => {
                if let Some(at) = self.held.iter().position(of(handle)) {
                    self.look_at(at);
                }
            }
            Look::Log(handle) => {
                if let Some(at) = self.held.iter().position(of(handle)) {
                    self.read_log(at);
                }
            }
        }
        self.looked = Some(look);
    }

    /// One thing to look at again and again.
    fn choose(&mut self) -> Look {
        let place = if self.work.theme == Theme::Log { Place::Log } else { Place::Name(0) };
        // It has to be there, and what is open for writing may be in no cache.
        if place != Place::Log
            && let Some(at) = self.open(place, How::Make)
        {
            self.write_blocks(at, 0, 2);
            self.close(at);
        }
        let held = self.open(place, How::Read).map(|at| self.held[at].handle);
        let block = self.random.below(2);
        match (self.work.theme, held) {
            (Theme::Log, Some(handle)) => Look::Log(handle),
            (Theme::Names, _) => {
                *self.random.pick(&[Look::Stat(0), Look::Stat(0), Look::List(0), Look::Open(0, block)])
            }
            (_, Some(handle)) => *self.random.pick(&[
                Look::Blocks(handle, block, 1),
                Look::Attributes(handle),
                Look::Open(0, block),
                Look::Stat(0),
                Look::List(0),
            ]),
            _ => Look::Stat(0),
        }
    }

    fn data(&mut self) {
        let named: Vec<usize> =
            (0..self.held.len()).filter(|at| matches!(self.held[*at].place, Place::Name(_))).collect();
        if named.is_empty() || named.len() < HELD && self.random.chance(30) {
            let name = self.name_of_file(self.work.hot);
            let how = *self.random.pick(&[How::Read, How::Write, How::Make, How::Make, How::Truncate]);
            self.open(Place::Name(name), how);
            return;
        }
        let at = *self.random.pick(&named);
        if self.random.chance(15) {
            return self.close(at);
        }
        let block = self.random.below(BLOCKS);
        let count = if self.random.chance(60) { 1 } else { 1 + self.random.below(BLOCKS - block) };
        match self.random.below(100) {
            0..40 if self.held[at].writes => _ = self.write_blocks(at, block, count),
            40..50 if self.held[at].writes => self.resize(at, block),
            50..60 => self.look(Look::Attributes(self.held[at].handle)),
            _ => self.look(Look::Blocks(self.held[at].handle, block, count)),
        }
    }

    /// Small writes through a descriptor that stays open, to a file that is mostly this mount's: they are held back, and looked at in the midst.
    fn gathered(&mut self) {
        let own = Place::Name(self.work.own);
        let Some(at) = self.held.iter().position(|held| held.place == own && held.writes) else {
            // Nobody else has used one that is new.
            if self.random.chance(40) {
                self.remove(self.work.own);
            }
            let how = *self.random.pick(&[How::Make, How::Make, How::MakeNew, How::Truncate]);
            self.open(own, how);
            return;
        };
        let (handle, block) = (self.held[at].handle, self.random.below(BLOCKS));
        match self.random.below(100) {
            0..48 => self.write_in_sequence(at, block),
            48..55 => self.set_mode(at),
            55..61 => self.sync(at),
            61..68 => self.close(at),
            68..71 => self.resize(at, block),
            71..75 => self.look(Look::Attributes(handle)),
            75..79 => self.look(Look::Blocks(handle, 0, BLOCKS)),
            _ => {
                let name = self.name_of_file(self.work.hot);
                let directory = self.random.below(DIRECTORIES.len());
                let looks = [Look::Stat(name), Look::Open(name, block), Look::Open(name, block), Look::List(directory)];
                let look = *self.random.pick(&looks);
                self.look(look);
            }
        }
    }

    /// One block after the other, or one of them again and again.
    fn write_in_sequence(&mut self, at: usize, first: usize) {
        let step = usize::from(self.random.chance(80));
        for number in 0..1 + self.random.below(2 * BLOCKS) {
            if !self.write_blocks(at, (first + step * number) % BLOCKS, 1) {
                return;
            }
        }
    }

    fn sync(&mut self, at: usize) {
        let (handle, file) = (self.held[at].handle, self.held[at].file.clone());
        self.ask_plainly(Call::Sync { handle }, || file.sync_all());
    }

    fn remove(&mut self, name: usize) {
        let path = self.root.join(PATHS[name]);
        self.ask_plainly(Call::Remove { name }, || fs::remove_file(path));
    }

    fn names(&mut self) {
        match self.random.below(100) {
            0..18 => {
                let name = self.name();
                if let Some(at) = self.open(Place::Name(name), How::MakeNew)
                    && self.random.chance(70)
                {
                    self.close(at);
                }
            }
            18..32 => {
                let name = self.name();
                self.remove(name);
            }
            32..48 => {
                let (from, to) = (self.name_of_file(self.work.hot), self.random.below(FILES));
                let (from, to) = if self.random.chance(50) { (from, to) } else { (to, from) };
                if from != to {
                    let (old, new) = (self.root.join(PATHS[from]), self.root.join(PATHS[to]));
                    self.ask_plainly(Call::Rename { from, to }, || fs::rename(old, new));
                }
            }
            48..58 => {
                let (from, to) = (self.name_of_file(self.work.hot), FILES + self.random.below(NAMES - FILES));
                let (old, new) = (self.root.join(PATHS[from]), self.root.join(PATHS[to]));
                self.ask_plainly(Call::Link { from, to }, || fs::hard_link(old, new));
            }
            58..80 => {
                let name = self.name();
                self.look(Look::Stat(name));
            }
            80..92 => {
                let directory = self.random.below(DIRECTORIES.len());
                self.look(Look::List(directory));
            }
            _ => {
                let name = self.name();
                self.look(Look::Open(name, 0));
            }
        }
    }

    fn list(&mut self, directory: usize) {
        let path = self.root.join(DIRECTORIES[directory]);
        let list = || -> io::Result<Vec<(String, u64)>> {
            let entry = |entry: io::Result<fs::DirEntry>| {
                let entry = entry?;
                Ok((entry.file_name().to_string_lossy().into_owned(), entry.ino()))
            };
            fs::read_dir(path)?.map(entry).collect()
        };
        self.ask(Call::List { directory }, list, |names| Ok(Value::Names(names.clone())));
    }

    fn log(&mut self) {
        let at = match self.held.iter().position(|held| held.place == Place::Log) {
            Some(at) => at,
            None => match self.open(Place::Log, How::Append) {
                Some(at) => at,
                None => return,
            },
        };
        match self.random.below(100) {
            0..45 => {
                let (handle, token) = (self.held[at].handle, self.token());
                let file = self.held[at].file.clone();
                let record: Vec<u8> = token.to_le_bytes().repeat(RECORD / WORD);
                self.ask_plainly(Call::Append { handle, token }, || all((&*file).write(&record)?, RECORD));
            }
            45..80 => self.look(Look::Log(self.held[at].handle)),
            80..90 => self.look(Look::Attributes(self.held[at].handle)),
            _ => self.close(at),
        }
    }

    fn read_log(&mut self, at: usize) {
        let handle = self.held[at].handle;
        let file = self.held[at].file.clone();
        let read = || {
            let mut bytes = vec![0; RECORDS_MAX * RECORD];
            let count = file.read_at(&mut bytes, 0)?;
            bytes.truncate(count);
            Ok(bytes)
        };
        let tell = |bytes: &Vec<u8>| Ok(Value::Records(records(bytes)));
        self.ask(Call::ReadLog { handle }, read, tell);
    }

    /// Through the mapping and by read and write, each page a block.
    fn pages(&mut self) {
        let Some(at) = self.open(Place::Pages, How::Write) else { return };
        let (handle, block, token) = (self.held[at].handle, self.random.below(BLOCKS), self.token());
        let (file, length) = (self.held[at].file.clone(), BLOCKS * PAGE);
        if self.random.chance(45) {
            let values = [token.to_le(); BLOCK / WORD];
            let store = || {
                let mapping = sys::Mapping::new(file.as_fd(), length)?;
                mapping.store(block * PAGE, &values);
                mapping.sync()
            };
            self.ask_plainly(Call::Store { handle, block, token }, store);
        } else {
            let load = || sys::load_private(file.as_fd(), length);
            let tell = |bytes: &Vec<u8>| {
                Ok(Value::Words { bytes: BLOCK, runs: runs(&bytes[block * PAGE..block * PAGE + BLOCK]) })
            };
            self.ask(Call::Load { handle, block }, load, tell);
        }
        drop(file);
        self.close(at);
    }

    /// Takes the lock, works, and gives it back.
    fn locks(&mut self) {
        let Some(held) = self.locked.take() else {
            let wait = self.random.chance(20);
            let Some(at) = self.open(Place::Lock, How::Write) else { return };
            let held = self.held.remove(at);
            let call = Call::Lock { handle: held.handle, wait };
            let file = held.file.clone();
            let taken = self.ask_plainly(call, || sys::lock(file.as_fd(), Request::OpenFile, Hold::Write, 0, 0, wait));
            drop(file);
            if taken {
                self.locked = Some(held);
            } else {
                self.held.push(held);
                self.close(self.held.len() - 1);
            }
            return;
        };
        self.locked = Some(held);
        match self.random.below(3) {
            0 => self.unlock(),
            1 => self.pages(),
            _ => self.data(),
        }
    }

    fn unlock(&mut self) {
        let Some(held) = self.locked.take() else { return };
        let file = held.file.clone();
        let unlock = || sys::lock(file.as_fd(), Request::OpenFile, Hold::Unlock, 0, 0, false);
        self.ask_plainly(Call::Unlock { handle: held.handle }, unlock);
        drop(file);
        self.held.push(held);
        self.close(self.held.len() - 1);
    }

    /// A name that may be renamed; for data mostly one of the hot ones.
    fn name_of_file(&mut self, hot: usize) -> usize {
        let among = if self.random.chance(90) { hot } else { FILES };
        self.random.below(among)
    }

    /// Any name.
    fn name(&mut self) -> usize {
        if self.random.chance(50) { self.name_of_file(self.work.hot) } else { self.random.below(NAMES) }
    }

    /// Where it is among those that are held.
    fn open(&mut self, place: Place, how: How) -> Option<usize> {
        self.handles += 1;
        let (handle, path) = (self.handles, self.root.join(place.path()));
        let mut options = OpenOptions::new();
        match how {
            How::Read => options.read(true),
            How::Write => options.read(true).write(true),
            How::Truncate => options.read(true).write(true).truncate(true),
            How::Make => options.read(true).write(true).create(true).truncate(false).mode(MODE),
            How::MakeNew => options.read(true).write(true).create_new(true).mode(MODE),
            How::Append => options.read(true).append(true),
        };
        let tell = |file: &File| Ok(Value::Node(file.metadata()?.ino()));
        let file = self.ask(Call::Open { handle, place, how }, || options.open(path), tell)?;
        self.held.push(Held { handle, file: Rc::new(file), place, writes: how != How::Read });
        Some(self.held.len() - 1)
    }

    fn close(&mut self, at: usize) {
        let held = self.held.swap_remove(at);
        let file = Rc::into_inner(held.file).expect("nobody else has it");
        self.ask_plainly(Call::Close { handle: held.handle }, || sys::close(file));
    }

    fn read_blocks(&mut self, at: usize, block: usize, count: usize) {
        let handle = self.held[at].handle;
        let file = self.held[at].file.clone();
        let read = || {
            let mut bytes = vec![0; count * BLOCK];
            let read = file.read_at(&mut bytes, (block * BLOCK) as u64)?;
            bytes.truncate(read);
            Ok(bytes)
        };
        let tell = |bytes: &Vec<u8>| Ok(Value::Words { bytes: bytes.len(), runs: runs(bytes) });
        self.ask(Call::Read { handle, block, count }, read, tell);
    }

    fn write_blocks(&mut self, at: usize, block: usize, count: usize) -> bool {
        let (handle, token) = (self.held[at].handle, self.token());
        let file = self.held[at].file.clone();
        let bytes = token.to_le_bytes().repeat(count * BLOCK / WORD);
        let write = || all(file.write_at(&bytes, (block * BLOCK) as u64)?, bytes.len());
        self.ask_plainly(Call::Write { handle, block, count, token }, write)
    }

    fn resize(&mut self, at: usize, blocks: usize) {
        let handle = self.held[at].handle;
        let file = self.held[at].file.clone();
        self.ask_plainly(Call::Resize { handle, blocks }, || file.set_len((blocks * BLOCK) as u64));
    }

    /// As tar does when it has written a file.
    fn set_mode(&mut self, at: usize) {
        let (handle, mode) = (self.held[at].handle, 0o600 + self.random.below(0o100) as u32);
        let file = self.held[at].file.clone();
        let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000 + self.random.below(1000) as u64);
        self.ask_plainly(Call::SetMode { handle, mode }, || {
            file.set_times(fs::FileTimes::new().set_accessed(time).set_modified(time))?;
            file.set_permissions(fs::Permissions::from_mode(mode))
        });
    }

    fn look_at(&mut self, at: usize) {
        let handle = self.held[at].handle;
        let file = self.held[at].file.clone();
        self.ask(Call::LookAt { handle }, || file.metadata(), |metadata| Ok(attributes(metadata)));
    }

    /// Waits for the mount if need be, as after it was killed.
    fn enter(&mut self) {
        self.held.clear();
        self.locked = None;
        self.directory = None;
        let started = Instant::now();
        while self.directory.is_none() && started.elapsed() < MOUNT_COMES {
            self.directory = File::open(&self.folder).ok();
            thread::sleep(Duration::from_millis(if self.directory.is_none() { 5 } else { 0 }));
        }
        let directory = self.directory.as_ref().expect("a mount that has come");
        self.root = format!("/proc/self/fd/{}", directory.as_raw_fd()).into();
        self.gone = false;
    }

    fn work(&mut self) {
        self.enter();
        thread::sleep(Duration::from_nanos(self.work.start.saturating_sub(now())));
        let watched = self.work.watches.then(|| self.choose());
        for _ in 0..self.work.operations {
            if !self.work.pause.is_zero() {
                thread::sleep(self.work.pause * self.random.below(1000) as u32 / 1000);
            }
            match watched {
                Some(look) => self.look(look),
                None => self.step(),
            }
            if self.gone {
                self.enter();
            }
        }
        self.unlock();
        while !self.held.is_empty() {
            self.close(self.held.len() - 1);
        }
    }
}

/// A write that wrote less is not expected: there is room.
fn all(count: usize, wanted: usize) -> io::Result<()> {
    if count == wanted { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOSPC)) }
}

fn attributes(metadata: &fs::Metadata) -> Value {
    let mode = metadata.mode() & 0o7777;
    Value::Attributes { node: metadata.ino(), size: metadata.len(), links: metadata.nlink(), mode }
}

/// The records of a log; one that is torn shows as what nobody wrote.
pub fn records(bytes: &[u8]) -> Vec<u64> {
    let whole = |record: &[u8]| match runs(record)[..] {
        [(0, token)] if record.len() == RECORD => token,
        _ => u64::MAX,
    };
    bytes.chunks(RECORD).map(whole).collect()
}

fn prepare(root: &Path) {
    DIRECTORIES.iter().for_each(|directory| fs::create_dir_all(root.join(directory)).unwrap());
    fs::write(root.join(LOG), "").unwrap();
    fs::write(root.join(PAGES), vec![0; BLOCKS * PAGE]).unwrap();
    fs::write(root.join(LOCK), "").unwrap();
}

/// What a worker wrote down.
pub fn recorded(path: &Path, worker: usize, mount: usize) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    for line in fs::read_to_string(path).unwrap_or_default().lines() {
        // The last may be torn, if the worker died.
        let Ok(line) = serde_json::from_str(line) else { break };
        match (line, events.last_mut()) {
            (Line::Begin(begin, call), _) => {
                events.push(Event { worker, mount, begin, end: u64::MAX, call, result: None });
            }
            (Line::End(end, result), Some(event)) => (event.end, event.result) = (end, Some(result)),
            _ => {}
        }
    }
    events
}

/// How to start one.
pub fn command(part: &Part) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["worker::works_when_told_to", "--exact", "--nocapture"]);
    command.env(TOLD, serde_json::to_string(part).unwrap()).env("RUST_BACKTRACE", "1");
    command
}

/// Not a test of anything.
#[test]
fn works_when_told_to() {
    let Some(part) = std::env::var_os(TOLD) else { return };
    let part: Part = serde_json::from_str(part.to_str().unwrap()).unwrap();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022)); // what it makes has these permissions
    let mut socket = UnixStream::connect(&part.socket).unwrap();
    writeln!(socket, "{}", part.number).unwrap();
    for line in BufReader::new(socket.try_clone().unwrap()).lines().map_while(Result::ok) {
        match serde_json::from_str(&line).unwrap() {
            Order::Prepare { folder } => prepare(&part.point.join(folder)),
            Order::Work(work) => {
                let mut worker = Worker {
                    random: Random::new(work.seed),
                    record: File::create(&part.record).unwrap(),
                    folder: part.point.join(&work.folder),
                    root: PathBuf::new(),
                    directory: None,
                    work: *work,
                    looked: None,
                    held: Vec::new(),
                    locked: None,
                    handles: 0,
                    tokens: 0,
                    gone: false,
                    part: part.clone(),
                };
                worker.work();
            }
        }
        writeln!(socket, "done").unwrap();
    }
    std::process::exit(0);
}
