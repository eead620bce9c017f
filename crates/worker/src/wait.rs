//! The edge of a program: a thread that waits for a future turns the group itself, so no other thread runs.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

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

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for `future` on the calling thread, which drives `group` meanwhile unless the group has threads of its own. Tools call it at the edge of
/// the program; never a task.
pub fn wait<T>(group: &Arc<Group>, future: impl Future<Output = T>) -> T {
    let future = pin!(future);
    if group.has_threads() { park(future) } else { turn(group, future) }
}

fn park<T>(mut future: Pin<&mut impl Future<Output = T>>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park(); // returns at once if it was woken since the poll
    }
}

fn turn<T>(group: &Arc<Group>, mut future: Pin<&mut impl Future<Output = T>>) -> T {
    let flag = Arc::new(Flag { raised: AtomicBool::new(true), group: group.clone() });
    let waker = Waker::from(flag.clone());
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
