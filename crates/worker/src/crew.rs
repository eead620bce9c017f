//! The threads of a group, and what they count together.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::sentinel::Sentinel;

/// The threads of a group.
#[derive(Default)]
pub(crate) struct Crew {
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) alive: AtomicUsize,
    /// Threads that handle events or tasks right now.
    pub(crate) busy: AtomicUsize,
    /// Counts the ends of work: while all threads are busy and it stands still, they are held up.
    pub(crate) ended: AtomicUsize,
    pub(crate) sentinel: Arc<Sentinel>,
}
