//! Repair of a volume of plain directories, with a word for each thing that is found, as it is
//! done.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use aqueduct_fs::Errno;
use aqueduct_layout::{Act, Done, Job, Plain, Repair};
use aqueduct_worker::{Group, wait};
use serde::{Deserialize, Serialize};

/// Between two words that it goes on.
const INTERVAL: Duration = Duration::from_millis(500);

/// Words that wait to be told: whoever hears them slowly slows the work down.
const WORDS_MAX: usize = 64;

/// Something that was found, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repaired {
    /// A path, an object or a server.
    pub at: String,
    /// What is wrong with it.
    pub found: String,
    /// What mends that; empty: nothing does.
    pub mend: String,
    /// It was done.
    pub done: bool,
    /// Why it cannot be.
    pub left: Option<String>,
}

impl From<Act> for Repaired {
    fn from(act: Act) -> Repaired {
        let Act { at, found, mend, done } = act;
        let left = if let Done::Left(why) = &done { Some(why.clone()) } else { None };
        Repaired { at, found, mend, done: done == Done::Done, left }
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// What a check finds is mended.
    Repair,
    /// What was lost goes for good.
    Purge,
}

/// Does it, and tells of each thing, and from time to time of nothing. Who hears of it says with
/// `false` that it is to end.
pub(crate) fn run(
    (plain, group): (&Plain, &Arc<Group>),
    (task, how): (Task, Repair),
    mut tell: impl FnMut(Option<Repaired>) -> bool,
) -> Result<(), Errno> {
    let job = &Job::new(None);
    let (sender, acts) = sync_channel(WORDS_MAX);
    std::thread::scope(|scope| {
        let work = scope.spawn(move || {
            let act = |act| _ = sender.send(act); // it is heard until this ends
            match task {
                Task::Purge => wait(group, plain.purge(how, job, act)),
                Task::Repair => wait(group, plain.repair(how, job, act)),
            }
        });
        loop {
            let word = match acts.recv_timeout(INTERVAL) {
                Ok(act) => Some(Repaired::from(act)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => None,
            };
            word.iter().for_each(note);
            if !tell(word) {
                job.end();
            }
        }
        work.join().unwrap_or(Err(Errno::EIO))
    })
}

/// What was changed stands in the log of who changed it.
fn note(repaired: &Repaired) {
    let Repaired { at, found, mend, done, left } = repaired;
    match left {
        Some(why) => tracing::warn!("repair of the volume: {at}: {found}; not mended: {why}"),
        None if *done => tracing::warn!("repair of the volume: {at}: {found}; {mend}"),
        None => {}
    }
}

/// For a person: what was tried, why it failed, what to do.
pub(crate) fn refused(error: Errno) -> [String; 3] {
    let (why, hint) = match error {
        Errno::EAGAIN => {
            ("clients of the server before its last start are still coming back", "run this again in a minute")
        }
        Errno::EBUSY => {
            ("directories are moved as fast as they are looked at, or another repair runs", "run this again")
        }
        Errno::ECANCELED => ("it was ended", "what was mended stays so: run this again for the rest"),
        error => return ["cannot repair the volume".into(), error.to_string(), "see the log".into()],
    };
    ["cannot repair the volume".into(), why.into(), hint.into()]
}
