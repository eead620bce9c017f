//! Until when clients may believe what they were granted whose sessions have no file any more.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_worker::lock;
use serde::{Deserialize, Serialize};

use crate::stored::{Keeper, remove, remove_kept};

/// The file that says until when clients may believe what they were granted whose sessions have no
/// file of their own any more.
pub(super) struct Lapses {
    folder: PathBuf,
    pub(super) path: PathBuf,
    boot: String,
    keeper: Keeper,
    /// What stands in it.
    present: Mutex<Option<Lapse>>,
    /// It does not stand there yet: it could not be written.
    pub(super) is_behind: AtomicBool,
}

/// Until when clients may still believe what they were granted whose sessions have ended without
/// their word, or cannot be written down any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lapse {
    boot: String,
    /// In milliseconds since the boot.
    until: u64,
    /// From the latest change of this file on, in milliseconds: what counts in another boot.
    longest: u64,
}

impl Lapses {
    pub(super) fn new((folder, path): (PathBuf, PathBuf), boot: String, keeper: Keeper) -> Lapses {
        Lapses { folder, path, boot, keeper, present: Mutex::default(), is_behind: AtomicBool::new(false) }
    }

    pub(super) fn note(self: &Arc<Lapses>, until: Duration, now: Duration) {
        let millis = |time: Duration| time.as_millis() as u64 + 1;
        let mut present = lock(&self.present);
        let until = present.as_ref().map_or(0, |lapse| lapse.until).max(millis(until));
        let lapse = Lapse { boot: self.boot.clone(), until, longest: until.saturating_sub(millis(now)) };
        *present = Some(lapse);
        let lapses = self.clone();
        self.keeper.run_later(move || lapses.write());
    }

    /// On the keeper's thread.
    fn write(&self) {
        let Some(lapse) = lock(&self.present).clone() else { return };
        let written = serde_json::to_vec(&lapse).map_err(io::Error::from).and_then(|text| {
            let new = self.path.with_extension("new");
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            file.sync_data()?;
            fs::rename(&new, &self.path)?;
            File::open(&self.folder)?.sync_all()
        });
        self.is_behind.store(written.is_err(), Ordering::Relaxed);
        if let Err(error) = written {
            tracing::error!(path = %self.path.display(), %error, "a server that is started soon may not wait for leases of sessions that have ended");
        }
    }

    /// Removes the file of a session. What had no room may have that of the file.
    pub(super) fn remove(self: &Arc<Lapses>, session: PathBuf, durable: bool) {
        let lapses = self.clone();
        self.keeper.run_later(move || {
            remove_kept(&session, durable);
            if lapses.is_behind.load(Ordering::Relaxed) {
                lapses.write();
            }
        });
    }

    pub(super) fn forget(&self, now: Duration) {
        let mut present = lock(&self.present);
        if present.take_if(|lapse| u128::from(lapse.until) <= now.as_millis() + 1).is_some() {
            let path = self.path.clone();
            self.keeper.run_later(move || remove(&path));
        }
    }

    pub(super) fn left(&self, now: Duration) -> Duration {
        let Ok(text) = fs::read(&self.path) else { return Duration::ZERO };
        let Ok(lapse) = serde_json::from_slice::<Lapse>(&text) else { return Duration::ZERO };
        let until = if lapse.boot == self.boot {
            Duration::from_millis(lapse.until)
        } else {
            now + Duration::from_millis(lapse.longest)
        };
        let left = Lapse { boot: self.boot.clone(), until: until.as_millis() as u64, ..lapse };
        *lock(&self.present) = Some(left);
        self.forget(now);
        until
    }
}
