//! What a mount counts of what the kernel asks.

use aqueduct_metrics::{Snapshot, table};

use super::*;

fn of(snapshot: &Snapshot, name: &str, label: &str, value: &str) -> u64 {
    let samples = snapshot.samples(name).iter();
    samples.filter(|sample| sample.label(label) == value).map(|sample| sample.number()).sum()
}

#[test]
fn requests_are_counted_by_opcode_and_way() {
    let fixture = fixture();
    let file = fixture.kernel.lookup("file").unwrap();
    assert_eq!(fixture.kernel.lookup("absent"), Err(libc::ENOENT));
    let open = fixture.kernel.open(file.nodeid, libc::O_RDWR);
    let read = ReadIn { fh: open.fh, offset: 0, size: 4096, ..ReadIn::default() };
    let data = fixture.kernel.ask(opcode::READ, file.nodeid, &read.to_vec()).unwrap();
    let mut write = WriteIn { fh: open.fh, offset: 0, size: 3, ..WriteIn::default() }.to_vec();
    write.extend_from_slice(b"new");
    fixture.kernel.ask(opcode::WRITE, file.nodeid, &write).unwrap();
    fixture.session.notify_epoch().unwrap();
    let told = fixture.kernel.message(Duration::from_secs(10)).unwrap();
    assert_eq!(told.0.error, notify::INC_EPOCH);
    fixture.kernel.send(opcode::FORGET, file.nodeid, &ForgetIn { nlookup: 1 }.to_vec());
    fixture.kernel.lookup("file").unwrap();

    let end = std::time::Instant::now() + Duration::from_secs(5);
    let snapshot = loop {
        // What a request took is counted behind its answer, and a forget has none.
        let snapshot = Snapshot::of(&fixture.session);
        let seconds = table::FUSE_REQUEST_SECONDS.definition.name;
        let counts = ["LOOKUP", "OPEN", "READ", "WRITE"].map(|opcode| of(&snapshot, seconds, "opcode", opcode));
        if counts == [3, 1, 1, 1] && snapshot.number(&table::FUSE_FORGOTTEN) == 1 {
            break snapshot;
        }
        assert!(std::time::Instant::now() < end, "{counts:?}");
    };
    assert_eq!(of(&snapshot, table::FUSE_ERRORS.definition.name, "opcode", "LOOKUP"), 1);
    assert_eq!(of(&snapshot, table::FUSE_UPCALLS.definition.name, "transport", "/dev/fuse"), 6);
    assert_eq!(of(&snapshot, table::FUSE_NOTIFICATIONS.definition.name, "notification", "epoch"), 1);
    assert_eq!(snapshot.number(&table::FUSE_BYTES_READ), data.len() as u64);
    assert_eq!(snapshot.number(&table::FUSE_BYTES_WRITTEN), 3);
    assert_eq!(snapshot.number(&table::FUSE_INODES), 1);
}
