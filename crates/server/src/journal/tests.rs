//! A session that cannot be written down for a while.

use super::*;
use crate::origin::StoredPeer;

const HERE: ServerId = ServerId([1; 16]);

/// Its file is gone, and what its client was granted is not.
#[test]
fn who_cannot_be_written_down_any_more_is_waited_for_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Folder::open(folder.path(), HERE, 1).unwrap();
    let waits = |asks: bool, writes: &dyn Fn(&Journal)| {
        let server = open();
        let head = Head {
            format: FORMAT,
            boot: server.boot.clone(),
            server: HERE.to_string(),
            session: 7,
            secret: [0; 16],
            client: "client".into(),
            origin: StoredOrigin {
                node: None,
                peer: StoredPeer::Network(([127, 0, 0, 1], 1).into()),
                is_member: false,
            },
            export: "/e".into(),
            slots: 1,
            durable: false,
            verifier: 1,
            believes: 0,
            writes: false,
            broken: false,
        };
        let journal = server.create(&head).unwrap();
        if asks {
            journal.note_leases(Duration::from_secs(5));
        }
        let kept = lock(&journal.kept).take().and_then(Arc::into_inner).unwrap();
        let (path, counters) = (kept.stored.path.clone(), kept.counters.clone());
        let file = File::open(&path).unwrap(); // nothing can be written there
        *lock(&journal.kept) = Some(Arc::new(Kept { stored: server.opened.store(path, file), ..kept }));
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
