//! Whether the servers of a volume have the same directory, as they themselves see it: what the
//! server of the names writes into a file is read through the others, by its handle.
//!
//! The file has no name (O_TMPFILE): it lies in the hidden folder of removed files, if anywhere,
//! and is gone with the session that made it. Where none can be made, files that are there are
//! read through all servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_client::{Brought, Session, SessionConfig};
use aqueduct_fs::{Context, Entry, Errno, MemorySink, OpenFlags, OpenId, ReadAt, Reply, Request, WriteAt};
use aqueduct_net::Initiator;
use aqueduct_wire::{ClientKey, DATA_EXPORT};
use aqueduct_worker::{Group, wait};
use serde::Serialize;

use crate::attach::{AttachConfig, caller};
use crate::failure::Failure;
use crate::volume::VOLUME_EXPORT;
use crate::workers;

/// How long a server may take for each answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The cluster's key, and the routes to networks that have a name.
pub type Reach = (Option<ClientKey>, Option<Arc<Initiator>>);

/// Something that is wrong, for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wrong {
    /// What.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl Wrong {
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Wrong {
        Wrong { what: what.into(), remedy: remedy.into() }
    }
}

/// How long another server may take to see what was changed. One that is coherent needs none.
const LATE_MAX: Duration = Duration::from_secs(2);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Files that are compared where no probe can be made, and how much of each, in bytes.
const FILES_MAX: usize = 4;
const FILE_PART: u32 = 4096;

/// Bytes of a listing in which files are looked for.
const PAGE_SIZE: u32 = 16 << 10;

/// A server that is asked.
pub(crate) struct Asked {
    /// Whose result it is.
    pub(crate) at: usize,
    pub(crate) addresses: String,
    pub(crate) has_names: bool,
}

/// What was found of a server.
#[derive(Default)]
pub(crate) struct Found {
    /// `None`: it could not be seen.
    pub(crate) same: Option<bool>,
    pub(crate) wrong: Option<Wrong>,
}

/// What was found.
pub(crate) struct Compared {
    /// By what it was seen.
    pub(crate) by: String,
    pub(crate) note: Option<String>,
    pub(crate) servers: Vec<(usize, Found)>,
}

/// A server with a session.
struct Reached {
    at: usize,
    session: Arc<Session>,
    root: Entry,
    wrong: Option<Wrong>,
    has_names: bool,
}

/// What does the asking.
struct Prober<'a> {
    groups: &'a [Arc<Group>],
    context: Context,
}

/// A file of the server of the names.
struct Sample {
    handle: Vec<u8>,
    open: OpenId,
    token: Box<[u8]>,
}

/// Compares the directories of servers with that of the names, or of the first.
pub(crate) fn compare(asked: &[Asked], reach: &Reach, is_constant: bool) -> Result<Compared, Failure> {
    // With a thread of its own: sessions are told of a server's goodbye while nobody waits.
    let groups = workers::of_tool(1)
        .map_err(|error| Failure::new("cannot compare the servers", error, "check the limits on open files"))?;
    let prober = Prober { groups: &groups, context: caller() };
    let (mut reached, mut servers) = (Vec::new(), Vec::new());
    for server in asked {
        match prober.reach(server, reach) {
            Ok(server) => reached.push(server),
            Err(wrong) => servers.push((server.at, Found { same: None, wrong: Some(wrong) })),
        }
    }
    let (by, note) = prober.compare(&mut reached, is_constant);
    let is_compared = reached.iter().any(|server| server.has_names) || reached.len() > 1;
    for server in reached {
        server.session.disconnect();
        let same = is_compared.then_some(server.wrong.is_none());
        servers.push((server.at, Found { same, wrong: server.wrong }));
    }
    workers::end(&groups);
    Ok(Compared { by, note, servers })
}

impl Prober<'_> {
    fn reach(&self, server: &Asked, (key, routes): &Reach) -> Result<Reached, Wrong> {
        let export = if server.has_names { VOLUME_EXPORT } else { DATA_EXPORT };
        let config = AttachConfig {
            key: key.clone(),
            routes: routes.clone(),
            patience: Some(PATIENCE),
            replay_window: 0,
            bulk_lanes: false,
            ..AttachConfig::new(&server.addresses, export)
        };
        let config: SessionConfig = config.session();
        let session = Session::connect(config, self.groups, None)
            .map_err(|error| Wrong::new(format!("its directory cannot be had: {error}"), error.hint()))?;
        let root = self.call(&session, Request::Root).and_then(Reply::entry);
        let root = root.map_err(|error| Wrong::new(format!("its directory cannot be had: {error}"), "see its log"))?;
        Ok(Reached { at: server.at, session, root, wrong: None, has_names: server.has_names })
    }

    fn call(&self, session: &Session, request: Request<'_>) -> Result<Reply, Errno> {
        let mut brought = Brought::default();
        wait(&self.groups[0], session.call(&self.context, &request, &mut brought))
    }

    /// By what the directories were compared, and what is worth knowing of it.
    fn compare(&self, reached: &mut [Reached], is_constant: bool) -> (String, Option<String>) {
        let at = reached.iter().position(|server| server.has_names);
        if reached.is_empty() {
            return ("not compared: no server answers".to_owned(), None);
        }
        reached.swap(0, at.unwrap_or(0));
        let (names, others) = reached.split_at_mut(1);
        let names = &names[0];
        others.iter_mut().for_each(|other| other.wrong = differs(&names.root, &other.root));
        if others.is_empty() {
            return ("not compared: one server answers".to_owned(), None);
        }
        if at.is_none() {
            let note = "without the server of the names only the directories themselves were compared";
            return ("compared by their handles".to_owned(), Some(note.to_owned()));
        }
        let made = if is_constant { None } else { Some(self.make(names)) };
        match made {
            Some(Ok((sample, writer))) => match self.probe(names, (&sample, writer), others) {
                Ok(()) => (
                    "compared by their handles, and a hidden file that was written, changed and removed".to_owned(),
                    None,
                ),
                Err(error) => {
                    let note = format!("the probe file could not be written at the server of the names: {error}");
                    ("compared by their handles".to_owned(), Some(note))
                }
            },
            made => {
                let count = self.compare_files(names, others);
                let note = made.and_then(Result::err).map(|error| {
                    format!(
                        "no probe file could be made at the server of the names ({error}): whether changes are seen at once was not tried; run this as root on its machine"
                    )
                });
                (format!("compared by their handles, and {count} of their files"), note)
            }
        }
    }

    /// A file without a name: what it is read by elsewhere, and what it is written by.
    fn make(&self, names: &Reached) -> Result<(Sample, OpenId), Errno> {
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXCLUSIVE;
        // Whoever root is at another server may read it: it holds nothing.
        let request = Request::CreateUnnamed { parent: names.root.handle.bytes(), mode: 0o100_444, umask: 0, flags };
        let (entry, opened) = self.call(&names.session, request)?.created()?;
        match self.open(names, entry.handle.bytes()) {
            Ok(sample) => Ok((sample, opened.id)),
            Err(error) => {
                let _ = self.call(&names.session, Request::Release { open: opened.id });
                Err(error)
            }
        }
    }

    fn open(&self, names: &Reached, handle: &[u8]) -> Result<Sample, Errno> {
        let opened = self.call(&names.session, Request::Open { handle, flags: OpenFlags::READ })?.opened()?;
        Ok(Sample { handle: handle.to_owned(), open: opened.id, token: opened.token })
    }

    /// Writes, changes and removes a file at the server of the names, and looks what the others
    /// see of it. An error: that server refused.
    fn probe(&self, names: &Reached, (sample, writer): (&Sample, OpenId), others: &mut [Reached]) -> Result<(), Errno> {
        let mut result = Ok(());
        for round in 0..2 {
            let mut content = [0; 32];
            let random = getrandom::fill(&mut content).map_err(|_| Errno::EIO);
            result = result.and(random).and_then(|()| self.write(names, writer, content));
            if result.is_err() {
                break;
            }
            for other in others.iter_mut().filter(|other| other.wrong.is_none()) {
                let adopted = if round == 0 { self.adopt(other, sample) } else { Ok(()) };
                other.wrong = match adopted {
                    Ok(()) => self.sees(other, sample, &content),
                    Err(error) => Some(not_found(error)),
                };
            }
        }
        let release = |server: &Reached, open| self.call(&server.session, Request::Release { open }).map(drop);
        for other in others.iter() {
            let _ = release(other, sample.open); // it may never have had it
        }
        let removed = release(names, sample.open).and(release(names, writer));
        result.and(removed)?;
        for other in others.iter_mut().filter(|other| other.wrong.is_none()) {
            other.wrong = self.forgets(other, sample);
        }
        Ok(())
    }

    fn write(&self, names: &Reached, open: OpenId, content: [u8; 32]) -> Result<(), Errno> {
        let write = WriteAt { open, offset: 0, append: false, stable: true };
        let mut brought = Brought::default();
        let data = content.to_vec().into();
        let written = wait(&self.groups[0], names.session.write(&self.context, (write, data), &mut brought))?;
        if written.count as usize == content.len() { Ok(()) } else { Err(Errno::EIO) }
    }

    fn adopt(&self, other: &Reached, sample: &Sample) -> Result<(), Errno> {
        let what = (&sample.handle[..], &sample.token[..], false);
        wait(&self.groups[0], other.session.adopt(&self.context, sample.open, what))
    }

    fn read(&self, server: &Reached, open: OpenId, length: u32) -> Result<Vec<u8>, Errno> {
        let sink = MemorySink::default();
        let read = ReadAt { open, offset: 0, length };
        wait(&self.groups[0], server.session.read(&self.context, read, Box::new(sink.clone())))?;
        Ok(sink.take().unwrap_or_default())
    }

    /// What is wrong if a server does not see at once what another has written.
    fn sees(&self, other: &Reached, sample: &Sample, content: &[u8]) -> Option<Wrong> {
        let mut since = None;
        loop {
            match self.read(other, sample.open, content.len() as u32) {
                Ok(seen) if seen == content => return since.map(|since: Instant| late(since.elapsed())),
                Ok(_) => {}
                Err(error) => return Some(not_found(error)),
            }
            if since.get_or_insert_with(Instant::now).elapsed() > LATE_MAX {
                let what = "what the server of the names writes into a file is not seen there: it has another file by the same handle, or old data";
                return Some(Wrong::new(what, REMEDY_DIRECTORY));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// What is wrong if a server still finds what has been removed.
    fn forgets(&self, other: &Reached, sample: &Sample) -> Option<Wrong> {
        let started = Instant::now();
        while self.adopt(other, sample).is_ok() {
            let _ = self.call(&other.session, Request::Release { open: sample.open });
            if started.elapsed() > LATE_MAX {
                let seconds = LATE_MAX.as_secs();
                let what =
                    format!("a file that the server of the names has removed is still found there after {seconds} s");
                return Some(Wrong::new(what, REMEDY_COHERENT));
            }
            std::thread::sleep(PAUSE);
        }
        None
    }

    /// Reads some files of the directory through all servers. Returns how many.
    fn compare_files(&self, names: &Reached, others: &mut [Reached]) -> usize {
        let mut count = 0;
        for handle in self.files(names).unwrap_or_default() {
            let Ok(sample) = self.open(names, &handle) else { continue };
            let read = || self.read(names, sample.open, FILE_PART);
            for other in others.iter_mut().filter(|other| other.wrong.is_none()) {
                let before = read();
                let seen = self.adopt(other, &sample).and_then(|()| self.read(other, sample.open, FILE_PART));
                let _ = self.call(&other.session, Request::Release { open: sample.open }); // it may not have it
                // Who uses the volume may have changed it meanwhile.
                let is_settled = before.is_ok() && before == read();
                other.wrong = match seen {
                    Err(error) if is_settled => Some(not_found(error)),
                    Ok(seen) if is_settled && Ok(&seen) != before.as_ref() => {
                        let what = "a file has another content there than at the server of the names";
                        Some(Wrong::new(what, REMEDY_DIRECTORY))
                    }
                    _ => None,
                };
            }
            let _ = self.call(&names.session, Request::Release { open: sample.open }); // it ends with the session
            count += 1;
        }
        count
    }

    /// Some regular files of the directory that have content.
    fn files(&self, names: &Reached) -> Result<Vec<Vec<u8>>, Errno> {
        let root = names.root.handle.bytes();
        let open = self.call(&names.session, Request::OpenDirectory { handle: root })?.opened()?.id;
        let request = Request::ReadDirectory { open, cookie: 0, size: PAGE_SIZE, plus: false };
        let page = self.call(&names.session, request)?.directory()?;
        self.call(&names.session, Request::ReleaseDirectory { open })?;
        let found = page.entries().filter(|entry| entry.name != b"." && entry.name != b"..").filter_map(|entry| {
            let request = Request::Lookup { parent: root, name: entry.name };
            self.call(&names.session, request).and_then(Reply::entry).ok()
        });
        let files = found.filter(|entry| entry.attr.is_regular() && entry.attr.size > 0);
        Ok(files.take(FILES_MAX).map(|entry| entry.handle.bytes().to_owned()).collect())
    }
}

const REMEDY_DIRECTORY: &str =
    "mount the shared file system there, correct the server's dir in the volume's file, and start it anew";

const REMEDY_COHERENT: &str = "use a file system that is coherent between hosts, mounted so that nothing old is kept; coherent = true is wrong for this one";

/// What is wrong with a directory that should be the same.
fn differs(names: &Entry, other: &Entry) -> Option<Wrong> {
    if names.handle == other.handle {
        return None;
    }
    if names.attr.ino == other.attr.ino {
        let what = "its directory has another handle than the same inode at the server of the names: it is on another file system, or on one whose handles are each host's own";
        return Some(Wrong::new(
            what,
            "mount the shared file system there; where it is, this kind cannot be used by several servers",
        ));
    }
    Some(Wrong::new("its directory is another one than that of the server of the names", REMEDY_DIRECTORY))
}

fn not_found(error: Errno) -> Wrong {
    let what =
        format!("a file that the server of the names has in its directory is not found there by its handle: {error}");
    Wrong::new(what, REMEDY_DIRECTORY)
}

fn late(took: Duration) -> Wrong {
    let what = format!("what the server of the names writes is seen there only {:.2} s later", took.as_secs_f64());
    Wrong::new(what, REMEDY_COHERENT)
}
