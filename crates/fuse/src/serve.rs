//! A request from its beginning to its answer, wherever it came from.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Instant;

use aqueduct_worker::Group;

use crate::abi::opcode;
use crate::dispatch;
use crate::heap;
use crate::interrupt::{Kind, WATCH_INTERVAL};
use crate::job::Job;
use crate::shared::{Busy, Shared};
use crate::trace::Ended;

/// Begins a request on the calling thread; what has to wait goes on as a task of the group.
pub(crate) fn serve_now(job: Job, group: &Arc<Group>) {
    let (shared, unique) = (job.shared.clone(), job.header.unique);
    shared.interrupts.first_poll(unique, || group.run_now(serve(job, Arc::downgrade(group))));
}

/// A request that has to wait, while it does.
struct Waiting {
    shared: Arc<Shared>,
    unique: u64,
    _busy: Busy,
}

impl Waiting {
    fn enter(job: &Job, group: &Weak<Group>) -> Waiting {
        let (shared, header) = (&job.shared, &job.header);
        let kind = match header.opcode {
            opcode::SETLKW => Kind::LockWait,
            opcode::RELEASE | opcode::RELEASEDIR => Kind::Unending,
            _ => Kind::Ordinary,
        };
        let unwatched =
            shared.interrupts.enter(header.unique, job.context.cancel.clone(), (kind, header.pid), job.began);
        if unwatched && let Some(group) = group.upgrade() {
            group.spawn(watch(shared.clone(), Arc::downgrade(&group)));
        }
        if shared.ended() {
            shared.interrupts.cancel_all(); // the end came before this request was entered
        }
        Waiting { shared: shared.clone(), unique: header.unique, _busy: shared.busy() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.interrupts.leave(self.unique);
    }
}

/// Answers a request, and makes it known to INTERRUPT as soon as it has to wait.
async fn serve(job: Job, group: Weak<Group>) {
    job.shared.metrics.begun(job.header.opcode, job.began);
    heap::used(&job.shared, &group);
    let mut waiting = None;
    let mut work = pin!(dispatch::run(&job));
    let errno = poll_fn(|task| {
        let poll = work.as_mut().poll(task);
        if poll.is_pending() {
            waiting.get_or_insert_with(|| Waiting::enter(&job, &group));
        }
        poll
    })
    .await;
    let now = Instant::now();
    job.shared.metrics.answered(job.header.opcode, now.saturating_duration_since(job.began), now);
    let (header, body, context, began) = (&job.header, job.body(), &job.context, job.began);
    job.shared.tracer.ended(&Ended { header, body, context, began, now, errno }, &job.shared.nodes);
}

/// Looks after the callers of what stays under way; ends when nothing is.
async fn watch(shared: Arc<Shared>, group: Weak<Group>) {
    loop {
        let Some(sleep) = group.upgrade().map(|group| group.sleep(WATCH_INTERVAL)) else { return };
        sleep.await;
        if !shared.interrupts.watch() {
            return;
        }
    }
}
