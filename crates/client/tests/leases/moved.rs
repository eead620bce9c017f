//! Two servers before one directory: one has the names, and another moves bytes under its leases.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_client::{ClientConfig, MoverConfig, SessionConfig, Spread};
use aqueduct_fs::*;

use crate::common::*;
use crate::endings::Between;
use crate::fixture::*;

/// What surely has not happened after this time does not happen by itself.
const MOMENT: Duration = Duration::from_millis(300);

/// The server of data stands behind something that can hold up what travels.
struct Moved {
    names: Process,
    data: Process,
    between: Between,
    reader: Arc<Mount>,
    open: OpenId,
    /// A client of the server of the names alone.
    writer: Mount,
    at_writer: OpenId,
}

impl Moved {
    fn new() -> Moved {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let [names, data] = [(); 2].map(|()| Process::of(directory.clone(), limits(), Configured::default()));
        std::fs::write(names.path("file"), "first").unwrap();
        let between = Between::new(data.server.addresses()[0]);
        let patient =
            |server| in_session(client_config(server, "/e"), |session| SessionConfig { suspect: LONG, ..session });
        let keeping = || ClientConfig { leases: true, ..patient(names.server.addresses()[0]) };
        let movers = MoverConfig {
            map: 0,
            spread: Spread::new(["data"]),
            is_constant: false,
            has_objects: false,
            straight_from: 128 << 10,
            sessions: vec![(0, Some(patient(between.address).session))],
        };
        let reader = Arc::new(Mount::moved(keeping(), movers));
        let writer = Mount::with(keeping());
        let file = reader.look_up("file").unwrap().handle;
        let open = reader.open(&file, READ).unwrap();
        let at_writer = writer.open(&file, READ_WRITE).unwrap();
        let moved = Moved { names, data, between, reader, open, writer, at_writer };
        // The first one always comes from the server of the names.
        assert_eq!(moved.reader.read(open), Ok("first".into()));
        until("the server of data is asked", || {
            moved.reader.stat(&file);
            assert_eq!(moved.reader.read(open), Ok("first".into()));
            moved.reads() > 0
        });
        moved
    }

    /// What the server of data has executed.
    fn reads(&self) -> u64 {
        executed(&self.data, "Read")
    }

    fn file(&self) -> Handle {
        self.reader.look_up("file").unwrap().handle
    }
}

fn executed(process: &Process, operation: &str) -> u64 {
    let snapshot = aqueduct_metrics::Snapshot::of(&*process.server);
    let name = aqueduct_metrics::table::SERVER_OPERATION_SECONDS.definition.name;
    let samples = snapshot.samples(name).iter().filter(|sample| sample.label("operation") == operation);
    samples.map(|sample| sample.number()).sum()
}

/// What the other holds back is nowhere but there: only the server of the names knows to ask.
#[test]
fn without_a_lease_the_server_of_data_is_not_asked() {
    let moved = Moved::new();
    // It has the lease recalled from who reads, and comes to be alone with the file.
    moved.writer.write(moved.at_writer, b"second").unwrap();
    until("writes are held back", || {
        let (asked, written) = moved.writer.round_trips(|| moved.writer.write(moved.at_writer, b"third!"));
        assert_eq!(written.unwrap().count, 6);
        asked == 0
    });
    let before = moved.reads();
    assert_eq!(moved.reader.read(moved.open), Ok("third!".into()));
    assert_eq!(moved.reads(), before);
    moved.writer.release(moved.at_writer);
}

#[test]
fn who_changes_a_file_waits_until_what_is_read_elsewhere_is_answered() {
    let moved = Moved::new();
    moved.reader.stat(&moved.file());
    moved.between.stop(true);
    let (reader, open) = (moved.reader.clone(), moved.open);
    let read = std::thread::spawn(move || reader.read(open));
    std::thread::sleep(MOMENT);
    let Moved { writer, at_writer, .. } = &moved;
    std::thread::scope(|scope| {
        let write = scope.spawn(|| writer.write(*at_writer, b"second"));
        std::thread::sleep(MOMENT);
        assert!(!read.is_finished() && !write.is_finished());
        assert_eq!(std::fs::read_to_string(moved.names.path("file")).unwrap(), "first");
        moved.between.stop(false);
        assert_eq!(read.join().unwrap(), Ok("first".into()));
        write.join().unwrap().unwrap();
    });
    assert_eq!(moved.reader.read(moved.open), Ok("second".into()));
}

/// Whoever reads is answered, and what is open stays so at both servers.
#[test]
fn a_server_of_data_that_dies_or_says_nothing_is_done_without() {
    let mut moved = Moved::new();
    let file = moved.file();
    moved.between.stop(true);
    moved.reader.stat(&file);
    assert_eq!(moved.reader.read(moved.open), Ok("first".into()), "it says nothing");
    moved.between.stop(false);
    moved.data.kill();
    moved.reader.stat(&file);
    assert_eq!(moved.reader.read(moved.open), Ok("first".into()), "it is dead");
    moved.data.start();
    until("it is asked again", || {
        moved.reader.stat(&file);
        assert_eq!(moved.reader.read(moved.open), Ok("first".into()));
        moved.reads() > 0
    });
    moved.reader.release(moved.open);
    until("it is closed there, too", || executed(&moved.data, "Release") > 0);
}
