//! What a copy has done, in SQLite: from it the manifest is written in order, and a copy that was
//! interrupted goes on.
//!
//! One thread has the database. Rows are committed in groups; what a row says is checked before it
//! is believed, so that one that is lost, or is not true any more, costs work and nothing else.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use aqueduct_worker::lock;
use rusqlite::{Connection, OptionalExtension, params};

use crate::side::Seen;

/// The layout of the tables. Journals of another are not gone on with.
const SCHEMA: i64 = 2;

/// Rows that wait for the database: some MiB.
const WAITING_MAX: usize = 4096;

/// So many are taken at once, rather than wait for more: a thread that is woken for each row costs
/// more than the row.
const TAKEN: usize = 1024;

/// Rows are committed at least so often.
const COMMIT_EVERY: Duration = Duration::from_millis(200);

/// One that is done: a line of the manifest, and what was seen of both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The path below the root, a directory's with a slash at its end: the order of the manifest.
    pub key: Vec<u8>,
    /// Equal for names of one inode of the source, as it was copied.
    pub group: Option<Vec<u8>>,
    /// As the manifest says it, but for links.
    pub line: String,
    /// The source, before and after.
    pub source: Vec<u8>,
    /// The destination, afterwards.
    pub target: Vec<u8>,
}

/// A file of several chunks that is not whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Its temporary name.
    pub name: Vec<u8>,
    /// The source, as it was when it was begun.
    pub source: Vec<u8>,
    /// Its chunks that were written.
    pub chunks: Vec<Chunk>,
}

/// A chunk that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its place among the chunks.
    pub index: u64,
    /// Its xxh3, by which it is known again.
    pub sum: u64,
    /// What it comes to in the tree of hashes, if that was wanted.
    pub value: Option<[u8; 32]>,
}

/// A path, and the temporary name of what was begun for it.
pub type Unfinished = (Vec<u8>, Vec<u8>);

enum Row {
    Done(Entry),
    Kept(Vec<u8>),
    Begun { key: Vec<u8>, name: Vec<u8>, source: Vec<u8> },
    Written { key: Vec<u8>, chunk: Chunk },
}

/// Rows that wait for the thread that has the database.
#[derive(Default)]
struct Rows {
    waiting: Mutex<Waiting>,
    /// There are some, or enough, or no more come.
    more: Condvar,
    /// There is room again.
    room: Condvar,
}

#[derive(Default)]
struct Waiting {
    rows: Vec<Row>,
    /// No more come.
    is_closed: bool,
    /// Nobody takes them.
    is_over: bool,
}

impl Rows {
    /// Adds one, when there is room. What nobody takes is dropped: a writer that failed says so at
    /// the end.
    fn send(&self, row: Row) {
        let is_full = |waiting: &mut Waiting| waiting.rows.len() >= WAITING_MAX && !waiting.is_over;
        let waiting = self.room.wait_while(lock(&self.waiting), is_full);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        if waiting.is_over {
            return;
        }
        waiting.rows.push(row);
        if [1, TAKEN].contains(&waiting.rows.len()) {
            self.more.notify_one();
        }
    }

    /// Takes what has come since the first of them came, for a while; `None`: no more come.
    fn take(&self) -> Option<Vec<Row>> {
        let is_empty = |waiting: &mut Waiting| waiting.rows.is_empty() && !waiting.is_closed;
        let waiting = self.more.wait_while(lock(&self.waiting), is_empty).unwrap_or_else(PoisonError::into_inner);
        let is_few = |waiting: &mut Waiting| waiting.rows.len() < TAKEN && !waiting.is_closed;
        let waited = self.more.wait_timeout_while(waiting, COMMIT_EVERY, is_few);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        self.room.notify_all();
        let rows = std::mem::take(&mut waiting.rows);
        (!rows.is_empty()).then_some(rows)
    }

    /// No more come.
    fn close(&self) {
        lock(&self.waiting).is_closed = true;
        self.more.notify_one();
    }
}

/// Whoever takes rows has this: when it is gone, also by a panic, nobody waits for room any more.
struct Taker(Arc<Rows>);

impl Drop for Taker {
    fn drop(&mut self) {
        lock(&self.0.waiting).is_over = true;
        self.0.room.notify_all();
    }
}

/// Why the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite refuses.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The folder cannot be made.
    #[error("{0}")]
    Folder(#[from] std::io::Error),
    /// It was written with other options.
    #[error("the run that was interrupted was another: it had {0}")]
    Other(String),
    /// Another process has it.
    #[error("another run of this copy has it")]
    Busy,
}

/// Is given the key and the line of an entry; with it, for names of an inode with several, the key
/// of the first and, of the first alone, the lines of all.
pub type Each<'a> = &'a mut dyn FnMut(&[u8], &str, Option<(&[u8], &[String])>) -> std::io::Result<()>;

/// The database of a copy.
pub struct Store {
    rows: Arc<Rows>,
    writer: Option<JoinHandle<Result<(), rusqlite::Error>>>,
    /// For looking: rows of an earlier run.
    reader: Option<Mutex<Connection>>,
    path: PathBuf,
    /// Held as long as the database is in use: two runs of one copy would write one file.
    _lock: Option<std::fs::File>,
    /// It is a journal that outlives this process, and not only a place to sort.
    pub is_journal: bool,
    /// What earlier runs had begun and not done: another name of its inode may be done instead.
    pub earlier: Vec<Unfinished>,
    /// An earlier run may have left something under temporary names.
    pub has_earlier: bool,
    /// A number that all runs of this copy have, and no other copy.
    pub name: u64,
    run: i64,
}

/// What an inode was, for comparing.
pub fn fingerprint(seen: &Seen) -> Vec<u8> {
    let attr = &seen.attr;
    let mut bytes = Vec::with_capacity(64);
    for time in [attr.mtime, attr.ctime] {
        bytes.extend_from_slice(&time.seconds.to_le_bytes());
        bytes.extend_from_slice(&time.nanos.to_le_bytes());
    }
    bytes.extend_from_slice(&attr.size.to_le_bytes());
    bytes.extend_from_slice(&attr.mode.to_le_bytes());
    bytes.extend_from_slice(&seen.identity());
    bytes
}

fn open(path: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(1))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(connection)
}

/// A number that no other run has.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without random numbers the clock has to do.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    if getrandom::fill(&mut bytes).is_err() { now as u64 } else { u64::from_le_bytes(bytes) }
}

/// Makes the tables anew, of a copy with this name.
fn create(connection: &Connection, signature: &str, name: i64) -> Result<(), rusqlite::Error> {
    connection.execute_batch(
        "BEGIN; DROP TABLE IF EXISTS job; DROP TABLE IF EXISTS entry; DROP TABLE IF EXISTS part; DROP TABLE IF EXISTS chunk;
        CREATE TABLE job (schema INTEGER NOT NULL, signature TEXT NOT NULL, name INTEGER NOT NULL, run INTEGER NOT NULL);
        CREATE TABLE entry (key BLOB PRIMARY KEY, grp BLOB, line TEXT NOT NULL, source BLOB NOT NULL, target BLOB NOT NULL, run INTEGER NOT NULL) WITHOUT ROWID;
        CREATE TABLE part (key BLOB PRIMARY KEY, name BLOB NOT NULL UNIQUE, source BLOB NOT NULL) WITHOUT ROWID;
        CREATE TABLE chunk (key BLOB, place INTEGER, sum INTEGER NOT NULL, value BLOB, PRIMARY KEY (key, place)) WITHOUT ROWID;
        COMMIT;",
    )?;
    connection.execute("INSERT INTO job VALUES (?1, ?2, ?3, 0)", params![SCHEMA, signature, name])?;
    Ok(())
}

fn unfinished(connection: &Connection) -> Result<Vec<Unfinished>, rusqlite::Error> {
    let mut statement = connection.prepare("SELECT key, name FROM part")?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// The options of the run that a journal is of, and the name; `None`: it is none, or of another
/// layout.
fn known_run(connection: &Connection) -> Option<(String, i64)> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let found = connection.query_row("SELECT schema, signature, name FROM job", [], read);
    found.ok().filter(|(schema, ..): &(i64, _, _)| *schema == SCHEMA).map(|(_, signature, name)| (signature, name))
}

impl Store {
    /// A place to sort, which goes with this process.
    pub fn temporary(folder: &Path) -> Result<Store, StoreError> {
        let path = folder.join(format!("aqueduct-manifest-{:016x}.sqlite", random()));
        let connection = open(&path)?;
        create(&connection, "", random() as i64)?;
        connection.pragma_update(None, "synchronous", "OFF")?;
        Store::start(connection, path)
    }

    /// The signature of a run that has left a journal.
    pub fn signature_of(folder: &Path, name: &str) -> Option<String> {
        let path = folder.join(format!("{name}.sqlite"));
        let connection = path.exists().then(|| open(&path))?.ok()?;
        known_run(&connection).map(|(signature, _)| signature)
    }

    /// The journal of a copy. With `resume` it goes on with what is there, if its signature is
    /// the same; else it begins anew, under the name of the run before, whose temporary files are
    /// then known. Says whether it goes on.
    pub fn journal(folder: &Path, name: &str, signature: &str, resume: bool) -> Result<(Store, bool), StoreError> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("{name}.sqlite"));
        let connection = open(&path)?;
        let lock = std::fs::File::open(&path)?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|_| StoreError::Busy)?;
        let known = known_run(&connection);
        let has_earlier = known.is_some();
        let earlier = if has_earlier { unfinished(&connection)? } else { Vec::new() };
        match known {
            Some((known, _)) if resume && known != signature => return Err(StoreError::Other(known)),
            Some(_) if resume => {}
            known => create(&connection, signature, known.map_or_else(|| random() as i64, |(_, name)| name))?,
        }
        let reader = open(&path)?;
        let mut store = Store::start(connection, path)?;
        (store.earlier, store.has_earlier) = (earlier, has_earlier);
        (store.reader, store._lock, store.is_journal) = (Some(Mutex::new(reader)), Some(lock), true);
        Ok((store, resume && has_earlier))
    }

    /// Removes the journals of copies that have not ended but for the `most` that were used last.
    /// Those in use stay, and `kept`, which will be. Says how many went.
    pub fn prune(folder: &Path, kept: &str, most: usize) -> std::io::Result<usize> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|kind| kind == "sqlite") && path.file_stem() != Some(kept.as_ref()) {
                found.push((path.metadata()?.modified()?, path));
            }
        }
        found.sort();
        let mut gone = 0;
        for (_, path) in found.iter().take((found.len() + 1).saturating_sub(most)) {
            let lock = std::fs::File::open(path)?;
            if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
                remove(path);
                gone += 1;
            }
        }
        Ok(gone)
    }

    fn start(connection: Connection, path: PathBuf) -> Result<Store, StoreError> {
        connection.execute("UPDATE job SET run = run + 1", [])?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let (name, run): (i64, i64) = connection.query_row("SELECT name, run FROM job", [], read)?;
        let rows = Arc::new(Rows::default());
        let taker = Taker(rows.clone());
        let writer = Some(std::thread::spawn(move || write(&connection, run, &taker.0)));
        let name = name as u64;
        Ok(Store {
            rows,
            writer,
            reader: None,
            path,
            _lock: None,
            is_journal: false,
            earlier: Vec::new(),
            has_earlier: false,
            name,
            run,
        })
    }

    /// An entry is done.
    pub fn done(&self, entry: Entry) {
        self.rows.send(Row::Done(entry));
    }

    /// What an earlier run said of an entry still holds.
    pub fn kept(&self, key: &[u8]) {
        self.rows.send(Row::Kept(key.to_vec()));
    }

    /// A file of several chunks is begun under a temporary name. Nothing of another attempt
    /// counts.
    pub fn begun(&self, key: &[u8], name: &[u8], source: &Seen) {
        self.rows.send(Row::Begun { key: key.to_vec(), name: name.to_vec(), source: fingerprint(source) });
    }

    /// A chunk of it was written.
    pub fn written(&self, key: &[u8], chunk: Chunk) {
        self.rows.send(Row::Written { key: key.to_vec(), chunk });
    }

    fn look<T>(&self, read: impl FnOnce(&Connection) -> Result<Option<T>, rusqlite::Error>) -> Option<T> {
        let reader = lock(self.reader.as_ref()?);
        read(&reader).unwrap_or_else(|error| {
            tracing::warn!("a row of the journal cannot be read, and is not believed: {error}");
            None
        })
    }

    /// What an earlier run said of an entry.
    pub fn entry(&self, key: &[u8]) -> Option<Entry> {
        self.look(|reader| {
            let mut statement = reader.prepare_cached("SELECT grp, line, source, target FROM entry WHERE key = ?1")?;
            let read = |row: &rusqlite::Row<'_>| {
                let (group, line) = (row.get(0)?, row.get(1)?);
                Ok(Entry { key: key.to_vec(), group, line, source: row.get(2)?, target: row.get(3)? })
            };
            statement.query_row([key], read).optional()
        })
    }

    /// What an earlier run had of a file that was not whole.
    pub fn part(&self, key: &[u8]) -> Option<Part> {
        self.look(|reader| {
            let part = "SELECT name, source FROM part WHERE key = ?1";
            let read =
                |row: &rusqlite::Row<'_>| Ok(Part { name: row.get(0)?, source: row.get(1)?, chunks: Vec::new() });
            let Some(mut part) = reader.query_row(part, [key], read).optional()? else { return Ok(None) };
            let mut chunks = reader.prepare_cached("SELECT place, sum, value FROM chunk WHERE key = ?1")?;
            let read = |row: &rusqlite::Row<'_>| {
                let (index, sum): (i64, i64) = (row.get(0)?, row.get(1)?);
                Ok(Chunk { index: index as u64, sum: sum as u64, value: row.get(2)? })
            };
            part.chunks = chunks.query_map([key], read)?.collect::<Result<_, _>>()?;
            Ok(Some(part))
        })
    }

    /// Whether an earlier run began a file in this directory under this temporary name.
    pub fn knows_part(&self, directory: &[u8], name: &[u8]) -> bool {
        let keys: Option<Vec<Vec<u8>>> = self.look(|reader| {
            let mut statement = reader.prepare_cached("SELECT key FROM part WHERE name = ?1")?;
            statement.query_map([name], |row| row.get(0))?.collect::<Result<_, _>>().map(Some)
        });
        let parent = |key: &[u8]| key.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at);
        keys.unwrap_or_default().iter().any(|key| key[..parent(key)] == *directory)
    }

    /// Ends the writing, and gives each entry of this run in order to `each`.
    pub fn finish(&mut self, each: Each<'_>) -> Result<(), StoreError> {
        self.close()?;
        let connection = open(&self.path)?;
        connection.execute_batch("CREATE INDEX IF NOT EXISTS groups ON entry (grp, key) WHERE grp IS NOT NULL")?;
        let mut first_of =
            connection.prepare("SELECT key FROM entry WHERE grp = ?1 AND run = ?2 ORDER BY key LIMIT 1")?;
        let mut lines_of = connection.prepare("SELECT line FROM entry WHERE grp = ?1 AND run = ?2 ORDER BY key")?;
        let mut statement = connection.prepare("SELECT key, line, grp FROM entry WHERE run = ?1 ORDER BY key")?;
        let mut rows = statement.query([self.run])?;
        while let Some(row) = rows.next()? {
            let (key, line, of): (Vec<u8>, String, Option<Vec<u8>>) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let Some(of) = of else {
                each(&key, &line, None)?;
                continue;
            };
            let first: Vec<u8> = first_of.query_row(params![of, self.run], |row| row.get(0))?;
            // Once for each inode: a file of n names would take n^2 lines else.
            let lines: Vec<String> = match first == key {
                true => lines_of.query_map(params![of, self.run], |row| row.get(0))?.collect::<Result<_, _>>()?,
                false => Vec::new(),
            };
            each(&key, &line, Some((&first, &lines)))?;
        }
        Ok(())
    }

    /// Ends the writing.
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.rows.close();
        match self.writer.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }

    /// Removes the database: all is done, or it was a place to sort.
    pub fn remove(mut self) {
        let _ = self.close();
        self.reader = None;
        remove(&self.path);
    }
}

/// Removes a database.
fn remove(path: &Path) {
    for ending in ["", "-wal", "-shm"] {
        let mut path = path.to_owned().into_os_string();
        path.push(ending);
        let _ = std::fs::remove_file(path);
    }
}

/// Writes rows until nobody sends any more.
fn write(connection: &Connection, run: i64, rows: &Rows) -> Result<(), rusqlite::Error> {
    let mut parts: HashSet<Vec<u8>> = unfinished(connection)?.into_iter().map(|(key, _)| key).collect();
    while let Some(taken) = rows.take() {
        let transaction = connection.unchecked_transaction()?;
        for row in taken {
            put(&transaction, run, row, &mut parts)?;
        }
        transaction.commit()?;
    }
    Ok(())
}

/// `parts`: of what there are rows of parts and chunks.
fn put(connection: &Connection, run: i64, row: Row, parts: &mut HashSet<Vec<u8>>) -> Result<(), rusqlite::Error> {
    match row {
        Row::Done(Entry { key, group, line, source, target }) => {
            let mut insert =
                connection.prepare_cached("INSERT OR REPLACE INTO entry VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
            insert.execute(params![key, group, line, source, target, run])?;
            if parts.remove(&key) {
                connection.prepare_cached("DELETE FROM part WHERE key = ?1")?.execute([&key])?;
                connection.prepare_cached("DELETE FROM chunk WHERE key = ?1")?.execute([&key])?;
            }
        }
        Row::Kept(key) => {
            connection.prepare_cached("UPDATE entry SET run = ?2 WHERE key = ?1")?.execute(params![key, run])?;
        }
        Row::Begun { key, name, source } => {
            connection.prepare_cached("DELETE FROM entry WHERE key = ?1")?.execute([&key])?;
            connection.prepare_cached("DELETE FROM chunk WHERE key = ?1")?.execute([&key])?;
            let mut insert = connection.prepare_cached("INSERT OR REPLACE INTO part VALUES (?1, ?2, ?3)")?;
            insert.execute(params![key, name, source])?;
            parts.insert(key);
        }
        Row::Written { key, chunk } => {
            let mut insert = connection.prepare_cached("INSERT OR REPLACE INTO chunk VALUES (?1, ?2, ?3, ?4)")?;
            insert.execute(params![key, chunk.index as i64, chunk.sum as i64, chunk.value])?;
        }
    }
    Ok(())
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.close();
        if !self.is_journal {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, group: Option<&str>) -> Entry {
        let bytes = |text: &str| text.as_bytes().to_vec();
        Entry { key: bytes(key), group: group.map(bytes), line: format!("<{key}>"), ..Entry::default() }
    }

    #[test]
    fn entries_come_in_order_with_the_first_of_their_group() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::temporary(folder.path()).unwrap();
        for (key, group) in [("b", Some("g")), ("a/", None), ("a/x", Some("g")), ("a-b", None)] {
            store.done(entry(key, group));
        }
        let mut seen = Vec::new();
        store
            .finish(&mut |key, line, first| {
                let first = first.map(|(first, lines)| (first.to_vec(), lines.len()));
                seen.push((String::from_utf8_lossy(key).into_owned(), line.to_owned(), first));
                Ok(())
            })
            .unwrap();
        let keys: Vec<_> = seen.iter().map(|(key, ..)| key.as_str()).collect();
        assert_eq!(keys, ["a-b", "a/", "a/x", "b"]);
        let [first, further] = [2, 0].map(|lines| Some((b"a/x".to_vec(), lines)));
        assert_eq!((&seen[1].2, &seen[2].2, &seen[3].2), (&None, &first, &further));
        store.remove();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_journal_is_gone_on_with_only_by_the_same_copy() {
        let folder = tempfile::tempdir().unwrap();
        let journal = |name: &str, signature: &str| Store::journal(folder.path(), name, signature, true);
        let (mut store, goes_on) = journal("j", "one").unwrap();
        assert!(!goes_on);
        let chunk = Chunk { index: 3, sum: u64::MAX, value: Some([7; 32]) };
        store.begun(b"f", b"part", &Seen { attr: Default::default(), device: 1, handle: None });
        store.written(b"f", chunk);
        store.done(entry("g", None));
        store.close().unwrap();
        assert!(matches!(journal("j", "one"), Err(StoreError::Busy)));
        drop(store);
        assert!(matches!(journal("j", "two"), Err(StoreError::Other(other)) if other == "one"));
        let (store, goes_on) = journal("j", "one").unwrap();
        assert!(goes_on);
        assert_eq!(store.part(b"f").unwrap().chunks, [chunk]);
        assert_eq!((store.entry(b"g").unwrap().line, store.entry(b"f")), ("<g>".to_owned(), None));
        assert!(store.knows_part(b"", b"part") && !store.knows_part(b"d", b"part") && !store.knows_part(b"", b"f"));
    }

    #[test]
    fn rows_are_there_in_their_order_however_many_threads_send_them() {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::journal(folder.path(), "j", "one", false).unwrap();
        let seen = Seen { attr: Default::default(), device: 1, handle: None };
        let chunk = Chunk { index: 0, sum: 1, value: None };
        // More than may wait: who sends waits then.
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (store, seen) = (&store, &seen);
                scope.spawn(move || {
                    for number in 0..2 * WAITING_MAX {
                        let key = format!("{thread}/{number}");
                        if number % 1000 < 2 {
                            store.begun(key.as_bytes(), format!("part{key}").as_bytes(), seen);
                            store.written(key.as_bytes(), chunk);
                        }
                        if number % 1000 != 1 {
                            store.done(entry(&key, None));
                        }
                    }
                });
            }
        });
        store.close().unwrap();
        let count = |table: &str| -> i64 {
            let select = format!("SELECT count(*) FROM {table}");
            open(&store.path).unwrap().query_row(&select, [], |row| row.get(0)).unwrap()
        };
        // What is done is no part any more; what was begun and not done is.
        let begun = 4 * (2 * WAITING_MAX).div_ceil(1000) as i64;
        assert_eq!((count("entry"), count("part"), count("chunk")), (8 * WAITING_MAX as i64 - begun, begun, begun));
    }

    #[test]
    fn journals_that_were_not_used_for_longest_go() {
        let folder = tempfile::tempdir().unwrap();
        let journal = |name: &str| Store::journal(folder.path(), name, "one", true).unwrap().0;
        let is_there = |name: &str| folder.path().join(format!("{name}.sqlite")).exists();
        let age = |name: &str, seconds| {
            let file = std::fs::File::open(folder.path().join(format!("{name}.sqlite"))).unwrap();
            file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(seconds)).unwrap();
        };
        for name in ["a", "b", "c", "d", "used"] {
            drop(journal(name));
        }
        let _used = journal("used");
        for (name, seconds) in [("a", 40), ("used", 50), ("b", 30), ("c", 20), ("d", 10)] {
            age(name, seconds);
        }
        // With room for the one to come: 'a' itself goes on.
        assert_eq!(Store::prune(folder.path(), "a", 9).unwrap(), 0);
        assert_eq!(Store::prune(folder.path(), "a", 3).unwrap(), 1);
        assert_eq!(["a", "b", "c", "d", "used"].map(is_there), [true, false, true, true, true]);
        assert_eq!(
            std::fs::read_dir(folder.path())
                .unwrap()
                .flatten()
                .filter(|entry| { entry.file_name().as_encoded_bytes().starts_with(b"b.") })
                .count(),
            0
        );
    }

    #[test]
    fn nobody_waits_for_a_writer_that_failed() {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::journal(folder.path(), "j", "one", false).unwrap();
        open(&store.path).unwrap().execute_batch("DROP TABLE entry").unwrap();
        (0..3 * WAITING_MAX).for_each(|number| store.done(entry(&number.to_string(), None)));
        assert!(matches!(store.close(), Err(StoreError::Sqlite(_))));
    }
}
