//! Groups with real threads and descriptors.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_worker::{Group, Interest, Readiness, Ready, Settings, wait};

/// Longer than any of these waits should take on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(20);

fn group(threads_min: usize, threads_max: usize) -> Arc<Group> {
    let settings = Settings { name: "test".into(), threads_min, threads_max, spin_max: Duration::from_micros(20) };
    Group::new(settings).unwrap()
}

fn end(group: &Arc<Group>) {
    group.stop();
    group.join();
}

#[test]
fn spawned_tasks_run_and_wake_each_other() {
    let group = group(2, 2);
    let (sender, receiver) = channel();
    for number in 0..100 {
        let (group, sender) = (group.clone(), sender.clone());
        group.clone().spawn(async move {
            group.sleep(Duration::from_millis(number % 7)).await;
            sender.send(number).unwrap();
        });
    }
    let mut seen: Vec<u64> = (0..100).map(|_| receiver.recv_timeout(LIMIT).unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    end(&group);
}

#[test]
fn timers_end_in_their_order() {
    let group = group(1, 1);
    let (sender, receiver) = channel();
    for milliseconds in [60, 5, 30] {
        let (own, sender) = (group.clone(), sender.clone());
        group.spawn(async move {
            own.sleep(Duration::from_millis(milliseconds)).await;
            sender.send(milliseconds).unwrap();
        });
    }
    let order: Vec<u64> = (0..3).map(|_| receiver.recv_timeout(LIMIT).unwrap()).collect();
    assert_eq!(order, [5, 30, 60]);
    end(&group);
}

#[test]
fn a_timer_ends_though_another_thread_sleeps_already() {
    let group = group(2, 2);
    let (sender, receiver) = channel();
    for _ in 0..5 {
        let (own, sender) = (group.clone(), sender.clone());
        group.spawn(async move {
            own.before_blocking(); // the other thread comes, and sleeps before there is a timer
            std::thread::sleep(Duration::from_millis(50)); // until one thread that watches is enough again
            own.sleep(Duration::from_millis(1)).await;
            sender.send(()).unwrap();
        });
        receiver.recv_timeout(LIMIT).expect("the timer was seen by no thread");
        std::thread::sleep(Duration::from_millis(1));
    }
    end(&group);
}

struct Echo {
    stream: Mutex<UnixStream>,
    heard: Sender<u8>,
    calls: AtomicUsize,
}

impl Ready for Echo {
    fn ready(&self, readiness: Readiness) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut byte = [0];
        if readiness.read && matches!(self.stream.lock().unwrap().read(&mut byte), Ok(1)) {
            self.heard.send(byte[0]).unwrap();
        }
    }
}

fn echo(
    interest: Interest,
) -> (Arc<Group>, Arc<Echo>, aqueduct_worker::Registration, UnixStream, std::sync::mpsc::Receiver<u8>) {
    let group = group(1, 1);
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let (heard, receiver) = channel();
    let echo = Arc::new(Echo { stream: Mutex::new(ours.try_clone().unwrap()), heard, calls: AtomicUsize::new(0) });
    let registration = group.register(ours.as_fd(), interest, echo.clone()).unwrap();
    (group, echo, registration, theirs, receiver)
}

#[test]
fn once_means_once_until_armed_again() {
    let interest = Interest { read: true, write: false, once: true };
    let (group, _echo, registration, mut theirs, heard) = echo(interest);
    theirs.write_all(&[1]).unwrap();
    assert_eq!(heard.recv_timeout(LIMIT), Ok(1));
    theirs.write_all(&[2]).unwrap();
    assert!(heard.recv_timeout(Duration::from_millis(100)).is_err());
    registration.arm(interest).unwrap();
    assert_eq!(heard.recv_timeout(LIMIT), Ok(2));
    end(&group);
}

#[test]
fn a_dropped_registration_is_silent() {
    let (group, echo, registration, mut theirs, heard) = echo(Interest { read: true, write: false, once: false });
    theirs.write_all(&[1]).unwrap();
    assert_eq!(heard.recv_timeout(LIMIT), Ok(1));
    drop(registration);
    let calls = echo.calls.load(Ordering::SeqCst);
    theirs.write_all(&[2]).unwrap();
    assert!(heard.recv_timeout(Duration::from_millis(100)).is_err());
    assert!(echo.calls.load(Ordering::SeqCst) <= calls + 1); // one event may have been on its way
    end(&group);
}

#[test]
fn more_threads_come_when_all_are_held_up() {
    let group = group(1, 4);
    let (sender, receiver) = channel();
    for _ in 0..3 {
        let sender = sender.clone();
        group.spawn(async move {
            std::thread::sleep(Duration::from_millis(400)); // as a slow disk would hold a thread
            sender.send(()).unwrap();
        });
    }
    let start = Instant::now();
    (0..3).for_each(|_| receiver.recv_timeout(LIMIT).unwrap());
    assert!(start.elapsed() < Duration::from_millis(1150), "one after another: {:?}", start.elapsed());
    end(&group);
}

/// Answers at once, or holds its thread up first, as a slow disk would.
struct Slow {
    held_up: Duration,
    announced: bool,
    heard: Sender<Duration>,
    group: Arc<Group>,
}

impl Ready for Slow {
    fn ready(&self, _: Readiness) {
        if self.announced {
            self.group.before_blocking();
        }
        std::thread::sleep(self.held_up);
        self.heard.send(self.held_up).unwrap();
    }
}

fn held_up_thread_is_replaced(announced: bool) {
    let group = group(2, 2);
    std::thread::sleep(Duration::from_millis(50)); // one watches, one is parked
    let (heard, receiver) = channel();
    let interest = Interest { read: true, write: false, once: true };
    let long = Duration::from_millis(600);
    let mut streams = Vec::new();
    for held_up in [long, Duration::ZERO] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let slow = Arc::new(Slow { held_up, announced, heard: heard.clone(), group: group.clone() });
        let registration = group.register(ours.as_fd(), interest, slow).unwrap();
        theirs.write_all(&[1]).unwrap();
        streams.push((ours, theirs, registration));
        std::thread::sleep(Duration::from_millis(100)); // the slow one is under way
    }
    assert_eq!(receiver.recv_timeout(LIMIT), Ok(Duration::ZERO), "who came second waited for the first");
    assert_eq!(receiver.recv_timeout(LIMIT), Ok(long));
    end(&group);
}

#[test]
fn a_parked_thread_comes_when_the_watching_one_says_that_it_will_block() {
    held_up_thread_is_replaced(true);
}

#[test]
fn a_parked_thread_comes_when_the_watching_one_is_held_up() {
    held_up_thread_is_replaced(false);
}

/// The threads of the group, by how often each was scheduled.
fn schedules(name: &str) -> Vec<u64> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of_group = threads
        .filter(|thread| std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim() == name));
    of_group
        .map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default())
        .map(|text| text.split(' ').nth(2).and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0))
        .collect()
}

#[test]
fn small_work_wakes_one_thread_only() {
    let settings =
        Settings { name: "narrow".into(), threads_min: 2, threads_max: 2, spin_max: Duration::from_micros(20) };
    let group = Group::new(settings).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (heard, receiver) = channel();
    ours.set_nonblocking(true).unwrap();
    let echo = Echo { stream: Mutex::new(ours.try_clone().unwrap()), heard, calls: AtomicUsize::new(0) };
    let interest = Interest { read: true, write: false, once: false };
    let _registration = group.register(ours.as_fd(), interest, Arc::new(echo)).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let before = schedules("narrow");
    for number in 0..100 {
        theirs.write_all(&[number]).unwrap();
        receiver.recv_timeout(LIMIT).unwrap();
        std::thread::sleep(Duration::from_millis(1)); // not a backlog
    }
    let after = schedules("narrow");
    assert_eq!((before.len(), after.len()), (2, 2));
    let mut woken: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    woken.sort_unstable();
    // A handler that a busy machine holds up makes the group wide for a while, hence not zero.
    assert!(woken[0] < 50 && woken[1] >= 50, "scheduled {woken:?} times for 100 events");
    end(&group);
}

#[test]
fn a_waiting_thread_turns_its_group_itself() {
    let group = group(0, 0);
    let own = group.clone();
    let number = wait(&group, async move {
        let (sender, receiver) = channel();
        own.spawn(async move { sender.send(7).unwrap() });
        own.sleep(Duration::from_millis(5)).await;
        receiver.try_recv().unwrap()
    });
    assert_eq!(number, 7);
}

#[test]
fn an_idle_group_uses_no_cpu() {
    let settings =
        Settings { name: "idle-group".into(), threads_min: 2, threads_max: 8, spin_max: Duration::from_micros(20) };
    let group = Group::new(settings).unwrap();
    let (sender, receiver) = channel();
    group.spawn(async move { sender.send(()).unwrap() });
    receiver.recv_timeout(LIMIT).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let switches = || schedules("idle-group").iter().sum::<u64>();
    let before = switches();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(switches(), before, "an idle group's threads were scheduled");
    end(&group);
}

/// A wake-up from another thread must not fall between the last look and the sleep.
#[test]
fn no_wake_up_of_a_waiting_thread_is_lost() {
    let (waiting, other) = (group(0, 0), group(1, 1));
    let start = Instant::now();
    for _ in 0..20_000 {
        let (sender, receiver) = channel();
        let (own, from) = (waiting.clone(), waiting.clone());
        other.spawn(async move { from.spawn(async move { sender.send(()).unwrap() }) });
        let until_sent = async {
            while receiver.try_recv().is_err() {
                own.sleep(Duration::from_micros(50)).await;
            }
        };
        wait(&waiting, until_sent);
        if start.elapsed() > Duration::from_secs(3) {
            break;
        }
    }
    end(&other);
}

/// A handler that keeps its group, as connections do.
struct Keeps(#[expect(dead_code, reason = "it only has to be held")] Arc<Group>);

impl Ready for Keeps {
    fn ready(&self, _: Readiness) {}
}

#[test]
fn a_group_that_has_ended_holds_nothing_that_holds_it() {
    let group = group(2, 2);
    let (began, asleep) = channel();
    let own = group.clone();
    group.spawn(async move {
        began.send(()).unwrap();
        own.sleep(LIMIT * 1000).await;
    });
    asleep.recv_timeout(LIMIT).unwrap();
    let (watched, _other) = UnixStream::pair().unwrap();
    let read = Interest { read: true, write: false, once: false };
    let registration = group.register(watched.as_fd(), read, Arc::new(Keeps(group.clone()))).unwrap();
    end(&group);
    drop(registration);
    assert_eq!(Arc::strong_count(&group), 1);
}
