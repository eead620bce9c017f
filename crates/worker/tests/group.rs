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
    let settings = Settings { name: "test".into(), threads_min, threads_max, spin: Duration::from_micros(20) };
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
        Settings { name: "idle-group".into(), threads_min: 2, threads_max: 8, spin: Duration::from_micros(20) };
    let group = Group::new(settings).unwrap();
    let (sender, receiver) = channel();
    group.spawn(async move { sender.send(()).unwrap() });
    receiver.recv_timeout(LIMIT).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let switches = || -> u64 {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let of_group = threads.filter(|thread| {
            std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "idle-group")
        });
        of_group
            .map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default())
            .map(|text| text.split(' ').nth(2).and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0))
            .sum()
    };
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
                Group::expect_more();
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
