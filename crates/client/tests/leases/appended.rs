//! Appends that are held back: each is at the end once, in its order, whatever becomes of the
//! server, and whatever programs there append meanwhile.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aqueduct_client::ClientConfig;
use aqueduct_fs::*;
use aqueduct_server::Moment;
use aqueduct_worker::wait;

use crate::common::*;
use crate::endings::{Between, short};
use crate::fixture::*;

const RECORD: &[u8] = b"tick";

const APPEND: OpenFlags = OpenFlags::WRITE.union(OpenFlags::APPEND);

/// Later than an append is executed after its intent was written down.
const LATER: Duration = Duration::from_millis(400);

fn append(mount: &Mount, open: OpenId, data: &'static [u8]) -> Result<Written, Errno> {
    // The kernel says where the end was, as far as it knows; that may be anywhere.
    let write = WriteAt { open, offset: 3, append: true, stable: false };
    wait(&mount.group, mount.cached.write(&context(), write, Source::Memory(data.into())))
}

fn log(mount: &Mount, name: &str) -> (Handle, OpenId) {
    let (parent, name) = (mount.root.bytes(), name.as_bytes());
    let create = Request::Create { parent, name, mode: 0o644, umask: 0, flags: APPEND };
    let (entry, opened) = mount.ask(create).unwrap().created().unwrap();
    (entry.handle, opened.id)
}

/// Appends that cost no round trip.
#[track_caller]
fn hold(mount: &Mount, open: OpenId, count: usize) {
    for _ in 0..count {
        assert_eq!(mount.warm(|| append(mount, open, RECORD)).unwrap().count as usize, RECORD.len());
    }
}

/// Appends until appends are held back. Returns how many it took.
fn hold_back(mount: &Mount, open: OpenId) -> usize {
    let mut count = 0;
    until("appends are held back", || {
        count += 1;
        mount.round_trips(|| append(mount, open, RECORD).unwrap()).0 == 0
    });
    count
}

fn there(process: &Process, name: &str) -> Vec<u8> {
    std::fs::read(process.path(name)).unwrap()
}

/// A program at the server.
fn append_there(process: &Process, name: &str, data: &[u8]) {
    OpenOptions::new().append(true).open(process.path(name)).unwrap().write_all(data).unwrap();
}

fn flush(mount: &Mount, open: OpenId) -> Result<Reply, Errno> {
    mount.ask(Request::Flush { open, owner: 1 })
}

fn sync(mount: &Mount, open: OpenId) -> Result<Reply, Errno> {
    mount.ask(Request::Sync { open, data_only: true })
}

#[test]
fn small_appends_go_together_to_the_end() {
    let process = Process::new();
    let mount = process.mount();
    let (file, open) = log(&mount, "log");
    hold(&mount, open, 100);
    assert_eq!(there(&process, "log"), b"", "they are held back");
    append_there(&process, "log", b"theirs");
    let (round_trips, closed) = mount.round_trips(|| flush(&mount, open));
    closed.unwrap();
    assert_eq!(round_trips, 1);
    assert_eq!(there(&process, "log"), [b"theirs", &RECORD.repeat(100)[..]].concat(), "behind what is there");
    let other = process.mount();
    until("they are held back again", || mount.round_trips(|| append(&mount, open, RECORD).unwrap()).0 == 0);
    let size = other.stat(&file).size;
    assert_eq!(size, there(&process, "log").len() as u64, "who looks sees all");
}

/// Appends, writes elsewhere, attributes: as they came.
#[test]
fn appends_keep_their_order_among_other_writes() {
    let process = Process::new();
    let mount = process.mount();
    let (file, open) = log(&mount, "log");
    let writer = mount.open(&file, READ_WRITE).unwrap();
    let write = |offset, data: &'static [u8]| {
        let write = WriteAt { open: writer, offset, append: false, stable: false };
        wait(&mount.group, mount.cached.write(&context(), write, Source::Memory(data.into()))).unwrap();
    };
    hold_back(&mount, open);
    sync(&mount, open).unwrap();
    let start = there(&process, "log").len() as u64;
    let large: &'static [u8] = vec![b'l'; 300 << 10].leak();
    append(&mount, open, b"0123").unwrap();
    write(start + 2, b"..");
    append(&mount, open, large).unwrap();
    append(&mount, open, b"4567").unwrap();
    append(&mount, writer, b"89").unwrap();
    write(start + 10 + large.len() as u64, b"end");
    append(&mount, open, b"!").unwrap();
    sync(&mount, open).unwrap();
    let expected = [&b"01.."[..], large, b"456789end!"].concat();
    assert!(there(&process, "log")[start as usize..] == expected);
}

/// An append is there once, whether it was not sent, executed, or answered and not heard of. A
/// program at the server appends the same bytes while the server is down. The server does not have
/// to tell them apart: it goes by the number of the request.
#[test]
fn each_is_there_once_when_the_server_is_killed_and_others_append_the_same() {
    for moment in [None, Some(Moment::Remembered)] {
        let mut process = Process::new();
        let mount = process.mount();
        let (_, open) = log(&mount, "log");
        hold(&mount, open, 10);
        let is_there = Arc::<AtomicBool>::default();
        if let Some(moment) = moment {
            let reached = is_there.clone();
            process.server.set_failpoint(move |at| {
                reached.fetch_or(at == moment, Ordering::SeqCst);
                reached.load(Ordering::SeqCst)
            });
            until("it is executed", || is_there.load(Ordering::SeqCst));
        }
        process.kill();
        let before = there(&process, "log");
        assert_eq!(before.len(), if moment.is_some() { 40 } else { 0 });
        append_there(&process, "log", &RECORD.repeat(10));
        std::thread::sleep(LATER);
        process.start();
        flush(&mount, open).unwrap();
        assert_eq!(there(&process, "log").len(), 80, "{moment:?}: ten of each");
        hold_back(&mount, open);
    }
}

/// It dies between what it writes down before an append and after it. Bytes alone tell then whether
/// it was executed, and they may be others': either they are ours for sure, or the program is told.
#[test]
fn who_dies_in_the_midst_of_an_append_loses_nothing_without_a_word() {
    for (moment, others_append) in
        [Moment::Intended, Moment::Executed].into_iter().flat_map(|at| [(at, false), (at, true)])
    {
        let mut process = Process::new();
        let mount = process.mount();
        let (_, open) = log(&mount, "log");
        hold(&mount, open, 10);
        let is_there = Arc::<AtomicBool>::default();
        let reached = is_there.clone();
        process.server.set_failpoint(move |at| {
            reached.fetch_or(at == moment, Ordering::SeqCst);
            reached.load(Ordering::SeqCst)
        });
        until("it is sent", || is_there.load(Ordering::SeqCst));
        process.kill();
        if others_append {
            std::thread::sleep(LATER);
            append_there(&process, "log", &RECORD.repeat(10));
        }
        process.start();
        let told = sync(&mount, open);
        match others_append {
            false => assert_eq!((told, there(&process, "log").len()), (Ok(Reply::Done), 40), "{moment:?}"),
            true => assert_eq!(told, Err(Errno::EIO), "{moment:?}"),
        }
        flush(&mount, open).unwrap();
        hold_back(&mount, open);
    }
}

/// What its requests do is left to the next process as soon as it cannot be written down any more
/// that they did it.
#[test]
fn a_server_that_ends_executes_nothing_that_it_cannot_write_down() {
    let mut process = Process::new();
    let mount = process.mount();
    let (_, open) = log(&mount, "log");
    hold(&mount, open, 10);
    let (has_begun, has_ended) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let (begun, ended) = (has_begun.clone(), has_ended.clone());
    process.server.set_failpoint(move |at| {
        begun.fetch_or(at == Moment::Begun, Ordering::SeqCst);
        while at == Moment::Begun && !ended.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        false
    });
    until("it is sent", || has_begun.load(Ordering::SeqCst));
    process.server.shutdown(Duration::ZERO);
    has_ended.store(true, Ordering::SeqCst);
    process.kill();
    assert_eq!(there(&process, "log").len(), 0);
    process.start();
    sync(&mount, open).unwrap();
    assert_eq!(there(&process, "log").len(), 40);
}

/// Again and again, in the midst of whatever is under way.
#[test]
fn nothing_is_lost_or_doubled_when_the_server_is_killed_under_load() {
    let mut process = Process::new();
    let mount = Arc::new(process.mount());
    let opens: Vec<OpenId> = (0..4).map(|number| log(&mount, &format!("log{number}")).1).collect();
    let stops = Arc::<AtomicBool>::default();
    let writer = std::thread::spawn({
        let (mount, opens, stops) = (mount.clone(), opens.clone(), stops.clone());
        move || {
            let mut count = 0u32;
            while !stops.load(Ordering::SeqCst) {
                let record: &'static [u8] = count.to_le_bytes().to_vec().leak();
                opens.iter().for_each(|open| _ = append(&mount, *open, record).unwrap());
                if count.is_multiple_of(64) {
                    sync(&mount, opens[count as usize / 64 % 4]).unwrap();
                }
                count += 1;
            }
            count
        }
    });
    for round in 0..6 {
        std::thread::sleep(Duration::from_millis(100 + round * 30));
        process.kill();
        process.start();
    }
    std::thread::sleep(Duration::from_millis(100));
    stops.store(true, Ordering::SeqCst);
    let count = writer.join().unwrap();
    for (number, open) in opens.into_iter().enumerate() {
        flush(&mount, open).unwrap();
        let found = there(&process, &format!("log{number}"));
        let expected: Vec<u8> = (0..count).flat_map(u32::to_le_bytes).collect();
        let differs = found.iter().zip(&expected).position(|(there, wanted)| there != wanted);
        assert!(
            found == expected,
            "log {number}: {} bytes of {}, other from {differs:?} on",
            found.len(),
            expected.len()
        );
    }
    assert!(count > 100, "{count}");
}

/// A connection breaks, and the server goes on.
#[test]
fn what_is_sent_again_over_another_connection_is_appended_once() {
    let process = Process::new();
    let between = Between::new(process.server.addresses()[0]);
    let mount = between.mount();
    let (_, open) = log(&mount, "log");
    let mut count = 0;
    for _ in 0..20 {
        count += hold_back(&mount, open);
        between.cut();
        sync(&mount, open).unwrap();
        assert_eq!(there(&process, "log").len(), 4 * count);
    }
}

#[test]
fn what_is_held_back_by_who_is_cut_off_for_too_long_is_not_appended_late() {
    let process = Process::within(short());
    let between = Between::new(process.server.addresses()[0]);
    let (mount, other) = (between.mount(), process.mount());
    let (file, open) = log(&mount, "log");
    hold_back(&mount, open);
    sync(&mount, open).unwrap();
    let before = there(&process, "log");
    hold_back(&mount, open);
    between.stop(true);
    assert_eq!(other.stat(&file).size, before.len() as u64, "it was not there, and will not be");
    between.stop(false);
    assert_eq!(sync(&mount, open), Err(Errno::EIO));
    assert_eq!(there(&process, "log"), before);
    hold_back(&mount, open);
}

#[test]
fn two_that_append_in_turn_lose_nothing() {
    let process = Process::new();
    let mounts = [process.mount(), process.mount()];
    let (file, first) = log(&mounts[0], "log");
    let opens = [first, mounts[1].open(&file, APPEND).unwrap()];
    for turn in 0..200 {
        let (mount, open) = (&mounts[turn % 2], opens[turn % 2]);
        append(mount, open, RECORD).unwrap();
        if turn % 7 == 0 {
            assert_eq!(mount.stat(&file).size, 4 * (turn as u64 + 1));
        }
    }
    opens.iter().zip(&mounts).for_each(|(open, mount)| _ = flush(mount, *open).unwrap());
    assert_eq!(there(&process, "log"), RECORD.repeat(200));
}

/// Each keeps a slot, of which there are not so many: the others go straight through.
#[test]
fn appends_to_many_files_are_held_back_as_far_as_there_is_room() {
    const FILES: usize = 300;
    let process = Process::new();
    let mount = process.mount();
    let opens: Vec<OpenId> = (0..FILES).map(|number| log(&mount, &format!("log{number}")).1).collect();
    let (round_trips, ()) =
        mount.round_trips(|| opens.iter().for_each(|open| _ = append(&mount, *open, RECORD).unwrap()));
    assert!(round_trips < FILES as u64, "some are held back");
    opens.iter().for_each(|open| _ = flush(&mount, *open).unwrap());
    (0..FILES).for_each(|number| assert_eq!(there(&process, &format!("log{number}")), RECORD));
}

#[test]
fn where_it_is_not_wanted_each_append_goes_at_once() {
    let process = Process::new();
    let address = process.server.addresses()[0];
    let mount = Mount::with(ClientConfig { leases: true, gathers: false, ..client_config(address, "/e") });
    let (_, open) = log(&mount, "log");
    append(&mount, open, RECORD).unwrap();
    assert_eq!(there(&process, "log"), RECORD);
    let mount = process.mount();
    let (_, open) = log(&mount, "locked");
    hold(&mount, open, 1);
    let lock = Lock { start: 0, end: u64::MAX, kind: LockKind::Write, pid: 1 };
    mount.ask(Request::SetLock { open, owner: 7, space: LockSpace::Flock, lock, wait: false }).unwrap();
    assert_eq!(there(&process, "locked"), RECORD);
    append(&mount, open, RECORD).unwrap();
    assert_eq!(there(&process, "locked"), RECORD.repeat(2), "who has a lock is told of errors at once");
}

/// Times that are set by the program that appends may be held back as well: what is answered then
/// has the size that only the server knows.
#[test]
fn times_that_are_set_after_an_append_show_its_size() {
    let process = Process::new();
    let mount = process.mount();
    let program = Context { pid: 7, ..context() };
    let (parent, name) = (mount.root.bytes(), b"log");
    let flags = APPEND | OpenFlags::EXCLUSIVE;
    let create = Request::Create { parent, name, mode: 0o644, umask: 0, flags };
    let (entry, opened) = mount.answer(&program, create).result.unwrap().created().unwrap();
    let handle = entry.handle.bytes();
    mount.stat(&entry.handle);
    hold(&mount, opened.id, 10);
    let set = SetAttr { mtime: Some(SetTime::At(Time { seconds: 5, nanos: 0 })), ..SetAttr::default() };
    let answer = mount.answer(&program, Request::SetAttr { handle, open: None, set });
    assert_eq!(answer.result.unwrap().attr().unwrap().size, 40);
    append(&mount, opened.id, RECORD).unwrap();
    assert_eq!(mount.stat(&entry.handle).size, 44);
}
