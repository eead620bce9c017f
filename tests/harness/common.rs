//! Servers, mounts and programs that end when their guards do, and waits that end at a deadline.

use std::cell::RefCell;
use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

#[path = "ways.rs"]
pub mod ways;

use ways::{Routers, number};

/// Within this a server listens, a mount is there, a process that was told to end has ended; on a busy machine too.
pub const SOON: Duration = Duration::from_secs(20);

/// What a test takes at most, unless it says more.
pub const TEST_MAX: Duration = Duration::from_secs(60);

/// How many times as long everything may take as elsewhere: on emulated processors.
pub fn patience() -> u32 {
    std::env::var("PATIENCE").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// tmpfs, as statfs(2) calls it.
const TMPFS: i64 = 0x0102_1994;

thread_local! {
    /// The processes of the running test, for when it hangs.
    static PIDS: RefCell<Arc<Mutex<Vec<u32>>>> = RefCell::default();
}

/// Runs a test that needs root and /dev/fuse; a test that hangs loses its processes, so that its system calls return, and fails.
pub fn within(limit: Duration, body: impl FnOnce() + Send + 'static) {
    let limit = limit * patience();
    if !rustix::process::geteuid().is_root() {
        return skip("needs root");
    }
    if !Path::new("/dev/fuse").exists() {
        return skip("there is no /dev/fuse");
    }
    let pids: Arc<Mutex<Vec<u32>>> = Arc::default();
    let (sender, ended) = channel();
    let of_test = pids.clone();
    let name = thread::current().name().unwrap_or("test").to_owned();
    let run = move || {
        PIDS.with(|scope| *scope.borrow_mut() = of_test);
        let _ = sender.send(catch_unwind(AssertUnwindSafe(body)));
    };
    thread::Builder::new().name(name).spawn(run).expect("a thread for the test");
    match ended.recv_timeout(limit) {
        Ok(Ok(())) => {}
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => {
            pids.lock().unwrap().iter().for_each(|&pid| signal(pid, Signal::KILL));
            let _ = ended.recv_timeout(SOON);
            panic!("the test did not end within {limit:?}");
        }
    }
}

/// As [`within`] the usual limit.
pub fn test(body: impl FnOnce() + Send + 'static) {
    within(TEST_MAX, body);
}

pub fn skip(why: &str) {
    println!("skipped: {} {why}", thread::current().name().unwrap_or_default());
}

/// True when all programs are there; else it says which one is not.
pub fn have(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |program: &str| std::env::split_paths(&path).any(|directory| directory.join(program).exists());
    let missing: Vec<_> = programs.iter().filter(|program| !found(program)).collect();
    if !missing.is_empty() {
        skip(&format!("needs {missing:?}"));
    }
    missing.is_empty()
}

pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let (started, limit) = (Instant::now(), limit * patience());
    while !condition() {
        assert!(started.elapsed() < limit, "waited {limit:?} in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Tells the threads of a scope that it is enough, also when what they are there for panics: the
/// scope waits for them, and would hide the panic until somebody ends the test.
pub struct Enough<'a>(pub &'a AtomicBool);

impl Drop for Enough<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // It may have ended already.
        let _ = kill_process(pid, signal);
    }
}

/// A process that does not outlive its guard.
pub struct Process {
    child: Child,
    log: Option<PathBuf>,
}

impl Process {
    /// Starts it with stdout and stderr going to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Process {
        let file = File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let mut process = Process::adopt(command.spawn().unwrap());
        process.log = Some(log.to_owned());
        process
    }

    pub fn adopt(child: Child) -> Process {
        PIDS.with(|scope| scope.borrow().lock().unwrap().push(child.id()));
        Process { child, log: None }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, which: Signal) {
        signal(self.pid(), which);
    }

    /// Stops all of its threads.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid());
        let stopped = |task: fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:") && line.contains('T'))
        };
        wait_until("all threads have stopped", SOON, || fs::read_dir(&tasks).unwrap().flatten().all(stopped));
    }

    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end; `None` when it goes on.
    pub fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let started = Instant::now();
        while self.has_ended().is_none() && started.elapsed() < limit {
            thread::sleep(Duration::from_millis(10));
        }
        self.has_ended()
    }

    /// Waits for its end.
    pub fn ends_within(&mut self, limit: Duration) -> ExitStatus {
        let pid = self.pid();
        wait_until(&format!("the end of process {pid}"), limit, || self.has_ended().is_some());
        self.has_ended().unwrap()
    }

    pub fn output(&self) -> String {
        self.log
            .as_ref()
            .map(|log| String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into())
            .unwrap_or_default()
    }

    /// Resident memory in KiB: now and at most so far.
    pub fn memory_kib(&self) -> (u64, u64) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        (field("VmRSS:"), field("VmHWM:"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() && self.log.is_some() {
            eprintln!("--- process {} said:\n{}", self.pid(), self.output());
        }
        if self.has_ended().is_none() {
            self.signal(Signal::KILL);
            // One that hangs in a system call ends when the mount's process does.
            let started = Instant::now();
            while self.has_ended().is_none() && started.elapsed() < Duration::from_secs(2) {
                thread::sleep(Duration::from_millis(2));
            }
        }
        let pid = self.pid();
        PIDS.with(|scope| scope.borrow().lock().unwrap().retain(|&other| other != pid));
    }
}

/// What a program gave.
#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub text: String,
}

impl Output {
    /// Its text, once it has succeeded.
    pub fn succeeded(self) -> String {
        assert!(self.status.success(), "{:?} {:?}: {}", self.status.code(), self.status.signal(), self.text);
        self.text
    }

    /// Its text, once it has failed by itself.
    pub fn failed(self) -> String {
        assert!(self.status.code().is_some_and(|code| code != 0), "it should have failed: {self:?}");
        self.text
    }
}

/// Runs a program to its end, at most for `limit`; stdout and stderr together.
pub fn run_within(limit: Duration, command: &mut Command) -> Output {
    let home = directory();
    let mut process = Process::start(command.env("LC_ALL", "C"), &home.path().join("log"));
    let (started, limit) = (Instant::now(), limit * patience());
    while process.has_ended().is_none() {
        assert!(started.elapsed() < limit, "{command:?} takes longer than {limit:?}: {}", process.output());
        thread::sleep(Duration::from_millis(2));
    }
    Output { status: process.has_ended().unwrap(), text: process.output() }
}

pub fn run(command: &mut Command) -> Output {
    run_within(SOON, command)
}

/// A shell script that stops at the first error, in a directory.
pub fn shell(directory: &Path, script: &str) -> Output {
    run_within(TEST_MAX, Command::new("sh").arg("-euc").arg(script).current_dir(directory))
}

pub fn aqueduct() -> Command {
    Command::new(env!("CARGO_BIN_EXE_aqueduct"))
}

/// The program where every user may run it, in `home`: the folder of the build may be closed to
/// others, as below /root.
pub fn program_for_all(home: &Path) -> PathBuf {
    let program = home.join("aqueduct");
    fs::copy(env!("CARGO_BIN_EXE_aqueduct"), &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    program
}

/// `unshare` with a mount namespace of its own; `None`, and why, where that cannot be.
pub fn own_mounts() -> Option<Command> {
    if !have(&["unshare"]) {
        return None;
    }
    let tried = Command::new("unshare").args(["-m", "true"]).output().unwrap();
    if !tried.status.success() {
        let said = String::from_utf8_lossy(&tried.stderr);
        skip(&format!(
            "needs a mount namespace, whose root has to be a mount point (mount --bind / /): {}",
            said.trim()
        ));
        return None;
    }
    let mut command = Command::new("unshare");
    command.arg("-m");
    Some(command)
}

/// A fresh directory, on tmpfs where there is one, that everybody may enter.
pub fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let is_tmpfs = rustix::fs::statfs(memory).is_ok_and(|statfs| statfs.f_type == TMPFS);
    directory_below(if is_tmpfs { memory } else { Path::new("/tmp") })
}

/// A fresh directory on a disk.
pub fn disk_directory() -> TempDir {
    directory_below(Path::new("/var/tmp"))
}

/// A fresh directory where device files work (/dev/shm is often mounted `nodev`).
pub fn directory_for_devices() -> TempDir {
    directory_below(Path::new("/tmp"))
}

/// A file system of the test's own, unmounted in the end.
pub struct FileSystem(pub PathBuf);

impl FileSystem {
    pub fn tmpfs(options: &str) -> FileSystem {
        let point = mount_point();
        run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "aqueduct-test"]).arg(&point)).succeeded();
        FileSystem(point)
    }

    /// A fresh directory in it.
    pub fn directory(&self) -> TempDir {
        directory_below(&self.0)
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}

fn directory_below(path: &Path) -> TempDir {
    let directory = tempfile::Builder::new().prefix("aqueduct-test-").tempdir_in(path).unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    directory
}

/// Addresses of loopback that nobody has at the moment.
pub fn free_addresses(count: usize) -> Vec<String> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

/// A server on a free port of loopback (or where it was told).
pub struct Server {
    pub process: Process,
    pub address: String,
    /// What it was told of where to listen, once it listens there.
    listens: Vec<String>,
    routers: Option<Routers>,
    /// It has the names of a volume of several.
    volume: Option<OfVolume>,
    home: TempDir,
}

/// The other servers of a volume, with SERVERS=N in all, of MODE (`stripe`), written through them
/// all with STRAIGHT=1. In MODE=whole-file and striped each but the first has an empty directory.
struct OfVolume {
    file: PathBuf,
    _data: Vec<Process>,
}

impl OfVolume {
    /// As the environment says, all but the first; none without SERVERS.
    fn start(home: &Path, export: &Path) -> Option<OfVolume> {
        let count = number("SERVERS", 1);
        if count < 2 {
            return None;
        }
        let mode = std::env::var("MODE").unwrap_or_else(|_| "stripe".to_owned());
        let shares_nothing = ["whole-file", "striped"].contains(&mode.as_str());
        let stripes = if mode.starts_with("stripe") { "stripe_size = '64KiB'\n" } else { "" };
        let writes = if number("STRAIGHT", 0) > 0 { "writes = 'data'\n" } else { "" };
        // Files of tests are small.
        let lines = if shares_nothing { "inline_max = '16KiB'\n" } else { writes };
        let coherent = if shares_nothing { "" } else { "coherent = true\n" };
        let server = |(number, address): (usize, &String)| {
            let own = home.join(format!("dir-{number}"));
            let dir = if shares_nothing && number > 0 { &own } else { export };
            fs::create_dir_all(dir).unwrap();
            format!("[[server]]\nid = 's{number}'\nlisten = ['{address}']\ndir = '{}'\n", dir.display())
        };
        let servers: String = free_addresses(count).iter().enumerate().map(server).collect();
        let file = home.join("volume.toml");
        fs::write(&file, format!("name = 'v'\nmode = '{mode}'\n{stripes}{lines}{coherent}{servers}")).unwrap();
        run(aqueduct().args(["volume", "create"]).arg(&file)).succeeded();
        for number in (0..count).filter(|_| shares_nothing) {
            run(aqueduct().args(["volume", "init", "--server", &format!("s{number}")]).arg(&file)).succeeded();
        }
        let data = (1..count).map(|number| {
            let mut command = aqueduct();
            command.args(["serve", "--server", &format!("s{number}"), "--volume"]).arg(&file);
            command.arg("--state").arg(home.join(format!("state-{number}")));
            let process = Process::start(&mut command, &home.join(format!("data-{number}.log")));
            wait_until("a server of data listens", SOON, || process.output().contains("listening on "));
            process
        });
        let _data = data.collect();
        Some(OfVolume { file, _data })
    }

    fn arguments(&self) -> [&str; 4] {
        ["--server", "s0", "--volume", self.file.to_str().unwrap()]
    }
}

impl Server {
    /// Mounts go to it by the ways that the environment says; see [`ways`].
    pub fn start(exports: &[&Path]) -> Server {
        let home = directory();
        if let [export] = exports
            && let Some(volume) = OfVolume::start(home.path(), export)
        {
            let server = Server::start_at(home, &mut aqueduct(), &volume.arguments(), &[]);
            return Server { volume: Some(volume), ..server };
        }
        let Some(routers) = Routers::start(home.path()) else {
            let rails: Vec<String> = (1..=number("RAILS", 1)).map(|rail| format!("127.0.0.{rail}:0")).collect();
            let listen = ["--listen", &rails.join(",")];
            let arguments = [&listen[..], ways::squash(rails.len() > 1)].concat();
            return Server::start_at(home, &mut aqueduct(), &arguments, exports);
        };
        let arguments = [&["--listen", "0.0.0.0:0"], ways::squash(true), &ways::OPEN].concat();
        let server = Server::start_at(home, &mut aqueduct(), &arguments, exports);
        Server { routers: Some(routers.with_trouble()), ..server }
    }

    /// `command` is the program, with what stands before it.
    pub fn start_with(command: &mut Command, arguments: &[&str], exports: &[&Path]) -> Server {
        Server::start_at(directory(), command, arguments, exports)
    }

    /// With its log, and its state folder, in `home`.
    pub fn start_at(home: TempDir, command: &mut Command, arguments: &[&str], exports: &[&Path]) -> Server {
        command.arg("serve").arg("--state").arg(home.path().join("state")).args(arguments).args(exports);
        let mut process = Process::start(command, &home.path().join("log"));
        let started = Instant::now();
        let listens: Vec<String> = loop {
            let output = process.output();
            // All addresses stand before the first export.
            if output.lines().any(|line| line.starts_with("export ")) {
                let addresses = output.lines().filter_map(|line| line.strip_prefix("listening on "));
                break addresses.filter(|address| !address.starts_with("unix:")).map(str::to_owned).collect();
            }
            assert!(
                process.has_ended().is_none() && started.elapsed() < SOON * patience(),
                "the server does not listen: {output}"
            );
            thread::sleep(Duration::from_millis(5));
        };
        let address = listens[0].replace("0.0.0.0:", "127.0.0.1:");
        Server { process, address, listens, routers: None, volume: None, home }
    }

    /// Kills it; returns its address and home, for another.
    pub fn kill(self) -> (String, TempDir) {
        let Server { mut process, address, home, .. } = self;
        process.signal(Signal::KILL);
        process.ends_within(SOON);
        (address, home)
    }

    /// Kills it, and starts another with the same address and state.
    pub fn restart(self, exports: &[&Path]) -> Server {
        self.restart_with(&[], exports)
    }

    /// As [`restart`](Server::restart), with arguments.
    pub fn restart_with(self, arguments: &[&str], exports: &[&Path]) -> Server {
        self.again(|_| {}, arguments, exports)
    }

    /// As [`restart`](Server::restart), but it has lost what it had written down of its sessions; its key is the same.
    pub fn restart_without_sessions(self, exports: &[&Path]) -> Server {
        self.again(|home| fs::remove_dir_all(home.join("state/sessions")).unwrap(), &[], exports)
    }

    /// Kills it, has something done in its home, and starts another that listens where it did.
    fn again(self, between: impl FnOnce(&Path), arguments: &[&str], exports: &[&Path]) -> Server {
        let Server { process, listens, routers, volume, home, .. } = self;
        drop(process);
        between(home.path());
        if let Some(volume) = volume {
            let arguments = [&volume.arguments(), arguments].concat();
            let server = Server::start_at(home, &mut aqueduct(), &arguments, &[]);
            return Server { volume: Some(volume), ..server };
        }
        let listen = listens.join(",");
        let squash = ways::squash(routers.is_some() || listens.len() > 1);
        let open: &[&str] = if routers.is_some() { &ways::OPEN } else { &[] };
        let arguments = [&["--listen", &listen], squash, open, arguments].concat();
        Server { routers, ..Server::start_at(home, &mut aqueduct(), &arguments, exports) }
    }

    /// Its state folder.
    pub fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    pub fn source(&self, export: &Path) -> String {
        match &self.volume {
            Some(_) => format!("v@{}:/", self.address),
            None => format!("{}:{}", self.address, export.display()),
        }
    }

    pub fn mount(&self, export: &Path) -> Mount {
        self.mount_with(export, "")
    }

    pub fn mount_with(&self, export: &Path, options: &str) -> Mount {
        let (source, ways) = match &self.routers {
            Some(routers) => {
                let (_, port) = self.address.rsplit_once(':').unwrap();
                let options = [routers.options(), ways::rails_behind(port)];
                let options = options.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",");
                (format!("{}@servers:{}", self.address, export.display()), options)
            }
            // Files of tests are small.
            None if self.volume.is_some() && number("STRAIGHT", 0) > 0 => {
                (self.source(export), "straight_from=4K".to_owned())
            }
            None if self.listens.len() > 1 => (self.source(export), format!("rails={}", self.listens.join(","))),
            None => (self.source(export), String::new()),
        };
        let options = [options, &ways].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",");
        Mount::start(&mut aqueduct(), &[&source], &options)
    }

    pub fn status(&self) -> Value {
        server_status(&self.address)
    }

    /// The sessions of mounts (not of those who ask for the status).
    pub fn sessions(&self) -> usize {
        mount_sessions(&self.status())
    }

    /// What its descriptors stand for, below `directory`.
    pub fn open_below(&self, directory: &Path) -> Vec<PathBuf> {
        let fds = fs::read_dir(format!("/proc/{}/fd", self.process.pid())).unwrap();
        let links = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        links.filter(|link| link.starts_with(directory) && link != directory).collect()
    }
}

/// What `aqueduct status` says of the server there.
pub fn server_status(address: &str) -> Value {
    let text = run(aqueduct().args(["status", "--once", "--json", address])).succeeded();
    serde_json::from_str::<Value>(&text).unwrap()["server"].take()
}

/// The sessions of mounts in a server's status.
pub fn mount_sessions(status: &Value) -> usize {
    status["sessions"].as_array().unwrap().iter().filter(|session| session["export"].is_string()).count()
}

/// What a mount tells of itself. `aqueduct status` says more, and waits for mounts of others that do not answer.
pub fn mount_status(point: &Path) -> Value {
    let mut buffer = [0; 64 << 10];
    let length = rustix::fs::getxattr(point, "aqueduct.status", &mut buffer).unwrap();
    serde_json::from_slice(&buffer[..length]).unwrap()
}

/// The options of a mount, and how it takes its requests: by io_uring where the kernel can (it is told to offer that), or all by /dev/fuse with TRANSPORT=dev.
pub fn with_transport(options: &str) -> String {
    static OFFERED: Once = Once::new();
    let kernel = as_on_kernel().filter(|_| !options.contains("init_without"));
    let options = &[Some(options), kernel].into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    let options = &options.join(",");
    if std::env::var_os("TRANSPORT").is_some_and(|transport| transport == "dev") {
        return if options.is_empty() { "io_uring=off".to_owned() } else { format!("{options},io_uring=off") };
    }
    // An older kernel has no such parameter: there all mounts use /dev/fuse anyway.
    OFFERED.call_once(|| drop(fs::write("/sys/module/fuse/parameters/enable_uring", "Y")));
    options.to_owned()
}

/// What has a mount do without what the KERNEL of the environment has not, in the headers of whose
/// sources (`include/uapi/linux/fuse.h`) these are: 22 is MAX_PAGES, 23 CACHE_SYMLINKS, 28
/// HANDLE_KILLPRIV_V2, 29 SETXATTR_EXT, 30 INIT_EXT, 35 HAS_EXPIRE_ONLY, 36 DIRECT_IO_ALLOW_MMAP,
/// 38 NO_EXPORT_SUPPORT, 41 OVER_IO_URING.
pub fn as_on_kernel() -> Option<&'static str> {
    let kernel = std::env::var("KERNEL").ok()?;
    Some(match kernel.as_str() {
        "4.18" => "init_minor=27,init_without=22+23+28+29+30+35+36+38+41",
        "5.10" => "init_minor=32,init_without=28+29+30+35+36+38+41",
        "6.1" => "init_minor=37,init_without=35+36+38+41",
        "6.12" => "init_minor=41,init_without=41",
        _ => panic!("KERNEL={kernel} is none of 4.18, 5.10, 6.1, 6.12"),
    })
}

/// Whether the kernel that runs is at least this.
pub fn is_linux(least: (u32, u32)) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= least
}

/// As [`is_linux`]; if it is not, it says what the kernel lacks.
pub fn has_linux(least: (u32, u32), what: &str) -> bool {
    let has = is_linux(least);
    if !has {
        skip(&format!("needs {what} (Linux {}.{})", least.0, least.1));
    }
    has
}

/// Whether the kernel keeps names for mounts; else it says so.
pub fn keeps_names() -> bool {
    let keeps = as_on_kernel().is_none();
    if !keeps {
        skip("needs INC_EPOCH, by which a kernel forgets all names at once (Linux 6.16)");
    }
    keeps
}

/// A mount in the foreground of its own process.
pub struct Mount {
    pub process: Process,
    point: PathBuf,
    _home: TempDir,
}

impl Mount {
    /// `command` is the program, with what stands before it; `what` its arguments before the directory.
    pub fn start(command: &mut Command, what: &[&str], options: &str) -> Mount {
        let point = mount_point();
        let home = directory();
        command.arg("mount").args(what).arg(&point);
        let options = with_transport(options);
        if !options.is_empty() {
            command.args(["-o", &options]);
        }
        let mut process = Process::start(command, &home.path().join("log"));
        let started = Instant::now();
        while !is_mounted(&point) {
            let output = process.output();
            assert!(
                process.has_ended().is_none() && started.elapsed() < SOON * patience(),
                "the mount does not come: {output}"
            );
            thread::sleep(Duration::from_millis(5));
        }
        Mount { process, point, _home: home }
    }

    pub fn local(source: &Path) -> Mount {
        Mount::start(&mut aqueduct(), &["--local", source.to_str().unwrap()], "")
    }

    pub fn path(&self) -> &Path {
        &self.point
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    pub fn status(&self) -> Value {
        mount_status(&self.point)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if is_mounted(&self.point) && rustix::mount::unmount(&self.point, UnmountFlags::empty()).is_err() {
            let _ = rustix::mount::unmount(&self.point, UnmountFlags::DETACH);
        }
        let started = Instant::now();
        while self.process.has_ended().is_none() && started.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(5));
        }
        // Not with what is in it: should it still be mounted, that is the export.
        let _ = fs::remove_dir(&self.point);
    }
}

/// An empty directory to mount on.
pub fn mount_point() -> PathBuf {
    let directory = directory_below(Path::new("/tmp"));
    let path = fs::canonicalize(directory.path()).unwrap();
    let _ = directory.keep();
    path
}

/// Is something mounted exactly there?
pub fn is_mounted(point: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4) == point.to_str())
}

/// A server, its export and one mount.
pub struct One {
    pub mount: Mount,
    pub server: Server,
    pub export: TempDir,
}

impl One {
    pub fn new() -> One {
        One::with("")
    }

    pub fn with(options: &str) -> One {
        One::over(directory(), options)
    }

    pub fn over(export: TempDir, options: &str) -> One {
        let server = Server::start(&[export.path()]);
        let mount = server.mount_with(export.path(), options);
        One { mount, server, export }
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mount.join(name)
    }
}

/// A server, its export and two mounts of it.
pub struct Pair {
    pub left: Mount,
    pub right: Mount,
    pub server: Server,
    pub export: TempDir,
}

impl Pair {
    pub fn new() -> Pair {
        Pair::with("")
    }

    pub fn with(options: &str) -> Pair {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let left = server.mount_with(export.path(), options);
        let right = server.mount_with(export.path(), options);
        Pair { left, right, server, export }
    }
}

/// The errno of a result that must be an error.
pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("it should have failed").raw_os_error().expect("an error of the kernel")
}
