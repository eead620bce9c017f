//! A session that cannot be written down for a while.

use std::sync::atomic::Ordering;

use super::*;
use crate::origin::StoredPeer;

const HERE: ServerId = ServerId([1; 16]);

/// A session that asks for nothing, in a folder.
fn head(folder: &Folder) -> Head {
    Head {
        format: FORMAT,
        boot: folder.boot.clone(),
        server: HERE.to_string(),
        session: 7,
        secret: [0; 16],
        client: "client".into(),
        origin: StoredOrigin { node: None, peer: StoredPeer::Network(([127, 0, 0, 1], 1).into()), is_member: false },
        export: "/e".into(),
        slots: 1,
        durable: false,
        verifier: 1,
        era: 0,
        believes: 0,
        writes: false,
        broken: false,
    }
}

/// From now on nothing can be written to a journal.
fn fill(journal: &Journal, folder: &Folder) -> Arc<JournalCounters> {
    let kept = lock(&journal.kept).take().and_then(Arc::into_inner).unwrap();
    let (path, counters) = (kept.stored.path.clone(), kept.counters.clone());
    let file = File::open(&path).unwrap();
    *lock(&journal.kept) = Some(Arc::new(Kept { stored: folder.opened.store(path, file), ..kept }));
    counters
}

/// Its file is gone, and what its client was granted is not.
#[test]
fn who_cannot_be_written_down_any_more_is_waited_for_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Folder::open(folder.path(), HERE, 1).unwrap();
    let waits = |asks: bool, writes: &dyn Fn(&Journal)| {
        let server = open();
        let journal = server.create(&head(&server)).unwrap();
        if asks {
            journal.note_leases(Duration::from_secs(5));
        }
        let counters = fill(&journal, &server);
        writes(&journal);
        assert!(!journal.survives() && counters.given_up.get() == 1);
        server.keeper.run(|| Ok(())).unwrap();
        let is_own = |entry: &fs::DirEntry| !entry.file_name().to_string_lossy().starts_with("server-");
        let left = fs::read_dir(folder.path()).unwrap().filter(|entry| is_own(entry.as_ref().unwrap())).count();
        let until = open().lapsed_at(now()).saturating_sub(now());
        assert_eq!(left, usize::from(!until.is_zero()), "its own file has gone");
        until
    };
    let request = Header::new(aqueduct_wire::Kind::Request);
    assert_eq!(waits(false, &|journal| journal.intend(&request, b"", true)), Duration::ZERO);
    assert!(waits(false, &|journal| journal.note_leases(Duration::from_secs(5))) > Duration::from_secs(4));
    for entry in fs::read_dir(folder.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert!(waits(true, &|journal| journal.intend(&request, b"", true)) > Duration::from_secs(4));
}

/// The next process has the last request of each slot, and how it was answered.
#[test]
fn what_is_written_down_again_is_what_was_answered_last() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Folder::open(folder.path(), HERE, 1).unwrap();
    let server = open();
    let journal = server.create(&Head { slots: 3, ..head(&server) }).unwrap();
    fill(&journal, &server);
    let request =
        |slot, class, sequence| Header { slot, class, sequence, op: 5, ..Header::new(aqueduct_wire::Kind::Request) };
    journal.intend(&request(0, Class::Ordinary, 1), b"lost", true);
    assert!(!journal.survives() && journal.is_lost());
    let reply = Header::new(aqueduct_wire::Kind::Reply);
    let long = vec![0; BODY_LENGTH_MAX + 1];
    let answered = [
        Answered { request: request(0, Class::Ordinary, 7), era: 0, answer: Some((&reply, b"answer")) },
        Answered { request: request(1, Class::Releasing, 8), era: 0, answer: Some((&reply, &long)) },
        Answered { request: request(2, Class::Ordinary, 9), era: 0, answer: None },
    ];
    journal.begin_anew(&server, &answered).unwrap();
    assert!(journal.survives() && !journal.is_lost());
    journal.intend(&request(2, Class::Ordinary, 10), b"begun", true);
    server.leave();
    journal.close();
    drop(server);
    let (left, _) = open().left(10, |_| true).unwrap();
    let slots: Vec<_> = left[0]
        .slots
        .iter()
        .map(|(class, slot, record)| (*class, *slot, record.sequence, record.outcome.clone()))
        .collect();
    let replied = Outcome::Replied { header: reply, body: b"answer".to_vec() };
    let expected = [
        (Class::Ordinary, 0, 7, replied),
        (Class::Releasing, 1, 8, Outcome::Forgotten),
        (Class::Ordinary, 2, 10, Outcome::Intended(b"begun".to_vec())),
    ];
    assert_eq!(slots, expected);
}

/// What is noted while nothing can be written is noted once: the file that is begun anew has it.
#[test]
fn what_is_noted_meanwhile_is_written_down_again() {
    let restarted = |note: &dyn Fn(&Journal)| {
        let folder = tempfile::tempdir().unwrap();
        let open = || Folder::open(folder.path(), HERE, 1).unwrap();
        let server = open();
        let journal = server.create(&head(&server)).unwrap();
        fill(&journal, &server);
        journal.intend(&Header::new(aqueduct_wire::Kind::Request), b"lost", true);
        assert!(journal.is_lost());
        note(&journal);
        journal.begin_anew(&server, &[]).unwrap();
        server.leave();
        journal.close();
        drop(server);
        let (mut left, _) = open().left(10, |_| true).unwrap();
        left.pop().unwrap().head
    };
    let noted = |journal: &Journal| {
        journal.note_leases(Duration::from_secs(5));
        journal.note_writes();
    };
    let head = restarted(&noted);
    assert!(head.may_flush() && head.believes() == Duration::from_secs(5));
    let head = restarted(&|journal| {
        noted(journal);
        journal.note_broken(true);
    });
    assert!(!head.may_flush());
}

/// A request that could not be written in the old file gives up only that.
#[test]
fn a_file_that_is_begun_anew_outlives_the_errors_of_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let server = Folder::open(folder.path(), HERE, 1).unwrap();
    let journal = server.create(&head(&server)).unwrap();
    fill(&journal, &server);
    let before = lock(&journal.kept).clone().unwrap();
    journal.note_writes();
    journal.begin_anew(&server, &[]).unwrap();
    journal.give_up(&before, &io::ErrorKind::StorageFull.into(), &lock(&journal.changing));
    assert!(journal.survives() && !journal.is_lost());
}

/// What a disk is too full for goes where the session's file was.
#[test]
fn what_could_not_be_noted_is_noted_when_a_file_has_gone() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Folder::open(folder.path(), HERE, 1).unwrap();
    let server = open();
    let journal = server.create(&head(&server)).unwrap();
    let in_the_way = server.lapses.path.with_extension("new");
    fs::create_dir(&in_the_way).unwrap();
    server.note_lapse(now() + Duration::from_secs(5), now());
    server.keeper.run(|| Ok(())).unwrap();
    assert!(server.lapses.is_behind.load(Ordering::Relaxed));
    fs::remove_dir(in_the_way).unwrap();
    journal.remove();
    server.keeper.run(|| Ok(())).unwrap();
    assert!(!server.lapses.is_behind.load(Ordering::Relaxed));
    assert!(open().lapsed_at(now()).saturating_sub(now()) > Duration::from_secs(4));
}
