//! The process beside a server of data. A thread that was stopped between the look at its
//! authority and its write must never go on: no look is late enough, so another process ends this
//! one by the time its authority has run out. When it has ended, however that came, the other one
//! tells the server of the names, which then waits for nothing more.
//!
//! It outlives the signals that end a service, which a service manager sends to all processes of
//! one: what a server that is stopped may still have been writing would else be waited for until
//! it is started again.
//!
//! The server says on a pipe, again and again, by when it is to have ended unless it says
//! otherwise before; where it says nothing for a while it is taken to stand still.

use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_client::{Asker, boottime};
use aqueduct_net::Initiator;
use aqueduct_wire::{Beat, ClientKey, Key, Op, RightKey};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::routes::{self, RoutesFile};

/// What the program is called when it is to watch over a server.
pub const WATCH_NAME: &str = "aqueduct-watch";

/// So long after its authority has run out a server is killed: by itself it begins nothing then.
const MARGIN: Duration = Duration::from_secs(1);

/// One that says nothing for so long stands still.
const SILENCE: Duration = Duration::from_secs(5);

/// Between the starts of two that watch over one server.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

/// How long is tried to tell that it has ended, and between two tries. After that the next start
/// of the server tells it.
const TELL_MAX: Duration = Duration::from_secs(120);
const TELL_PAUSE: Duration = Duration::from_millis(500);

/// How long a try takes at most.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The longest first line, in bytes: as many routes as there may be are some 150 KiB.
const LINE_MAX: u64 = 1 << 20;

/// On the pipe: nothing is executed.
const IDLE: u64 = 0;

/// What the server of the names is told when a server of data has ended.
#[derive(Serialize, Deserialize)]
pub(crate) struct Ended {
    /// The addresses of the server of the names.
    names: String,
    /// The cluster's key.
    cluster: Option<[u8; 32]>,
    /// The body of the beat.
    beat: Vec<u8>,
    /// The ways there.
    routes: RoutesFile,
}

impl Ended {
    pub(crate) fn new(
        key: &RightKey,
        (place, data): (u16, u64),
        (names, routes): (String, Option<&Arc<Initiator>>),
        cluster: Option<&Key>,
    ) -> io::Result<Ended> {
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        let beat = Beat { place, data, has_ended: true, nonce, ..Beat::default() }.encode(key);
        let routes = routes.map_or_else(RoutesFile::default, |routes| RoutesFile::of(&routes.routes().table()));
        Ok(Ended { names, cluster: cluster.map(|key| *key.bytes()), beat, routes })
    }

    /// Tells it until it is understood.
    fn tell(&self) {
        let end = Instant::now() + TELL_MAX;
        // It was read and checked by the server.
        let routes = self.routes.table().and_then(routes::initiator).ok().flatten();
        while Instant::now() < end {
            let key = self.cluster.map(|key| ClientKey::from(Key::new(key)));
            let told = Asker::connect(&self.names, key, routes.clone(), TIMEOUT)
                .ok()
                .and_then(|mut asker| asker.request(Op::Beat, &self.beat, TIMEOUT).ok());
            // Whatever it says: a later start of the server may have told before.
            if told.is_some() {
                return;
            }
            std::thread::sleep(TELL_PAUSE);
        }
    }
}

/// The other process, as its server has it. Should it end, another one is started.
pub(crate) struct Watcher {
    program: PathBuf,
    ended: Ended,
    running: Mutex<Running>,
}

struct Running {
    pipe: ChildStdin,
    /// Not waited for as long as it runs: it outlives this process.
    process: Child,
    since: Instant,
    /// Why it was not heard when it was told something the last time.
    failed: Option<io::ErrorKind>,
}

impl Running {
    fn start(program: &Path, ended: &Ended) -> io::Result<Running> {
        let mut command = Command::new(program);
        // A group of its own: what stops this process from a terminal does not stop that one.
        command.arg0(WATCH_NAME).arg(std::process::id().to_string()).process_group(0);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let mut pipe = process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut line = serde_json::to_vec(ended)?;
        line.push(b'\n');
        pipe.write_all(&line)?;
        // Who watches reads at once; should it stand still, this process must not.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Running { pipe, process, since: Instant::now(), failed: None })
    }

    fn tell(&mut self, until: u64) -> io::Result<()> {
        self.pipe.write_all(&until.to_le_bytes())
    }

    /// Who ends it can do that again and again.
    fn is_to_be_replaced(&mut self) -> bool {
        self.since.elapsed() >= RESTART_PAUSE && self.process.try_wait().is_ok_and(|status| status.is_some())
    }
}

impl Watcher {
    pub(crate) fn start(program: &Path, ended: Ended) -> io::Result<Watcher> {
        let running = Mutex::new(Running::start(program, &ended)?);
        Ok(Watcher { program: program.to_owned(), ended, running })
    }

    /// By when this process is to have ended. False: it was not heard, and nothing may be
    /// executed.
    pub(crate) fn tell(&self, until: Option<Duration>) -> bool {
        let until = until.map_or(IDLE, |until| until.as_nanos() as u64);
        let mut running = self.running.lock().unwrap_or_else(|poison| poison.into_inner());
        let mut told = running.tell(until);
        if told.is_err() && running.is_to_be_replaced() {
            told = Running::start(&self.program, &self.ended).and_then(|another| {
                *running = another;
                tracing::warn!("the process {WATCH_NAME} beside this server had ended: another one was started");
                running.tell(until)
            });
        }
        let failed = told.as_ref().err().map(io::Error::kind);
        if let Err(error) = &told
            && running.failed != failed
        {
            tracing::error!(%error, "the process {WATCH_NAME} beside this server does not listen: no write is served meanwhile");
        }
        running.failed = failed;
        told.is_ok()
    }
}

/// Watches over the process that has started this one, until that has ended.
pub fn watch() -> ExitCode {
    match try_watch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{WATCH_NAME}: {error}; this program is started by 'aqueduct serve', and by nobody else");
            ExitCode::FAILURE
        }
    }
}

fn try_watch() -> io::Result<()> {
    let server = std::env::args().nth(1).and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    let server = server.ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(server, PidfdFlags::empty())?;
    // Looked at afterwards: as long as it is the parent its number is no other's.
    if getppid() != Some(server) {
        return Err(io::Error::other("whoever started it has ended"));
    }
    let mut pipe = BufReader::new(PipeReader::from(io::stdin().as_fd().try_clone_to_owned()?));
    let mut line = String::new();
    pipe.by_ref().take(LINE_MAX).read_line(&mut line)?;
    let ended: Ended = serde_json::from_str(&line)?;
    let mut judge = Judge { until: None, heard: Instant::now() };
    loop {
        let ready = [PollFlags::IN; 2];
        let mut waits = [PollFd::new(pipe.get_ref(), ready[0]), PollFd::new(&process, ready[1])];
        let look = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let is_said = !pipe.buffer().is_empty();
        if !is_said {
            match poll(&mut waits, Some(&look)) {
                // A signal that this process is told to outlive.
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
        }
        if !waits[1].revents().is_empty() {
            ended.tell();
            return Ok(());
        }
        if is_said || waits[0].revents().contains(PollFlags::IN) {
            let mut said = [0; 8];
            pipe.read_exact(&mut said)?;
            judge.hear(u64::from_le_bytes(said), Instant::now());
            continue; // all that it has said is heard before it is judged
        }
        if let Some(why) = judge.condemns(boottime(), Instant::now()) {
            let killed = server.as_raw_nonzero();
            // Whatever becomes of the line: this process has to end the other.
            let _ = writeln!(io::stderr(), "{WATCH_NAME}: ends the server of data, process {killed}: {why}");
            pidfd_send_signal(&process, Signal::KILL)?;
            // The pipe is closed before the process has gone, and says so again and again.
            while let Err(Errno::INTR) = poll(&mut [PollFd::new(&process, PollFlags::IN)], None) {}
            ended.tell();
            return Ok(());
        }
    }
}

/// When a server is to be killed.
struct Judge {
    until: Option<Duration>,
    heard: Instant,
}

impl Judge {
    fn hear(&mut self, until: u64, now: Instant) {
        self.until = (until != IDLE).then(|| Duration::from_nanos(until));
        self.heard = now;
    }

    /// Why it is, by the clock by which it works, and by this process's.
    fn condemns(&self, time: Duration, now: Instant) -> Option<&'static str> {
        if self.until.is_some_and(|until| time >= until + MARGIN) {
            return Some("its authority has run out while it was writing");
        }
        (now.saturating_duration_since(self.heard) >= SILENCE).then_some("it stands still")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_writes_without_authority_or_stands_still_is_ended() {
        let (at, second) = (Instant::now(), Duration::from_secs(1));
        let mut judge = Judge { until: None, heard: at };
        assert_eq!(judge.condemns(100 * second, at), None, "it writes nothing");
        assert!(judge.condemns(100 * second, at + SILENCE).is_some());
        judge.hear(Duration::as_nanos(&(100 * second)) as u64, at + SILENCE);
        assert_eq!(judge.condemns(100 * second, at + SILENCE), None);
        assert!(judge.condemns(100 * second + MARGIN, at + SILENCE).is_some());
        judge.hear(IDLE, at + SILENCE);
        assert_eq!(judge.condemns(200 * second, at + SILENCE), None);
    }
}
