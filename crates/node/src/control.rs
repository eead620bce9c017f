//! How the router of this machine is asked and changed: over a Unix socket, one question and one
//! answer for each connection, each a line of JSON.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aqueduct_metrics::status::RouterStatus;
use aqueduct_net::named::{self, Name};
use aqueduct_net::{Peer, socket};
use serde::{Deserialize, Serialize};
use socket2::Socket;

use crate::failure::{Failure, Kind};

/// The longest question or answer, in bytes.
const LINE_MAX: u64 = 4 << 20;

/// How long either side may take to say what it has to say.
const PATIENCE: Duration = Duration::from_secs(2);

/// What can be asked of a router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// How it fares.
    Show,
    /// To use a route, written as [`routes::parse`](crate::routes::parse) reads it.
    Add(String),
    /// To use it no more.
    Delete(String),
    /// To take no more flows, and to end those that it has in so many seconds.
    Drain(u32),
    /// To take flows again.
    Resume,
}

impl Request {
    /// Whether only who could end the router may ask for it.
    fn is_change(&self) -> bool {
        *self != Request::Show
    }
}

/// How it fares afterwards, or why not: what was tried, why it failed, what to do.
type Answer = Result<RouterStatus, [String; 3]>;

/// Asks the router that listens at `control`.
pub fn ask(control: &Path, request: &Request) -> Result<RouterStatus, Failure> {
    let what = format!("cannot ask the router at {}", control.display());
    let hint = "start it with 'aqueduct route --config FILE', or name its socket with --control";
    let failed = |error: &dyn std::fmt::Display| Failure::new(&what, error, hint).of(Kind::Connect);
    let exchange = || -> io::Result<String> {
        let mut stream = UnixStream::connect(control)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(line(request).as_bytes())?;
        let mut text = String::new();
        BufReader::new(stream).take(LINE_MAX).read_line(&mut text)?;
        Ok(text)
    };
    let text = exchange().map_err(|error| failed(&error))?;
    let answer: Answer = serde_json::from_str(&text).map_err(|error| {
        Failure::new(&what, format!("its answer cannot be read: {error}"), "install the same release here and there")
    })?;
    answer.map_err(|[what, why, hint]| Failure::new(what, why, hint))
}

pub(crate) fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default() + "\n" // its keys are strings
}

/// A socket where questions are answered. Dropping it closes and removes it.
pub(crate) struct Control {
    /// Until it is dropped.
    name: Option<Name>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Answers the questions to a router by a thread of its own.
    pub(crate) fn start(
        path: &Path,
        answer: impl Fn(Request) -> Result<RouterStatus, Failure> + Send + 'static,
    ) -> Result<Control, Failure> {
        Control::listen(path, move |socket, peer| converse(socket, peer, &answer)).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    "another router runs here: end it, or give this one another socket (control)"
                }
                _ => "give another path (control) in a folder that this user may write",
            };
            Failure::new(format!("cannot listen on unix:{}", path.display()), error, hint).of(Kind::Listen)
        })
    }

    /// Has a thread of its own speak with whoever connects, one after the other.
    pub(crate) fn listen(
        path: &Path,
        converse: impl Fn(Socket, Peer) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Control> {
        let listen = || -> io::Result<(Socket, Name)> {
            if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
                aqueduct_net::local::make_folder(folder)?;
            }
            let (listener, name) = named::listen(path)?;
            listener.set_nonblocking(false)?;
            Ok((listener, name))
        };
        let (listener, name) = listen()?;
        let ends = Arc::new(AtomicBool::new(false));
        let has_ended = ends.clone();
        let serve = move || {
            while !has_ended.load(Ordering::SeqCst) {
                match socket::accept(&listener) {
                    Ok(Some((socket, peer))) => {
                        if let Err(error) = converse(socket, peer) {
                            tracing::debug!(%error, "a question was not answered");
                        }
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::warn!(%error, "questions cannot be accepted; trying again");
                        std::thread::sleep(PATIENCE);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(serve)?;
        Ok(Control { name: Some(name), ends, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // Has it look at that.
        let is_woken = self.name.as_ref().is_some_and(|name| UnixStream::connect(name.path()).is_ok());
        let _ = self.name.take().map(Name::remove); // the next one replaces it else
        if let Some(thread) = self.thread.take().filter(|_| is_woken) {
            let _ = thread.join(); // it has nothing to tell
        }
    }
}

fn converse(socket: Socket, peer: Peer, answer: &impl Fn(Request) -> Result<RouterStatus, Failure>) -> io::Result<()> {
    let mut stream = UnixStream::from(OwnedFd::from(socket));
    stream.set_write_timeout(Some(PATIENCE))?;
    let Some(text) = receive(&mut stream)? else { return Ok(()) };
    let answer: Answer = match serde_json::from_str::<Request>(&text) {
        Err(error) => {
            Err(["cannot answer".into(), error.to_string(), "install the same release here and there".into()])
        }
        Ok(request) if request.is_change() && !may_change(peer) => Err([
            "cannot change the router".into(),
            "only root and the user that it runs as may".into(),
            "do it as that user".into(),
        ]),
        Ok(request) => answer(request).map_err(|failure| [failure.what, failure.why, failure.hint]),
    };
    stream.write_all(line(&answer).as_bytes())
}

/// The question, as long as it comes in time; `None`: nobody asks anything.
pub(crate) fn receive(stream: &mut UnixStream) -> io::Result<Option<String>> {
    let (end, mut text) = (Instant::now() + PATIENCE, Vec::new());
    let mut part = [0; 4096];
    while !text.ends_with(b"\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || text.len() as u64 > LINE_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Ok(None),
            count => text.extend_from_slice(&part[..count]),
        }
    }
    String::from_utf8(text).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Whether who asks is root, or the user that this process runs as.
pub(crate) fn may_change(peer: Peer) -> bool {
    let own = rustix::process::geteuid().as_raw();
    matches!(peer, Peer::Process { uid, .. } if uid == 0 || uid == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(folder: &Path) -> (std::path::PathBuf, Control) {
        let path = folder.join("run/router.sock");
        let answer = |request| match request {
            Request::Show => Ok(RouterStatus { router: "r".into(), ..RouterStatus::default() }),
            request => Err(Failure::new(format!("{request:?}"), "why", "hint")),
        };
        (path.clone(), Control::start(&path, answer).unwrap())
    }

    #[test]
    fn questions_are_answered() {
        let folder = tempfile::tempdir().unwrap();
        let (path, control) = control(folder.path());
        assert_eq!(ask(&path, &Request::Show).unwrap().router, "r");
        let failure = ask(&path, &Request::Add("net2@10.0.0.1".into())).unwrap_err();
        assert_eq!(failure, Failure::new("Add(\"net2@10.0.0.1\")", "why", "hint"));
        let second = Control::start(&path, |_| unreachable!()).err().unwrap().to_string();
        assert!(second.contains("another router"), "{second}");
        drop(control);
        assert!(!path.exists());
        let gone = ask(&path, &Request::Show).unwrap_err().to_string();
        assert!(gone.contains("aqueduct route --config"), "{gone}");
    }

    #[test]
    fn noise_is_no_question_and_silence_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _control) = control(folder.path());
        let mut noise = UnixStream::connect(&path).unwrap();
        noise.write_all(b"\x00{]\n").unwrap();
        let mut answer = String::new();
        BufReader::new(noise).read_line(&mut answer).unwrap();
        assert!(answer.contains("Err"), "{answer}");
        let silent = UnixStream::connect(&path).unwrap();
        let mut byte = [0];
        assert_eq!((&silent).read(&mut byte).unwrap(), 0, "it is closed");
        assert!(ask(&path, &Request::Show).is_ok());
    }

    #[test]
    fn only_who_could_end_it_may_change_it() {
        let own = rustix::process::geteuid().as_raw();
        assert!(may_change(Peer::Process { uid: own, pid: 1 }) && may_change(Peer::Process { uid: 0, pid: 1 }));
        assert!(!may_change(Peer::Process { uid: own + 1, pid: 1 }));
        assert!(Request::Resume.is_change() && !Request::Show.is_change());
    }
}
