//! The edge of a program: a thread that waits for a future turns the group itself, so no other thread runs.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::{Group, run};

struct Flag {
    raised: AtomicBool,
    group: Arc<Group>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.raised.store(true, Ordering::SeqCst);
        if !self.group.is_current() {
            self.group.wake_one();
        }
    }
}

/// Drives `group` on the calling thread until `future` is ready. Tools call it at the edge of the program; never a task.
pub fn wait<T>(group: &Arc<Group>, future: impl Future<Output = T>) -> T {
    let flag = Arc::new(Flag { raised: AtomicBool::new(true), group: group.clone() });
    let waker = Waker::from(flag.clone());
    let mut future = pin!(future);
    let mut turn = run::Turn::enter(group);
    loop {
        if flag.raised.swap(false, Ordering::SeqCst)
            && let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            turn.flush();
            return value;
        }
        turn.run(&|| flag.raised.load(Ordering::SeqCst));
    }
}
