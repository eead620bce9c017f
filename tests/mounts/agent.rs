//! A process that does what it is told: opens, locks, reads, and waits in system calls while the test kills it.
//!
//! It is this test binary once more, told by an environment variable to serve instead of to test.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{File, ReadDir};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::calls;
use crate::churn;
use crate::common::{Process, SOON};
use crate::gathered::{modes, records};
use crate::lanes::block;
use crate::scribble;
use crate::sys::{self, Hold, Request};

const SERVE: &str = "AQUEDUCT_TEST_AGENT";
const ANSWER: &str = "agent: ";
const SLOTS: usize = 8;

/// An agent, seen from the test.
pub struct Agent {
    pub process: Process,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Agent {
    pub fn start() -> Agent {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["agent::serves_when_told_to", "--exact", "--nocapture"]).env(SERVE, "1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, answers) = channel();
        thread::spawn(move || {
            // The first answer shares its line with what the test harness prints.
            let answers = lines.map_while(Result::ok).filter_map(|line| Some(line.split_once(ANSWER)?.1.to_owned()));
            for answer in answers {
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        let agent = Agent { process: Process::adopt(child), orders, answers };
        agent.answer().expect("the agent is there");
        agent
    }

    /// Gives an order and does not wait.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
        self.orders.flush().unwrap();
    }

    /// The answer, within `limit`: the value, or the errno; nothing when there is none yet.
    pub fn answer_within(&self, limit: Duration) -> Option<Result<String, i32>> {
        let answer = match self.answers.recv_timeout(limit) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => panic!("the agent has died"),
        };
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("ok", value) => Some(Ok(value.to_owned())),
            (_, errno) => Some(Err(errno.parse().expect("an errno"))),
        }
    }

    pub fn answer(&self) -> Result<String, i32> {
        self.answer_within(SOON).expect("the agent does not answer")
    }

    /// Gives an order and waits for its answer.
    pub fn ask(&mut self, order: &str) -> Result<String, i32> {
        self.tell(order);
        self.answer()
    }

    /// Nothing comes for a while: the order waits.
    pub fn is_waiting(&self) -> bool {
        self.answer_within(Duration::from_millis(300)).is_none()
    }
}

/// Not a test of anything.
#[test]
fn serves_when_told_to() {
    if std::env::var_os(SERVE).is_none() {
        return;
    }
    let mut slots: [Option<File>; SLOTS] = Default::default();
    println!("{ANSWER}ok");
    for line in io::stdin().lines().map_while(Result::ok) {
        match obey(&mut slots, &line.split(' ').collect::<Vec<_>>()) {
            Ok(value) => println!("{ANSWER}ok {value}"),
            Err(error) => println!("{ANSWER}error {}", error.raw_os_error().unwrap_or(-1)),
        }
    }
    std::process::exit(0);
}

fn obey(slots: &mut [Option<File>; SLOTS], words: &[&str]) -> io::Result<String> {
    let done = |result: io::Result<()>| result.map(|()| String::new());
    let number = |at: usize| words[at].parse::<i64>().expect("a number");
    if let ["alarm", milliseconds] = words {
        return done(sys::alarm(milliseconds.parse().expect("milliseconds")));
    }
    if words[0] == "chdir" {
        return done(std::env::set_current_dir(words[1]));
    }
    if words[0] == "become" {
        return done(sys::become_user(number(1) as u32, number(2) as u32));
    }
    if words[0] == "connect" {
        return UnixStream::connect(words[1]).map(|_| String::new());
    }
    if words[0] == "churn" {
        let time = Duration::from_millis(number(2) as u64);
        return churn::work(words[1].as_ref(), time)
            .map(|rounds| rounds.to_string())
            .inspect_err(|error| eprintln!("churn in {}: {error}", words[1]));
    }
    if words[0] == "stream" {
        return churn::stream(words[1].as_ref(), Duration::from_millis(number(2) as u64))
            .inspect_err(|error| eprintln!("stream in {}: {error}", words[1]));
    }
    if words[0] == "scribble" {
        let time = Duration::from_millis(number(2) as u64);
        return scribble::work(words[1].as_ref(), time)
            .map(|changes| changes.to_string())
            .inspect_err(|error| eprintln!("scribbling in {}: {error}", words[1]));
    }
    if words[0] == "records" {
        let time = Duration::from_millis(number(3) as u64);
        return records::write(words[1].as_ref(), words[2].as_ref(), time).map(|count| count.to_string());
    }
    if words[0] == "list" {
        return list(words[1], words.get(2).map_or(usize::MAX, |count| count.parse().expect("a number")));
    }
    let slot = words[1].parse::<usize>().expect("a slot");
    if words[0] == "open" {
        slots[slot] = Some(open(words[2], words[3])?);
        return Ok(String::new());
    }
    if words[0] == "close" {
        slots[slot] = None;
        return Ok(String::new());
    }
    if words[0] == "end" {
        // As close, with what close(2) says.
        return done(slots[slot].take().map_or(Ok(()), sys::close));
    }
    if words[0] == "copy" {
        let file = |slot: usize| slots[slot].as_ref().expect("an open slot");
        let to = file(words[2].parse().expect("a slot"));
        let (mut from_at, mut to_at, length) = (0, 0, number(3) as usize);
        let copied = rustix::fs::copy_file_range(file(slot), Some(&mut from_at), to, Some(&mut to_at), length)?;
        return Ok(copied.to_string());
    }
    let file = slots[slot].as_mut().expect("an open slot");
    match words[0] {
        "read" => {
            let mut bytes = vec![0; number(2) as usize];
            let count = file.read(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes[..count]).into())
        }
        "readat" => {
            let mut bytes = vec![0; number(3) as usize];
            let count = file.read_at(&mut bytes, number(2) as u64)?;
            Ok(count.to_string())
        }
        "writeat" => file.write_at(words[3].as_bytes(), number(2) as u64).map(|count| count.to_string()),
        "block" => file.write_at(&block(number(3) as u32), number(2) as u64).map(|count| count.to_string()),
        "write" => file.write(words[2].as_bytes()).map(|count| count.to_string()),
        "size" => file.seek(SeekFrom::End(0)).map(|size| size.to_string()),
        "sync" => done(file.sync_all()),
        "set" => done(modes::set(file, number(2) as u32, number(3) as u64)),
        "call" => done(calls::call(&words[2..].join(" "), Path::new("."), file)),
        "process" | "openfile" => {
            let request = if words[0] == "process" { Request::Process } else { Request::OpenFile };
            let wait = words.get(5) == Some(&"wait");
            done(sys::lock(file.as_fd(), request, hold(words[2]), number(3), number(4), wait))
        }
        "test" => sys::test_lock(file.as_fd(), number(2), number(3)).map(|found| format!("{found:?}")),
        "flock" => {
            let operation = match (hold(words[2]), words.get(3) == Some(&"wait")) {
                (Hold::Read, false) => FlockOperation::NonBlockingLockShared,
                (Hold::Write, false) => FlockOperation::NonBlockingLockExclusive,
                (Hold::Read, true) => FlockOperation::LockShared,
                (Hold::Write, true) => FlockOperation::LockExclusive,
                (Hold::Unlock, _) => FlockOperation::Unlock,
            };
            done(flock(file, operation).map_err(io::Error::from))
        }
        other => panic!("no such order: {other}"),
    }
}

fn hold(word: &str) -> Hold {
    match word {
        "R" => Hold::Read,
        "W" => Hold::Write,
        _ => Hold::Unlock,
    }
}

thread_local! {
    static LISTING: RefCell<Option<(ReadDir, Vec<OsString>)>> = const { RefCell::new(None) };
}

/// Goes on with a listing, from the start the first time, for `count` names. Answers how many there have been, and how many different ones.
fn list(path: &str, count: usize) -> io::Result<String> {
    LISTING.with_borrow_mut(|listing| {
        if listing.is_none() {
            *listing = Some((std::fs::read_dir(path)?, Vec::new()));
        }
        let (entries, names) = listing.as_mut().expect("made above");
        for entry in entries.take(count) {
            names.push(entry?.file_name());
        }
        let different: HashSet<&OsString> = names.iter().collect();
        Ok(format!("{} {}", names.len(), different.len()))
    })
}

/// `flags` is one letter each: r, w, c(reate), a(ppend), t(runcate), d(irect).
fn open(path: &str, flags: &str) -> io::Result<File> {
    let has = |flag| flags.contains(flag);
    let mut options = File::options();
    options.read(has('r')).write(has('w')).create(has('c')).append(has('a')).truncate(has('t')).mode(0o666);
    options.custom_flags(if has('d') { libc::O_DIRECT } else { 0 });
    options.open(path)
}
