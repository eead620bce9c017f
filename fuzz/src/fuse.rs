//! The kernel's front end between a kernel and a file system that both do what they like: requests of any form, answered with any reply that the
//! protocol between client and server lets through.
//!
//! Input: a byte with the number of requests, each with its length (u16) before it; then replies, each with its status (u8) and length (u16). A request's
//! node id 2 stands for a file that is known; its own id and its process are not the input's to choose.

use std::cell::RefCell;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_fs::{
    Call, ClientId, Context, Entry, Errno, FileSystem, Handle, ReadAt, Reply, Request, Sink, Source, WriteAt, Written,
};
use aqueduct_fuse::{CacheMode, Config, Device, Session, start};
use aqueduct_wire::{Op, decode_reply, encode_reply};
use aqueduct_worker::{Group, Settings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

use crate::samples;

/// Inputs that one session serves: inodes that inputs made known go with it.
const INPUTS_PER_SESSION: u32 = 5_000;

/// Longer than any answer takes on a busy machine.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// Longer than a request waits for another's change of its file's size (20 ms). One that is not well formed has no answer.
const LATE_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

const HEADER_SIZE: usize = 40;
const REQUESTS_MAX: u8 = 4;
const ROOT: u64 = 1;
/// In an input: the file that is known.
const FILE: u64 = 2;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const NOTIFY_REPLY: u32 = 41;
const BATCH_FORGET: u32 = 42;
/// Those without an answer, or not always with one.
const UNANSWERED: [u32; 5] = [FORGET, INTERRUPT, DESTROY, NOTIFY_REPLY, BATCH_FORGET];
/// No operation: it is refused without asking the file system.
const NONE: u32 = 9999;

/// Answers with what the input says.
#[derive(Default)]
struct Script(Mutex<Vec<u8>>);

impl Script {
    fn set(&self, bytes: &[u8]) {
        bytes.clone_into(&mut self.0.lock().expect("nobody panics with it"));
    }

    /// The next reply's body, or errno.
    fn next(&self) -> Result<Vec<u8>, Errno> {
        let mut script = self.0.lock().expect("nobody panics with it");
        let Some(([status, low, high], rest)) = script.split_first_chunk() else { return Err(Errno::EIO) };
        let status = *status;
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let body = rest[..length].to_vec();
        script.drain(..3 + length);
        if status == 0 { Ok(body) } else { Err(Errno::from_raw(i32::from(status))) }
    }

    fn reply(&self, op: Op) -> Result<Reply, Errno> {
        decode_reply(op, &self.next()?).map_err(|error| error.errno())
    }
}

impl FileSystem for Script {
    fn call<'a>(&'a self, _context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        let root = || Entry { handle: Handle::new(b"root").expect("it is short"), ..samples::entry() };
        Call::ready(match request {
            Request::Root => Ok(Reply::Entry(root())),
            request => self.reply(Op::of(&request)),
        })
    }

    fn read<'a>(&'a self, _context: &'a Context, read: ReadAt, mut sink: Box<dyn Sink>) -> Call<'a, usize> {
        let data = self.next().and_then(|mut data| {
            data.truncate(read.length as usize);
            sink.bytes(&data).and_then(|()| sink.finish(data.len())).map(|()| data.len()).map_err(Errno::from)
        });
        Call::ready(data)
    }

    fn write<'a>(&'a self, _context: &'a Context, _write: WriteAt, source: Source) -> Call<'a, Written> {
        // No more than was sent: the client sees to that.
        let limit = |written: Written| Written { count: written.count.min(source.length() as u32), ..written };
        Call::ready(self.reply(Op::Write).and_then(Reply::written).map(limit))
    }

    fn depart(&self, _client: ClientId) -> Call<'_, ()> {
        Call::ready(Ok(()))
    }
}

/// A session with its kernel.
struct World {
    kernel: OwnedFd,
    session: Session,
    group: Arc<Group>,
    script: Arc<Script>,
    unique: u64,
    /// The node id of the file that is known; `None` when it may have been forgotten.
    file: Option<u64>,
    inputs: u32,
    answer: Vec<u8>,
}

thread_local! {
    /// Made with a world in it, so that the thread forgets it before what it keeps for workers:
    /// dropping the world's group needs that.
    static WORLD: RefCell<Option<World>> = RefCell::new(Some(World::new()));
}

/// A request as the kernel sends it.
fn message(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_SIZE + body.len());
    message.extend_from_slice(&((HEADER_SIZE + body.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&opcode.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&node.to_ne_bytes());
    message.extend_from_slice(&[0; 16]);
    message.extend_from_slice(body);
    message
}

fn u32_at(message: &[u8], at: usize) -> u32 {
    message.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn u64_at(message: &[u8], at: usize) -> u64 {
    message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

fn fields(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// A reply as an input has it.
fn scripted(reply: &Reply) -> Vec<u8> {
    let mut body = Vec::new();
    encode_reply(reply, &mut body);
    [&[0], &(body.len() as u16).to_le_bytes()[..], &body].concat()
}

impl World {
    fn new() -> World {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (kernel, theirs) = pair.expect("there is room for a pair");
        let device = Device::from_fd(theirs).expect("it is a socket");
        let settings =
            Settings { name: "fuse".into(), threads_min: 1, threads_max: 1, spin_max: Duration::from_micros(100) };
        let group = Group::new(settings).expect("a group needs little");
        let config = Config {
            cache: CacheMode::CloseToOpen,
            attr_timeout: Duration::from_secs(1),
            entry_timeout: Duration::from_secs(1),
            status: Some(Box::new(|_, _, _, _| "fine".into())),
            ..Config::default()
        };
        let init = message(INIT, 0, &fields(&[7, 45, 131_072, u32::MAX, u32::MAX, 0]));
        rustix::io::write(&kernel, &init).expect("the other end is open");
        let script = Arc::new(Script::default());
        let session = start(device, script.clone(), std::slice::from_ref(&group), config).expect("INIT is there");
        let answer = vec![0; 2 << 20];
        let mut world = World { kernel, session, group, script, unique: 2, file: None, inputs: 0, answer };
        world.next_answer();
        world
    }

    fn send(&mut self, message: &mut [u8]) -> u64 {
        self.unique += 2;
        if let Some(unique) = message.get_mut(8..16) {
            unique.copy_from_slice(&self.unique.to_ne_bytes());
        }
        rustix::io::write(&self.kernel, message).expect("the session is there");
        self.unique
    }

    /// Whether an answer comes within this time.
    fn has_answer(&self, time: Timespec) -> bool {
        // libFuzzer's clock is a signal.
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&self.kernel, PollFlags::IN)], Some(&time))) == Ok(1)
    }

    /// The next answer's request and error, and how many bytes of `answer` it has.
    fn next_answer(&mut self) -> (u64, i32, usize) {
        assert!(self.has_answer(PATIENCE), "there is no answer");
        let (_, length) = recv(&self.kernel, &mut self.answer[..], RecvFlags::empty()).expect("the session is there");
        assert_eq!(u32_at(&self.answer, 0) as usize, length, "the length of an answer");
        (u64_at(&self.answer, 8), u32_at(&self.answer, 4) as i32, length)
    }

    /// Makes the file known that an input's node id 2 stands for.
    fn know_file(&mut self) -> u64 {
        if let Some(file) = self.file {
            return file;
        }
        self.script.set(&scripted(&Reply::Entry(samples::entry())));
        let unique = self.send(&mut message(LOOKUP, ROOT, b"file\0"));
        let mut answer = self.next_answer();
        while answer.0 != unique {
            answer = self.next_answer();
        }
        assert_eq!(answer.1, 0);
        *self.file.insert(u64_at(&self.answer, 16))
    }

    /// Sends one request of an input.
    fn ask(&mut self, request: &[u8], file: u64) {
        let mut request = request.to_vec();
        let opcode = u32_at(&request, 4);
        if matches!(opcode, FORGET | BATCH_FORGET) {
            self.file = None;
        }
        if let Some(header) = request.first_chunk_mut::<HEADER_SIZE>() {
            if u64_at(header, 16) == FILE {
                header[16..24].copy_from_slice(&file.to_ne_bytes());
            }
            header[32..36].fill(0);
        }
        // Its answer ends the session, and nothing of it is parsed. An empty message ends a socket.
        if opcode != DESTROY && !request.is_empty() {
            self.send(&mut request);
        }
    }

    /// Serves one input; returns how many of its requests succeeded.
    fn run(&mut self, data: &[u8]) -> Option<usize> {
        let (count, mut rest) = data.split_first()?;
        let mut requests = Vec::new();
        for _ in 0..count % (REQUESTS_MAX + 1) {
            let (length, after) = rest.split_first_chunk()?;
            let (request, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            requests.push(request);
            rest = after;
        }
        let file = self.know_file();
        self.script.set(rest);
        let mut asked = HashSet::new();
        for request in requests {
            self.ask(request, file);
            if request.len() >= HEADER_SIZE && !UNANSWERED.contains(&u32_at(request, 4)) {
                asked.insert(self.unique);
            }
        }
        let last = self.send(&mut message(NONE, ROOT, &[]));
        let (mut succeeded, mut is_last) = (0, false);
        // What waits for a change of its file's size comes after the last; it must not take what the next input's requests are answered with.
        while !is_last || !asked.is_empty() && self.has_answer(LATE_MAX) {
            let (unique, error, length) = self.next_answer();
            let notification = unique == 0;
            assert!(notification || (-4095..=0).contains(&error), "{error} is no errno");
            assert!(notification || error == 0 || length == 16, "an error with a body");
            succeeded += usize::from(!notification && error == 0);
            is_last |= unique == last;
            asked.remove(&unique);
        }
        self.inputs += 1;
        Some(succeeded)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.group.stop();
        self.group.join();
    }
}

/// See the module.
pub fn run(data: &[u8]) {
    WORLD.with_borrow_mut(|world| {
        if world.as_ref().is_some_and(|world| world.inputs >= INPUTS_PER_SESSION || world.session.ended()) {
            *world = None;
        }
        world.get_or_insert_with(World::new).run(data);
    });
}

/// Requests with their bodies, beside the operation that answers them.
fn requests() -> Vec<(Vec<u8>, Op)> {
    let zeros = |length: usize| vec![0; length];
    let name = |fixed: usize| [&zeros(fixed)[..], b"name\0"].concat();
    let names = |fixed: usize| [&zeros(fixed)[..], b"name\0other\0"].concat();
    let range = [&zeros(16)[..], &fields(&[64, 0, 0, 0, 0, 0])].concat();
    let bodies = [
        (LOOKUP, ROOT, name(0), Op::Lookup),
        (FORGET, FILE, fields(&[1, 0]), Op::Flush),
        (3, FILE, zeros(16), Op::GetAttr),
        (4, FILE, [&fields(&[0x1fb, 0])[..], &zeros(80)].concat(), Op::SetAttr),
        (5, FILE, zeros(0), Op::ReadLink),
        (6, ROOT, names(0), Op::Symlink),
        (8, ROOT, name(16), Op::MakeNode),
        (9, ROOT, name(8), Op::MakeDirectory),
        (10, ROOT, name(0), Op::Unlink),
        (11, ROOT, name(0), Op::RemoveDirectory),
        (12, ROOT, [&ROOT.to_ne_bytes()[..], b"name\0other\0"].concat(), Op::Rename),
        (45, ROOT, [&ROOT.to_ne_bytes()[..], &zeros(8), b"name\0other\0"].concat(), Op::Rename),
        (13, ROOT, name(8), Op::Link),
        (14, FILE, zeros(8), Op::Open),
        (15, FILE, range.clone(), Op::Read),
        (16, FILE, [&range[..], &[7; 64]].concat(), Op::Write),
        (17, ROOT, zeros(0), Op::Statfs),
        (18, FILE, zeros(24), Op::Release),
        (20, FILE, zeros(16), Op::Sync),
        (21, FILE, [&fields(&[5, 0])[..], b"user.a\0value"].concat(), Op::SetXattr),
        (22, FILE, [&fields(&[64, 0])[..], b"user.a\0"].concat(), Op::GetXattr),
        (22, ROOT, [&fields(&[64, 0])[..], b"aqueduct.status\0"].concat(), Op::GetXattr),
        (23, FILE, fields(&[64, 0]), Op::ListXattr),
        (24, FILE, b"user.a\0".to_vec(), Op::RemoveXattr),
        (25, FILE, zeros(24), Op::Flush),
        (27, ROOT, zeros(8), Op::OpenDirectory),
        (28, ROOT, [&zeros(16)[..], &fields(&[4096, 0, 0, 0, 0, 0])].concat(), Op::ReadDirectory),
        (44, ROOT, [&zeros(16)[..], &fields(&[4096, 0, 0, 0, 0, 0])].concat(), Op::ReadDirectory),
        (29, ROOT, zeros(24), Op::ReleaseDirectory),
        (30, ROOT, zeros(16), Op::SyncDirectory),
        (31, FILE, zeros(48), Op::GetLock),
        (32, FILE, zeros(48), Op::SetLock),
        (33, FILE, zeros(48), Op::SetLock),
        (34, FILE, fields(&[4, 0]), Op::Access),
        (35, ROOT, name(16), Op::Create),
        (36, 0, zeros(8), Op::Flush),
        (BATCH_FORGET, 0, [&fields(&[1, 0])[..], &zeros(16)].concat(), Op::Flush),
        (43, FILE, zeros(32), Op::Fallocate),
        (46, FILE, [&zeros(16)[..], &fields(&[3, 0])].concat(), Op::Seek),
        (47, FILE, [&zeros(16)[..], &FILE.to_ne_bytes(), &zeros(32)].concat(), Op::CopyRange),
        (51, ROOT, name(16), Op::CreateUnnamed),
        (52, FILE, zeros(24), Op::GetAttr),
    ];
    bodies.into_iter().map(|(opcode, node, body, op)| (message(opcode, node, &body), op)).collect()
}

/// Every operation with its reply, then all of them by threes.
pub fn seeds() -> Vec<Vec<u8>> {
    let replies = samples::replies();
    let input = |requests: &[(Vec<u8>, Op)]| {
        let mut seed = vec![requests.len() as u8];
        for (request, _) in requests {
            seed.extend_from_slice(&(request.len() as u16).to_le_bytes());
            seed.extend_from_slice(request);
        }
        let answers = requests.iter().filter_map(|(_, op)| replies.iter().find(|(of, _)| of == op));
        seed.extend(answers.flat_map(|(_, reply)| scripted(reply)));
        seed
    };
    let requests = requests();
    requests.chunks(1).chain(requests.chunks(3)).map(input).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_seeds_succeed() {
        let mut world = World::new();
        assert_ne!(world.know_file(), ROOT);
        let succeeded: usize = seeds().iter().filter_map(|seed| world.run(seed)).sum();
        let wanted = requests().len() * 2;
        // To forget is not answered, to interrupt nothing is refused, and some replies do not fit what zeros ask for, or go to what came later where a request waits for
        // another's change of the size: 67 or 68 of 84.
        assert!(succeeded * 4 >= wanted * 3, "{succeeded} of {wanted}");
    }
}
