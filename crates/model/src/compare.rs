//! The same sequence on both sides, every result compared at once.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::execute::{Found, Swept};
use crate::generate::generate;
use crate::op::{Action, Attribute, FIRST_USER, Lock, Name, Op, Target};
use crate::outcome::{Outcome, first_difference};
use crate::profile::Profile;
use crate::view::View;

/// Where and how to compare.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A local directory.
    pub reference: PathBuf,
    /// One mount, or two of the same export.
    pub subjects: Vec<PathBuf>,
    /// Steps of a sequence.
    pub operations: usize,
    /// An operation that takes longer hangs: none of them waits for another.
    pub patience: Duration,
    /// The subject's server may be restarted meanwhile: directories that are removed while open do not live through that.
    pub restarts: bool,
}

/// How long a lock may still be held after the last close of its file returned: the kernel does not wait for RELEASE.
const RELEASE_DELAY_MAX: Duration = Duration::from_secs(2);

/// Everything is compared as a whole after so many operations, and at the end.
const SWEEP_EVERY: usize = 100;

/// The two sides gave different results.
#[derive(Clone, Debug)]
pub struct Divergence {
    /// Which operation; none for the comparison of everything.
    pub op: Option<Op>,
    /// Operations executed before.
    pub position: usize,
    /// What the reference gave.
    pub reference: String,
    /// What the subject gave.
    pub subject: String,
    /// The subject did not answer in time.
    pub hung: bool,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            Some(op) => writeln!(f, "{op:?}")?,
            None => writeln!(f, "comparing everything after {} operations", self.position)?,
        }
        writeln!(f, "  reference: {}", self.reference)?;
        write!(f, "  subject:   {}", self.subject)
    }
}

/// How often each kind of operation ended how: a test that only ever compares ENOENT proves nothing.
#[derive(Clone, Debug, Default)]
pub struct Tally(BTreeMap<String, Ends>);

#[derive(Clone, Debug, Default)]
struct Ends {
    succeeded: u64,
    skipped: u64,
    failed: BTreeMap<i32, u64>,
}

impl Tally {
    fn count(&mut self, op: &Op, outcome: &Outcome) {
        let ends = self.0.entry(op.kind()).or_default();
        match outcome {
            Outcome::Failed(errno) => *ends.failed.entry(errno.raw_os_error()).or_default() += 1,
            Outcome::Skipped(_) => ends.skipped += 1,
            _ => ends.succeeded += 1,
        }
    }

    /// How often operations of this kind succeeded.
    pub fn succeeded(&self, kind: &str) -> u64 {
        self.0.get(kind).map_or(0, |ends| ends.succeeded)
    }

    /// Kinds that were tried.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:16} {:>9} {:>9}  failed", "operation", "succeeded", "skipped")?;
        for (kind, ends) in &self.0 {
            write!(f, "{kind:16} {:9} {:9} ", ends.succeeded, ends.skipped)?;
            for (errno, count) in &ends.failed {
                let text = io::Error::from_raw_os_error(*errno).to_string();
                write!(f, " {} {count},", text.split(" (").next().unwrap_or_default())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Generates the sequence of `seed` and runs it. The outer error is the test's own trouble.
pub fn check_seed(
    settings: &Settings,
    profile: &Profile,
    seed: u64,
    tally: &mut Tally,
) -> io::Result<Result<(), Box<Divergence>>> {
    replay(settings, &generate(seed, settings.operations, profile), tally)
}

/// Runs `ops` on fresh directories of both sides.
pub fn replay(settings: &Settings, ops: &[Op], tally: &mut Tally) -> io::Result<Result<(), Box<Divergence>>> {
    let mut reference = View::new(std::slice::from_ref(&settings.reference))?;
    let mut subject = View::new(&settings.subjects)?;
    for (position, op) in ops.iter().enumerate() {
        match step(settings, &mut reference, &mut subject, position, op) {
            Ok(outcome) => tally.count(op, &outcome),
            Err(divergence) => return Ok(Err(divergence)),
        }
        let done = position + 1;
        if done.is_multiple_of(SWEEP_EVERY) || done == ops.len() {
            let compared = compare_all(settings, &mut reference, &mut subject, done);
            if compared.is_err() {
                return Ok(compared);
            }
        }
    }
    Ok(Ok(()))
}

fn step(
    settings: &Settings,
    reference: &mut View,
    subject: &mut View,
    position: usize,
    op: &Op,
) -> Result<Outcome, Box<Divergence>> {
    let differs = |reference: String, subject: String, hung| {
        Err(Box::new(Divergence { op: Some(op.clone()), position, reference, subject, hung }))
    };
    let Some(expected) = reference.perform(op, settings.patience) else {
        return differs("no answer".into(), "not asked".into(), true);
    };
    let started = Instant::now();
    let mut looked = false;
    loop {
        let Some(got) = subject.perform(op, settings.patience) else {
            return differs(format!("{expected:?}"), format!("no answer in {:?}", settings.patience), true);
        };
        match got {
            Outcome::Illegal(_) => return differs(format!("{expected:?}"), format!("{got:?}"), false),
            _ if got == expected || both_refused(op, &expected, &got) => return Ok(expected),
            // Nothing was done, so it may be tried again.
            _ if may_be_released_soon(op, &expected, &got) && started.elapsed() < RELEASE_DELAY_MAX => {
                thread::sleep(Duration::from_millis(1));
            }
            _ if settings.restarts && is_lost_directory(reference, op, &got, settings.patience) => return Ok(expected),
            // Nothing was done; both names are looked up outside of the rename, and it is done once more.
            _ if found_elsewhere(op, &got) && !looked => {
                looked = true;
                look_up_names(subject, op, settings.patience);
            }
            _ => {
                let detail = first_difference(&expected, &got).map(|d| format!(" ({d})")).unwrap_or_default();
                return differs(format!("{expected:?}"), format!("{got:?}{detail}"), false);
            }
        }
    }
}

/// Legal difference of a mount: where two errors are due, a local directory names the missing right first; a mount without `default_permissions` learns
/// of it from the server, after what its own kernel found.
fn both_refused(op: &Op, expected: &Outcome, got: &Outcome) -> bool {
    let refused = matches!(expected, Outcome::Failed(Errno::ACCESS | Errno::PERM));
    refused && matches!(got, Outcome::Failed(_)) && op.actor >= FIRST_USER
}

/// Legal difference of two mounts: a directory that the other mount has moved is found at its new place in the middle of a rename, where this kernel
/// cannot move it (d_splice_alias gives ESTALE while the file system's renames are locked). A look at it helps.
fn found_elsewhere(op: &Op, got: &Outcome) -> bool {
    matches!((&op.action, got), (Action::Name(Name::Rename { .. }), Outcome::Failed(Errno::STALE)))
}

/// Legal difference of a mount whose server was restarted.
fn is_lost_directory(reference: &mut View, op: &Op, got: &Outcome, patience: Duration) -> bool {
    let Some(slot) = op.slot().filter(|_| matches!(got, Outcome::Failed(Errno::STALE | Errno::IO))) else {
        return false;
    };
    let action = Action::Attribute(Attribute::Stat { target: Target::Open(slot) });
    match reference.perform(&Op { action, ..op.clone() }, patience) {
        Some(Outcome::Attributes(attributes)) => FileType::from_raw_mode(attributes.mode) == FileType::Directory,
        _ => false,
    }
}

fn look_up_names(subject: &mut View, op: &Op, patience: Duration) {
    let Action::Name(Name::Rename { path, to, .. }) = &op.action else { return };
    for path in [path, to] {
        let action = Action::Attribute(Attribute::Stat { target: Target::Link(path.clone()) });
        subject.perform(&Op { action, ..op.clone() }, patience);
    }
}

/// Legal difference of a mount: a lock that goes with the last close goes a moment after close(2) returned.
fn may_be_released_soon(op: &Op, expected: &Outcome, got: &Outcome) -> bool {
    match &op.action {
        Action::Lock(Lock::Range { .. } | Lock::Whole { .. }) => {
            *expected == Outcome::Done && *got == Outcome::Failed(Errno::AGAIN)
        }
        Action::Lock(Lock::Test { .. }) => *expected == Outcome::Flag(false) && *got == Outcome::Flag(true),
        _ => false,
    }
}

fn compare_all(
    settings: &Settings,
    reference: &mut View,
    subject: &mut View,
    position: usize,
) -> Result<(), Box<Divergence>> {
    let differs = |reference: String, subject: String, hung| {
        Err(Box::new(Divergence { op: None, position, reference, subject, hung }))
    };
    // Reading everything takes longer than any single operation.
    let patience = settings.patience * 3;
    let (Some(expected), Some(mounts)) = (reference.sweep(patience), subject.sweep(patience)) else {
        return differs("everything".into(), format!("no answer in {patience:?}"), true);
    };
    for (number, mount) in mounts.iter().enumerate() {
        if let Some((wanted, got)) = difference(&expected[0], mount) {
            return differs(wanted, format!("mount {number}: {got}"), false);
        }
    }
    Ok(())
}

fn difference(expected: &Swept, got: &Swept) -> Option<(String, String)> {
    let (Ok(expected), Ok(got)) = (expected, got) else {
        let text = |swept: &Swept| match swept {
            Ok(found) => format!("{} names", found.len()),
            Err((path, errno)) => format!("{path:?}: {errno}"),
        };
        return (expected != got || expected.is_err()).then(|| (text(expected), text(got)));
    };
    let at = (0..expected.len().max(got.len())).find(|&at| expected.get(at) != got.get(at))?;
    let text = |found: &[Found]| found.get(at).map_or("nothing more".into(), |found| format!("{found:?}"));
    Some((text(expected), text(got)))
}
