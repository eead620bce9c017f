//! Data: what is written is read, wherever the file stands and whatever became of its name.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use aqueduct_fs::*;
use aqueduct_posix::Options;
use common::*;

#[test]
fn what_is_written_is_read() {
    everywhere(|served| {
        let (entry, open) = served.create(b"file");
        assert_eq!(served.read(open, 0, 100).unwrap(), b"", "empty");
        assert_eq!(served.write(open, 0, b"hello world").unwrap(), 11);
        assert_eq!(served.read(open, 6, 100).unwrap(), b"world");
        assert_eq!(served.read(open, 11, 100).unwrap(), b"");
        assert_eq!(served.read(open, 1 << 40, 100).unwrap(), b"");
        assert_eq!(served.read(open, u64::MAX, 1), Err(Errno::EINVAL));
        assert_eq!(served.write(open, u64::MAX, b"x"), Err(Errno::EFBIG));
        assert_eq!(served.attr(&entry.handle).unwrap().size, 11);
        let append = WriteAt { open, offset: 0, append: true, stable: true };
        assert_eq!(served.write_as(&context(1, own()), append, b"!").unwrap().count, 1);
        assert_eq!(served.read(open, 0, 100).unwrap(), b"hello world!");
        served.release(open);
        assert_eq!(served.read(open, 0, 1), Err(Errno::EBADF));
        assert_eq!(std::fs::read(served.path.join("file")).unwrap(), b"hello world!");
    });
}

#[test]
fn a_removed_file_stays_usable_while_it_is_open() {
    everywhere(|served| {
        let (entry, open) = served.create(b"file");
        let handle = entry.handle.bytes();
        served.write(open, 0, b"data").unwrap();
        served.root_call(Request::Unlink { parent: &served.root, name: b"file" }).unwrap();
        assert_eq!(served.read(open, 0, 10).unwrap(), b"data");
        assert_eq!(served.attr(&entry.handle).unwrap().nlink, 0);
        for open in [None, Some(open)] {
            let set = SetAttr { mode: Some(0o600), size: Some(2), mtime: Some(SetTime::Now), ..SetAttr::default() };
            let attr = served.root_call(Request::SetAttr { handle, open, set }).unwrap().attr().unwrap();
            assert_eq!((attr.mode & 0o777, attr.size), (0o600, 2));
            assert!(served.root_call(Request::GetAttr { handle, open }).is_ok());
        }
        let name = b"user.note";
        let set = Request::SetXattr { handle, name, value: b"kept", mode: XattrMode::Any };
        assert_eq!(served.root_call(set), Ok(Reply::Done));
        let value = served.root_call(Request::GetXattr { handle, name, size: 100 });
        assert_eq!(value, Ok(Reply::Bytes(b"kept".to_vec())));
        let second = served.open(&entry.handle, READ_WRITE).unwrap();
        served.release(open);
        served.write(second, 2, b"ta").unwrap();
        assert_eq!(served.read(second, 0, 10).unwrap(), b"data");
        served.release(second);
        assert_eq!(served.attr(&entry.handle), Err(Errno::ESTALE));
        assert_eq!(served.posix.statistics().opens, 0);
    });
}

#[test]
fn a_file_without_a_name_gets_one() {
    everywhere(|served| {
        let parent = &served.root[..];
        let make = |flags| served.root_call(Request::CreateUnnamed { parent, mode: 0o640, umask: 0o027, flags });
        let (entry, opened) = make(READ_WRITE).unwrap().created().unwrap();
        assert_eq!((entry.attr.mode & 0o777, entry.attr.nlink), (0o640, 0));
        served.write(opened.id, 0, b"data").unwrap();
        let handle = entry.handle.bytes();
        let linked = served.root_call(Request::Link { handle, parent, name: b"named" }).unwrap().entry().unwrap();
        assert_eq!((linked.handle.clone(), linked.attr.nlink), (entry.handle.clone(), 1));
        served.release(opened.id);
        assert_eq!(std::fs::read(served.path.join("named")).unwrap(), b"data");
        let (entry, _) = make(READ_WRITE | OpenFlags::EXCLUSIVE).unwrap().created().unwrap();
        let link = Request::Link { handle: entry.handle.bytes(), parent, name: b"never" };
        assert_eq!(served.root_call(link), Err(Errno::ENOENT));
        assert_eq!(make(OpenFlags::READ).err(), Some(Errno::EINVAL));
    });
}

#[test]
fn sparse_files_reach_beyond_four_tebibytes() {
    const FAR: u64 = 5 << 40;
    everywhere(|served| {
        let (entry, open) = served.create(b"sparse");
        served.write(open, FAR, b"far").unwrap();
        let attr = served.attr(&entry.handle).unwrap();
        assert_eq!(attr.size, FAR + 3);
        assert!(attr.blocks * 512 < 1 << 20);
        assert_eq!(served.read(open, FAR - 3, 100).unwrap(), b"\0\0\0far");
        let seek = |offset, to| served.root_call(Request::Seek { open, offset, to }).and_then(Reply::size);
        assert_eq!(seek(0, SeekTo::Hole), Ok(0));
        assert_eq!(seek(0, SeekTo::Data), Ok(FAR));
        assert_eq!(seek(FAR, SeekTo::Hole), Ok(FAR + 3));
        assert_eq!(seek(FAR + 3, SeekTo::Data), Err(Errno::ENXIO));
        assert_eq!(seek(u64::MAX, SeekTo::Data), Err(Errno::ENXIO));
        let shrink = SetAttr { size: Some(10), ..SetAttr::default() };
        assert_eq!(served.set(&context(1, own()), &entry.handle, shrink).unwrap().size, 10);
    });
}

/// Each file is whole when it has its name; what is wrong with one is no reason against others.
#[test]
fn small_files_are_made_many_at_a_time() {
    everywhere(|served| {
        let parent = &served.root[..];
        let own = own();
        let [atime, mtime] = [1_000_000_000, 1_500_000_000].map(|seconds| Time { seconds, nanos: 123_456_789 });
        let file = |name: &'static [u8], data: &'static [u8]| put::PutFile {
            name,
            uid: own.uid,
            gid: own.gid,
            mode: 0o2640,
            atime,
            mtime,
            data,
        };
        std::fs::write(served.path.join("taken"), "other").unwrap();
        let put = |files: &[put::PutFile<'_>]| {
            let mut packed = Vec::new();
            files.iter().for_each(|file| file.pack(&mut packed));
            served.root_call(Request::PutFiles { parent, files: &packed, stable: true }).and_then(Reply::put)
        };
        let files = [file(b"a", b"data of a"), file(b"taken", b"ours"), file(b"empty", b""), file(b"a", b"again")];
        let became = put(&files).unwrap();
        assert_eq!(
            became.iter().map(|one| one.as_ref().err().copied()).collect::<Vec<_>>(),
            [None, Some(Errno::EEXIST), None, Some(Errno::EEXIST)]
        );
        let entry = became[0].as_ref().unwrap();
        let attr = served.attr(&entry.handle).unwrap();
        assert_eq!((attr, attr.mode & 0o7777, attr.nlink), (entry.attr, 0o2640, 1));
        assert_eq!((attr.atime, attr.mtime, attr.size), (atime, mtime, 9));
        assert_eq!(served.lookup(parent, b"a").unwrap().handle, entry.handle);
        let read = |name: &str| std::fs::read(served.path.join(name)).unwrap();
        assert_eq!((&*read("a"), &*read("taken"), &*read("empty")), (&b"data of a"[..], &b"other"[..], &b""[..]));
        if own.uid == 0 {
            // The group of the directory is not that of the file.
            let shared = served.path.join("shared");
            std::fs::create_dir(&shared).unwrap();
            std::os::unix::fs::chown(&shared, None, Some(12_345)).unwrap();
            std::fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o2775)).unwrap();
            let handle = served.lookup(parent, b"shared").unwrap().handle;
            let mut packed = Vec::new();
            file(b"in", b"x").pack(&mut packed);
            let request = Request::PutFiles { parent: handle.bytes(), files: &packed, stable: false };
            let became = served.root_call(request).and_then(Reply::put).unwrap();
            assert_eq!(became[0].as_ref().map(|entry| (entry.attr.uid, entry.attr.gid)), Ok((own.uid, own.gid)));
        }
        assert_eq!(put(&[file(b"x/y", b"")]), Err(Errno::EINVAL));
        let nobody = put::PutFile { uid: u32::MAX, ..file(b"nobody", b"") };
        assert_eq!(put(&[nobody, file(b"b", b"b")]).map(|became| became[0].clone().err()), Ok(Some(Errno::EINVAL)));
        assert_eq!(served.lookup(parent, b"nobody").err(), Some(Errno::ENOENT));
        assert_eq!(read("b"), b"b");
    });
}

#[test]
fn sums_are_made_where_files_lie() {
    everywhere(|served| {
        let (entry, open) = served.create(b"file");
        let data: Vec<u8> = (0..(3 << 20) + 5).map(|at: u32| (at ^ (at >> 9)) as u8).collect();
        for (number, piece) in data.chunks(1 << 20).enumerate() {
            served.write(open, (number as u64) << 20, piece).unwrap();
        }
        let ask = |open, offset, length, kind, past_cache| {
            served.root_call(Request::Checksum { open, offset, length, kind, past_cache }).and_then(Reply::sum)
        };
        let sum = |offset, length, kind| ask(open, offset, length, kind, false).map(|sum| sum.value);
        let size = data.len() as u64;
        assert_eq!(sum(0, size, SumKind::Blake3), Ok(*blake3::hash(&data).as_bytes()));
        assert_eq!(sum(5, 1000, SumKind::Blake3), Ok(*blake3::hash(&data[5..1005]).as_bytes()));
        let short = sum(7, 300_001, SumKind::Xxh3).unwrap();
        let expected = twox_hash::XxHash3_64::oneshot(&data[7..300_008]);
        assert_eq!((&short[..8], &short[8..]), (&expected.to_le_bytes()[..], &[0; 24][..]));
        // Parts of a tree merge into the hash of the whole.
        let (left, right) = (2 << 20, size - (2 << 20));
        let [left_sum, right_sum] =
            [(0, left), (left, right)].map(|(at, length)| sum(at, length, SumKind::Blake3Part).unwrap());
        let whole = blake3::hazmat::merge_subtrees_root(&left_sum, &right_sum, blake3::hazmat::Mode::Hash);
        assert_eq!(whole, blake3::hash(&data));
        assert_eq!(sum(0, 0, SumKind::Blake3), Ok(*blake3::hash(b"").as_bytes()));
        for (offset, length, kind, error) in [
            (0, size + 1, SumKind::Blake3, Errno::ENODATA),
            (size + 1, 1, SumKind::Xxh3, Errno::ENODATA),
            (0, SUM_LENGTH_MAX + 1, SumKind::Xxh3, Errno::EINVAL),
            (u64::MAX, 1, SumKind::Xxh3, Errno::EINVAL),
            (i64::MAX as u64, 1, SumKind::Xxh3, Errno::EINVAL),
            (1 << 20, 2 << 20, SumKind::Blake3Part, Errno::EINVAL),
            (0, 0, SumKind::Blake3Part, Errno::EINVAL),
            (0, u64::MAX, SumKind::Blake3Part, Errno::EINVAL),
        ] {
            assert_eq!(sum(offset, length, kind), Err(error), "{offset} {length} {kind:?}");
        }
        served.root_call(Request::Sync { open, data_only: false }).unwrap();
        let stable = ask(open, 0, size, SumKind::Blake3, true).unwrap();
        assert_eq!(stable.value, *blake3::hash(&data).as_bytes());
        let is_on_ext4 = rustix::fs::statfs(&served.path).unwrap().f_type == 0xef53;
        assert!(stable.is_past_cache || !is_on_ext4, "what is stable on a disk can be read past the cache");
        let only_written = served.open(&entry.handle, OpenFlags::WRITE).unwrap();
        assert_eq!(ask(only_written, 0, 1, SumKind::Xxh3, false), Err(Errno::EBADF));
    });
}

#[test]
fn space_is_allocated_and_punched() {
    everywhere(|served| {
        let (entry, open) = served.create(b"file");
        let call = |offset, length, flags| served.root_call(Request::Fallocate { open, offset, length, flags });
        assert_eq!(call(0, 1 << 20, FallocateFlags::empty()), Ok(Reply::Done));
        assert_eq!(served.attr(&entry.handle).unwrap().size, 1 << 20);
        assert_eq!(call(1 << 20, 1 << 20, FallocateFlags::KEEP_SIZE), Ok(Reply::Done));
        assert_eq!(served.attr(&entry.handle).unwrap().size, 1 << 20);
        served.write(open, 0, &[7; 8192]).unwrap();
        assert_eq!(call(0, 4096, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE), Ok(Reply::Done));
        let data = served.read(open, 0, 8192).unwrap();
        assert!(data[..4096].iter().all(|byte| *byte == 0) && data[4096..].iter().all(|byte| *byte == 7));
        assert_eq!(call(0, 0, FallocateFlags::empty()), Err(Errno::EINVAL));
        assert_eq!(call(0, 1, FallocateFlags::PUNCH_HOLE), Err(Errno::EOPNOTSUPP));
        let reader = served.open(&entry.handle, OpenFlags::READ).unwrap();
        let flags = FallocateFlags::empty();
        let request = Request::Fallocate { open: reader, offset: 0, length: 1, flags };
        assert_eq!(served.root_call(request), Err(Errno::EBADF));
    });
}

#[test]
fn ranges_are_copied_inside_the_file_system() {
    everywhere(|served| {
        let (_, from) = served.create(b"from");
        let (entry, to) = served.create(b"to");
        let data: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
        served.write(from, 0, &data).unwrap();
        let copy = |from_offset, to_offset, length| {
            served.root_call(Request::CopyRange { from, from_offset, to, to_offset, length }).and_then(Reply::size)
        };
        assert_eq!(copy(10, 5, 50_000), Ok(50_000));
        assert_eq!(served.read(to, 5, 50_000).unwrap(), &data[10..50_010]);
        assert_eq!(copy(99_990, 0, 50_000), Ok(10), "up to the end");
        assert_eq!(copy(100_000, 0, 1), Ok(0));
        let reader = served.open(&entry.handle, OpenFlags::READ).unwrap();
        let wrong = Request::CopyRange { from, from_offset: 0, to: reader, to_offset: 0, length: 1 };
        assert_eq!(served.root_call(wrong), Err(Errno::EBADF));
    });
}

#[test]
fn an_open_gives_its_own_rights_to_its_own_client() {
    everywhere(|served| {
        let (entry, open) = served.create(b"file");
        let reader = served.open(&entry.handle, OpenFlags::READ).unwrap();
        let writer = served.open(&entry.handle, OpenFlags::WRITE).unwrap();
        assert_eq!(served.write(reader, 0, b"x"), Err(Errno::EBADF));
        assert_eq!(served.read(writer, 0, 1), Err(Errno::EBADF));
        assert_eq!(served.open(&entry.handle, OpenFlags::empty()), Err(Errno::EINVAL));
        let stranger = context(2, own());
        assert_eq!(served.read_as(&stranger, open, 0, 1), Err(Errno::EBADF));
        assert_eq!(served.call(&stranger, Request::Release { open }), Err(Errno::EBADF));
        let get = Request::GetAttr { handle: entry.handle.bytes(), open: Some(open) };
        assert_eq!(served.call(&stranger, get), Err(Errno::EBADF));
        let get = Request::GetAttr { handle: &served.root, open: Some(open) };
        assert_eq!(served.root_call(get), Err(Errno::EBADF), "an open of another file");
        served.posix.depart(ClientId(1));
        assert_eq!(served.read(open, 0, 1), Err(Errno::EBADF));
        assert_eq!(served.posix.statistics().opens, 0);
    });
}

#[test]
fn opens_are_bounded_and_a_create_beyond_leaves_nothing() {
    let options = aqueduct_posix::Options { opens_max: 2, ..Default::default() };
    let served = serve_with(&std::env::temp_dir(), options);
    let (first, open) = served.create(b"one");
    served.create(b"two");
    assert_eq!(served.create_as(&context(1, own()), b"three", 0o600).err(), Some(Errno::ENFILE));
    assert_eq!(served.open(&first.handle, OpenFlags::READ), Err(Errno::ENFILE));
    assert_eq!(served.lookup(&served.root, b"three"), Err(Errno::ENOENT));
    served.release(open);
    assert!(served.open(&first.handle, OpenFlags::READ).is_ok());
}

#[test]
fn what_was_written_is_made_stable() {
    everywhere(|served| {
        let (_, open) = served.create(b"file");
        served.write(open, 0, b"data").unwrap();
        for data_only in [false, true] {
            assert_eq!(served.root_call(Request::Sync { open, data_only }), Ok(Reply::Done));
        }
        let committed = served.root_call(Request::Commit { open, offset: 0, length: 0 });
        assert_eq!(committed, Ok(Reply::Written(Written { count: 0, verifier: 0, offset: 0 })));
        assert_eq!(served.root_call(Request::Flush { open, owner: 1 }), Ok(Reply::Done));
    });
}

#[test]
fn opening_truncates_and_creating_finds_what_is_there() {
    everywhere(|served| {
        let parent = &served.root[..];
        let (entry, open) = served.create(b"file");
        served.write(open, 0, b"data").unwrap();
        let create =
            |flags| served.root_call(Request::Create { parent, name: b"file", mode: 0, umask: 0, flags })?.created();
        let (again, opened) = create(READ_WRITE).unwrap();
        assert_eq!((again.handle, again.attr.size), (entry.handle.clone(), 4));
        assert_eq!(served.read(opened.id, 0, 10).unwrap(), b"data");
        assert_eq!(create(READ_WRITE | OpenFlags::EXCLUSIVE).err(), Some(Errno::EEXIST));
        let (again, _) = create(READ_WRITE | OpenFlags::TRUNCATE).unwrap();
        assert_eq!(again.attr.size, 0);
        served.write(open, 0, b"data").unwrap();
        served.open(&entry.handle, READ_WRITE | OpenFlags::TRUNCATE | OpenFlags::SYNC | OpenFlags::DIRECT).unwrap();
        assert_eq!(served.attr(&entry.handle).unwrap().size, 0);
        served.mkdir(parent, b"dir", 0o755);
        let create = Request::Create { parent, name: b"dir", mode: 0, umask: 0, flags: READ_WRITE };
        assert_eq!(served.root_call(create), Err(Errno::EISDIR));
    });
}

#[test]
fn files_that_hide_their_size_are_read_all_the_same() {
    let posix = aqueduct_posix::Posix::open(std::path::Path::new("/proc/sys/kernel"), Default::default()).unwrap();
    let context = context(1, own());
    let call = |request| block_on(posix.call(&context, request));
    let root = call(Request::Root).unwrap().entry().unwrap();
    let file = call(Request::Lookup { parent: root.handle.bytes(), name: b"ostype" }).unwrap().entry().unwrap();
    assert_eq!(file.attr.size, 0);
    let open = call(Request::Open { handle: file.handle.bytes(), flags: OpenFlags::READ }).unwrap().opened().unwrap();
    for length in [100, 100_000] {
        let sink = MemorySink::default();
        let read = ReadAt { open: open.id, offset: 0, length };
        assert_eq!(block_on(posix.read(&context, read, Box::new(sink.clone()))), Ok(6));
        assert_eq!(sink.take().unwrap(), b"Linux\n");
    }
}

/// Small reads do not ask for the file's size, and remember one for what is read ahead.
#[test]
fn small_reads_end_where_the_file_does_now() {
    for place in ["/var/tmp", "/dev/shm"] {
        let served = serve(Path::new(place), aqueduct_posix::HandleSource::Kernel);
        let (_, open) = served.create(b"file");
        let others = std::fs::OpenOptions::new().write(true).open(served.path.join("file")).unwrap();
        let read = |at| served.read(open, at, 4096).unwrap().len();
        for size in [0, 10_000, 5000, 100_000, 1, 0, 4096] {
            others.set_len(size).unwrap();
            for at in [0, 4096, 8192, 98_304, size] {
                assert_eq!(read(at) as u64, size.saturating_sub(at).min(4096), "at {at} of {size}");
            }
        }
    }
}

#[test]
fn an_append_only_file_takes_appends() {
    if !is_root() {
        return skip("chattr +a takes root");
    }
    let served = serve(&std::env::temp_dir(), aqueduct_posix::HandleSource::Kernel);
    let (entry, open) = served.create(b"log");
    served.write(open, 0, b"one").unwrap();
    served.release(open);
    let file = std::fs::File::open(served.path.join("log")).unwrap();
    let flags = rustix::fs::ioctl_getflags(&file).unwrap();
    if rustix::fs::ioctl_setflags(&file, flags | rustix::fs::IFlags::APPEND).is_err() {
        return skip("no append-only files here");
    }
    assert_eq!(served.open(&entry.handle, READ_WRITE), Err(Errno::EPERM));
    let open = served.open(&entry.handle, READ_WRITE | OpenFlags::APPEND).unwrap();
    let append = WriteAt { open, offset: 0, append: true, stable: false };
    assert_eq!(served.write_as(&context(1, own()), append, b" two").unwrap().count, 4);
    assert_eq!(served.read(open, 0, 100).unwrap(), b"one two");
    rustix::fs::ioctl_setflags(&file, flags).unwrap();
}

#[test]
fn a_lease_of_a_local_program_does_not_hold_the_server() {
    // Whoever holds a lease is told by SIGIO, which would end this process.
    // SAFETY: ignoring a signal has no handler that could do harm.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    let served = serve(&std::env::temp_dir(), aqueduct_posix::HandleSource::Kernel);
    let (entry, open) = served.create(b"file");
    served.release(open);
    let file = std::fs::File::open(served.path.join("file")).unwrap();
    let lease = |kind: libc::c_int| {
        // SAFETY: the descriptor is open, the rest are numbers.
        unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_SETLEASE, kind) }
    };
    if lease(libc::F_RDLCK) != 0 {
        return skip("no leases here");
    }
    assert_eq!(served.open(&entry.handle, READ_WRITE), Err(Errno::EAGAIN));
    assert!(served.open(&entry.handle, OpenFlags::READ).is_ok());
    lease(libc::F_UNLCK);
    assert!(served.open(&entry.handle, READ_WRITE).is_ok());
}

/// Reads records of a file of which nothing is in the page cache, and what was counted meanwhile and after its release.
fn read_records(read_ahead: bool) -> (DataCounters, DataCounters) {
    const RECORD: u32 = 64 << 10;
    const STRIDE: u64 = 1 << 20;
    let served = serve_with(Path::new("/var/tmp"), Options { read_ahead, ..Options::default() });
    let (_, open) = served.create(b"file");
    let path = served.path.join("file");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Holes are not in the page cache either before they are read.
    file.set_len(64 * STRIDE).unwrap();
    let marked: Vec<u64> = (0..64).map(|record| record * STRIDE).collect();
    marked.iter().for_each(|at| file.write_all_at(&at.to_le_bytes(), *at).unwrap());
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for at in marked {
        let data = served.read(open, at, RECORD).unwrap();
        assert_eq!((data.len(), &data[..8]), (RECORD as usize, &at.to_le_bytes()[..]));
    }
    let during = served.posix.data_counters().unwrap();
    served.release(open);
    (during, served.posix.data_counters().unwrap())
}

#[test]
fn who_reads_records_in_order_has_them_read_ahead() {
    // The file's start is taken for a stream of its own, since files are read from there.
    let (during, after) = read_records(true);
    if during.waits == 0 {
        return skip("the file system of /var/tmp does not say what is in its page cache");
    }
    assert!(during.reads_ahead && during.streams > 0 && !during.latency.is_zero(), "{during:?}");
    assert!(during.used > 16 * (64 << 10) && during.waits < 48, "{during:?}");
    assert_eq!(after.streams, 0);
    assert_eq!(after.asked, after.used + after.wasted, "{after:?}");
    let (off, _) = read_records(false);
    assert_eq!(off, DataCounters::default());
}

#[test]
fn writes_are_counted_and_those_that_go_on() {
    everywhere(|served| {
        let (_, open) = served.create(b"file");
        for (at, continued) in [(0, 0), (4, 1), (8, 2), (100, 2), (0, 2), (4, 3)] {
            served.write(open, at, b"data").unwrap();
            assert_eq!(served.posix.data_counters().unwrap().continued, continued, "{at}");
        }
        let append = WriteAt { open, offset: 0, append: true, stable: false };
        served.write_as(&context(1, own()), append, b"more").unwrap();
        let counters = served.posix.data_counters().unwrap();
        assert_eq!((counters.writes, counters.written, counters.continued), (7, 28, 4));
    });
}
