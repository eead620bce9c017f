//! A thread that acts as a process of its own.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use crate::execute::{Hand, Swept, sweep};
use crate::op::Action;
use crate::outcome::Outcome;
use crate::sys;

/// Who an actor is: uid, gid, supplementary groups, umask. Root twice, then two users who share a group.
const IDENTITIES: [(u32, u32, &[u32], u32); 4] =
    [(0, 0, &[], 0o022), (0, 0, &[], 0), (1000, 1000, &[1000, 2000], 0o027), (1001, 1001, &[1000, 2000], 0o002)];

/// Index of the identity of those who sweep: root.
const SWEEPER: usize = 0;

enum Job {
    Perform(Action),
    Sweep,
}

/// What came back.
pub enum Answer {
    Outcome(Outcome),
    Swept(Swept),
}

/// One actor; it leaves when this is dropped.
pub struct Actor {
    jobs: Option<Sender<Job>>,
    answers: Receiver<Answer>,
    thread: Option<thread::JoinHandle<()>>,
    hung: bool,
}

impl Actor {
    /// Starts actor `number` with `root` as its working directory.
    pub fn start(number: usize, root: PathBuf) -> Result<Self, Errno> {
        let (jobs, work) = channel::<Job>();
        let (answer, answers) = channel();
        let (ready, started) = channel();
        let thread = thread::spawn(move || {
            let identity = IDENTITIES.get(number).unwrap_or(&IDENTITIES[SWEEPER]);
            let mut hand = match prepare(&root, *identity) {
                Ok(hand) => hand,
                Err(errno) => {
                    let _ = ready.send(Err(errno));
                    return;
                }
            };
            if ready.send(Ok(())).is_err() {
                return;
            }
            for job in work {
                let result = match job {
                    Job::Perform(action) => Answer::Outcome(hand.perform(&action)),
                    Job::Sweep => Answer::Swept(sweep()),
                };
                if answer.send(result).is_err() {
                    return;
                }
            }
        });
        started.recv().unwrap_or(Err(Errno::IO))?;
        Ok(Self { jobs: Some(jobs), answers, thread: Some(thread), hung: false })
    }

    fn ask(&mut self, job: Job, patience: Duration) -> Option<Answer> {
        self.jobs.as_ref()?.send(job).ok()?;
        let answer = self.answers.recv_timeout(patience).ok();
        self.hung |= answer.is_none();
        answer
    }

    /// Performs `action`; nothing when it has not returned after `patience`, and then the actor is of no further use.
    pub fn perform(&mut self, action: &Action, patience: Duration) -> Option<Outcome> {
        match self.ask(Job::Perform(action.clone()), patience)? {
            Answer::Outcome(outcome) => Some(outcome),
            Answer::Swept(_) => None,
        }
    }

    /// All that the view holds.
    pub fn sweep(&mut self, patience: Duration) -> Option<Swept> {
        match self.ask(Job::Sweep, patience)? {
            Answer::Swept(found) => Some(found),
            Answer::Outcome(_) => None,
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take().filter(|_| !self.hung) {
            // A panic in the thread has been printed already.
            let _ = thread.join();
        }
    }
}

fn prepare(root: &std::path::Path, identity: (u32, u32, &[u32], u32)) -> Result<Hand, Errno> {
    sys::become_process()?;
    let hand = Hand::new()?;
    // No path, link or `..` of a sequence leads out of the view.
    rustix::process::chroot(root)?;
    rustix::process::chdir("/")?;
    let (uid, gid, groups, umask) = identity;
    sys::become_user(uid, gid, groups, umask)?;
    Ok(hand)
}
