//! Programs that wait for a server that does not answer, in every system call: they can be ended, and what only interrupts them changes nothing.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::agent::Agent;
use crate::calls::{CALLS, prepare};
use crate::common::{One, SOON, TEST_MAX, within};

/// A signal that ends a program is noticed within a second or so; forty programs on a busy machine take longer.
const NOTICED: Duration = Duration::from_secs(20);

/// Forty programs that start beside all the other tests take a while.
const LIMIT: Duration = Duration::from_secs(3 * TEST_MAX.as_secs());

struct Waiter {
    call: &'static str,
    agent: Agent,
    /// Its directory, on the server.
    directory: PathBuf,
}

/// A program in each call, while the server is stopped.
fn waiters(one: &One, alarms: bool) -> Vec<Waiter> {
    let mut waiters: Vec<Waiter> = CALLS
        .iter()
        .map(|(call, _)| {
            let name = call.replace(' ', "-");
            let directory = one.export.path().join(&name);
            prepare(&directory).unwrap();
            let mut agent = Agent::start();
            agent.ask(&format!("chdir {}", one.path(&name).display())).unwrap();
            agent.ask("open 0 file rw").unwrap();
            if alarms {
                agent.ask("alarm 100").unwrap();
            }
            Waiter { call, agent, directory }
        })
        .collect();
    one.server.process.stop();
    for waiter in &mut waiters {
        waiter.agent.tell(&format!("call 0 {}", waiter.call));
    }
    for waiter in &waiters {
        let answer = waiter.agent.answer_within(Duration::from_millis(30));
        assert!(answer.is_none(), "{} does not wait for the server: {answer:?}", waiter.call);
    }
    waiters
}

/// So that each call waits for the server: what is cached needs none.
const STRAIGHT: &str = "cache=none";

fn ended_by(signal: Signal) {
    let one = One::with(STRAIGHT);
    let mut waiters = waiters(&one, false);
    for waiter in &waiters {
        waiter.agent.process.signal(signal);
    }
    for waiter in &mut waiters {
        let status = waiter.agent.process.ended_within(NOTICED);
        assert!(status.is_some(), "{} goes on waiting after {signal:?}", waiter.call);
    }
    one.server.process.signal(Signal::CONT);
    std::fs::write(one.path("after"), "the mount is as good as before").unwrap();
}

#[test]
fn a_program_can_be_killed_in_every_call() {
    within(LIMIT, || ended_by(Signal::KILL));
}

#[test]
fn a_program_can_be_interrupted_in_every_call() {
    within(LIMIT, || ended_by(Signal::INT));
}

#[test]
fn handled_signals_disturb_no_call() {
    within(LIMIT, || {
        let one = One::with(STRAIGHT);
        let mut waiters = waiters(&one, true);
        // A lock is what a signal may end (EINTR): the kernel makes the call again, as SA_RESTART asks.
        std::thread::sleep(Duration::from_secs(2));
        for waiter in &waiters {
            let answer = waiter.agent.answer_within(Duration::ZERO);
            assert!(answer.is_none(), "{} was disturbed by a signal that it handles: {answer:?}", waiter.call);
        }
        one.server.process.signal(Signal::CONT);
        for waiter in &mut waiters {
            assert_eq!(waiter.agent.answer_within(SOON), Some(Ok(String::new())), "{}", waiter.call);
        }
        let entries = |waiter: &Waiter| std::fs::read_dir(&waiter.directory).unwrap().count();
        for waiter in &waiters {
            let expected = match waiter.call {
                "create" | "mkdir" | "mkfifo" | "symlink" | "link" => 5,
                "unlink" | "rmdir" => 3,
                _ => 4,
            };
            assert_eq!(entries(waiter), expected, "{} was done once", waiter.call);
            if waiter.call == "append" {
                let length = std::fs::metadata(waiter.directory.join("file")).unwrap().len();
                assert_eq!(length, 8192 + 8, "it was appended once");
            }
        }
    });
}
