//! A client of two servers: what it keeps of one has nothing to do with the other, and who gives
//! something up waits for all servers that it concerns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aqueduct_client::{ClientConfig, Map, SessionConfig};
use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix};

use crate::common::*;
use crate::endings::Between;
use crate::fixture::*;

/// What surely has not happened after this time does not happen by itself.
const MOMENT: Duration = Duration::from_millis(300);

/// Two trees: an inode is the server's that can say what it is.
struct Trees([Posix; 2]);

impl Map for Trees {
    fn namespace(&self, handle: &[u8]) -> usize {
        self.0.iter().position(|posix| posix.inode_name(handle).is_some()).expect("one of the two has made it")
    }
}

fn tree(number: u32) -> Process {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    Process::of(directory, limits(), Configured { number, ..Configured::default() })
}

fn keeping(server: std::net::SocketAddr) -> ClientConfig {
    let config = in_session(client_config(server, "/e"), |session| SessionConfig { suspect: LONG, ..session });
    ClientConfig { leases: true, ..config }
}

/// A file in each of two trees, and a client of both.
struct Two {
    processes: [Process; 2],
    mount: Arc<Mount>,
    files: [Handle; 2],
}

impl Two {
    fn new() -> Two {
        let processes = [tree(0), tree(1)];
        for process in &processes {
            std::fs::write(process.path("file"), "text").unwrap();
        }
        let servers = processes.iter().map(|process| keeping(process.server.addresses()[0])).collect();
        let trees = [0, 1].map(|number: u32| {
            let options = Options { key: KEY, export: number, ..Options::default() };
            Posix::open(processes[number as usize].directory.path(), options).unwrap()
        });
        let mount = Arc::new(Mount::over(servers, Some(Arc::new(Trees(trees)))));
        let roots = [mount.root.clone(), processes[1].mount().root.clone()];
        let files = roots.map(|root| mount.look_up_in(&root, "file").unwrap().handle);
        assert_ne!(files[0], files[1]);
        Two { processes, mount, files }
    }
}

fn mode_of(mount: &Mount, file: &Handle) -> u32 {
    mount.stat(file).mode & 0o777
}

fn change_past(process: &Process, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(process.path("file"), std::fs::Permissions::from_mode(mode)).unwrap();
}

/// What is changed past a server shows whether it is asked.
#[test]
fn the_restart_of_one_server_empties_nothing_of_what_is_kept_of_another() {
    let Two { mut processes, mount, files } = Two::new();
    assert_eq!(files.each_ref().map(|file| mode_of(&mount, file)), [0o644; 2]);
    processes.iter().for_each(|process| change_past(process, 0o600));
    assert_eq!(files.each_ref().map(|file| mode_of(&mount, file)), [0o644; 2], "both are kept");

    processes[1].kill();
    processes[1].start();
    until("its server is asked again", || mode_of(&mount, &files[1]) == 0o600);
    assert_eq!(mode_of(&mount, &files[0]), 0o644, "the other's is kept as before");
    assert!(mount.told.of(&files[1]).contains(Aspects::ATTRIBUTES), "the kernel has forgotten what it was told of it");
    assert!(mount.told.of(&files[0]).is_empty() && *mount.told.all.lock().unwrap() == 0, "and nothing else");

    processes[0].kill();
    processes[0].start();
    until("the other one is asked as well", || mode_of(&mount, &files[0]) == 0o600);
}

#[test]
fn what_would_be_at_two_servers_is_refused() {
    let Two { processes, mount, files } = Two::new();
    let (parent, new_parent) = (mount.root.clone(), processes[1].mount().root.clone());
    let (name, flags) = (&b"file"[..], RenameFlags::empty());
    let rename =
        Request::Rename { parent: parent.bytes(), name, new_parent: new_parent.bytes(), new_name: name, flags };
    assert_eq!(wait_for(&mount, rename), Err(Errno::EXDEV));
    let link = Request::Link { handle: files[0].bytes(), parent: new_parent.bytes(), name: b"link" };
    assert_eq!(wait_for(&mount, link), Err(Errno::EXDEV));
    let opens = files.each_ref().map(|file| mount.open(file, READ_WRITE).unwrap());
    assert_ne!(opens[0], opens[1]);
    let (from, to) = (opens[0], opens[1]);
    let copy = Request::CopyRange { from, from_offset: 0, to, to_offset: 0, length: 1 };
    assert_eq!(wait_for(&mount, copy), Err(Errno::EXDEV));
    assert_eq!(opens.map(|open| mount.read(open)), [Ok("text".into()), Ok("text".into())]);
    opens.iter().for_each(|open| mount.release(*open));
    assert_eq!(mount.read(opens[0]), Err(Errno::EBADF));
}

/// Also where the front end says so at once.
fn wait_for(mount: &Mount, request: Request<'_>) -> Result<Reply, Errno> {
    aqueduct_worker::wait(&mount.group, mount.cached.ask(&context(), request)).and_then(|answer| answer.result)
}

/// A kernel in which a page of one file is locked, as it is while it is being read: who has it
/// forgotten waits.
#[derive(Default)]
struct Page {
    of: Mutex<Option<Handle>>,
    is_locked: Mutex<bool>,
    unlocked: Condvar,
    has_waited: AtomicBool,
}

impl Observer for Page {
    fn forget(&self, handle: &[u8], aspects: Aspects) {
        let is_it = self.of.lock().unwrap().as_ref().is_some_and(|of| of.bytes() == handle);
        if !is_it || !aspects.contains(Aspects::DATA) {
            return;
        }
        self.has_waited.store(true, Ordering::SeqCst);
        let locked = self.is_locked.lock().unwrap();
        drop(self.unlocked.wait_timeout_while(locked, LONG, |locked| *locked).unwrap());
    }

    fn forget_at_once(&self, _: &[u8], aspects: Aspects) -> bool {
        !aspects.contains(Aspects::DATA)
    }

    fn forget_names_of(&self, _: &[u8]) {}

    fn forget_everything(&self) {}
}

#[test]
fn a_page_that_hangs_at_a_dead_server_delays_no_recall_of_a_living_one() {
    let Two { processes, mount, files } = Two::new();
    let page = Arc::<Page>::default();
    *page.of.lock().unwrap() = Some(files[1].clone());
    *page.is_locked.lock().unwrap() = true;
    mount.cached.set_observer(page.clone());
    for file in &files {
        let answer = mount.answer(&context(), Request::Open { handle: file.bytes(), flags: READ });
        assert!(answer.keep.data, "the kernel may keep its pages");
        mount.stat(file);
    }
    let others = [0, 1].map(|at| Arc::new(processes[at].mount()));
    let write = writes(&others[1], files[1].clone());
    until("the page is waited for", || page.has_waited.load(Ordering::SeqCst));

    let start = Instant::now();
    writes(&others[0], files[0].clone()).join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(!write.is_finished(), "the page hangs still");
    *page.is_locked.lock().unwrap() = false;
    page.unlocked.notify_all();
    write.join().unwrap();
}

fn writes(mount: &Arc<Mount>, file: Handle) -> JoinHandle<()> {
    let mount = mount.clone();
    std::thread::spawn(move || {
        let open = mount.open(&file, READ_WRITE).unwrap();
        mount.write(open, b"new").unwrap();
        mount.release(open);
    })
}

/// One server has the names, the other moves the bytes.
struct Roles;

impl Map for Roles {
    fn namespace(&self, _: &[u8]) -> usize {
        0
    }

    fn data(&self, _: &[u8]) -> usize {
        1
    }
}

/// Two servers over one directory, the one for data behind something that can hold up what
/// travels, and a client.
struct Split {
    names: Process,
    data: Process,
    between: Between,
    mount: Arc<Mount>,
    file: Handle,
}

impl Split {
    fn new() -> Split {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let configured = || Configured { boot: 7, ..Configured::default() };
        let [names, data] = [(); 2].map(|()| Process::of(directory.clone(), limits(), configured()));
        std::fs::write(names.path("file"), "text").unwrap();
        let between = Between::new(data.server.addresses()[0]);
        let of_data = ClientConfig { leases: false, ..keeping(between.address) };
        let servers = vec![keeping(names.server.addresses()[0]), of_data];
        let mount = Arc::new(Mount::over(servers, Some(Arc::new(Roles))));
        let file = mount.look_up("file").unwrap().handle;
        Split { names, data, between, mount, file }
    }

    fn writes_later(&self, open: OpenId) -> JoinHandle<Result<Written, Errno>> {
        let mount = self.mount.clone();
        std::thread::spawn(move || mount.write(open, b"later"))
    }

    fn asks_later(&self, request: Request<'static>) -> JoinHandle<Result<Reply, Errno>> {
        let mount = self.mount.clone();
        std::thread::spawn(move || mount.ask(request))
    }

    fn on_disk(&self) -> String {
        std::fs::read_to_string(self.names.path("file")).unwrap()
    }

    /// Requests of a kind that the server for data has executed.
    fn executed(&self, operation: &str) -> u64 {
        let snapshot = aqueduct_metrics::Snapshot::of(&*self.data.server);
        let name = aqueduct_metrics::table::SERVER_OPERATION_SECONDS.definition.name;
        let samples = snapshot.samples(name).iter().filter(|sample| sample.label("operation") == operation);
        samples.map(|sample| sample.number()).sum()
    }

    /// While the server for data does not answer: `asked` is not done, and then it is.
    fn waits<T>(&self, write: JoinHandle<Result<Written, Errno>>, asked: JoinHandle<Result<T, Errno>>) -> T {
        std::thread::sleep(MOMENT);
        assert!(!write.is_finished() && !asked.is_finished());
        assert_eq!(self.on_disk(), "first");
        self.between.stop(false);
        assert_eq!(write.join().unwrap().unwrap().count, 5);
        let done = asked.join().unwrap().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(self.on_disk(), "later");
        done
    }

    /// Something that is on its way, and hangs.
    fn hangs(&self) -> (OpenId, JoinHandle<Result<Written, Errno>>) {
        let open = self.mount.open(&self.file, READ_WRITE).unwrap();
        self.mount.write(open, b"first").unwrap();
        assert_eq!((self.executed("Write"), self.on_disk()), (1, "first".into()));
        self.between.stop(true);
        let write = self.writes_later(open);
        std::thread::sleep(MOMENT); // so that it surely is on its way
        (open, write)
    }
}

const LOCK: Lock = Lock { start: 0, end: 9, kind: LockKind::Write, pid: 1 };

fn lock(open: OpenId, kind: LockKind) -> Request<'static> {
    let lock = Lock { kind, ..LOCK };
    Request::SetLock { open, owner: 7, space: LockSpace::Posix, lock, wait: false }
}

#[test]
fn an_unlock_waits_for_what_was_written_under_the_lock() {
    let split = Split::new();
    let open = split.mount.open(&split.file, READ_WRITE).unwrap();
    split.mount.ask(lock(open, LockKind::Write)).unwrap();
    let (of_write, write) = split.hangs();
    let unlock = split.asks_later(lock(open, LockKind::Unlock));
    let other = split.names.mount();
    let at_other = other.open(&split.file, READ_WRITE).unwrap();
    std::thread::sleep(MOMENT);
    assert_eq!(other.ask(lock(at_other, LockKind::Write)), Err(Errno::EAGAIN), "the lock is held still");
    assert_eq!(split.executed("Commit"), 0);
    split.waits(write, unlock);
    assert_eq!(split.executed("Commit"), 1, "what was written under it is stable");
    other.ask(lock(at_other, LockKind::Write)).unwrap();
    [open, of_write].iter().for_each(|open| split.mount.release(*open));
    other.release(at_other);
}

#[test]
fn a_close_and_a_sync_wait_for_the_server_that_moves_the_bytes() {
    let split = Split::new();
    let (open, write) = split.hangs();
    split.waits(write, split.asks_later(Request::Sync { open, data_only: false }));
    assert_eq!(split.executed("Sync"), 1);
    split.mount.release(open);
    assert_eq!(split.executed("Release"), 1, "it is closed there, too");

    // A descriptor's close asks that server nothing, and waits all the same for what it has been
    // asked.
    for (closes, closed) in [(false, 0), (true, 1)] {
        let split = Split::new();
        let (open, write) = split.hangs();
        let close = if closes { Request::Release { open } } else { Request::Flush { open, owner: 7 } };
        split.waits(write, split.asks_later(close));
        assert_eq!(split.executed("Release"), closed);
    }
}

#[test]
fn a_lease_is_given_back_when_what_it_covers_is_answered_everywhere() {
    let split = Split::new();
    split.mount.stat(&split.file);
    let (open, write) = split.hangs();
    let other = Arc::new(split.names.mount());
    let (changer, file) = (other.clone(), split.file.clone());
    let change = std::thread::spawn(move || {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        changer.ask(Request::SetAttr { handle: file.bytes(), open: None, set })
    });
    split.waits(write, change);
    assert_eq!(mode_of(&split.mount, &split.file), 0o600);
    split.mount.release(open);
}

/// Both servers go on where they were.
#[test]
fn each_server_is_recovered_by_itself() {
    let mut split = Split::new();
    let open = split.mount.open(&split.file, READ_WRITE).unwrap();
    split.mount.write(open, b"first").unwrap();
    split.mount.ask(lock(open, LockKind::Write)).unwrap();
    for restarted in [0, 1] {
        let process = if restarted == 0 { &mut split.names } else { &mut split.data };
        process.kill();
        process.start();
        assert_eq!(split.mount.write(open, b"again").unwrap().count, 5);
        assert_eq!(split.mount.read(open), Ok("again".into()));
    }
    split.mount.ask(Request::Sync { open, data_only: false }).unwrap();
    split.mount.ask(lock(open, LockKind::Unlock)).unwrap();
    split.mount.release(open);
}
