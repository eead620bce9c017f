//! What a server counts of what it does.

mod common;

use std::io::Read;
use std::time::{Duration, Instant};

use aqueduct_fs::*;
use aqueduct_metrics::{Snapshot, table};
use aqueduct_wire::*;
use common::*;

/// Counted behind the reply, so perhaps a moment after it is here.
#[track_caller]
fn expect(fixture: &Fixture, what: &str, is_so: impl Fn(&Snapshot) -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let snapshot = Snapshot::of(&*fixture.server);
        if is_so(&snapshot) {
            return;
        }
        assert!(Instant::now() < end, "{what}: {snapshot:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The samples of a metric by the value of its label.
fn of(snapshot: &Snapshot, name: &str, label: &str) -> Vec<(String, u64)> {
    let samples = snapshot.samples(name).iter();
    samples.map(|sample| (sample.label(label).to_owned(), sample.number())).collect()
}

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

#[test]
fn requests_are_counted_by_operation_export_and_client() {
    let fixture = Fixture::surviving();
    let (mut peer, _, root) = fixture.attached();
    let (_, open) = peer.create((0, 1), &root, "f", READ_WRITE).unwrap();
    let write = WriteAt { open: open.id, offset: 0, append: false, stable: false };
    assert_eq!(peer.write((0, 2), &write, &[7; 5000]).unwrap().count, 5000);
    let mut body = Vec::new();
    encode_read(&context(), &ReadAt { open: open.id, offset: 0, length: 4000 }, &mut body);
    let (read, _) = peer.call(Op::Read, (0, 0), &body);
    assert_eq!((read.status, read.payload_length), (0, 4000));
    if read.flags.contains(Flags::TRAILER) {
        peer.stream.read_exact(&mut [0; TRAILER_SIZE]).unwrap();
    }
    let absent = Request::Lookup { parent: root.bytes(), name: b"absent" };
    assert_eq!(peer.ask((0, 0), &absent), Err(Errno::ENOENT));
    // A repeat is answered from memory, and is no further request.
    let make = make_directory(&root, "d");
    peer.ask((0, 3), &make).unwrap();
    peer.ask((0, 3), &make).unwrap();

    let operations = [("Attach", 1), ("Read", 1), ("Write", 1), ("Lookup", 1), ("MakeDirectory", 1), ("Create", 1)];
    let expected: Vec<_> = operations.iter().map(|(op, count)| ((*op).to_owned(), *count)).collect();
    let seconds = table::SERVER_OPERATION_SECONDS.definition.name;
    expect(&fixture, "each operation once", |snapshot| of(snapshot, seconds, "operation") == expected);
    let errors = table::SERVER_ERRORS.definition.name;
    expect(&fixture, "one error", |snapshot| of(snapshot, errors, "operation") == [("Lookup".to_owned(), 1)]);
    expect(&fixture, "one repeat", |snapshot| snapshot.number(&table::SERVER_REPEATED) == 1);
    expect(&fixture, "as many frames sent", |snapshot| snapshot.number(&table::NET_FRAMES_SENT) == 8);
    let snapshot = Snapshot::of(&*fixture.server);
    for (metric, label, value, count) in [
        (&table::EXPORT_OPERATIONS, "export", "/e", 6),
        (&table::EXPORT_BYTES_WRITTEN, "export", "/e", 5000),
        (&table::EXPORT_BYTES_READ, "export", "/e", 4000),
        (&table::CLIENT_OPERATIONS, "client", "peer", 6),
        (&table::CLIENT_BYTES_WRITTEN, "client", "peer", 5000),
    ] {
        let name = metric.definition.name;
        assert_eq!(of(&snapshot, name, label), [(value.to_owned(), count)], "{name}");
    }
    let numbers = [
        snapshot.number(&table::SERVER_SESSIONS),
        snapshot.number(&table::SERVER_SESSIONS_BEGUN),
        snapshot.number(&table::SERVER_CONNECTIONS_ACCEPTED),
        snapshot.number(&table::SERVER_SLOTS),
    ];
    assert_eq!(numbers, [1, 1, 1, 4]);
    // HELLO; and Attach and what else was asked, in which the write has its data.
    let received = |kind: &str| {
        let samples = snapshot.samples(table::NET_FRAMES_RECEIVED.definition.name).iter();
        samples.filter(|sample| sample.label("connection") == kind).map(|sample| sample.number()).sum::<u64>()
    };
    assert_eq!((received("unjoined"), received("control"), received("bulk")), (1, 7, 0));
    assert!(snapshot.number(&table::NET_BYTES_RECEIVED) > 5000 && snapshot.number(&table::NET_BYTES_SENT) > 4000);
    let calls = [&table::NET_RECEIVES, &table::NET_SENDS].map(|metric| snapshot.number(metric));
    assert!(calls.iter().all(|calls| (1..=20).contains(calls)), "{calls:?}");
    // An intent and a reply for what makes a name, a reply for a write.
    assert_eq!(snapshot.number(&table::SERVER_JOURNAL_WRITES), 5);
}

#[test]
fn what_sessions_of_a_client_counted_stays_when_they_have_ended() {
    let fixture = Fixture::new();
    let (mut peer, _, root) = fixture.attached();
    peer.ask((0, 1), &make_directory(&root, "d")).unwrap();
    drop(peer);
    let name = table::CLIENT_OPERATIONS.definition.name;
    expect(&fixture, "it is among the others", |snapshot| {
        of(snapshot, name, "client") == [("other".to_owned(), 1)]
            && snapshot.number(&table::SERVER_SESSIONS) == 0
            && snapshot.number(&table::SERVER_SESSIONS_FORSAKEN) == 1
            && of(snapshot, table::EXPORT_OPERATIONS.definition.name, "export").iter().all(|(_, count)| *count == 1)
    });
}
