//! What clients bring to the servers of stores themselves.

use super::*;

/// A volume of which one file has objects, and is open.
fn started(width: usize) -> (Volume, Process, OpenId) {
    let volume = Volume::new(3, width);
    let process = volume.start(usize::MAX);
    let (_, open) = process.create("file", OpenFlags::empty()).unwrap();
    assert_eq!(process.write(open, 0, &content(1, 40_000)), Ok(40_000));
    assert!(volume.objects() > 0);
    (volume, process, open)
}

impl Process {
    /// Brings bytes to all stores, and has them written.
    fn bring(&self, open: OpenId, offset: u64, data: &[u8]) -> Result<Written, Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::SeqCst).to_le_bytes());
        self.disk.brought.lock().unwrap().insert(id, data.to_vec().into());
        self.ask_for(open, offset, Staged { id, length: data.len() as u32 })
    }

    fn ask_for(&self, open: OpenId, offset: u64, staged: Staged) -> Result<Written, Errno> {
        let write = WriteAt { open, offset, append: false, stable: false };
        self.wait(self.plain.write(&context(), write, Source::Staged(staged)))
    }

    fn sync(&self, open: OpenId) -> Result<Reply, Errno> {
        self.ask(Request::Commit { open, offset: 0, length: 0 })
    }
}

const BLOCK_LENGTH: usize = BLOCK as usize;

#[test]
fn what_was_brought_is_written_where_it_belongs_as_any_other_write() {
    for width in [1, 0] {
        let (volume, process, open) = started(width);
        let mut all = content(1, 40_000);
        all.resize(7 * BLOCK_LENGTH + 100, 0);
        // Within, behind the end with a hole, in an object that was not made yet, and a part of a block.
        for (seed, at, length) in
            [(2, 0, BLOCK_LENGTH), (3, 6 * BLOCK_LENGTH, BLOCK_LENGTH), (4, 7 * BLOCK_LENGTH, 100)]
        {
            let data = content(seed, length);
            let written = process.bring(open, at as u64, &data).unwrap();
            assert_eq!((written.count as usize, written.offset), (length, at as u64));
            all[at..at + length].copy_from_slice(&data);
        }
        assert!(process.sync(open).is_ok());
        process.close(open).unwrap();
        assert!(process.get("file").unwrap() == all, "width {width}");
        let process = volume.start(usize::MAX);
        assert!(process.get("file").unwrap() == all, "width {width}");
    }
}

#[test]
fn what_is_not_there_or_does_not_lie_there_is_refused_and_nothing_is_done() {
    let (_volume, process, open) = started(0);
    let staged = Staged { id: [9; 16], length: 100 };
    assert_eq!(process.ask_for(open, 0, staged), Err(Errno::ENODATA), "it was not brought");
    assert_eq!(process.bring(open, BLOCK.into(), &content(2, BLOCK_LENGTH + 1)), Err(Errno::ENODATA));
    let (_, small) = process.create("small", OpenFlags::empty()).unwrap();
    process.write(small, 0, b"small").unwrap();
    assert_eq!(process.bring(small, 0, b"other"), Err(Errno::ENODATA), "it is an ordinary file");
    let append = WriteAt { open, offset: 0, append: true, stable: false };
    let asked = process.wait(process.plain.write(&context(), append, Source::Staged(staged)));
    assert_eq!(asked, Err(Errno::ENODATA), "where it ends only the server of the names knows");
    let read = process.open("file", OpenFlags::READ).unwrap();
    assert_eq!(process.bring(read, 0, &content(2, 100)), Err(Errno::EBADF), "it is open for reading");
    assert_eq!(process.get("small").unwrap(), b"small");
    assert!(process.get("file").unwrap() == content(1, 40_000));
    // What is refused leaves the file to grow as ever.
    assert_eq!(process.ask_for(open, 100_000, staged), Err(Errno::ENODATA));
    process.write(open, 50_000, b"end").unwrap();
    let mut all = content(1, 40_000);
    all.resize(50_000, 0);
    all.extend_from_slice(b"end");
    assert!(process.get("file").unwrap() == all);
}

#[test]
fn what_was_brought_is_stable_when_it_is_answered() {
    let (_volume, process, open) = started(1);
    process.sync(open).unwrap();
    let counts = || [&process.disk.stable, &process.disk.syncs].map(|count| count.load(Ordering::SeqCst));
    process.sync(open).unwrap();
    let [stable, _] = counts();
    process.bring(open, 0, &content(2, 1000)).unwrap();
    let [now, syncs] = counts();
    assert_eq!(now, stable + 1);
    process.sync(open).unwrap();
    assert_eq!(counts(), [now, syncs], "nothing is left to be done at the store");
}

#[test]
fn a_volume_may_want_nothing_to_be_brought() {
    let (volume, process, open) = started(1);
    drop((process, open));
    let process = volume.start_as(usize::MAX, false);
    let open = process.open("file", READ_WRITE).unwrap();
    assert_eq!(process.bring(open, 0, &content(2, 1000)), Err(Errno::EOPNOTSUPP));
    assert!(process.get("file").unwrap() == content(1, 40_000));
}
