//! What the kernel really does with what it is told to keep, and to forget.

mod common;
#[allow(dead_code, reason = "shared with the tests of the protocol")]
mod leased;
#[allow(dead_code, reason = "shared with other tests of real mounts")]
mod memory;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aqueduct_fs::Aspects;
use aqueduct_fuse::{CacheMode, Config};
use common::{Mounted, everybody, groups};
use leased::Leased;
use memory::Memory;

type Layer = Leased<Arc<Memory>>;

struct Fixture {
    memory: Arc<Memory>,
    layer: Arc<Layer>,
    mounted: Mounted,
}

fn fixture() -> Fixture {
    fixture_with(Config { posix_acl: true, ..Config::default() })
}

fn fixture_with(config: Config) -> Fixture {
    let memory = Arc::new(Memory::default());
    let layer = Arc::new(Leased::new(memory.clone()));
    let config = Config { cache: CacheMode::Lease, spares_flush: true, observed: Some(layer.observed()), ..config };
    let mounted = Mounted::with(layer.clone(), config, &everybody(), groups(2, 4));
    Fixture { memory, layer, mounted }
}

impl Fixture {
    /// Changes a file, or makes it, as another client would.
    fn put(&self, name: &str, data: &[u8]) {
        let root = self.memory.root();
        let names = (&root[..], Aspects::NAMES | Aspects::ATTRIBUTES);
        let file = self.memory.find(name.as_bytes());
        let touched: Vec<_> = match &file {
            Some(file) => vec![(&file[..], Aspects::ATTRIBUTES | Aspects::DATA)],
            None => vec![names],
        };
        self.layer.change(&touched, || self.memory.put(name.as_bytes(), data));
    }

    fn remove(&self, name: &str) {
        let root = self.memory.root();
        let file = self.memory.find(name.as_bytes()).unwrap();
        let touched = [(&root[..], Aspects::NAMES | Aspects::ATTRIBUTES), (&file[..], Aspects::ATTRIBUTES)];
        self.layer.change(&touched, || self.memory.remove(name.as_bytes()));
    }

    /// How many requests of each kind an action takes, but for those that nobody waits for.
    fn counts(&self, action: impl FnOnce()) -> Vec<(&'static str, usize)> {
        let before = self.layer.counts();
        action();
        let after = self.layer.counts();
        let more = after.iter().map(|(kind, count)| (*kind, count - before.get(kind).copied().unwrap_or_default()));
        more.filter(|(kind, count)| *count > 0 && !["release", "releasedir"].contains(kind)).collect()
    }
}

const NOTHING: [(&str, usize); 0] = [];

/// Whether the kernel keeps names; else it says so.
fn keeps_names(fixture: &Fixture) -> bool {
    let keeps = fixture.mounted.session.can_notify_epoch();
    if !keeps {
        println!("skipped: leases needs INC_EPOCH, by which a kernel forgets all names at once (Linux 6.16)");
    }
    keeps
}

#[test]
fn what_is_leased_is_asked_for_once() {
    let fixture = fixture();
    if !keeps_names(&fixture) {
        return;
    }
    let (file, none) = (fixture.mounted.join("file"), fixture.mounted.join("none"));
    fixture.memory.put(b"file", &[b'x'; 10_000]); // nobody knows anything yet that would be forgotten
    let read = || {
        let mut data = Vec::new();
        File::open(&file).unwrap().read_to_end(&mut data).unwrap();
        assert_eq!(data.len(), 10_000);
    };
    let look = || assert_eq!(fs::metadata(&file).unwrap().len(), 10_000);
    let miss = || assert_eq!(fs::metadata(&none).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    read();
    look();
    miss();
    assert_eq!(fixture.counts(look), NOTHING);
    assert_eq!(fixture.counts(miss), NOTHING);
    // One for the file system to decide on the open; what is read is in the page cache, and nothing is told of the close.
    assert_eq!(fixture.counts(read), [("open", 1)]);

    fixture.mounted.sh("mkdir d; for n in 1 2 3; do echo $n > d/$n; done; ln -s x d/l; find . -ls");
    // Once more, because the kernel lists from pages then, and after it was asked for them it asks for the new time of access.
    fixture.mounted.sh("find . -ls");
    let counts = fixture.counts(|| drop(fixture.mounted.sh("find . -ls")));
    assert!(counts.iter().all(|(kind, _)| !["lookup", "access", "readlink"].contains(kind)), "{counts:?}");
    assert!(
        counts.iter().all(|(kind, count)| *kind != "getattr" || *count == 1),
        "of the root, by its shell: {counts:?}"
    );
    let link = fixture.mounted.join("d/l");
    assert_eq!(fixture.counts(|| assert_eq!(fs::read_link(&link).unwrap().to_str(), Some("x"))), NOTHING);
}

/// With names in the kernel and without; a held descriptor, a name, a listing, names that were not there and such as are there no more.
#[test]
fn what_others_change_is_seen_at_once() {
    for minor_max in [45, 43] {
        let fixture = fixture_with(Config { posix_acl: true, minor_max, ..Config::default() });
        assert!(!fixture.mounted.session.can_notify_epoch() || minor_max == 45);
        fixture.put("file", b"");
        let (file, other) = (fixture.mounted.join("file"), fixture.mounted.join("other"));
        let held = File::open(&file).unwrap();
        for round in 1..200usize {
            let data = vec![round as u8; 3000 + round / 20]; // mostly as long as the last
            fixture.put("file", &data);
            let mut back = vec![0; 4000];
            let length = held.read_at(&mut back, 0).unwrap();
            assert!(back[..length] == data, "round {round}: a held descriptor");
            assert!(fs::read(&file).unwrap() == data, "round {round}: by name");
            assert_eq!(
                (fs::metadata(&file).unwrap().len(), held.metadata().unwrap().len()),
                (data.len() as u64, data.len() as u64)
            );
            let listed = || {
                fs::read_dir(fixture.mounted.path())
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name())
                    .collect::<Vec<_>>()
            };
            assert!(!other.exists());
            assert_eq!(listed(), ["file"]);
            fixture.put("other", b"x");
            assert!(other.exists());
            assert_eq!(listed(), ["file", "other"]);
            let inode = fs::metadata(&other).unwrap().ino();
            fixture.remove("other");
            assert!(!other.exists());
            fixture.put("other", b"y");
            assert_ne!(fs::metadata(&other).unwrap().ino(), inode, "another of the same name");
            fixture.remove("other");
        }
    }
}

/// A descriptor that is cached stays so when its lease is gone: what it reads then is asked for each time.
#[test]
fn a_cached_descriptor_reads_the_truth_without_a_lease() {
    let fixture = fixture();
    fixture.put("file", &[0; 5000]);
    let held = File::open(fixture.mounted.join("file")).unwrap();
    let mut data = [0; 5000];
    held.read_exact_at(&mut data, 0).unwrap();
    fixture.layer.data.store(false, Ordering::SeqCst);
    *fixture.layer.lease.lock().unwrap() = Duration::ZERO;
    fixture.put("file", &[1; 5000]);
    for round in 1..100u8 {
        held.read_exact_at(&mut data, 0).unwrap();
        assert!(data == [round; 5000], "round {round}");
        // Of the same length, mostly at the same time by the clock: nobody is told, for nobody has a lease.
        fixture.memory.rewrite(b"file", &[round + 1; 5000]);
        assert_eq!(held.metadata().unwrap().mtime_nsec(), 5, "the time that is shown is the right one");
    }
    assert_eq!(fixture.layer.covered.load(Ordering::SeqCst), 1);
    // Of another length: the kernel reads no further than to the size that it believes.
    for round in 1..100usize {
        let data = vec![round as u8; if round % 2 == 0 { 12_000 - round } else { 3000 + round }];
        fixture.memory.put(b"file", &data);
        let mut back = vec![0; 20_000];
        let length = held.read_at(&mut back, 0).unwrap();
        assert!(back[..length] == data, "round {round}: {length} bytes of {}", data.len());
    }
    fixture.memory.put(b"file", &[100; 5000]);
    // With a lease again nothing of before is used.
    drop(held);
    fixture.layer.data.store(true, Ordering::SeqCst);
    *fixture.layer.lease.lock().unwrap() = leased::LONG;
    assert!(fs::read(fixture.mounted.join("file")).unwrap() == [100; 5000]);
    let counts = fixture.counts(|| assert!(fs::read(fixture.mounted.join("file")).unwrap() == [100; 5000]));
    assert!(counts.iter().all(|(kind, _)| *kind != "read"), "{counts:?}");
}

/// What is read into the caller's buffer makes no pages, so none is marked, and none is dropped.
#[test]
fn direct_reads_are_told_from_pages() {
    let fixture = fixture();
    if !fixture.mounted.session.negotiated().maps_direct_io() {
        return println!("skipped: leases needs shared mappings of files that are open for direct I/O (Linux 6.6)");
    }
    fixture.put("file", &[7; 5000]);
    let direct = File::options().read(true).append(true).open(fixture.mounted.join("file")).unwrap();
    let mut data = [0; 5000];
    direct.read_exact_at(&mut data, 0).unwrap();
    assert_eq!((data, fixture.layer.covered.load(Ordering::SeqCst)), ([7; 5000], 0));
    fixture.mounted.python("import mmap; f = open('file', 'a+b'); assert mmap.mmap(f.fileno(), 0)[9] == 7");
    assert_eq!(fixture.layer.covered.load(Ordering::SeqCst), 1, "a mapping has pages");
}

/// A name that is moved takes the time that the kernel may keep it with it, to where there may be no lease.
#[test]
fn a_moved_name_is_not_kept() {
    let fixture = fixture();
    fixture.mounted.sh("mkdir from to; echo x > from/a; stat from/a");
    fs::rename(fixture.mounted.join("from/a"), fixture.mounted.join("to/b")).unwrap();
    let counts = fixture.counts(|| assert!(fs::metadata(fixture.mounted.join("to/b")).unwrap().is_file()));
    assert!(counts.contains(&("lookup", 2)), "{counts:?}");
}

/// An answer that is on its way when its name is recalled is not used for longer.
#[test]
fn a_name_that_was_asked_for_before_a_recall_is_asked_for_again() {
    let fixture = fixture();
    if !keeps_names(&fixture) {
        return;
    }
    fixture.put("file", b"x");
    fixture.layer.stalled.store(true, Ordering::SeqCst);
    let file = fixture.mounted.join("file");
    std::thread::scope(|scope| {
        let look = scope.spawn(|| fs::metadata(&file).unwrap());
        common::eventually("it is asked for", || fixture.layer.count("lookup") == 1);
        fixture.layer.observer().forget(&fixture.memory.root(), Aspects::NAMES);
        fixture.layer.stalled.store(false, Ordering::SeqCst);
        look.join().unwrap();
    });
    let counts = fixture.counts(|| assert!(fs::metadata(&file).unwrap().is_file()));
    assert!(counts.contains(&("lookup", 1)), "{counts:?}");
    // And for a while each time.
    let counts = fixture.counts(|| assert!(fs::metadata(&file).unwrap().is_file()));
    assert!(counts.contains(&("lookup", 1)), "{counts:?}");
}

/// Mapped stores are in the page cache until they are written back; a recall does that first.
#[test]
fn mappings_and_sendfile_see_what_was_changed_before() {
    let fixture = fixture();
    fixture.put("file", &[b'a'; 20_000]);
    fixture.mounted.python(
        "import mmap, os\n\
         f = open('file', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[5000:5003] = b'new'; m.flush()\n\
         r = open('file', 'rb'); assert r.read()[5000:5003] == b'new'\n\
         p, q = os.pipe(); r.seek(0); assert os.sendfile(q, r.fileno(), 5000, 3) == 3 and os.read(p, 3) == b'new'\n",
    );
    for byte in *b"xyz" {
        fixture.put("file", &[byte; 20_000]);
        let script = "import mmap, os\n\
             r = open('file', 'rb'); p, q = os.pipe()\n\
             assert os.sendfile(q, r.fileno(), 5000, 3) == 3\n\
             m = mmap.mmap(r.fileno(), 0, prot=mmap.PROT_READ)\n\
             print((os.read(p, 3) + m[5000:5003]).decode())\n";
        assert_eq!(fixture.mounted.python(script).trim(), String::from_utf8(vec![byte; 6]).unwrap());
    }
}

/// Since Linux 6.16 munmap(2) waits until what was stored has been written; before it only begins
/// to. A close waits on all of them.
#[test]
fn who_unmaps_waits_for_what_was_stored_since_6_16() {
    let fixture = fixture();
    fixture.put("file", &[b'a'; 5000]);
    let marker = fixture.mounted.path().with_extension("unmapped");
    // Python's own mapping closes a descriptor with itself.
    let script = format!(
        "import ctypes, os\n\
         libc, f = ctypes.CDLL(None), os.open('file', os.O_RDWR)\n\
         libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]\n\
         libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]\n\
         m = libc.mmap(None, 5000, 3, 1, f, 0); ctypes.memmove(m + 4000, b'new', 3); libc.munmap(m, 5000)\n\
         open('{}', 'w').close(); os.close(f)",
        marker.display()
    );
    std::thread::scope(|scope| {
        let stalled = Stalled::new(&fixture.layer.stalled_writes);
        let stores = scope.spawn(|| fixture.mounted.python(&script));
        common::eventually("it is written", || fixture.layer.count("write") == 1);
        if waits_at_munmap() {
            std::thread::sleep(Duration::from_millis(200));
            assert!(!marker.exists(), "it was not waited for");
        } else {
            common::eventually("it is unmapped before it is written", || marker.exists());
        }
        assert!(!stores.is_finished(), "the close waits");
        drop(stalled);
        stores.join().unwrap();
    });
    fs::remove_file(&marker).unwrap();
    let mut stored = [0; 3];
    File::open(fixture.mounted.join("file")).unwrap().read_exact_at(&mut stored, 4000).unwrap();
    assert_eq!(stored, *b"new");
}

/// Something waits as long as it is there.
struct Stalled<'a>(&'a AtomicBool);

impl Stalled<'_> {
    fn new(flag: &AtomicBool) -> Stalled<'_> {
        flag.store(true, Ordering::SeqCst);
        Stalled(flag)
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Linux 6.16 and later.
fn waits_at_munmap() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 16)
}
