//! Whether files that lose their last name are to stay for a moment: names that are replaced again
//! and again are looked up before one has gone, and opened after.
//!
//! Who comes too late is sent to look again, which his kernel does once. So nothing is held before
//! somebody did, and then for a while.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// For so long files are held after somebody came too late.
const WANTED: Duration = Duration::from_secs(60);

/// For so long a file stays after its last name: far longer than a request is on its way after the
/// answer that it goes by.
pub(crate) const HELD: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(crate) struct Wanted(Mutex<Option<Instant>>);

impl Wanted {
    /// Somebody came too late.
    pub(crate) fn note(&self) {
        *self.0.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(Instant::now());
    }

    /// Whether somebody did lately.
    pub(crate) fn is_now(&self) -> bool {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner()).is_some_and(|noted| noted.elapsed() < WANTED)
    }
}
