//! What holds on kernels that lack something, tried on this one, which is taken not to have it: 36
//! is the bit by which files that are open for direct I/O can be mapped shared (Linux 6.6).
//! Without it whatever may be read is opened cached.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Enough, FileSystem, Mount, One, Pair, aqueduct, as_on_kernel, errno, patience, run, skip, test};
use crate::sys::Mapping;

/// Mounts as on Linux before 6.6.
pub const BEFORE_6_6: [&str; 2] = ["cache=none,init_without=36", "cache=lease,init_without=36"];

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn what_is_opened_for_reading_is_mapped_shared_before_6_6() {
    test(|| {
        for options in BEFORE_6_6 {
            let pair = Pair::with(options);
            fs::write(pair.left.join("file"), vec![b'a'; 10_000]).unwrap();
            let reader = File::open(pair.right.join("file")).unwrap();
            let mapping = Mapping::read_only(reader.as_fd(), 10_000).unwrap();
            assert_eq!((mapping.load(0), mapping.load(9_999)), (b'a', b'a'));
            drop(mapping);
            // What another client wrote is there for who maps it then, and looks before.
            fs::write(pair.left.join("file"), vec![b'b'; 10_000]).unwrap();
            assert_eq!(reader.metadata().unwrap().len(), 10_000);
            let mapping = Mapping::read_only(File::open(pair.right.join("file")).unwrap().as_fd(), 10_000).unwrap();
            assert_eq!((mapping.load(0), mapping.load(9_999)), (b'b', b'b'));
            // A program of the same mount that writes past the pages, and one that writes through
            // them.
            let writer = OpenOptions::new().write(true).open(pair.right.join("file")).unwrap();
            writer.write_all_at(b"c", 5000).unwrap();
            assert_eq!(mapping.load(5000), b'c');
            read_write(&pair.right.join("file")).write_all_at(b"d", 5001).unwrap();
            assert_eq!(mapping.load(5001), b'd');
            let stored = read_write(&pair.right.join("file"));
            let storing = Mapping::new(stored.as_fd(), 10_000).unwrap();
            storing.store(5002, b"e");
            assert_eq!(mapping.load(5002), b'e');
            let mut byte = [0];
            File::open(pair.right.join("file")).unwrap().read_exact_at(&mut byte, 5002).unwrap();
            assert_eq!(byte, *b"e", "{options}: a read sees a store of the same mount");
            storing.sync().unwrap();
            File::open(pair.left.join("file")).unwrap().read_exact_at(&mut byte, 5002).unwrap();
            assert_eq!(byte, *b"e", "{options}: the other mount sees it when it was synced");
        }
    });
}

/// What a write(2) through pages leaves in them is no truer than what was read into them.
#[test]
fn pages_that_were_written_are_not_read_when_another_client_wrote_before_6_6() {
    test(|| {
        for options in BEFORE_6_6 {
            let pair = Pair::with(options);
            let (left, right) = (read_write(&pair.left.join("file")), read_write(&pair.right.join("file")));
            for round in 0..50u8 {
                left.write_all_at(&[b'W'; 4096], 0).unwrap();
                let time = left.metadata().unwrap().modified().unwrap();
                left.write_all_at(&[b'W'; 4096], 0).unwrap();
                let other = [round; 4096];
                right.write_all_at(&other, 0).unwrap();
                right.set_times(FileTimes::new().set_modified(time)).unwrap();
                let mut read = [0; 4096];
                left.read_exact_at(&mut read, 0).unwrap();
                assert!(read == other, "{options}, round {round}: {:?}", &read[..4]);
            }
        }
    });
}

/// A log that one client appends to and another reads as far as it goes, while more programs there
/// look at it and read it.
#[test]
fn what_grows_is_read_to_its_end() {
    test(|| {
        for options in ["cache=none", "cache=lease"].into_iter().chain(BEFORE_6_6) {
            let pair = Pair::with(options);
            fs::write(pair.left.join("log"), "").unwrap();
            append(&pair, options, true);
            let ended = AtomicBool::new(false);
            thread::scope(|scope| {
                let watchers = [0, 1].map(|_| scope.spawn(|| watch(&pair.right, &ended)));
                let enough = Enough(&ended);
                append(&pair, options, false);
                drop(enough);
                // Where processors are emulated they come to few reads.
                watchers
                    .into_iter()
                    .for_each(|watcher| assert!(watcher.join().unwrap() > 10 / patience(), "{options}"));
            });
        }
    });
}

/// Reads again and again what is there, until it is told to end; gives how often it read
/// something.
fn watch(mount: &Mount, ended: &AtomicBool) -> u32 {
    let (file, mut reads) = (File::open(mount.join("log")).unwrap(), 0);
    let mut data = vec![0; 100_000];
    while !ended.load(Ordering::Relaxed) {
        assert!(fs::metadata(mount.join("log")).is_ok());
        let count = file.read_at(&mut data, 0).unwrap();
        reads += u32::from(count > 0);
    }
    reads
}

/// Appends through one mount, and looks through the other whether all of it is there; and now and
/// then makes it short again.
fn append(pair: &Pair, options: &str, shortens: bool) {
    const TIME: Duration = Duration::from_secs(2);
    let mut log = OpenOptions::new().append(true).open(pair.left.join("log")).unwrap();
    let reader = File::open(pair.right.join("log")).unwrap();
    let (until, mut round, mut size) = (Instant::now() + TIME, 0u32, log.metadata().unwrap().len() as usize);
    while Instant::now() < until {
        round += 1;
        if shortens && round.is_multiple_of(20) {
            log.set_len(10).unwrap();
            size = 10;
        }
        let piece = vec![b'a' + (round % 26) as u8; 1 + round as usize * 37 % 3000];
        log.write_all(&piece).unwrap();
        size += piece.len();
        let mut data = vec![0; size + 100];
        let count = reader.read_at(&mut data, 0).unwrap();
        assert_eq!(count, size, "{options}, round {round}");
        let wrong = data[size - piece.len()..size].iter().zip(&piece).position(|(read, written)| read != written);
        let wrong = wrong.map(|at| (size - piece.len() + at, data[size - piece.len() + at], piece[at]));
        assert_eq!(wrong, None, "{options}, round {round}: {} of {size} bytes", piece.len());
    }
}

/// Pages that were stored to are written when they are dropped for somebody who reads. Their error
/// is the kernel's to tell.
#[test]
fn who_syncs_is_told_of_pages_that_could_not_be_written_before_6_6() {
    test(|| {
        for options in BEFORE_6_6 {
            let small = FileSystem::tmpfs("size=1m");
            let one = One::over(small.directory(), &format!("{options},write_through"));
            let file = read_write(&one.path("file"));
            file.set_len(100_000).unwrap();
            let mut full = File::create(one.path("full")).unwrap();
            while full.write(&[1; 4096]).is_ok() {}
            // Some kernels (Linux 5.10) have tmpfs take a page for what is sent from a hole, and
            // so has none here.
            if file.read_exact_at(&mut [0], 80_000).is_err() {
                return skip("needs a kernel that sends holes of a full tmpfs");
            }
            let mapping = Mapping::new(file.as_fd(), 100_000).unwrap();
            mapping.store(50_000, b"x");
            // Whoever reads has the pages dropped, and finds nothing of what could not be written.
            let mut byte = [1];
            let reader = File::open(one.path("file")).unwrap();
            let mut reads = 0;
            while byte != [0] && reads < 10 {
                reader.read_exact_at(&mut byte, 50_000).unwrap();
                reads += 1;
            }
            assert_eq!(byte, [0], "{options}: it was not written");
            assert_eq!(errno(file.sync_all()), libc::ENOSPC, "{options}");
            drop((mapping, full));
            fs::remove_file(one.path("full")).unwrap();
            file.write_all_at(b"y", 50_000).unwrap();
            file.sync_all().unwrap();
            crate::sys::close(file).unwrap();
        }
    });
}

/// The doctor asks the kernel itself, and leaves nothing behind.
#[test]
fn the_doctor_tells_what_this_kernel_has() {
    test(|| {
        let one = One::new();
        let told = run(aqueduct().args(["doctor", "--json"])).succeeded();
        assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains("aqueduct-doctor-"));
        let findings: Vec<serde_json::Value> = serde_json::from_str(&told).unwrap();
        let state = |what: &str| {
            let finding = findings.iter().find(|finding| finding["what"] == what);
            finding.unwrap_or_else(|| panic!("{what}: {told}"))["state"].clone()
        };
        assert_eq!(state("/dev/fuse"), "good", "a mount works");
        // What a mount does is what was told, unless it is to do without.
        if as_on_kernel().is_some() {
            return;
        }
        if std::env::var_os("TRANSPORT").is_none() {
            let by_rings = one.mount.status()["requests_by"] == "io_uring";
            assert_eq!(state("requests by io_uring") == "good", by_rings);
        }
        fs::write(one.path("file"), "x").unwrap();
        let appends = OpenOptions::new().read(true).append(true).open(one.path("file")).unwrap();
        let maps = Mapping::read_only(appends.as_fd(), 1).is_ok();
        assert_eq!(state("shared mappings beside direct I/O") == "good", maps);
        assert!(run(aqueduct().arg("doctor")).succeeded().contains("what for"));
    });
}
