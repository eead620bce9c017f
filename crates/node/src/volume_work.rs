//! What is done to a volume of plain directories while it is used: the server of the names does
//! it, since it alone knows who uses what, and the command line asks it for it over a Unix socket
//! in the volume's folder of the tree. One question and then lines of JSON, until all is done;
//! whoever asked and leaves ends it at the next place where nothing is half done.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_fs::Errno;
use aqueduct_layout::{FOLDER, Found, Goal, Job, Plain, Repair};
use aqueduct_net::Peer;
use aqueduct_server::export_id;
use aqueduct_worker::{Group, wait};
use serde::{Deserialize, Serialize};
use socket2::Socket;

use crate::control::{Control, line, may_change, receive};
use crate::failure::{Failure, Kind};
use crate::volume::{VOLUME_EXPORT, Volume};
use crate::volume_repair::{self, Repaired, Task};
use crate::{plain, workers};

/// The socket's name in the volume's folder.
const SOCKET: &str = "control.sock";

/// Files that are worked on at once: what they wait for is mostly disks and servers.
const AT_ONCE: usize = 8;

/// Between two words of how far it has come.
const INTERVAL: Duration = Duration::from_millis(500);

/// So often the tree is looked through again for what was renamed meanwhile.
const PASSES_MAX: usize = 10;

/// So long it is waited for who asked to take what he is told.
const WRITE_PATIENCE: Duration = Duration::from_secs(2);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Each server gets its share of the objects.
    Rebalance,
    /// A server keeps no objects, and new files avoid it.
    Drain(String),
    /// It gets new files again.
    Undrain(String),
    /// Large ordinary files at a path of the volume, or below it, get objects.
    Spread(String),
    /// What a check finds is mended.
    Repair,
    /// What a repair took from among the objects is removed for good.
    Purge,
    /// The store of a server is used as it is from now on.
    Accept(String),
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// What is to be done.
    pub work: Work,
    /// Bytes in a second; `None`: as many as go.
    pub rate: Option<u64>,
    /// Nothing is done, and it is told what would be.
    pub dry_run: bool,
    /// A repair takes objects that no file names for that, however many they are.
    #[serde(default)]
    pub accept_orphans: bool,
}

impl Question {
    fn how(&self) -> Repair {
        Repair { dry_run: self.dry_run, accept_orphans: self.accept_orphans }
    }

    /// What is to be repaired, if that is it.
    fn task(&self) -> Option<Task> {
        match self.work {
            Work::Repair => Some(Task::Repair),
            Work::Purge => Some(Task::Purge),
            _ => None,
        }
    }
}

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Files that are done with.
    pub files: u64,
    /// Of so many.
    pub files_all: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Of so many, holes included.
    pub bytes_all: u64,
    /// Seconds that the rest will take, if it goes on like that.
    pub seconds_left: Option<u64>,
    /// Files that could not be done.
    pub failed: u64,
    /// Objects that a server which is to be emptied still has, at the end.
    pub objects_left: u64,
}

/// What is answered, line by line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// It goes on.
    Progress(Progress),
    /// A file could not be done: its path, and why.
    Failed(String, String),
    /// A repair has found something.
    Repaired(Repaired),
    /// It has ended.
    Done(Progress),
    /// It is not done: what was tried, why it failed, what to do.
    Refused([String; 3]),
}

fn socket(tree: &Path) -> PathBuf {
    tree.join(FOLDER).join(SOCKET)
}

impl Volume {
    /// Has the server of the names do something, on its machine, and hands on what it tells until
    /// it has ended.
    pub fn work(&self, question: &Question, mut told: impl FnMut(&Told)) -> Result<Progress, Failure> {
        let (_, _, tree) = self.tree()?;
        let path = socket(&tree);
        let what = format!("cannot ask the server of the names at {}", path.display());
        let hint = "do it on its machine, as root, while it runs: see 'aqueduct serve --volume'";
        let failed = |error: &dyn std::fmt::Display| Failure::new(&what, error, hint).of(Kind::Connect);
        let mut stream = UnixStream::connect(&path).map_err(|error| failed(&error))?;
        stream.write_all(line(question).as_bytes()).map_err(|error| failed(&error))?;
        for text in BufReader::new(stream).lines() {
            let text = text.map_err(|error| failed(&error))?;
            let word: Told = serde_json::from_str(&text).map_err(|error| failed(&error))?;
            match word {
                Told::Done(progress) => return Ok(progress),
                Told::Refused([what, why, hint]) => return Err(Failure::new(what, why, hint)),
                word => told(&word),
            }
        }
        Err(failed(&"it has ended meanwhile; what was done is done, and the same command goes on with the rest"))
    }

    /// Whether its server of the names runs on this machine.
    pub fn is_served(&self) -> Result<bool, Failure> {
        let (_, _, tree) = self.tree()?;
        Ok(UnixStream::connect(socket(&tree)).is_ok())
    }

    /// Repairs it, or removes what was lost for good, here: its server of the names does not run,
    /// and the stores of all servers are directories of this machine.
    pub fn repair_here(
        &self,
        question: &Question,
        stores: &[(String, PathBuf)],
        mut told: impl FnMut(&Told),
    ) -> Result<Progress, Failure> {
        let group = workers::of_caller()
            .map_err(|error| Failure::new("cannot repair the volume", error, "check the limits on open files"))?;
        let (part, key, directory) = self.tree()?;
        let export = (export_id(VOLUME_EXPORT), true);
        let (plain, _links) = plain::look((&part, key, &directory), export, stores, &group)?;
        let tell = |word: &Told| {
            told(word);
            true
        };
        repair((&plain, &group), question, tell).map_err(|[what, why, hint]| Failure::new(what, why, hint))
    }
}

/// Has a volume repaired, or what was lost removed for good.
fn repair(
    by: (&Plain, &Arc<Group>),
    question: &Question,
    mut tell: impl FnMut(&Told) -> bool,
) -> Result<Progress, [String; 3]> {
    let mut progress = Progress::default();
    let told = |word: Option<Repaired>| {
        progress.files += u64::from(word.is_some());
        progress.failed += u64::from(word.as_ref().is_some_and(|repaired| repaired.left.is_some()));
        tell(&word.map_or(Told::Progress(progress), Told::Repaired))
    };
    let task = question.task().unwrap_or(Task::Repair);
    volume_repair::run(by, (task, question.how()), told).map_err(volume_repair::refused)?;
    Ok(progress)
}

/// Answers until it is dropped.
pub(crate) struct Works {
    closing: Arc<AtomicBool>,
    _control: Control,
}

impl Works {
    pub(crate) fn start(tree: &Path, plain: Arc<Plain>, group: Arc<Group>) -> io::Result<Works> {
        let closing = Arc::new(AtomicBool::new(false));
        let ends = closing.clone();
        let answer = move |socket: Socket, peer: Peer| {
            let mut stream = UnixStream::from(OwnedFd::from(socket));
            // Who does not take what he is told is not waited for.
            stream.set_write_timeout(Some(WRITE_PATIENCE))?;
            let Some(text) = receive(&mut stream)? else { return Ok(()) };
            if has_left(&stream) {
                return Ok(()); // while another's work went on
            }
            let answer = match serde_json::from_str::<Question>(&text) {
                Err(error) => Err(["cannot answer".into(), error.to_string(), "install the same release".into()]),
                Ok(_) if !may_change(peer) => Err([
                    "cannot change the volume".into(),
                    "only root and the user that the server runs as may".into(),
                    "do it as that user".into(),
                ]),
                Ok(question) if question.task().is_some() => repair((&plain, &group), &question, |word| {
                    !ends.load(Ordering::SeqCst) && (&stream).write_all(line(word).as_bytes()).is_ok()
                }),
                Ok(question) => Running { plain: &plain, group: &group, ends: &ends }.run(&question, &stream),
            };
            let last = answer.map_or_else(Told::Refused, Told::Done);
            stream.write_all(line(&last).as_bytes())
        };
        Ok(Works { _control: Control::listen(&socket(tree), answer)?, closing })
    }
}

impl Drop for Works {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
    }
}

/// Whether nobody waits for an answer any more.
fn has_left(stream: &UnixStream) -> bool {
    use rustix::net::{RecvFlags, recv};
    let mut byte = [0];
    matches!(recv(stream, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((0, _)))
}

struct Running<'a> {
    plain: &'a Arc<Plain>,
    group: &'a Arc<Group>,
    ends: &'a AtomicBool,
}

impl Running<'_> {
    fn run(&self, question: &Question, stream: &UnixStream) -> Result<Progress, [String; 3]> {
        let refused = |what: &str| {
            let what = what.to_owned();
            move |error: Errno| match error {
                Errno::ENOENT => {
                    [what, "the volume has none of that name".into(), "see the volume's file, or ls".into()]
                }
                error => [what, error.to_string(), "see the log of the server of the names".into()],
            }
        };
        if let Work::Drain(server) | Work::Undrain(server) = &question.work {
            let drains = matches!(question.work, Work::Drain(_));
            let what = format!("cannot empty server '{server}'");
            wait(self.group, self.plain.objects_at(server)).map_err(refused(&what))?;
            if !question.dry_run {
                wait(self.group, self.plain.set_draining(server, drains)).map_err(refused(&what))?;
            }
        }
        if let Work::Accept(server) = &question.work {
            let what = format!("cannot use the store of server '{server}' as it is");
            wait(self.group, self.plain.accept(server)).map_err(refused(&what))?;
            tracing::warn!("the store of server {server} is used as it is now: an administrator has said so");
        }
        let (job, began) = (Job::new(question.rate), Instant::now());
        let mut progress = Progress::default();
        for _ in 0..PASSES_MAX {
            let found = self.find(question).map_err(refused("cannot look through the volume"))?;
            if found.is_empty() {
                break;
            }
            progress.files_all += found.len() as u64;
            progress.bytes_all += found.iter().map(|found| found.bytes).sum::<u64>();
            let failed = progress.failed;
            if question.dry_run || !self.pass(question, (found, &job), (stream, began), &mut progress) {
                break;
            }
            if progress.failed > failed {
                break; // they would fail again
            }
        }
        if job.ends() {
            // It would be taken for all that there is to do.
            return Err([
                "cannot do all of it".into(),
                "the server of the names ends".into(),
                "what was done stays done: start the server, and the same command goes on with the rest".into(),
            ]);
        }
        if let Work::Drain(server) = &question.work {
            let left = wait(self.group, self.plain.objects_at(server));
            progress.objects_left = left.map_err(refused("cannot count what is left"))? as u64;
        }
        Ok(Progress { seconds_left: None, bytes: job.bytes(), ..progress })
    }

    fn find(&self, question: &Question) -> Result<Vec<Found>, Errno> {
        match &question.work {
            Work::Rebalance => wait(self.group, self.plain.misplaced(Goal::Balance)),
            Work::Drain(server) if question.dry_run => wait(self.group, self.plain.lying_at(server)),
            Work::Drain(_) => wait(self.group, self.plain.misplaced(Goal::Drain)),
            Work::Undrain(_) | Work::Repair | Work::Purge | Work::Accept(_) => Ok(Vec::new()),
            Work::Spread(path) => wait(self.group, self.plain.ordinary(path)),
        }
    }

    fn one(&self, question: &Question, found: &Found, job: &Job) -> Result<bool, Errno> {
        match question.work {
            Work::Spread(_) => wait(self.group, self.plain.adopt(found, job)),
            Work::Rebalance => wait(self.group, self.plain.relocate(found, Goal::Balance, job)),
            _ => wait(self.group, self.plain.relocate(found, Goal::Drain, job)),
        }
    }

    /// Works on files. False: nobody hears of it any more, or the server is to stop.
    fn pass(
        &self,
        question: &Question,
        (found, job): (Vec<Found>, &Job),
        (mut stream, began): (&UnixStream, Instant),
        progress: &mut Progress,
    ) -> bool {
        let (queue, done) = (Mutex::new(VecDeque::from(found)), AtomicU64::new(0));
        let before = progress.files;
        let (tell, told) = channel::<(String, Errno)>();
        let work = |tell: Sender<(String, Errno)>| {
            loop {
                let next = queue.lock().unwrap_or_else(|poison| poison.into_inner()).pop_front();
                let Some(found) = next.filter(|_| !job.ends()) else { return };
                if let Err(error) = self.one(question, &found, job)
                    && (error != Errno::ECANCELED || !job.ends())
                    && tell.send((found.path, error)).is_err()
                {
                    return;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                let (tell, work) = (tell.clone(), &work);
                scope.spawn(move || work(tell));
            }
            drop(tell);
            loop {
                let word = match told.recv_timeout(INTERVAL) {
                    Ok((path, error)) => {
                        progress.failed += 1;
                        Told::Failed(path, reason(error))
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {
                        progress.files = before + done.load(Ordering::Relaxed);
                        progress.bytes = job.bytes();
                        progress.seconds_left = left(progress, began.elapsed());
                        Told::Progress(*progress)
                    }
                };
                if self.ends.load(Ordering::SeqCst) || stream.write_all(line(&word).as_bytes()).is_err() {
                    job.end();
                }
            }
        });
        progress.files = before + done.load(Ordering::Relaxed);
        !job.ends()
    }
}

/// How many seconds the rest takes, by files and by bytes, whichever is more.
fn left(progress: &Progress, elapsed: Duration) -> Option<u64> {
    let of =
        |done: u64, all: u64| (done > 0).then(|| elapsed.as_secs_f64() * (all.max(done) - done) as f64 / done as f64);
    let (files, bytes) = (of(progress.files, progress.files_all), of(progress.bytes, progress.bytes_all));
    files.into_iter().chain(bytes).reduce(f64::max).map(|seconds| seconds.ceil() as u64)
}

fn reason(error: Errno) -> String {
    match error {
        Errno::EBUSY => "it is written to as fast as it is copied: run this again when it is not".into(),
        Errno::ENOSPC => "there is no room for it where it is to lie".into(),
        Errno::EHOSTUNREACH => "one of its servers was not reached yet: start it, and run this again".into(),
        Errno::EIO => "it cannot be read, or not be made stable: 'aqueduct volume check' and the log say why".into(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_left_is_that_of_what_takes_longer() {
        let progress = |files, bytes| Progress { files, files_all: 10, bytes, bytes_all: 1000, ..Progress::default() };
        assert_eq!(left(&progress(0, 0), Duration::from_secs(9)), None);
        assert_eq!(left(&progress(5, 100), Duration::from_secs(2)), Some(18));
        assert_eq!(left(&progress(1, 900), Duration::from_secs(2)), Some(18));
        assert_eq!(left(&progress(10, 2000), Duration::from_secs(2)), Some(0), "files that grew meanwhile");
    }
}
