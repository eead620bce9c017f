//! The steps of tasks that work for several operations at once (opens that are made real, writes
//! that were held back): an operation that waited for them takes over what they waited for in that
//! time.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ahash::RandomState;
use aqueduct_fs::steps::{Step, Steps};
use aqueduct_fs::{Cancel, ClientId, Context, Credential};
use aqueduct_worker::lock;

/// Steps that are remembered: of what ended last.
const REMEMBERED_MAX: usize = 256;

/// What such tasks waited for lately.
#[derive(Default)]
pub(crate) struct Behind {
    is_on: AtomicBool,
    hasher: RandomState,
    ended: Mutex<VecDeque<(u64, Step)>>,
}

impl Behind {
    /// From now on steps are kept.
    pub(crate) fn keep(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// In whose name such a task works.
    pub(crate) fn context(&self, credential: &Credential) -> Context {
        let context = Context::new(ClientId(0), credential.clone());
        match self.is_on.load(Ordering::Relaxed) {
            true => Context { cancel: Cancel::traced(None), ..context },
            false => context,
        }
    }

    /// A task that worked for a file has ended. To be called before whoever waits for it is woken.
    pub(crate) fn end(&self, handle: &[u8], context: &Context) {
        let steps = context.steps().take().steps;
        if steps.is_empty() {
            return;
        }
        let hash = self.hasher.hash_one(handle);
        let mut ended = lock(&self.ended);
        ended.extend(steps.into_iter().map(|step| (hash, step)));
        let excess = ended.len().saturating_sub(REMEMBERED_MAX);
        ended.drain(..excess);
    }

    /// An operation has waited, since then, for what works for this file, or for all.
    pub(crate) fn waited(&self, handle: Option<&[u8]>, began: Instant, steps: &Steps) {
        if !steps.is_on() {
            return;
        }
        let hash = handle.map(|handle| self.hasher.hash_one(handle));
        let ended = lock(&self.ended);
        let of_file = ended.iter().filter(|(of, step)| hash.is_none_or(|hash| *of == hash) && step.ended > began);
        of_file.for_each(|(_, step)| steps.note(step.began, step.ended, || step.what.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aqueduct_fs::steps::{BRIEF, What};

    use super::*;

    fn did(behind: &Behind, handle: &[u8], (began, took): (Instant, Duration)) {
        let context = behind.context(&Credential::root());
        context.steps().note(began, began + took, || What::Queue("a slot"));
        behind.end(handle, &context);
    }

    #[test]
    fn who_waited_takes_over_what_ended_meanwhile_for_its_file() {
        let (behind, start) = (Behind::default(), Instant::now());
        did(&behind, b"a", (start, BRIEF));
        let steps = Steps::kept(None);
        behind.waited(Some(b"a"), start, &steps);
        assert!(steps.take().steps.is_empty(), "nothing was kept");
        behind.keep();
        did(&behind, b"a", (start, BRIEF));
        did(&behind, b"a", (start, BRIEF * 9));
        did(&behind, b"b", (start, BRIEF * 9));
        behind.waited(Some(b"a"), start + BRIEF * 2, &steps);
        assert_eq!(steps.take().steps.len(), 1);
        behind.waited(None, start, &steps);
        assert_eq!(steps.take().steps.len(), 3);
        (0..2 * REMEMBERED_MAX).for_each(|_| did(&behind, b"a", (start, BRIEF)));
        assert_eq!(lock(&behind.ended).len(), REMEMBERED_MAX);
    }
}
