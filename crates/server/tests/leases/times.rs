//! For how long who waits for whom.

use std::time::{Duration, Instant};

use aqueduct_fs::*;
use aqueduct_server::Limits;
use aqueduct_wire::*;

use super::client::*;
use super::common::*;

const LEASE: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_millis(200);
const ANSWER: Duration = Duration::from_millis(100);

/// What comes much later than it should, on a machine with much to do.
const LATE: Duration = Duration::from_secs(5);

fn short() -> Limits {
    Limits { lease: LEASE, lease_patience: PATIENCE, lease_answer: ANSWER, ..quick() }
}

/// A file that one client holds a lease on and another has open.
struct State {
    fixture: Fixture,
    holder: Client,
    changer: Client,
    file: Handle,
    open: OpenId,
    lease: LeaseId,
    /// When the holder was renewed last: in between.
    renewed: (Instant, Instant),
}

impl State {
    fn new(limits: Limits) -> State {
        let fixture = Fixture::limited(limits);
        let mut changer = Client::plain(&fixture);
        let root = changer.root.clone();
        let (entry, opened) = changer.peer.create((50, 1), &root, "file", READ_WRITE).unwrap();
        let mut holder = Client::new(&fixture);
        let before = Instant::now();
        let lease = holder.lease(&get_attr(&entry.handle));
        let renewed = (before, Instant::now());
        State { fixture, holder, changer, file: entry.handle, open: opened.id, lease, renewed }
    }

    /// Has the changer write, and shows that it waits for the holder to have been silent for long enough, and no longer.
    fn writes_after_silence(&mut self, renewed: (Instant, Instant)) {
        let write = self.changer.send_write(self.open, b"new");
        self.changer.take(write).unwrap();
        let (least, most) = (renewed.0.elapsed(), renewed.1.elapsed());
        assert!(least >= LEASE + PATIENCE, "after {least:?}");
        assert!(most < LEASE + PATIENCE + ANSWER + LATE, "after {most:?}");
    }
}

#[test]
fn who_is_silent_is_fenced_off_from_its_leases_and_keeps_the_rest() {
    let mut state = State::new(short());
    let open = Request::Open { handle: state.file.bytes(), flags: READ_WRITE };
    let open = state.holder.ask(&open).unwrap().opened().unwrap().id;
    state.holder.ask(&set_lock(open, 1, LockKind::Write, false)).unwrap();
    let before = Instant::now();
    let lease = state.holder.lease(&get_attr(&state.file));
    state.writes_after_silence((before, Instant::now()));
    let holder = &mut state.holder;
    // It is asked for, and what it does renews nothing until it has returned it.
    assert_eq!(holder.recalled(), [lease]);
    holder.ask(&get_attr(&state.file)).unwrap();
    assert!(!holder.renews && holder.grants.is_empty());
    holder.give_back(&[lease]);
    holder.ask(&get_attr(&state.file)).unwrap();
    assert!(holder.renews && !holder.grants.is_empty());
    // Its session went on.
    let open = Request::Open { handle: state.file.bytes(), flags: READ_WRITE };
    let open = state.changer.ask(&open).unwrap().opened().unwrap().id;
    assert_eq!(state.changer.ask(&set_lock(open, 2, LockKind::Write, false)), Err(Errno::EAGAIN));
}

/// Else a client whose recalls hang, and that works otherwise, would hold everybody up for ever.
#[test]
fn who_owes_is_not_renewed_however_busy() {
    let mut state = State::new(short());
    let write = state.changer.send_write(state.open, b"new");
    state.holder.recalled();
    let start = Instant::now();
    let (mut renewed, mut refused) = (state.renewed.0, 0);
    while start.elapsed() < ANSWER + LEASE + PATIENCE + LATE && state.changer.waits() {
        let before = Instant::now();
        state.holder.ask(&get_attr(&state.file)).unwrap();
        match state.holder.renews {
            true => renewed = before,
            false => refused += 1,
        }
    }
    state.changer.take(write).unwrap();
    assert!(refused > 0 && renewed.elapsed() >= LEASE + PATIENCE, "{:?}", renewed.elapsed());
    state.holder.give_back(&[state.lease]);
    state.holder.ask(&get_attr(&state.file)).unwrap();
    assert!(state.holder.renews);
}

#[test]
fn who_has_been_idle_may_answer() {
    let mut state = State::new(short());
    std::thread::sleep(LEASE + PATIENCE + ANSWER);
    let write = state.changer.send_write(state.open, b"new");
    assert_eq!(state.holder.recalled(), [state.lease]);
    state.holder.give_back(&[state.lease]);
    state.changer.take(write).unwrap();
    state.holder.ask(&get_attr(&state.file)).unwrap();
    assert!(state.holder.renews);
}

#[test]
fn what_was_asked_for_is_asked_for_again_on_a_new_connection() {
    let mut state = State::new(quick());
    let write = state.changer.send_write(state.open, b"new");
    assert_eq!(state.holder.recalled(), [state.lease]);
    state.holder.reconnect(&state.fixture);
    assert_eq!(state.holder.recalled(), [state.lease]);
    // Also on one that was there before, when the one where it was asked for ends.
    let (second, _) = state.fixture.joined(&state.holder.session);
    let first = std::mem::replace(&mut state.holder.peer, second);
    assert_eq!(state.holder.recalled(), [state.lease]);
    drop(first);
    assert_eq!(state.holder.recalled(), [state.lease]);
    assert!(state.changer.waits());
    state.holder.give_back(&[state.lease]);
    state.changer.take(write).unwrap();
}

#[test]
fn goodbye_ends_leases_at_once() {
    let mut state = State::new(Limits { lease: Duration::from_secs(60), ..quick() });
    let write = state.changer.send_write(state.open, b"new");
    assert!(state.changer.waits());
    std::mem::replace(&mut state.holder, Client::plain(&state.fixture)).leave();
    state.changer.take(write).unwrap();
}

#[test]
fn a_session_that_ends_without_a_word_keeps_its_leases_until_they_lapse() {
    let mut state = State::new(Limits { session_grace: Duration::from_millis(50), ..short() });
    let session = state.holder.session.clone();
    drop(std::mem::replace(&mut state.holder, Client::plain(&state.fixture)));
    let ended = || state.fixture.connect().hello(session.session, session.secret).is_err();
    let start = Instant::now();
    while !ended() {
        assert!(start.elapsed() < LATE);
        std::thread::sleep(Duration::from_millis(100)); // each try is a connection, which begins the grace anew
    }
    let renewed = state.renewed;
    state.writes_after_silence(renewed);
}

#[test]
fn a_client_with_all_it_may_have_is_asked_for_what_it_has_had_for_longest() {
    const MOST: usize = 16;
    let fixture = Fixture::limited(Limits { leases_of_client_max: MOST, ..quick() });
    for name in 0..=2 * MOST {
        std::fs::write(fixture.directory.path().join(name.to_string()), "").unwrap();
    }
    let mut client = Client::new(&fixture);
    let root = client.root.clone();
    let (mut held, mut asked) = (Vec::new(), 0);
    for name in 0..=2 * MOST {
        client.ask(&look_up(&root, &name.to_string())).unwrap();
        held.extend(client.granted(Subject::Inode).map(|(_, lease)| lease));
        if !client.is_left_alone() {
            for lease in client.recalled() {
                assert!(held.contains(&lease) || client.granted(Subject::Parent).is_some());
                client.give_back(&[lease]);
                asked += 1;
            }
        }
    }
    assert!(asked > 0 && held.len() >= MOST / 2, "{asked} {}", held.len());
    let mut other = Client::new(&fixture);
    other.ask(&look_up(&root, "1")).unwrap();
    assert!(!other.grants.is_empty(), "others are not concerned");
}

#[test]
fn what_is_disputed_is_granted_to_nobody_for_a_while() {
    const HOLDOFF: Duration = Duration::from_millis(300);
    let mut state = State::new(Limits { lease_holdoff: HOLDOFF, ..quick() });
    let start = Instant::now();
    let write = state.changer.send_write(state.open, b"new");
    assert_eq!(state.holder.recalled(), [state.lease]);
    state.holder.give_back(&[state.lease]);
    state.changer.take(write).unwrap();
    let mut refused = 0;
    loop {
        state.holder.ask(&get_attr(&state.file)).unwrap();
        if state.holder.granted(Subject::Inode).is_some() {
            break;
        }
        refused += 1;
        assert!(start.elapsed() < HOLDOFF + LATE);
    }
    assert!(refused > 0 && start.elapsed() >= HOLDOFF);
}

#[test]
fn a_change_that_nobody_wants_any_more_is_not_made() {
    let mut state = State::new(Limits { lease: Duration::from_secs(60), ..quick() });
    let mut other = Client::plain(&state.fixture);
    other.send(&chmod(&state.file, 0o600));
    assert_eq!(state.holder.recalled(), [state.lease]);
    other.leave();
    let mode =
        || std::os::unix::fs::MetadataExt::mode(&state.fixture.directory.path().join("file").metadata().unwrap());
    assert_eq!(mode() & 0o777, 0o644);
    state.holder.give_back(&[state.lease]);
    state.holder.ask(&get_attr(&state.file)).unwrap();
    assert!(state.holder.granted(Subject::Inode).is_some(), "nobody waits");
    assert_eq!(mode() & 0o777, 0o644);
}

/// The next server gets the request again.
#[test]
fn a_server_that_ends_does_not_wait_for_leases() {
    let mut state = State::new(Limits { lease: Duration::from_secs(60), ..quick() });
    state.changer.send(&chmod(&state.file, 0o600));
    assert_eq!(state.holder.recalled(), [state.lease]);
    let start = Instant::now();
    state.fixture.server.shutdown(Duration::from_secs(30));
    assert!(start.elapsed() < LATE, "{:?}", start.elapsed());
    let mode = std::os::unix::fs::MetadataExt::mode(&state.fixture.directory.path().join("file").metadata().unwrap());
    assert_eq!(mode & 0o777, 0o644);
}

/// The data of writes that wait would take all the memory that there is for what others send.
#[test]
fn writes_that_wait_leave_room_for_those_of_others() {
    const SIZE: usize = 1 << 20;
    let mut state = State::new(Limits { lease: Duration::from_secs(60), frame_memory: 2 * SIZE, ..quick() });
    let data = vec![7; SIZE];
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let (peer, _) = state.fixture.joined(&state.changer.session);
        let one = std::mem::replace(&mut state.changer.peer, peer);
        waiting.push((state.changer.send_write(state.open, &data), one));
    }
    assert_eq!(state.holder.recalled(), [state.lease]);
    let mut other = Client::plain(&state.fixture);
    let root = other.root.clone();
    let (_, opened) = other.peer.create((50, 1), &root, "another", READ_WRITE).unwrap();
    let write = other.send_write(opened.id, &data);
    other.take(write).unwrap();
    state.holder.give_back(&[state.lease]);
    drop(waiting);
}
