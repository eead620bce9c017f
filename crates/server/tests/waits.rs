//! Locks that wait, and that are asked for more than once: by whom they were asked for first may
//! have gone before they wait, or while they do.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_fs::layer::Layer;
use aqueduct_fs::throttled::Clock;
use aqueduct_fs::*;
use aqueduct_wire::*;
use common::gate::*;
use common::*;

/// The owner whose locks another machine is asked for.
const AWAY: u64 = 2;

/// A file system that asks another machine for a lock, and hears of it when a test says so.
struct Asks {
    below: Lower,
    heard: Cancel,
    /// It has been answered.
    answered: Cancel,
}

impl Layer for Asks {
    type Below = Lower;

    fn below(&self) -> &Lower {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        if !matches!(request, Request::SetLock { owner: AWAY, wait: false, .. }) {
            return self.below.ask(context, request);
        }
        Call::waiting(async move {
            while !self.heard.is_raised() {
                timers::Timers.sleep(Duration::from_millis(5)).await;
            }
            let answer = self.below.ask(context, request).await;
            self.answered.raise();
            answer
        })
    }
}

/// A lock that is held, and a session with links that ask for it.
struct State {
    fixture: Fixture,
    heard: Cancel,
    answered: Cancel,
    holder: Peer,
    held: OpenId,
    links: [Peer; 3],
    open: OpenId,
    session: HelloReply,
}

/// The place of the request for the lock.
const PLACE: (u32, u32) = (1, 1);

impl State {
    fn new() -> State {
        let (heard, answered) = (Cancel::default(), Cancel::default());
        let asks = |below| Asks { below, heard: heard.clone(), answered: answered.clone() };
        let fixture = Fixture::layered(|below| Arc::new(asks(below)));
        let (mut holder, _, root) = fixture.attached();
        let held = locked_file(&mut holder, &root);
        holder.ask((0, 2), &set_lock(held, 1, LockKind::Write, false)).unwrap();
        let (mut first, session, root) = fixture.attached();
        let open = locked_file(&mut first, &root);
        let mut links = [first, fixture.joined(&session).0, fixture.joined(&session).0];
        // No two of a session ask under one number.
        for (link, count) in links.iter_mut().zip([1, 20, 40]) {
            (0..count).for_each(|_| assert_eq!(link.call(Op::Status, (0, 0), &[]).0.status, 0));
        }
        State { fixture, heard, answered, holder, held, links, open, session }
    }

    /// Asks for the lock by a link, as all of them do that ask again.
    fn ask(&mut self, link: usize) -> u64 {
        let id = send(&mut self.links[link], PLACE, &set_lock(self.open, AWAY, LockKind::Write, true));
        // Its answer says that what came before has been looked at.
        assert_eq!(self.links[link].call(Op::Status, (0, 0), &[]).0.status, 0);
        id
    }

    /// Asks for the lock, and hears that it waits.
    fn ask_now(&mut self, link: usize) -> u64 {
        let id = send(&mut self.links[link], PLACE, &set_lock(self.open, AWAY, LockKind::Write, true));
        self.expect(link, Kind::Pending, id);
        id
    }

    fn expect(&mut self, link: usize, kind: Kind, id: u64) {
        let (header, _) = self.links[link].receive().unwrap();
        assert_eq!((header.kind, header.request, header.status), (kind, id, 0));
    }

    fn release(&mut self) {
        self.holder.ask((0, 3), &set_lock(self.held, 1, LockKind::Unlock, false)).unwrap();
    }

    /// The server has seen the end of a link: its number is free.
    fn gone(&mut self, link: usize) {
        let end = Instant::now() + LONG;
        let number = self.links[link].link;
        while self
            .fixture
            .connect()
            .greet(&Hello { session: self.session.session, link: number, ..hello() }, self.session.secret)
            == Err(Errno::EEXIST.raw() as u32)
        {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The second link is another from now on, and the only one besides the first.
    fn replace_others(&mut self) {
        let late = self.fixture.joined(&self.session).0;
        for link in [1, 2] {
            self.links[link].stream.shutdown(std::net::Shutdown::Both).unwrap();
            self.gone(link);
        }
        self.links[1] = late;
    }

    fn retire(&mut self, link: usize, by: usize) {
        let mut body = Vec::new();
        encode_retire(self.links[link].link, &mut body);
        self.links[by].send(Header::new(Kind::Retire), &body);
    }

    fn give_up(&mut self, link: usize, by: usize) {
        let mut body = Vec::new();
        GiveUp { link: self.links[link].link, ..GiveUp::default() }.encode(&mut body);
        assert_eq!(self.links[by].call(Op::GiveUp, (0, 0), &body).0.status, 0);
    }

    /// Somebody else gets the lock when its holder has none: nobody waits for it any more.
    fn expect_free(mut self) {
        self.release();
        let (mut other, _, root) = self.fixture.attached();
        let open = locked_file(&mut other, &root);
        // A file system that answers late may have just given it to who has left, and takes it
        // back.
        let end = Instant::now() + LONG;
        for sequence in 2.. {
            match other.ask((0, sequence), &set_lock(open, 1, LockKind::Write, false)) {
                Err(Errno::EAGAIN) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                result => return drop(result.unwrap()),
            }
        }
    }
}

#[test]
fn whoever_asks_again_before_a_lock_waits_is_told_of_its_end() {
    let mut state = State::new();
    let ids = [state.ask(0), state.ask(1)];
    state.heard.raise();
    (0..2).for_each(|link| state.expect(link, Kind::Pending, ids[link]));
    state.release();
    (0..2).for_each(|link| state.expect(link, Kind::Completion, ids[link]));
}

#[test]
fn whoever_asks_again_while_a_lock_waits_is_told_of_its_end() {
    let mut state = State::new();
    state.heard.raise();
    let first = state.ask_now(0);
    let second = state.ask_now(1);
    state.release();
    state.expect(0, Kind::Completion, first);
    state.expect(1, Kind::Completion, second);
}

#[test]
fn a_lock_goes_on_waiting_when_one_of_two_who_asked_has_gone() {
    for asks_before_it_waits in [true, false] {
        let mut state = State::new();
        let second = if asks_before_it_waits {
            state.ask(0);
            let second = state.ask(1);
            state.heard.raise();
            state.expect(1, Kind::Pending, second);
            second
        } else {
            state.heard.raise();
            state.ask_now(0);
            state.ask_now(1)
        };
        state.links[0].stream.shutdown(std::net::Shutdown::Both).unwrap();
        state.gone(0);
        state.release();
        state.expect(1, Kind::Completion, second);
    }
}

#[test]
fn a_lock_of_a_link_that_is_given_up_is_had_by_another() {
    let mut state = State::new();
    state.ask(0);
    let second = state.ask(1);
    state.give_up(0, 2);
    state.heard.raise();
    state.expect(1, Kind::Pending, second);
    state.release();
    state.expect(1, Kind::Completion, second);
}

/// It was about to wait when its link was given up: who asks again, later, waits.
#[test]
fn a_lock_that_nobody_was_left_to_be_told_of_is_waited_for_anew() {
    let mut state = State::new();
    state.ask(0);
    state.give_up(0, 2);
    state.heard.raise();
    std::thread::sleep(Duration::from_millis(100));
    let again = state.ask_now(1);
    state.release();
    state.expect(1, Kind::Completion, again);
}

#[test]
fn a_lock_that_all_who_asked_for_have_left_is_nobodys() {
    let mut state = State::new();
    state.ask(0);
    state.ask(1);
    state.heard.raise();
    state.give_up(0, 2);
    state.give_up(1, 2);
    // Had its holder none before, it would be had, for whoever repeats the request.
    let end = Instant::now() + LONG;
    while !state.answered.is_raised() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
    state.expect_free();
}

#[test]
fn a_lock_that_was_asked_for_twice_is_cancelled_by_either_number() {
    let mut state = State::new();
    let ids = [state.ask(0), state.ask(1)];
    state.heard.raise();
    (0..2).for_each(|link| state.expect(link, Kind::Pending, ids[link]));
    let mut body = Vec::new();
    encode_cancel(ids[1], &mut body);
    state.links[2].send(Header::new(Kind::Cancel), &body);
    let (_, body) = state.links[2].receive().unwrap();
    assert_eq!(CancelReply::decode(&body).unwrap().outcome, CancelOutcome::Never);
    for (link, id) in ids.into_iter().enumerate() {
        let (header, _) = state.links[link].receive().unwrap();
        assert_eq!((header.kind, header.request, header.status), (Kind::Completion, id, Errno::EINTR.raw() as u32));
    }
    state.expect_free();
}

/// What waited there is the session's: whatever link it has by then tells of the end.
#[test]
fn a_lock_of_a_retired_link_outlives_all_links_that_there_were() {
    let mut state = State::new();
    state.heard.raise();
    let id = state.ask_now(0);
    state.retire(0, 2);
    assert_eq!(state.links[0].receive().unwrap().0.kind, Kind::Retire);
    state.replace_others();
    state.release();
    state.expect(1, Kind::Completion, id);
}

#[test]
fn a_lock_that_waits_only_when_its_link_is_retired_already_is_told_elsewhere() {
    let mut state = State::new();
    let id = state.ask(0);
    state.retire(0, 2);
    state.heard.raise();
    state.expect(0, Kind::Pending, id);
    assert_eq!(state.links[0].receive().unwrap().0.kind, Kind::Retire);
    assert!(state.links[0].receive().is_none(), "it is closed");
    state.replace_others();
    state.release();
    state.expect(1, Kind::Completion, id);
}

/// Whoever gives it up all the same has not heard that it was retired, and asks anew.
#[test]
fn a_lock_of_a_retired_link_that_is_given_up_is_nobodys() {
    let mut state = State::new();
    state.heard.raise();
    state.ask_now(0);
    state.retire(0, 2);
    assert_eq!(state.links[0].receive().unwrap().0.kind, Kind::Retire);
    state.give_up(0, 2);
    state.expect_free();
}
