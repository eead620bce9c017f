//! A file system under test, as several actors see it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path as FsPath, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use crate::actor::Actor;
use crate::execute::Swept;
use crate::op::{ACTORS, Op};
use crate::outcome::Outcome;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A fresh directory of one file system, reached through one mount or two.
pub struct View {
    actors: Vec<Actor>,
    sweepers: Vec<Actor>,
    home: PathBuf,
    hung: bool,
}

impl View {
    /// A new directory below `mounts[0]`, which all of `mounts` show.
    pub fn new(mounts: &[PathBuf]) -> io::Result<Self> {
        let name = format!("model-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let home = mounts[0].join(&name);
        fs::create_dir(&home)?;
        fs::set_permissions(&home, fs::Permissions::from_mode(0o777))?;
        let start = |number: usize| Actor::start(number, mounts[number % mounts.len()].join(&name));
        let actors = (0..ACTORS).map(start).collect::<Result<_, Errno>>()?;
        // Sweepers are apart, because closing a file ends the POSIX locks that its process has on it.
        let sweepers = (ACTORS..ACTORS + mounts.len()).map(start).collect::<Result<_, Errno>>()?;
        Ok(Self { actors, sweepers, home, hung: false })
    }

    /// Performs `op`; nothing when it did not return in time.
    pub fn perform(&mut self, op: &Op, patience: Duration) -> Option<Outcome> {
        let outcome = self.actors[op.actor].perform(&op.action, patience);
        self.hung |= outcome.is_none();
        outcome
    }

    /// All that is there, once per mount; nothing when a mount did not answer in time.
    pub fn sweep(&mut self, patience: Duration) -> Option<Vec<Swept>> {
        let found: Option<Vec<_>> = self.sweepers.iter_mut().map(|sweeper| sweeper.sweep(patience)).collect();
        self.hung |= found.is_none();
        found
    }

    /// Where its files are.
    pub fn home(&self) -> &FsPath {
        &self.home
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.hung {
            return;
        }
        self.actors.clear();
        self.sweepers.clear();
        if let Err(error) = fs::remove_dir_all(&self.home) {
            eprintln!("model: cannot remove {}: {error}", self.home.display());
        }
    }
}
