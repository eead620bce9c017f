//! The turn: what a worker thread does, again and again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::Timespec;

use crate::group::{Group, Readiness, Settings, WAKE_KEY};
use crate::lock::lock;
use crate::sentinel::Found;
use crate::turn_end;
use crate::watch::Place;
use crate::wide::Wide;

/// Events that the only thread of a group takes at a time: one system call serves many connections. Where others could serve them, a
/// thread takes one: what it has taken waits for it, however long its system calls block.
const EVENTS_PER_WAIT: usize = 8;

/// Tasks run between two looks at the descriptors, so that a queue that refills itself cannot starve them.
const TASKS_PER_TURN: usize = 256;

/// How long all threads must have been held up before another is started: longer than any request that memory serves.
const HELD_UP_AFTER: Duration = Duration::from_millis(5);

/// So many events that were there without any wait are more than one thread takes.
const BACKLOG: u32 = 16;

/// The shortest spin that is tried.
const SPIN_MIN: Duration = Duration::from_micros(10);

/// Whoever yields and has the processor again after this time has lost it to a program that computes.
const CROWDED_AFTER: Duration = Duration::from_micros(500);

/// If something had come meanwhile, it came too late by a part of that: a sleeping thread would have been woken when it came. So nobody spins for so many times as long, which
/// keeps what is lost below a sixteenth; twice as long each time that it happens again soon, up to the longest.
const CROWDED_FACTOR: u32 = 16;
const CROWDED_MAX: Duration = Duration::from_secs(1);

/// So many yields that lost nothing, and a loss is the first again. On a virtual machine the host takes a processor away now and then.
const CALM_YIELDS: u32 = 1000;

/// A thread above the minimum ends after this much idleness.
const EXTRA_THREAD_IDLE: Duration = Duration::from_secs(10);

impl Group {
    /// A group, its threads started.
    pub fn new(settings: Settings) -> io::Result<Arc<Group>> {
        let group = Group::idle(settings)?;
        for _ in 0..group.settings.threads_min {
            start_thread(&group)?;
        }
        Ok(group)
    }
}

fn start_thread(group: &Arc<Group>) -> io::Result<()> {
    let crew = &group.crew;
    let mut threads = lock(&crew.threads);
    if crew.alive.load(Ordering::SeqCst) >= group.settings.threads_max.max(group.settings.threads_min) {
        return Ok(());
    }
    let own = group.clone();
    threads.retain(|thread| !thread.is_finished());
    let thread = std::thread::Builder::new().name(group.settings.name.clone()).spawn(move || thread_main(&own))?;
    threads.push(thread);
    crew.alive.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

fn thread_main(group: &Arc<Group>) {
    let mut turn = Turn::enter(group);
    let mut idle_since = turn.now;
    while !group.stopping.load(Ordering::SeqCst) {
        if turn.run(&|| false) {
            idle_since = turn.now;
        } else if idle_since.elapsed() >= EXTRA_THREAD_IDLE && leaves(group) {
            return;
        }
    }
    group.crew.alive.fetch_sub(1, Ordering::SeqCst);
    group.stop(); // wakes the next thread: one wake-up of the eventfd may serve only one waiter
    let tasks = std::mem::take(&mut *lock(&group.queue));
    drop(tasks);
}

/// Whether this thread is one too many, and is then struck off.
fn leaves(group: &Group) -> bool {
    let _one_at_a_time = lock(&group.crew.threads);
    let extra = group.crew.alive.load(Ordering::SeqCst) > group.settings.threads_min;
    if extra {
        group.crew.alive.fetch_sub(1, Ordering::SeqCst);
        group.wake_one(); // another has to know of the timers now
    }
    extra
}

/// Marks a thread busy while it lives, and sees to it that somebody helps if all are held up.
struct Busy<'a>(&'a Arc<Group>);

impl<'a> Busy<'a> {
    fn enter(group: &'a Arc<Group>) -> Option<Busy<'a>> {
        let crew = &group.crew;
        if group.settings.threads_max <= 1 {
            return None;
        }
        crew.busy.fetch_add(1, Ordering::SeqCst);
        if !group.watch.is_watched() {
            // Without one, nobody helps while all are held up: the next piece of work tries again.
            let _ = crew.sentinel.call(HELD_UP_AFTER, || look_of_sentinel(group));
        }
        Some(Busy(group))
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.crew.ended.fetch_add(1, Ordering::SeqCst);
        self.0.crew.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What the sentinel of a group does. It looks after a group that nobody watches because all
/// threads are busy or parked. When the busy ones stay so, it wakes or starts another.
fn look_of_sentinel(group: &Arc<Group>) -> impl FnMut() -> Found + Send + 'static {
    let group = Arc::downgrade(group);
    let mut ended_before = None;
    move || {
        let Some(group) = group.upgrade().filter(|group| !group.stopping.load(Ordering::SeqCst)) else {
            return Found::Over;
        };
        let crew = &group.crew;
        let busy = crew.busy.load(Ordering::SeqCst);
        let ended = crew.ended.load(Ordering::SeqCst);
        let held_up = busy > 0 && !group.watch.is_watched() && ended_before == Some(ended);
        ended_before = Some(ended);
        if held_up
            && !group.watch.summon()
            && let Err(error) = start_thread(&group)
        {
            tracing::warn!(%error, "could not start another worker thread: requests wait for the present ones");
        }
        if busy > 0 { Found::Busy } else { Found::Quiet }
    }
}

/// What others who want a thread's processor have cost it.
#[derive(Default)]
struct Crowd {
    until: Option<Instant>,
    /// For how long nobody spun the last time.
    pause: Duration,
    /// Since then.
    yields: u32,
}

impl Crowd {
    fn lets_spin(&mut self, now: Instant) -> bool {
        self.until = self.until.filter(|until| now < *until);
        self.until.is_none()
    }

    /// Something was found when the processor came back, which had been away for so long.
    fn found_after(&mut self, lost: Duration) {
        if lost <= CROWDED_AFTER {
            return;
        }
        let again = if self.yields < CALM_YIELDS { self.pause * 2 } else { Duration::ZERO };
        self.pause = again.max(lost * CROWDED_FACTOR).min(CROWDED_MAX);
        self.until = Some(Instant::now() + self.pause);
        self.yields = 0;
    }
}

/// A thread's turning of a group.
pub(crate) struct Turn<'a> {
    group: &'a Arc<Group>,
    before: Option<Arc<Group>>,
    events: Vec<epoll::Event>,
    /// How long to look for more before sleeping: what has paid lately.
    spin: Duration,
    crowd: Crowd,
    /// Events that came without any wait, one after the other.
    backlog: u32,
    /// What the clock said between the last two steps of a turn: a look at it takes 16 ns.
    now: Instant,
}

impl<'a> Turn<'a> {
    pub(crate) fn enter(group: &'a Arc<Group>) -> Turn<'a> {
        let before = Group::set_current(Some(group.clone()));
        let events_max = if group.settings.threads_max > 1 { 1 } else { EVENTS_PER_WAIT };
        let spin = group.settings.spin_max.min(SPIN_MIN);
        let (events, now) = (Vec::with_capacity(events_max), Instant::now());
        Turn { group, before, events, spin, crowd: Crowd::default(), backlog: 0, now }
    }

    /// One turn: tasks, output, timers, wait, events. Returns whether there was anything to do. `done` is asked before sleeping.
    pub(crate) fn run(&mut self, done: &dyn Fn() -> bool) -> bool {
        let mut worked = self.run_tasks();
        self.flush();
        self.now = Instant::now();
        self.wake_timers();
        if !done() && self.wait(done) {
            worked = true;
        }
        if !self.events.is_empty() {
            let busy = Busy::enter(self.group);
            let began = self.now;
            self.handle_events();
            self.events.clear();
            self.now = Instant::now();
            if busy.is_some() && self.now.saturating_duration_since(began) > Wide::SMALL_WORK_MAX {
                self.group.watch.widen();
            }
            drop(busy);
        }
        worked
    }

    fn run_tasks(&mut self) -> bool {
        let mut ran = 0;
        let mut busy = None;
        while ran < TASKS_PER_TURN {
            let Some(runnable) = self.group.dequeue() else { break };
            if ran == 0 {
                busy = Busy::enter(self.group);
            }
            runnable.run();
            ran += 1;
        }
        drop(busy);
        ran > 0
    }

    pub(crate) fn flush(&mut self) {
        turn_end::flush_now();
    }

    fn wake_timers(&mut self) {
        let wakers = lock(&self.group.timers).expired(self.now);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    /// Waits for events, or until there is something else to do. Returns whether there is anything.
    fn wait(&mut self, done: &dyn Fn() -> bool) -> bool {
        let several = self.group.settings.threads_max > 1;
        if several {
            let has_work = || self.group.has_tasks() || done() || self.group.stopping.load(Ordering::SeqCst);
            // The watching thread may have gone to sleep before the next timer was added, while
            // two watched. So a parked thread wakes up for timers too.
            let limit = || self.timeout(lock(&self.group.timers).next(Instant::now()));
            match self.group.watch.enter(limit, has_work) {
                Place::Watching => {}
                Place::Again => {
                    self.now = Instant::now(); // it may have been parked for long
                    return true;
                }
                Place::Idle => return false,
            }
        }
        let began = self.now;
        let rests = turn_end::take_rest();
        let found = !rests && self.spin(began, done) || self.sleep(done);
        self.now = Instant::now();
        if !rests {
            self.adapt_spin(self.now.saturating_duration_since(began));
        }
        if several {
            self.group.watch.leave();
        }
        found
    }

    fn sleep(&mut self, done: &dyn Fn() -> bool) -> bool {
        self.group.sleepers.fetch_add(1, Ordering::SeqCst);
        // All looked at after announcing the sleep: whoever changes one of them after this sees a sleeper and wakes it.
        let timeout = if !self.group.has_tasks() && !done() {
            let next_timer = lock(&self.group.timers).next(Instant::now());
            self.timeout(next_timer)
        } else {
            Some(Duration::ZERO)
        };
        let found = self.poll(timeout);
        self.group.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }

    fn timeout(&self, next_timer: Option<Duration>) -> Option<Duration> {
        let extra = self.group.settings.threads_max > self.group.settings.threads_min
            && self.group.crew.alive.load(Ordering::SeqCst) > self.group.settings.threads_min;
        match (next_timer, extra) {
            (Some(timer), true) => Some(timer.min(EXTRA_THREAD_IDLE)),
            (None, true) => Some(EXTRA_THREAD_IDLE),
            (timer, false) => timer,
        }
    }

    /// Looks for events without sleeping, unless another thread does. Returns whether any came.
    fn spin(&mut self, began: Instant, done: &dyn Fn() -> bool) -> bool {
        let spins = !self.spin.is_zero() && self.crowd.lets_spin(began);
        if !spins || self.group.spinning.swap(true, Ordering::SeqCst) {
            return false;
        }
        let (mut first, mut lost, mut now) = (true, Duration::ZERO, began);
        let found = loop {
            if self.poll(Some(Duration::ZERO)) {
                self.crowd.found_after(lost);
                break true;
            }
            first = false;
            if now.saturating_duration_since(began) >= self.spin || self.group.has_tasks() || done() {
                break false;
            }
            // Whoever this thread has just answered may wait for this core: a spin that keeps it makes everybody slower than none.
            let yielded = Instant::now();
            std::thread::yield_now();
            now = Instant::now();
            lost = now.saturating_duration_since(yielded);
            self.crowd.yields = self.crowd.yields.saturating_add(1);
        };
        self.group.spinning.store(false, Ordering::SeqCst);
        self.backlog = if found && first { self.backlog + 1 } else { 0 };
        if self.backlog >= BACKLOG {
            self.group.watch.widen();
        }
        found
    }

    /// Longer spins when a little longer would have met what came, shorter ones when it came much later, as the kernel's `haltpoll` does.
    fn adapt_spin(&mut self, waited: Duration) {
        let spin_max = self.group.settings.spin_max;
        if waited > spin_max {
            self.spin = if self.spin > SPIN_MIN { self.spin / 2 } else { Duration::ZERO };
        } else if waited > self.spin {
            self.spin = (self.spin * 2).clamp(SPIN_MIN, spin_max.max(SPIN_MIN));
        }
    }

    fn poll(&mut self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        self.events.clear();
        match epoll::wait(&self.group.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) => !self.events.is_empty(),
            Err(rustix::io::Errno::INTR) => false,
            Err(error) => panic!("epoll_wait on the group's own epoll descriptor: {error}"),
        }
    }

    fn handle_events(&mut self) {
        for at in 0..self.events.len() {
            let event = self.events[at];
            let key = event.data.u64();
            if key == WAKE_KEY {
                // While stopping, the count stays: it must wake every thread.
                if !self.group.stopping.load(Ordering::SeqCst) {
                    self.group.drain_wake();
                }
                continue;
            }
            let handler = lock(&self.group.handlers).get(key as usize).cloned();
            if let Some(handler) = handler {
                handler.ready(readiness(event.flags));
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.flush();
        Group::set_current(self.before.take());
    }
}

fn readiness(flags: epoll::EventFlags) -> Readiness {
    let gone = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
    Readiness {
        read: gone || flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP),
        write: gone || flags.contains(epoll::EventFlags::OUT),
        gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_loses_the_processor_spins_no_more_for_a_while() {
        let mut crowd = Crowd::default();
        let lost = 2 * CROWDED_AFTER;
        assert!(crowd.lets_spin(Instant::now()));
        crowd.found_after(CROWDED_AFTER);
        assert!(crowd.lets_spin(Instant::now()), "that was not long");
        let began = Instant::now();
        crowd.found_after(lost);
        assert_eq!(crowd.pause, lost * CROWDED_FACTOR);
        assert!(!crowd.lets_spin(began + crowd.pause / 2));
        assert!(crowd.lets_spin(began + 2 * CROWDED_MAX));
        crowd.found_after(lost);
        assert_eq!(crowd.pause, lost * CROWDED_FACTOR * 2, "soon again");
        (0..20).for_each(|_| crowd.found_after(lost));
        assert_eq!(crowd.pause, CROWDED_MAX);
        crowd.yields = CALM_YIELDS;
        crowd.found_after(lost);
        assert_eq!(crowd.pause, lost * CROWDED_FACTOR, "after a calm while it is the first");
    }
}
