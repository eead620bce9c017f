//! A worker group that the fuzzer's own thread turns, step by step: what an input does is done before the next one comes, and the same each time.

use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aqueduct_worker::{Group, Interest, Readiness, Ready, Registration, Settings, wait};
use rustix::event::{EventfdFlags, eventfd};

/// Rings in the turn in which it is rung, behind what is ready before it.
struct Bell {
    fd: OwnedFd,
    state: Mutex<(bool, Option<Waker>)>,
}

impl Bell {
    fn state(&self) -> MutexGuard<'_, (bool, Option<Waker>)> {
        self.state.lock().expect("nobody panics with it")
    }

    fn poll(&self, task: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if std::mem::take(&mut state.0) {
            return Poll::Ready(());
        }
        state.1 = Some(task.waker().clone());
        Poll::Pending
    }
}

impl Ready for Bell {
    fn ready(&self, _readiness: Readiness) {
        rustix::io::read(&self.fd, &mut [0; 8]).expect("it was rung");
        let mut state = self.state();
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }
}

/// The group, and how it is turned.
pub(crate) struct Turner {
    pub(crate) group: Arc<Group>,
    bell: Arc<Bell>,
    _watch: Registration,
}

impl Turner {
    pub(crate) fn new() -> Turner {
        let settings = Settings { name: "turner".into(), threads_min: 0, threads_max: 0, spin_max: Duration::ZERO };
        let group = Group::new(settings).expect("a group needs little");
        let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("there is room for a descriptor");
        let bell = Arc::new(Bell { fd, state: Mutex::default() });
        let interest = Interest { read: true, write: false, once: false };
        let watch = group.register(bell.fd.as_fd(), interest, bell.clone()).expect("it can be watched");
        Turner { group, bell, _watch: watch }
    }

    /// Lets everybody take what is there: its event comes before the bell's.
    pub(crate) fn turn(&self) {
        rustix::io::write(&self.bell.fd, &1u64.to_ne_bytes()).expect("an event descriptor counts far");
        wait(&self.group, poll_fn(|task| self.bell.poll(task)));
    }
}
