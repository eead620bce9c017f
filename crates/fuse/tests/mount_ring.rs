//! The tests of `mount.rs` with requests that come by io_uring, where the kernel offers it, and those of what is different then.

#[path = "mount.rs"]
mod mount;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use aqueduct_fs::layer::Layer;
use aqueduct_fs::{Call, Context, Errno, FileSystem, ReadAt, Sink};
use aqueduct_fuse::{Config, mount as mount_at, start};
use mount::common::{Mounted, eventually, everybody, groups};
use mount::memory::Memory;

/// Keeps the destination of reads that it lets fail, as a connection does that has not noticed yet.
#[derive(Default)]
struct Keeping {
    inner: Memory,
    fails: AtomicBool,
    kept: Mutex<Option<Box<dyn Sink>>>,
    /// Whoever reads waits for it, and keeps its thread.
    gate: Mutex<()>,
}

impl Layer for Keeping {
    type Below = Memory;

    fn below(&self) -> &Memory {
        &self.inner
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, mut sink: Box<dyn Sink>) -> Call<'a, usize> {
        drop(self.gate.lock().unwrap());
        if !self.fails.swap(false, Ordering::SeqCst) {
            return self.inner.read(context, read, sink);
        }
        assert!(sink.memory(read.length as usize).is_some());
        *self.kept.lock().unwrap() = Some(sink);
        Call::ready(Err(Errno::EIO))
    }
}

/// Else the kernel would put the next request where somebody still writes the data of the last one.
#[test]
fn memory_that_is_lent_is_given_back_before_the_request_is_answered() {
    let files = Arc::new(Keeping::default());
    let mounted = Mounted::new(files.clone(), Config::default());
    if !mounted.session.negotiated().over_io_uring() {
        return; // with /dev/fuse nothing is lent
    }
    fs::write(mounted.join("file"), vec![7; 100_000]).unwrap();
    let file = Arc::new(File::open(mounted.join("file")).unwrap());
    files.fails.store(true, Ordering::SeqCst);
    let reader = {
        let file = file.clone();
        thread::spawn(move || file.read_at(&mut [0; 100_000], 0).unwrap_err().raw_os_error())
    };
    eventually("the read has failed", || files.kept.lock().unwrap().is_some());
    for _ in 0..100 {
        assert_eq!(fs::metadata(mounted.join("file")).unwrap().len(), 100_000, "others are answered");
    }
    assert!(!reader.is_finished());
    let sink = files.kept.lock().unwrap().take();
    drop(sink);
    assert_eq!(reader.join().unwrap(), Some(libc::EIO));
    assert_eq!(fs::read(mounted.join("file")).unwrap(), vec![7; 100_000]);
}

/// A connection may notice late that nobody waits for what it receives, and deliver it.
#[test]
fn data_that_come_after_the_answer_go_nowhere() {
    let files = Arc::new(Keeping::default());
    let mounted = Mounted::with(files.clone(), Config::default(), &everybody(), groups(1, 1));
    fs::write(mounted.join("file"), vec![7; 100_000]).unwrap();
    let file = Arc::new(File::open(mounted.join("file")).unwrap());
    for _ in 0..20 {
        files.fails.store(true, Ordering::SeqCst);
        let reader = {
            let file = file.clone();
            thread::spawn(move || file.read_at(&mut [0; 100_000], 0).unwrap_err().raw_os_error())
        };
        eventually("the read has failed", || files.kept.lock().unwrap().is_some());
        file.metadata().unwrap(); // by the same thread: it has answered the read before
        let mut sink = files.kept.lock().unwrap().take().unwrap();
        sink.memory(100_000).unwrap().fill(8);
        assert!(sink.finish(100_000).is_err());
        assert_eq!(reader.join().unwrap(), Some(libc::EIO));
        assert_eq!(fs::read(mounted.join("file")).unwrap(), vec![7; 100_000]);
    }
}

/// The unlock, and the very opens, would otherwise wait behind the locks: the kernel hands a processor's requests over as long as an entry is free.
#[test]
fn any_number_of_requests_may_wait_for_a_lock() {
    let mounted = Mounted::new(Arc::new(Memory::default()), Config::default());
    let script = "import fcntl, os, time\n\
        os.sched_setaffinity(0, {0})\n\
        held = open('file', 'w'); fcntl.flock(held, fcntl.LOCK_EX)\n\
        def wait():\n\
        \x20   own = open('file', 'w'); fcntl.flock(own, fcntl.LOCK_EX); os._exit(0)\n\
        children = [os.fork() or wait() for _ in range(100)]\n\
        while not all(open(f'/proc/{child}/syscall').read().startswith('73 ') for child in children): time.sleep(0.01)\n\
        fcntl.flock(held, fcntl.LOCK_UN)\n\
        print([os.waitpid(child, 0)[1] for child in children].count(0))\n";
    assert_eq!(mounted.python(script).trim(), "100");
}

/// The release waits in the queue of one processor, and the lock is asked for in that of another.
#[test]
fn what_was_closed_on_another_processor_is_unlocked() {
    let mounted = Mounted::new(Arc::new(Memory::default()), Config::default());
    let script = "import fcntl, os, time\n\
        hog = os.fork()\n\
        if hog == 0:\n\
        \x20   os.sched_setaffinity(0, {0}); os.nice(-20); end = time.time() + 20\n\
        \x20   while time.time() < end: pass\n\
        \x20   os._exit(0)\n\
        try:\n\
        \x20   for _ in range(20):\n\
        \x20       os.sched_setaffinity(0, {0})\n\
        \x20       first = open('file', 'w'); fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB); second = open('file', 'w')\n\
        \x20       first.close(); os.sched_setaffinity(0, {1}); fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB); second.close()\n\
        finally:\n\
        \x20   os.kill(hog, 9); os.waitpid(hog, 0)\n";
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        mounted.python(script);
    } else {
        println!("skipped: needs two processors");
    }
}

/// The kernel gives new entries to new requests only: those that waited for one before are asked for.
#[test]
fn the_unlock_arrives_when_it_came_before_there_were_more_entries() {
    let mounted = Mounted::new(Arc::new(Memory::default()), Config::default());
    let script = "import fcntl, os, threading, time\n\
        os.sched_setaffinity(0, {0})\n\
        for count in (8, 20, 40):\n\
        \x20   held = open('file', 'w'); fcntl.flock(held, fcntl.LOCK_EX)\n\
        \x20   files = [open('file', 'w') for _ in range(count)]\n\
        \x20   start = threading.Event()\n\
        \x20   def wait(own): start.wait(); fcntl.flock(own, fcntl.LOCK_EX); fcntl.flock(own, fcntl.LOCK_UN)\n\
        \x20   threads = [threading.Thread(target=wait, args=[own]) for own in files]\n\
        \x20   [thread.start() for thread in threads]\n\
        \x20   start.set(); time.sleep(0.003); fcntl.flock(held, fcntl.LOCK_UN)\n\
        \x20   [thread.join() for thread in threads]\n";
    mounted.python(script);
}

/// The kernel tells of no signal that came to a caller before its request was taken from the queue.
#[test]
fn a_signal_ends_the_wait_for_a_lock_that_was_queued_when_it_came() {
    let mounted = Mounted::new(Arc::new(Memory::default()), Config::default());
    let script = "import fcntl, os, signal, time\n\
        os.sched_setaffinity(0, {0})\n\
        held = open('file', 'w'); fcntl.flock(held, fcntl.LOCK_EX)\n\
        begin, go = os.pipe()\n\
        def wait():\n\
        \x20   def alarm(*_): raise TimeoutError\n\
        \x20   own = open('file', 'w'); signal.signal(signal.SIGALRM, alarm); os.close(go); os.read(begin, 1)\n\
        \x20   signal.setitimer(signal.ITIMER_REAL, 0.005)\n\
        \x20   try: fcntl.flock(own, fcntl.LOCK_EX)\n\
        \x20   except TimeoutError: os._exit(0)\n\
        \x20   os._exit(1)\n\
        children = [os.fork() or wait() for _ in range(60)]\n\
        time.sleep(0.1); os.close(go)\n\
        print([os.waitpid(child, 0)[1] for child in children].count(0))\n";
    assert_eq!(mounted.python(script).trim(), "60");
}

/// As many as wait are told of at once while the thread of the mount is busy, and none is answered after it.
#[test]
fn more_requests_than_a_ring_holds_may_come_at_once() {
    const COUNT: usize = 400;
    let files = Arc::new(Keeping::default());
    let mounted = Mounted::with(files.clone(), Config::default(), &everybody(), groups(1, 1));
    let path = mounted.join("file");
    fs::write(&path, "data").unwrap();
    let held = File::create(mounted.join("lock")).unwrap();
    let others: Vec<_> = (0..COUNT).map(|_| File::create(mounted.join("lock")).unwrap()).collect();
    for is_busy in [false, true] {
        held.lock().unwrap();
        let gate = is_busy.then(|| files.gate.lock().unwrap());
        let tids = Mutex::new(Vec::new());
        thread::scope(|scope| {
            if is_busy {
                scope.spawn(|| fs::read(&path).unwrap());
            }
            for file in &others {
                let tids = &tids;
                scope.spawn(move || {
                    tids.lock().unwrap().push(rustix::thread::gettid());
                    file.lock().unwrap();
                    file.unlock().unwrap();
                });
            }
            let all_wait = || {
                let tids = tids.lock().unwrap();
                let waits = |tid: &rustix::thread::Pid| {
                    let call = fs::read_to_string(format!("/proc/self/task/{}/syscall", tid.as_raw_nonzero()));
                    call.is_ok_and(|call| call.starts_with(&format!("{} ", libc::SYS_flock)))
                };
                tids.len() == COUNT && tids.iter().all(waits)
            };
            eventually("all wait", all_wait);
            drop(gate);
            held.unlock().unwrap();
        });
    }
}

/// The kernel does not check whether a request fits into an entry.
#[test]
fn small_transfers_do_without_rings() {
    let folder = tempfile::tempdir().unwrap();
    let device = mount_at(folder.path(), &everybody()).unwrap();
    let config = Config { max_transfer: 4096, io_uring: true, ..Config::default() };
    let session = start(device, Arc::new(Memory::default()), &groups(1, 1), config).unwrap();
    assert!(!session.negotiated().over_io_uring());
}

#[test]
fn a_mount_that_has_ended_leaves_nothing_behind() {
    for _ in 0..10 {
        let mounted = Mounted::new(Arc::new(Memory::default()), Config::default());
        let held: Vec<_> = (0..10).map(|_| File::create(mounted.join("file")).unwrap()).collect();
        held[0].lock().unwrap();
        let waiters: Vec<_> = held.into_iter().map(|file| thread::spawn(move || file.lock().is_ok())).collect();
        let groups: Vec<_> = mounted.groups.iter().map(Arc::downgrade).collect();
        drop(mounted);
        for waiter in waiters {
            let _granted_or_aborted: bool = waiter.join().unwrap();
        }
        eventually("the groups are dropped", || groups.iter().all(|group| group.strong_count() == 0));
    }
}
