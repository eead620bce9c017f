//! What is to be done, and who waits for it. Chunks of files that are under way come first, then
//! files, then directories, the newest first: so little is open and remembered at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use aqueduct_worker::lock;

/// Files that wait before whoever lists copies himself.
const WAITING_MAX: usize = 128;

/// Something of several parts that several threads work on.
pub trait Shared {
    /// Takes a part; `None`: all are taken.
    fn take(&self) -> Option<u64>;
}

/// What a thread is to do next.
pub enum Work<S, I> {
    /// A part of something shared.
    Part(Arc<S>, u64),
    /// Several items.
    Batch(Vec<I>),
    /// A directory.
    Directory(I),
}

/// Why a thread gets nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// So many threads are not wanted now.
    Held,
    /// All is done.
    Over,
}

/// What is to be done.
pub struct Queue<S, I> {
    state: Mutex<State<S, I>>,
    changed: Condvar,
    /// Threads that are not wanted wait here.
    admission: Condvar,
}

struct State<S, I> {
    shared: VecDeque<Arc<S>>,
    batches: VecDeque<Vec<I>>,
    directories: Vec<I>,
    /// Threads that do something, from which more may come.
    busy: usize,
    sleeping: usize,
    /// Threads with smaller numbers get something to do.
    admitted: usize,
    is_over: bool,
}

impl<S: Shared, I> Queue<S, I> {
    /// Nothing to do.
    pub fn new() -> Queue<S, I> {
        let state = State {
            shared: VecDeque::new(),
            batches: VecDeque::new(),
            directories: Vec::new(),
            busy: 0,
            sleeping: 0,
            admitted: usize::MAX,
            is_over: false,
        };
        Queue { state: Mutex::new(state), changed: Condvar::new(), admission: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<S, I>> {
        lock(&self.state)
    }

    fn woken(&self, state: &State<S, I>) {
        if state.sleeping > 0 {
            self.changed.notify_one();
        }
    }

    /// Adds something whose parts are for all.
    pub fn share(&self, shared: Arc<S>) {
        let mut state = self.lock();
        state.shared.push_back(shared);
        if state.sleeping > 0 {
            self.changed.notify_all();
        }
    }

    /// Adds a directory.
    pub fn directory(&self, item: I) {
        let mut state = self.lock();
        state.directories.push(item);
        self.woken(&state);
    }

    /// Adds items, or gives them back: too many wait already.
    pub fn batch(&self, items: Vec<I>) -> Option<Vec<I>> {
        let mut state = self.lock();
        if state.batches.len() >= WAITING_MAX {
            return Some(items);
        }
        state.batches.push_back(items);
        self.woken(&state);
        None
    }

    /// Adds items, however many wait.
    pub fn again(&self, items: Vec<I>) {
        let mut state = self.lock();
        state.batches.push_back(items);
        self.woken(&state);
    }

    /// Only so many threads get something to do from now on.
    pub fn admit(&self, threads: usize) {
        self.lock().admitted = threads.max(1);
        self.admission.notify_all();
    }

    /// Waits as long as this thread is not wanted, and not all is done.
    pub fn hold(&self, thread: usize) {
        let mut state = self.lock();
        while thread >= state.admitted && !state.is_over {
            state = self.admission.wait(state).unwrap_or_else(|poison| poison.into_inner());
        }
    }

    /// What is next, if there is something. Who takes it says [`done`](Queue::done) later.
    pub fn try_next(&self, thread: usize) -> Option<Work<S, I>> {
        let mut state = self.lock();
        // What was put back by one who is not wanted, when all others had ended, is his.
        if thread < state.admitted || state.is_over { take(&mut state) } else { None }
    }

    /// As [`try_next`](Queue::try_next), and waits while others are busy.
    pub fn next(&self, thread: usize) -> Result<Work<S, I>, Idle> {
        let mut state = self.lock();
        loop {
            if thread >= state.admitted && !state.is_over {
                // What this one was woken for is for another.
                self.woken(&state);
                return Err(Idle::Held);
            }
            if let Some(work) = take(&mut state) {
                return Ok(work);
            }
            if state.is_over || state.busy == 0 {
                state.is_over = true;
                self.changed.notify_all();
                self.admission.notify_all();
                return Err(Idle::Over);
            }
            state.sleeping += 1;
            state = self.changed.wait(state).unwrap_or_else(|poison| poison.into_inner());
            state.sleeping -= 1;
        }
    }

    /// Ends what was taken.
    pub fn done(&self) {
        let mut state = self.lock();
        state.busy -= 1;
        if state.busy == 0 {
            self.changed.notify_all();
        }
    }
}

fn take<S: Shared, I>(state: &mut State<S, I>) -> Option<Work<S, I>> {
    let mut work = None;
    while let (None, Some(first)) = (&work, state.shared.front()) {
        match first.take() {
            Some(part) => work = Some(Work::Part(first.clone(), part)),
            None => drop(state.shared.pop_front()),
        }
    }
    let work = work
        .or_else(|| state.batches.pop_front().map(Work::Batch))
        .or_else(|| state.directories.pop().map(Work::Directory));
    state.busy += usize::from(work.is_some());
    work
}

#[cfg(test)]
mod tests {
    use super::*;

    struct None;

    impl Shared for None {
        fn take(&self) -> Option<u64> {
            Option::None
        }
    }

    #[test]
    fn only_those_who_are_wanted_get_something_to_do() {
        let queue: Queue<None, u32> = Queue::new();
        queue.admit(2);
        queue.again(vec![7]);
        assert!(queue.try_next(2).is_none());
        assert_eq!(queue.next(2).err(), Some(Idle::Held));
        assert!(matches!(queue.next(1), Ok(Work::Batch(items)) if items == [7]));
        std::thread::scope(|scope| {
            let held = scope.spawn(|| {
                queue.hold(2);
                queue.next(2).err()
            });
            let waits = scope.spawn(|| queue.next(0).err());
            queue.done();
            assert_eq!((held.join().unwrap(), waits.join().unwrap()), (Some(Idle::Over), Some(Idle::Over)));
        });
    }

    #[test]
    fn what_is_put_back_when_all_others_have_ended_is_done_too() {
        let queue: Queue<None, u32> = Queue::new();
        queue.admit(1);
        // The one who is wanted finds nothing to do, and ends.
        assert_eq!(queue.next(0).err(), Some(Idle::Over));
        queue.again(vec![7]);
        assert!(matches!(queue.next(5), Ok(Work::Batch(items)) if items == [7]));
        queue.done();
        queue.again(vec![8]);
        assert!(matches!(queue.try_next(5), Some(Work::Batch(items)) if items == [8]));
        queue.done();
        assert_eq!(queue.next(5).err(), Some(Idle::Over));
    }

    #[test]
    fn who_is_wanted_again_goes_on() {
        let queue: Queue<None, u32> = Queue::new();
        queue.admit(1);
        std::thread::scope(|scope| {
            let held = scope.spawn(|| {
                queue.hold(3);
                queue.next(3).is_ok()
            });
            queue.again(vec![7]);
            queue.admit(4);
            assert!(held.join().unwrap());
        });
    }
}
