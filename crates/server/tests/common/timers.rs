//! A clock with a thread of its own, which no other thread's work holds up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use aqueduct_fs::throttled::Clock;

/// The clock.
pub struct Timers;

struct Thread {
    started: Instant,
    due: Mutex<BinaryHeap<Reverse<(Instant, usize, Ended)>>>,
    changed: Condvar,
}

/// Whether a sleep has ended, and who waits for that.
#[derive(Clone, Default)]
struct Ended(Arc<Mutex<(bool, Option<Waker>)>>);

impl PartialEq for Ended {
    fn eq(&self, other: &Ended) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Ended {}

impl PartialOrd for Ended {
    fn partial_cmp(&self, other: &Ended) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ended {
    fn cmp(&self, other: &Ended) -> std::cmp::Ordering {
        Arc::as_ptr(&self.0).cmp(&Arc::as_ptr(&other.0))
    }
}

impl Ended {
    fn end(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Future for Ended {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap();
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(task.waker().clone());
        Poll::Pending
    }
}

impl Thread {
    fn get() -> &'static Thread {
        static THREAD: OnceLock<Thread> = OnceLock::new();
        let mut is_new = false;
        let thread = THREAD.get_or_init(|| {
            is_new = true;
            Thread { started: Instant::now(), due: Mutex::default(), changed: Condvar::new() }
        });
        if is_new {
            std::thread::Builder::new().name("timers".into()).spawn(|| thread.run()).unwrap();
        }
        thread
    }

    fn run(&self) {
        let mut due = self.due.lock().unwrap();
        loop {
            let next = due.peek().map(|Reverse((at, ..))| at.saturating_duration_since(Instant::now()));
            due = match next {
                None => self.changed.wait(due).unwrap(),
                Some(Duration::ZERO) => {
                    let ended = due.pop().map(|Reverse((.., ended))| ended);
                    drop(due);
                    ended.into_iter().for_each(|ended| ended.end());
                    self.due.lock().unwrap()
                }
                Some(left) => self.changed.wait_timeout(due, left).unwrap().0,
            };
        }
    }
}

impl Clock for Timers {
    fn now(&self) -> Duration {
        Thread::get().started.elapsed()
    }

    /// Begins when it is first polled for; never ends before.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let (thread, mut ended) = (Thread::get(), Ended::default());
            std::future::poll_fn(|task| {
                let is_new = ended.0.lock().unwrap().1.is_none();
                let poll = Pin::new(&mut ended).poll(task);
                if is_new && poll.is_pending() {
                    let mut due = thread.due.lock().unwrap();
                    let order = due.len();
                    due.push(Reverse((Instant::now() + duration, order, ended.clone())));
                    thread.changed.notify_one();
                }
                poll
            })
            .await;
        })
    }
}
