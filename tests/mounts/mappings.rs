//! Shared mappings through descriptors that are open for reading and writing: page by page, beside
//! other clients, and beside read(2) and write(2).

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::common::{Mount, One, Pair, as_on_kernel, test};
use crate::sys::{Hold, Mapping, Request, lock};

const PAGE: usize = 4096;

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn page(file: &File, number: usize) -> Mapping {
    Mapping::at(file.as_fd(), (number * PAGE) as i64, PAGE, libc::PROT_READ | libc::PROT_WRITE).unwrap()
}

/// How often the kernel of a mount has asked for data.
fn reads(mount: &Mount) -> u64 {
    let status = mount.status();
    let samples = status["metrics"]["aqueduct_fuse_request_seconds"]["samples"].as_array().unwrap();
    let read = samples.iter().find(|sample| sample["labels"]["opcode"] == "READ");
    let buckets = read.and_then(|read| read["value"]["buckets"].as_array());
    buckets.map_or(0, |buckets| buckets.iter().map(|bucket| bucket[1].as_u64().unwrap()).sum())
}

/// A program that maps a page, stores to it and unmaps it, for each page of a file, has them
/// fetched in as few requests as one that maps them all at once.
#[test]
fn what_is_mapped_page_by_page_is_fetched_once() {
    const PAGES: usize = 512;
    test(|| {
        let one = One::with("cache=lease");
        let path = one.path("file");
        fs::write(&path, vec![b'a'; PAGES * PAGE]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len() as usize, PAGES * PAGE);
        let file = read_write(&path);
        let before = reads(&one.mount);
        for number in 0..PAGES {
            let mapping = page(&file, number);
            assert_eq!(mapping.load(9), b'a');
            mapping.store(7, &[number as u8]);
        }
        for number in 0..PAGES {
            assert_eq!(page(&file, number).load(7), number as u8);
        }
        let asked = reads(&one.mount) - before;
        assert!(asked <= 16, "{asked} requests for {PAGES} pages");
        // What is read and written beside that goes through the same pages.
        let mut byte = [0];
        file.read_exact_at(&mut byte, 7).unwrap();
        assert_eq!(byte, [0]);
        file.write_all_at(b"w", 7).unwrap();
        assert_eq!(page(&file, 0).load(7), b'w');
        drop(file);
        let written = fs::read(one.export.path().join("file")).unwrap();
        assert_eq!(written[7], b'w');
        assert!((1..PAGES).all(|number| written[number * PAGE + 7] == number as u8));
    });
}

/// Who has a lock finds what the one before him has stored and synced: through a mapping of his
/// own that is new, and through one that he has kept.
#[test]
fn who_has_a_lock_finds_in_mappings_what_was_stored_under_the_one_before() {
    const ROUNDS: u32 = 60;
    test(|| {
        let pair = Pair::with("cache=lease");
        fs::write(pair.left.join("file"), vec![0; 2 * PAGE]).unwrap();
        // The first is alone when it opens the file, and fills its pages.
        let left = read_write(&pair.left.join("file"));
        let kept_left = page(&left, 0);
        assert_eq!((kept_left.load(0), page(&left, 1).load(0)), (0, 0));
        let right = read_write(&pair.right.join("file"));
        let kept_right = page(&right, 0);
        assert_eq!(kept_right.load(0), 0);
        for round in 0..ROUNDS {
            // In turn, and now and then the same one twice.
            let (file, kept) = if round % 5 < 2 { (&left, &kept_left) } else { (&right, &kept_right) };
            lock(file.as_fd(), Request::OpenFile, Hold::Write, 0, 1, true).unwrap();
            let (new, before) = (page(file, 1), round as u8);
            assert_eq!((kept.load(0), new.load(0)), (before, before), "round {round}");
            kept.store(0, &[before + 1]);
            new.store(0, &[before + 1]);
            kept.sync().unwrap();
            new.sync().unwrap();
            lock(file.as_fd(), Request::OpenFile, Hold::Unlock, 0, 1, true).unwrap();
        }
    });
}

/// A descriptor that was opened while nobody else had the file reads and writes it as any other
/// afterwards.
#[test]
fn descriptors_that_were_alone_when_they_were_opened_see_what_others_write() {
    test(|| {
        let pair = Pair::with("cache=lease");
        fs::write(pair.left.join("file"), vec![0; 3 * PAGE]).unwrap();
        let left = read_write(&pair.left.join("file"));
        let mapping = page(&left, 2);
        let mut data = vec![1; 3 * PAGE];
        left.read_exact_at(&mut data, 0).unwrap();
        assert!(data.iter().all(|byte| *byte == 0) && mapping.load(0) == 0);
        let right = read_write(&pair.right.join("file"));
        for round in 1..100u8 {
            let (writer, reader) = if round % 2 == 0 { (&left, &right) } else { (&right, &left) };
            let length = [PAGE, 100, 3 * PAGE][round as usize % 3];
            writer.write_all_at(&vec![round; length], u64::from(round % 7)).unwrap();
            let end = length + usize::from(round % 7);
            let mut back = vec![0; end];
            reader.read_exact_at(&mut back, 0).unwrap();
            assert!(back[usize::from(round % 7)..].iter().all(|byte| *byte == round), "round {round}");
            // Through pages that are written in part, too.
            reader.write_all_at(&[round], 10).unwrap();
            let mut byte = [0];
            writer.read_exact_at(&mut byte, 10).unwrap();
            assert_eq!(byte, [round], "round {round}");
        }
        // Shorter, and longer again.
        right.set_len(50).unwrap();
        assert_eq!(left.read_at(&mut data, 0).unwrap(), 50);
        right.set_len(2 * PAGE as u64).unwrap();
        assert_eq!(left.read_at(&mut data, 0).unwrap(), 2 * PAGE);
        assert!(data[50..2 * PAGE].iter().all(|byte| *byte == 0));
    });
}

/// Who asks for it reads past the kernel's pages.
#[test]
fn what_is_opened_to_pass_pages_by_does() {
    test(|| {
        if as_on_kernel().is_some() {
            return;
        }
        let one = One::with("cache=lease");
        let path = one.path("file");
        fs::write(&path, vec![b'a'; 4 * PAGE]).unwrap();
        for flags in [OFlags::SYNC, OFlags::DIRECT, OFlags::APPEND] {
            assert_eq!(fs::metadata(&path).unwrap().len() as usize, 4 * PAGE);
            let file = File::from(rustix::fs::open(&path, OFlags::RDWR | flags, Mode::empty()).unwrap());
            let mut data = vec![0; 4 * PAGE];
            for _ in 0..2 {
                let before = reads(&one.mount);
                assert_eq!(file.read_at(&mut data, 0).unwrap(), 4 * PAGE);
                assert!(reads(&one.mount) > before, "{flags:?}: read from pages");
            }
        }
    });
}
