//! Pages that are being filled, and changes of size, of one file: neither goes on while the other does.
//!
//! A read that is answered with less than it asked for ends at the end of the file, and the kernel takes it for that: but not if it was told of another size since it asked,
//! because then it takes the rest of the page for zeros that were read. So a file is not emptied or written while the kernel waits for pages of it, and
//! gets none while it is. File systems in the kernel have locks for this.
//!
//! What the kernel is answered takes effect when the thread that asked has run: so both last a little longer than their answers.
//!
//! Whoever changes a file may first have its pages dropped, which waits for those that are being filled: so these do not wait for a change for long.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use ahash::HashMap;
use aqueduct_fs::Cancel;
use aqueduct_worker::{Done, Group, lock};

const SHARDS: usize = 16;

/// Longer than a change takes at a server in the same building; who waits in vain holds up somebody else for no longer.
const FILL_PATIENCE: Duration = Duration::from_millis(20);

/// What is done with a file: any number do the same at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The kernel waits for pages.
    Fill,
    /// Its size may change.
    Change,
}

#[derive(Default)]
struct File {
    /// Who is at it, and how many.
    at_it: Option<(Use, usize)>,
    /// In the order in which they came.
    waiting: VecDeque<(u64, Use, Arc<Done>)>,
}

#[derive(Default)]
struct Shard {
    files: HashMap<u64, File>,
    /// Numbers those who wait.
    issued: u64,
}

/// For so long after an answer the thread that waits for it may not have run: the slice of another on its processor.
const LINGER: Duration = Duration::from_millis(3);

/// Who uses which file.
#[derive(Default)]
pub(crate) struct Sizes([Mutex<Shard>; SHARDS]);

/// The use of a file, or the wait for it; dropping it ends that.
pub(crate) struct Turn {
    sizes: Arc<Sizes>,
    node: u64,
    /// While it waits: its number, and what tells that it does so no more.
    waits: Option<(u64, Arc<Done>)>,
    lingers: bool,
}

impl Sizes {
    fn shard(&self, node: u64) -> &Mutex<Shard> {
        &self.0[node as usize % SHARDS]
    }

    /// Whether anybody is at it.
    pub(crate) fn is_used(&self, node: u64) -> bool {
        lock(self.shard(node)).files.contains_key(&node)
    }

    /// Waits until a file may be used so; not after the request is cancelled, and to fill pages only for [`FILL_PATIENCE`].
    pub(crate) async fn enter(self: &Arc<Sizes>, node: u64, how: Use, cancel: &Cancel) -> Turn {
        let mut turn = self.queue(node, how);
        let Some((_, done)) = &turn.waits else { return turn };
        let done = done.clone();
        let patience = Group::current().filter(|_| how == Use::Fill).map(|group| group.sleep(FILL_PATIENCE));
        let (mut let_through, mut patience) = (pin!(done.wait()), pin!(patience));
        let is_let_through = poll_fn(|task| {
            if let_through.as_mut().poll(task).is_ready() {
                return Poll::Ready(true);
            }
            let is_over = patience.as_mut().as_pin_mut().is_some_and(|sleep| sleep.poll(task).is_ready());
            if is_over || cancel.poll(task).is_ready() { Poll::Ready(false) } else { Poll::Pending }
        });
        if is_let_through.await {
            turn.waits = None;
        }
        turn
    }

    fn queue(self: &Arc<Sizes>, node: u64, how: Use) -> Turn {
        let mut shard = lock(self.shard(node));
        let shard = &mut *shard;
        let file = shard.files.entry(node).or_default();
        let mut waits = None;
        match &mut file.at_it {
            None => file.at_it = Some((how, 1)),
            // Who comes later does not go before who waits.
            Some((present, count)) if *present == how && file.waiting.is_empty() => *count += 1,
            Some(_) => {
                shard.issued += 1;
                let done = Arc::new(Done::default());
                file.waiting.push_back((shard.issued, how, done.clone()));
                waits = Some((shard.issued, done));
            }
        }
        Turn { sizes: self.clone(), node, waits, lingers: false }
    }

    /// One of those who are at it ends; or, if it has a number and is waiting still, it does not any more.
    fn leave(&self, node: u64, number: Option<u64>) {
        let mut shard = lock(self.shard(node));
        let Some(file) = shard.files.get_mut(&node) else { return };
        let place = number.and_then(|number| file.waiting.iter().position(|waiting| waiting.0 == number));
        match (place, &mut file.at_it) {
            (Some(place), _) => drop(file.waiting.remove(place)),
            (None, Some((_, count))) if *count > 1 => *count -= 1,
            (None, at_it) => *at_it = None,
        }
        let mut next = Vec::new();
        // Those who wait in front and want the same, if nobody else is at it.
        while let Some((_, how, _)) = file.waiting.front()
            && file.at_it.is_none_or(|(present, _)| present == *how)
        {
            let Some((_, how, done)) = file.waiting.pop_front() else { break };
            file.at_it = Some((how, file.at_it.map_or(1, |(_, count)| count + 1)));
            next.push(done);
        }
        if file.at_it.is_none() {
            shard.files.remove(&node);
        }
        drop(shard);
        next.iter().for_each(|done| done.set()); // outside the lock: it wakes tasks
    }
}

impl Turn {
    /// It is to last until whoever asked has looked at the answer.
    pub(crate) fn lingering(mut self) -> Turn {
        self.lingers = true;
        self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        match (&self.waits, Group::current().filter(|_| self.lingers)) {
            (None, Some(group)) => {
                let (sizes, node, linger) = (self.sizes.clone(), self.node, group.sleep(LINGER));
                group.spawn(async move {
                    linger.await;
                    sizes.leave(node, None);
                });
            }
            (waits, _) => self.sizes.leave(self.node, waits.as_ref().map(|(number, _)| *number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use aqueduct_worker::Settings;

    use super::*;

    fn now<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_file_is_filled_or_changed_and_nobody_is_passed_over() {
        let sizes = Arc::new(Sizes::default());
        let enter = |node, how| {
            let sizes = sizes.clone();
            Box::pin(async move { sizes.enter(node, how, &Cancel::default()).await })
        };
        let (mut first, mut second) = (enter(16, Use::Fill), enter(16, Use::Fill));
        let (one, two) = (now(first.as_mut()).unwrap(), now(second.as_mut()).unwrap());
        let mut change = enter(16, Use::Change);
        let mut late = enter(16, Use::Fill);
        assert!(now(change.as_mut()).is_none());
        assert!(now(late.as_mut()).is_none(), "behind who waits");
        assert!(now(enter(32, Use::Change).as_mut()).is_some(), "another file");
        drop(one);
        assert!(now(change.as_mut()).is_none());
        drop(two);
        let changing = now(change.as_mut()).unwrap();
        assert!(now(late.as_mut()).is_none());
        drop(changing);
        let last = now(late.as_mut()).unwrap();
        assert!(sizes.is_used(16));
        drop(last);
        assert!(!sizes.is_used(16) && !sizes.is_used(32));
    }

    #[test]
    fn who_gives_up_lets_the_others_through() {
        let (sizes, cancel, goes_on) = (Arc::new(Sizes::default()), Cancel::default(), Cancel::default());
        let fill = now(pin!(sizes.enter(16, Use::Fill, &goes_on))).unwrap();
        let mut given_up = Box::pin(sizes.enter(16, Use::Change, &goes_on));
        let mut behind = Box::pin(sizes.enter(16, Use::Fill, &goes_on));
        assert!(now(given_up.as_mut()).is_none() && now(behind.as_mut()).is_none());
        drop(given_up);
        let let_through = now(behind.as_mut()).unwrap();
        let mut killed = Box::pin(sizes.enter(16, Use::Change, &cancel));
        assert!(now(killed.as_mut()).is_none());
        cancel.raise();
        drop(now(killed.as_mut()).unwrap());
        // One that was let through and never looked.
        let mut granted = Box::pin(sizes.enter(16, Use::Change, &goes_on));
        assert!(now(granted.as_mut()).is_none());
        drop((fill, let_through));
        drop(granted);
        assert!(!sizes.is_used(16));
    }

    #[test]
    fn pages_do_not_wait_for_a_change_for_long() {
        let settings = Settings { name: "test".into(), threads_min: 0, threads_max: 0, spin_max: Duration::ZERO };
        let (group, sizes, cancel) = (Group::new(settings).unwrap(), Arc::new(Sizes::default()), Cancel::default());
        let change = now(pin!(sizes.enter(16, Use::Change, &cancel))).unwrap();
        let fill = aqueduct_worker::wait(&group, sizes.enter(16, Use::Fill, &cancel));
        drop(fill.lingering()); // which never had its turn
        drop(change);
        assert!(!sizes.is_used(16));
    }
}
