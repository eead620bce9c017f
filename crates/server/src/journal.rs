//! What a session needs after the death of the server process: one file for each, with a record for every slot.
//!
//! A file begins with its [`Head`] in [`HEAD_SIZE`] bytes; then come two rooms of [`RECORD_SIZE`] bytes for each slot, of the classes in turn: slot 0
//! ordinary, slot 0 releasing, slot 1 ordinary, and so on. The first is for replies, the second for intents. What was never written is a hole; from
//! the start the file is as long as it will ever be. Head and records are sealed: checksum u32 (CRC32C of what follows), length u32, and so many bytes. Those of
//! a record are sequence u32, operation u16, kind u8, era u8, and then for a reply its header and
//! body, for an intent what the module `intent` wrote.
//!
//! Each change is one `pwrite` into the page cache: whole when the process dies. Whose sessions these are, and which of the files are open, is in `stored`.
//!
//! **When the machine dies**, what was not on the disk is lost, so that a file may be older than what was done, and a record torn. A file is believed all the
//! same if its export is *durable*: what changes names and attributes is on the disk before it is answered, and an intent before its request is
//! executed. For each slot the newest record counts that is whole, and a reply before the intent of its request:
//!
//! - *A reply that is lost or torn, while its intent is there*: settling the intent finds what was executed, since that was on the disk before the reply
//!   went out. A reply never takes the place of an intent, so that tearing it costs only itself.
//! - *An intent that is torn*: it was not complete, so its request was not executed. The record before counts, and the request is new.
//! - *An intent of a request that was answered long ago* (the replies since are lost): the client goes on with a larger number. What settling finds is of no
//!   interest to anybody, and changes nothing; a file that it opens ends with the session.
//! - *No record of a request that was executed and perhaps answered*: it needed no intent. Doing it once more does no harm, and was asked for.
//! - *A reply to an unstable write whose data are lost*: it has the verifier of its time, by which `repeat` knows to write them again.
//! - *An append*: its intent is not on the disk before, as a write that may be lost anyway should not wait for it. Who sends one again after such a death
//!   has it looked for in the file, from where it was meant to go (`intent::find_append`).
//!
//! A record says in which *era* it was made: one ends each time that what was done may be lost with
//! the machine. So a process that comes later knows what is of before as well, although the client
//! has recovered in between.
//!
//! Files of another boot whose export is not durable are not believed.

mod anew;
mod lapses;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use aqueduct_wire::{Class, HEADER_SIZE, Header, SLOTS_MAX, ServerId};
use aqueduct_worker::lock;
use serde::{Deserialize, Serialize};

use crate::lease::clock::now;
use crate::metrics::JournalCounters;
use crate::origin::StoredOrigin;
use crate::stored::{Keeper, Opened, Owners, Stored, remove};

pub(crate) use anew::Answered;
use lapses::Lapses;

/// The layout of these files: others are not read.
const FORMAT: u32 = 3;

/// The room of a head: the longest name of an export (4 KiB), of a client, and a few hundred addresses.
const HEAD_SIZE: usize = 16 << 10;

/// The room of a record: the longest intent, that of a rename with four names of inodes and two of the longest names, and the longest reply to a
/// single request, that of Create, fit.
const RECORD_SIZE: usize = 2048;

/// Checksum and length.
const SEAL_SIZE: usize = 8;

/// Sequence, operation, kind, era.
const RECORD_PREFIX_SIZE: usize = 8;

/// The longest body of a reply that is kept.
const BODY_LENGTH_MAX: usize = RECORD_SIZE - SEAL_SIZE - RECORD_PREFIX_SIZE - HEADER_SIZE;

const _: () = {
    use aqueduct_fs::{HANDLE_LENGTH_MAX, NAME_LENGTH_MAX, TOKEN_LENGTH_MAX, dirpage::ATTR_SIZE};
    assert!(2 + HANDLE_LENGTH_MAX + ATTR_SIZE + 8 + 2 + TOKEN_LENGTH_MAX <= BODY_LENGTH_MAX);
    assert!(2 * (2 + 4) + 4 * (2 + HANDLE_LENGTH_MAX) + 2 * (2 + NAME_LENGTH_MAX) <= BODY_LENGTH_MAX + HEADER_SIZE);
};

const KIND_INTENT: u8 = 1;
const KIND_REPLY: u8 = 2;
const KIND_FORGOTTEN: u8 = 3;

/// The records of one slot and class: a reply and an intent, which share a page.
const PAIR_SIZE: usize = 2 * RECORD_SIZE;

/// Where of a slot's two a record belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Reply,
    Intent,
}

/// Whose file it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    format: u32,
    /// Of the machine.
    boot: String,
    /// The identity of the server: another server may use the same folder.
    #[serde(default)]
    server: String,
    pub(crate) session: u64,
    pub(crate) secret: [u8; 16],
    pub(crate) client: String,
    pub(crate) origin: StoredOrigin,
    pub(crate) export: String,
    pub(crate) slots: u32,
    /// It outlives the machine: see the module.
    durable: bool,
    /// The server's, when the client began or had recovered: what was written under another may be
    /// lost.
    pub(crate) verifier: u64,
    /// Of what is recorded: what has another is of before a loss.
    #[serde(default)]
    pub(crate) era: u8,
    /// The client asks for leases: so many milliseconds after its last request it may still believe what it was granted.
    #[serde(default)]
    believes: u64,
    /// It may have been granted exclusive leases, and have held something back.
    #[serde(default)]
    writes: bool,
    /// What it held back is not accepted any more: somebody may have looked at what was there before.
    #[serde(default)]
    broken: bool,
}

/// What a session is from its first day.
pub(crate) struct Whose {
    pub(crate) session: u64,
    pub(crate) secret: [u8; 16],
    /// The name of its client.
    pub(crate) client: String,
    pub(crate) origin: StoredOrigin,
    pub(crate) slots: u32,
}

/// What every head says, of whichever release.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AnyHead {
    format: u32,
    boot: String,
    server: String,
    client: String,
    durable: bool,
}

/// What is known of a slot's last request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) sequence: u32,
    /// The code of its operation.
    pub(crate) op: u16,
    pub(crate) era: u8,
    pub(crate) outcome: Outcome,
}

/// How far the request had come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was about to be executed: what tells whether it was.
    Intended(Vec<u8>),
    /// It was executed, with this reply.
    Replied { header: Header, body: Vec<u8> },
    /// It was executed, and its reply is not known: it was too long. Or it was not, and takes the place of the intent to.
    Forgotten,
}

/// Where the journals of a server's sessions lie.
pub(crate) struct Folder {
    path: PathBuf,
    boot: String,
    server: String,
    verifier: u64,
    keeper: Keeper,
    opened: Arc<Opened>,
    owners: Owners,
    lapses: Arc<Lapses>,
    counters: Arc<JournalCounters>,
}

/// A session's file. Without one (it could not be written, or was given up) the session ends with the process.
pub(crate) struct Journal {
    kept: Mutex<Option<Arc<Kept>>>,
    /// What its file begins with, should it be begun anew.
    lost: Mutex<Option<Head>>,
    /// Held while a head changes, is given up or is begun anew, so that the next process has what
    /// was noted meanwhile. Nothing of a slot or of a lease is locked by who holds it.
    changing: Mutex<()>,
}

struct Kept {
    stored: Arc<Stored>,
    durable: bool,
    /// Of what is recorded from now on.
    era: u8,
    /// As it stands in the file.
    head: Mutex<Head>,
    lapses: Arc<Lapses>,
    counters: Arc<JournalCounters>,
}

/// A session as an earlier process left it.
pub(crate) struct Left {
    pub(crate) head: Head,
    pub(crate) journal: Journal,
    /// The slots that were used, with their class.
    pub(crate) slots: Vec<(Class, u32, Record)>,
}

/// Why a file says nothing about a session of ours.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    /// Its owner is another server.
    #[error("it is another server's")]
    Foreign,
    /// The machine was booted since, and what was done then was not made stable: it may be lost, and what this says may be older still.
    #[error("the machine has been booted since")]
    OtherBoot,
    /// It may be a session of ours, which this release cannot take over.
    #[error(
        "{} is the session of {client}, written down by another release (layout {format}, and this one has {FORMAT}); start that release again until its clients have unmounted, or remove the file: what its client has open and locked then gives errors",
        path.display()
    )]
    OtherRelease { path: PathBuf, client: String, format: u32 },
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error("the export '{0}' is not served any more, or not to this host")]
    NotServed(String),
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
}

impl Folder {
    /// The folder at `path`, made if need be, of a server.
    pub(crate) fn open(path: &Path, id: ServerId, verifier: u64) -> io::Result<Folder> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        if let Some(above) = path.parent() {
            File::open(above)?.sync_all()?;
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let _folder = lock_folder(path)?;
        let (keeper, server) = (Keeper::start("sessions")?, crc32c::crc32c(&id.0));
        let owners = Owners::find(path, server)?;
        let file = path.join(format!("leases-{server:08x}"));
        let lapses = Lapses::new((path.to_owned(), file), boot.clone(), keeper.clone());
        let (path, opened, lapses) = (path.to_owned(), Opened::new()?, Arc::new(lapses));
        Ok(Folder {
            path,
            boot,
            server: id.to_string(),
            verifier,
            keeper,
            opened,
            owners,
            lapses,
            counters: Arc::default(),
        })
    }

    /// The same; what is written is counted there.
    pub(crate) fn counted(self, counters: Arc<JournalCounters>) -> Folder {
        Folder { counters, ..self }
    }

    /// Leaves all sessions to the next process, when their journals are closed.
    pub(crate) fn leave(&self) {
        self.owners.leave();
    }

    /// The head of a session of this server, of an export that is durable or not, which for so long believes what it was granted leases on.
    pub(crate) fn head(&self, of: Whose, (export, durable): (&str, bool), believes: Duration) -> Head {
        Head {
            format: FORMAT,
            boot: self.boot.clone(),
            server: self.server.clone(),
            session: of.session,
            secret: of.secret,
            client: of.client,
            origin: of.origin,
            export: export.to_owned(),
            slots: of.slots,
            durable,
            verifier: self.verifier,
            era: 0,
            believes: believes.as_millis() as u64,
            writes: false,
            broken: false,
        }
    }

    /// Until then the client of a session that ends may believe what it was granted. Written before the session's own file is removed.
    pub(crate) fn note_lapse(&self, until: Duration, now: Duration) {
        self.lapses.note(until, now);
    }

    /// Removes what has been noted if it is over.
    pub(crate) fn forget_lapse(&self, now: Duration) {
        self.lapses.forget(now);
    }

    /// Until when clients may believe what an earlier process granted to sessions that it has ended.
    pub(crate) fn lapsed_at(&self, now: Duration) -> Duration {
        self.lapses.left(now)
    }

    /// The file of a new session.
    pub(crate) fn create(&self, head: &Head) -> io::Result<Journal> {
        let (sealed, durable) = (head.sealed()?, head.durable);
        let (folder, path) = (self.path.clone(), self.path.join(self.owners.name(head.session)));
        let own = path.clone();
        let length = (HEAD_SIZE + head.slots as usize * 2 * PAIR_SIZE) as u64;
        let file = self.keeper.run(move || create(&folder, &own, (&sealed, length), durable))?;
        let (lapses, counters) = (self.lapses.clone(), self.counters.clone());
        let (stored, era, head) = (self.opened.store(path, file), head.era, Mutex::new(head.clone()));
        Ok(Journal::of(Kept { stored, durable, era, head, lapses, counters }))
    }

    /// The sessions that earlier processes of this server left, that `serves` still knows, at most so many. Files that are no use to anybody are
    /// removed; with them, for how long the clients of those may still believe what they were granted leases on.
    pub(crate) fn left(
        &self,
        sessions_max: usize,
        serves: impl Fn(&Head) -> bool,
    ) -> io::Result<(Vec<Left>, Duration)> {
        let _folder = lock_folder(&self.path)?;
        let (mut left, mut believed) = (Vec::new(), Duration::ZERO);
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let Some(id) = self.owners.may_have(&path)? else { continue };
            let left_there = self.read(&path, id).and_then(|session| match serves(&session.head) {
                true => Ok(session),
                false => Err(Unusable::NotServed(session.head.export)),
            });
            match left_there {
                Ok(session) if left.len() < sessions_max => left.push(session),
                Ok(session) => {
                    tracing::warn!(client = %session.head.client, "its session is given up: {sessions_max} others were found before");
                    believed = believed.max(session.head.believes());
                    session.journal.remove();
                }
                Err(Unusable::Foreign) => {}
                Err(error @ Unusable::OtherRelease { .. }) => return Err(io::Error::other(error.to_string())),
                Err(error) => {
                    if !matches!(error, Unusable::OtherBoot) {
                        tracing::warn!(path = %path.display(), %error, "the memory of a session is given up");
                    }
                    believed = believed.max(believes(&path).unwrap_or_default());
                    remove(&path);
                }
            }
        }
        Ok((left, believed))
    }

    fn read(&self, path: &Path, id: u64) -> Result<Left, Unusable> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut room = Vec::new();
        (&mut file).take(HEAD_SIZE as u64).read_to_end(&mut room)?;
        let damaged = |_| Unusable::Damaged("its head is none");
        let head = unseal(&room).ok_or(Unusable::Damaged("the checksum of its head is wrong"))?;
        let any: AnyHead = serde_json::from_slice(head).map_err(damaged)?;
        if any.boot != self.boot && !any.durable {
            return Err(Unusable::OtherBoot);
        }
        if any.server != self.server {
            return Err(Unusable::Foreign);
        }
        if any.format != FORMAT {
            let (path, client, format) = (path.to_owned(), any.client, any.format);
            return Err(Unusable::OtherRelease { path, client, format });
        }
        let mut head: Head = serde_json::from_slice(head).map_err(damaged)?;
        if head.session != id || id == 0 || !(1..=SLOTS_MAX).contains(&head.slots) {
            return Err(Unusable::Damaged("its head makes no sense"));
        }
        let length_max = (head.slots as usize) * 2 * PAIR_SIZE;
        if file.metadata()?.len() > (HEAD_SIZE + length_max) as u64 {
            return Err(Unusable::Damaged("it has more records than slots"));
        }
        let slots = read_records(&read_data(&file, length_max)?, head.boot != self.boot)?;
        let (durable, written) = (head.durable, Mutex::new(head.clone()));
        head.boot.clone_from(&self.boot); // should it be written anew, for the next process of this boot
        if head.verifier != self.verifier {
            // One of no record that is there: a process in which the client had not recovered may
            // have left some.
            head.era = slots.iter().map(|(.., record)| record.era).fold(head.era, u8::max).wrapping_add(1);
        }
        let stored = self.opened.store(path.to_owned(), file);
        let (lapses, counters) = (self.lapses.clone(), self.counters.clone());
        let kept = Kept { stored, durable, era: head.era, head: written, lapses, counters };
        Ok(Left { head, journal: Journal::of(kept), slots })
    }
}

impl Kept {
    /// Writes a record. `stable`: it is on the disk when this returns, if the session outlives the
    /// machine. `era`: that of what it is about, if not the present one.
    fn write(
        &self,
        request: &Header,
        (room, stable): (Room, bool),
        (kind, era): (u8, Option<u8>),
        content: &[&[u8]],
    ) -> io::Result<()> {
        let (sequence, op) = (request.sequence.to_le_bytes(), request.op.to_le_bytes());
        let prefix = [&sequence[..], &op, &[kind, era.unwrap_or(self.era)]];
        let at = offset(request, room);
        self.counters.writes.increment();
        self.stored.file().and_then(|file| match seal(prefix.iter().chain(content), RECORD_SIZE) {
            // The clock costs nothing beside the disk.
            Some(sealed) if stable && self.durable => {
                let began = Instant::now();
                let written = write_stable(&file, &sealed, at);
                self.counters.sync.record_duration(began.elapsed());
                written
            }
            Some(sealed) => file.write_all_at(&sealed, at),
            None => Err(io::ErrorKind::InvalidInput.into()),
        })
    }

    fn change_head(&self, change: impl FnOnce(&mut Head)) -> io::Result<()> {
        let mut present = lock(&self.head);
        let mut head = present.clone();
        change(&mut head);
        if head == *present {
            return Ok(());
        }
        *present = head; // also if it cannot be written: then the session is given up, and what it may believe has to be known
        let file = self.stored.file()?;
        file.write_all_at(&present.sealed()?, 0)?;
        if self.durable { file.sync_data() } else { Ok(()) }
    }

    fn remove(&self) {
        self.lapses.remove(self.stored.path.clone(), self.durable);
    }
}

/// Held while a file is made or looked for: no server takes one for damaged that is not complete yet.
fn lock_folder(path: &Path) -> io::Result<File> {
    let folder = File::open(path)?;
    folder.lock()?;
    Ok(folder)
}

/// What stands behind the head, up to the last of it; holes are zeros, and are not read.
fn read_data(file: &File, length: usize) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    let (mut at, end) = (HEAD_SIZE as u64, (HEAD_SIZE + length) as u64);
    while at < end {
        let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => break,
            start => start?,
        };
        at = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start))?.min(end);
        if start < at {
            data.resize(at as usize - HEAD_SIZE, 0);
            file.read_exact_at(&mut data[start as usize - HEAD_SIZE..], start)?;
        }
    }
    Ok(data)
}

/// Makes a session's file, with its head, and as long as it will ever be: where a record made it longer, ext4 lost the new length with the machine, and
/// with it the record's end, although the record was written with RWF_DSYNC (Linux 6.18).
fn create(folder: &Path, path: &Path, (head, length): (&[u8], u64), durable: bool) -> io::Result<File> {
    let folder = lock_folder(folder)?;
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let written = file.write_all_at(head, 0).and_then(|()| {
        file.set_len(length)?;
        if durable { file.sync_all().and_then(|()| folder.sync_all()) } else { Ok(()) }
    });
    match written {
        Ok(()) => Ok(file),
        Err(error) => {
            remove(path); // without a head it would only be called damaged at the next start
            Err(error)
        }
    }
}

/// The last that is known of each slot. `torn`: the machine has died since, and a record that is not whole was never complete.
fn read_records(records: &[u8], torn: bool) -> Result<Vec<(Class, u32, Record)>, Unusable> {
    let mut slots = Vec::new();
    for (index, pair) in records.chunks(PAIR_SIZE).enumerate() {
        let (reply, intent) = pair.split_at(RECORD_SIZE.min(pair.len()));
        let record = match (read_record(reply, torn)?, read_record(intent, torn)?) {
            (Some(reply), Some(intent)) if intent.is_newer_than(&reply) => intent,
            (Some(reply), _) => reply,
            (None, Some(intent)) => intent,
            (None, None) => continue,
        };
        let class = if index % 2 == 0 { Class::Ordinary } else { Class::Releasing };
        slots.push((class, (index / 2) as u32, record));
    }
    Ok(slots)
}

fn read_record(room: &[u8], torn: bool) -> Result<Option<Record>, Unusable> {
    if room.iter().take(SEAL_SIZE).all(|byte| *byte == 0) {
        return Ok(None); // never written
    }
    match unseal(room) {
        Some(record) => Record::decode(record).map(Some).ok_or(Unusable::Damaged("a record makes no sense")),
        None if torn => Ok(None),
        None => Err(Unusable::Damaged("the checksum of a record is wrong")),
    }
}

/// For how long the client of a session that is given up may believe what it was granted, if its head tells.
fn believes(path: &Path) -> Option<Duration> {
    let mut room = Vec::new();
    File::open(path).ok()?.take(HEAD_SIZE as u64).read_to_end(&mut room).ok()?;
    Some(serde_json::from_slice::<Head>(unseal(&room)?).ok()?.believes())
}

impl Head {
    /// So long after its last request the client may still believe what it was granted.
    pub(crate) fn believes(&self) -> Duration {
        Duration::from_millis(self.believes)
    }

    /// Whether the client may still send what it held back.
    pub(crate) fn may_flush(&self) -> bool {
        self.writes && !self.broken
    }

    fn sealed(&self) -> io::Result<Vec<u8>> {
        Ok(seal([&serde_json::to_vec(self)?[..]].iter(), HEAD_SIZE).ok_or(io::ErrorKind::InvalidInput)?)
    }
}

impl Record {
    fn is_newer_than(&self, other: &Record) -> bool {
        let ahead = self.sequence.wrapping_sub(other.sequence);
        ahead != 0 && ahead < u32::MAX / 2
    }

    fn decode(bytes: &[u8]) -> Option<Record> {
        let (prefix, content) = bytes.split_first_chunk::<RECORD_PREFIX_SIZE>()?;
        let [a, b, c, d, e, f, kind, era] = *prefix;
        let outcome = match kind {
            KIND_INTENT => Outcome::Intended(content.to_vec()),
            KIND_REPLY => {
                let (header, body) = content.split_first_chunk::<HEADER_SIZE>()?;
                Outcome::Replied { header: Header::decode(header).ok()?, body: body.to_vec() }
            }
            KIND_FORGOTTEN => Outcome::Forgotten,
            _ => return None,
        };
        Some(Record { sequence: u32::from_le_bytes([a, b, c, d]), op: u16::from_le_bytes([e, f]), era, outcome })
    }
}

impl Journal {
    fn of(kept: Kept) -> Journal {
        Journal { kept: Mutex::new(Some(Arc::new(kept))), lost: Mutex::default(), changing: Mutex::default() }
    }

    /// The journal of a session whose file could not be made.
    pub(crate) fn none(head: Head) -> Journal {
        Journal { kept: Mutex::default(), lost: Mutex::new(Some(head)), changing: Mutex::default() }
    }

    /// Before a request is executed: what will tell whether it was. `unstable`: what it does may be lost, and so may this.
    pub(crate) fn intend(&self, request: &Header, intent: &[u8], unstable: bool) {
        self.write(request, (Room::Intent, !unstable), (KIND_INTENT, None), &[intent]);
    }

    /// Whether the session outlives the process.
    pub(crate) fn survives(&self) -> bool {
        lock(&self.kept).is_some()
    }

    /// Before the reply to a request is sent.
    pub(crate) fn reply(&self, request: &Header, reply: &Header, body: &[u8]) {
        self.write_reply(request, reply, body, None);
    }

    /// A request that an earlier process began, in this era, was executed, with this reply: that
    /// stays so, whatever happens to what it did.
    pub(crate) fn settle(&self, request: &Header, era: u8, reply: &Header, body: &[u8]) {
        self.write_reply(request, reply, body, Some(era));
    }

    /// A request that an earlier process was about to execute, in this era, was not: the one before
    /// it is the last of its slot.
    pub(crate) fn retract(&self, before: &Header, era: u8) {
        self.write(before, (Room::Intent, true), (KIND_FORGOTTEN, Some(era)), &[]);
    }

    /// `settled`: the era of what an earlier process executed.
    fn write_reply(&self, request: &Header, reply: &Header, body: &[u8], settled: Option<u8>) {
        let place = (Room::Reply, settled.is_some());
        if body.len() > BODY_LENGTH_MAX {
            self.write(request, place, (KIND_FORGOTTEN, settled), &[]);
        } else {
            self.write(request, place, (KIND_REPLY, settled), &[&reply.encode(), body]);
        }
    }

    /// `stable`: on the disk when this returns, if the session is to outlive the machine.
    fn write(&self, request: &Header, (room, stable): (Room, bool), kind: (u8, Option<u8>), content: &[&[u8]]) {
        // Not locked while the disk is waited for: others have records as well.
        let Some(kept) = lock(&self.kept).clone() else { return };
        if let Err(error) = kept.write(request, (room, stable), kind, content) {
            let changing = lock(&self.changing);
            self.give_up(&kept, &error, &changing);
        }
    }

    /// From now on the session ends with the machine, since its export is not durable any more.
    pub(crate) fn end_with_machine(&self, head: &Head) -> io::Result<()> {
        let mut journal = lock(&self.kept);
        let Some(kept) = &mut *journal else { return Ok(()) };
        if !kept.durable {
            return Ok(());
        }
        let head = Head { durable: false, ..head.clone() };
        let file = kept.stored.file()?;
        file.write_all_at(&head.sealed()?, 0)?;
        file.sync_data()?;
        let (stored, lapses, counters) = (kept.stored.clone(), kept.lapses.clone(), kept.counters.clone());
        *kept = Arc::new(Kept { stored, durable: false, era: kept.era, head: Mutex::new(head), lapses, counters });
        Ok(())
    }

    /// The client asks for leases from now on: so long after its last request it may still believe what it was granted.
    pub(crate) fn note_leases(&self, believes: Duration) {
        self.change_head(|head| head.believes = head.believes.max(believes.as_millis() as u64));
    }

    /// The client may hold back what it writes from now on.
    pub(crate) fn note_writes(&self) {
        self.change_head(|head| head.writes = true);
    }

    /// Whether what the client held back so far is lost.
    pub(crate) fn note_broken(&self, is_broken: bool) {
        self.change_head(|head| head.broken = is_broken);
    }

    /// The client has again what it had, and has sent again what was lost: nothing is any more of
    /// what this server, with this verifier, does. What is recorded from now on is of this era.
    pub(crate) fn note_recovered(&self, verifier: u64, era: u8) {
        self.change_head(|head| (head.verifier, head.era) = (verifier, era));
    }

    fn change_head(&self, change: impl FnOnce(&mut Head)) {
        let changing = lock(&self.changing);
        let Some(kept) = lock(&self.kept).clone() else {
            // Nobody notes it a second time: the file that is begun anew has to have it.
            if let Some(head) = lock(&self.lost).as_mut() {
                change(head);
            }
            return;
        };
        if let Err(error) = kept.change_head(change) {
            self.give_up(&kept, &error, &changing);
        }
    }

    /// The session ends with the process, since what it needs cannot be written. Its client is renewed no more, but the next process has to wait until it
    /// does not believe any more what it was granted so far.
    fn give_up(&self, kept: &Arc<Kept>, error: &io::Error, _changing: &MutexGuard<'_, ()>) {
        if lock(&self.kept).take_if(|present| Arc::ptr_eq(present, kept)).is_none() {
            return; // another request has, and a newer file may be there
        }
        kept.counters.given_up.increment();
        tracing::error!(path = %kept.stored.path.display(), %error, "a session cannot be written down any more: it will not survive a restart");
        let head = lock(&kept.head).clone();
        let believes = head.believes();
        *lock(&self.lost) = Some(head);
        if !believes.is_zero() {
            kept.lapses.note(now() + believes, now());
        }
        kept.remove();
    }

    /// Leaves the file to the next process.
    pub(crate) fn close(&self) {
        *lock(&self.lost) = None;
        *lock(&self.kept) = None;
    }

    /// The session has ended.
    pub(crate) fn remove(&self) {
        *lock(&self.lost) = None;
        if let Some(kept) = lock(&self.kept).take() {
            kept.remove();
        }
    }
}

/// Writes a record, and waits until it is on the disk; nothing else of the file has to be.
fn write_stable(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    loop {
        match rustix::io::pwritev2(file, &[IoSlice::new(bytes)], at, rustix::io::ReadWriteFlags::DSYNC) {
            Ok(count) if count == bytes.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn offset(request: &Header, room: Room) -> u64 {
    let index = u64::from(request.slot) * 2 + u64::from(request.class == Class::Releasing);
    HEAD_SIZE as u64 + index * PAIR_SIZE as u64 + if room == Room::Intent { RECORD_SIZE as u64 } else { 0 }
}

/// Checksum, length and content; `None` if that takes more room than there is.
fn seal<'a>(content: impl Iterator<Item = &'a &'a [u8]>, room: usize) -> Option<Vec<u8>> {
    let mut sealed = Vec::with_capacity(room);
    sealed.resize(SEAL_SIZE, 0);
    content.for_each(|part| sealed.extend_from_slice(part));
    let length = u32::try_from(sealed.len() - SEAL_SIZE).ok()?;
    sealed[4..SEAL_SIZE].copy_from_slice(&length.to_le_bytes());
    let checksum = crc32c::crc32c(&sealed[4..]);
    sealed[..4].copy_from_slice(&checksum.to_le_bytes());
    (sealed.len() <= room).then_some(sealed)
}

fn unseal(room: &[u8]) -> Option<&[u8]> {
    let (checksum, rest) = room.split_first_chunk::<4>()?;
    let (length, content) = rest.split_first_chunk::<4>()?;
    let content = content.get(..u32::from_le_bytes(*length) as usize)?;
    let sum = crc32c::crc32c(&rest[..4 + content.len()]);
    (sum == u32::from_le_bytes(*checksum)).then_some(content)
}

#[cfg(test)]
mod tests;
