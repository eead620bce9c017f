//! A mount for a test: never outlives it, and never hangs it.

#![allow(dead_code, reason = "not every test file uses all of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use aqueduct_fs::FileSystem;
use aqueduct_fuse::{Config, MountOptions, Session, mount, start};
use aqueduct_worker::{Group, Settings};
use rustix::mount::UnmountFlags;

/// After this time a mount is aborted, so that whoever hangs in it goes on with an error.
const PATIENCE: Duration = Duration::from_secs(90);

pub struct Mounted {
    pub session: Arc<Session>,
    pub groups: Vec<Arc<Group>>,
    folder: tempfile::TempDir,
    done: Option<mpsc::Sender<()>>,
}

/// Test programs of this kind run over io_uring, which wants groups of one thread.
const OVER_IO_URING: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), [.., b'_', b'r', b'i', b'n', b'g']);

/// Whether the kernel offers io_uring, to who may use all processors; where it could it is told to.
fn offers_io_uring() -> bool {
    const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
    let _ = std::fs::write(PARAMETER, "Y"); // read below
    let online = std::fs::read_dir("/sys/devices/system/cpu").unwrap().flatten().filter(|cpu| {
        let state = std::fs::read_to_string(cpu.path().join("online"));
        let is_cpu = cpu.file_name().to_str().and_then(|name| name.strip_prefix("cpu")?.parse::<u32>().ok()).is_some();
        is_cpu && state.map_or(true, |state| state.trim() == "1") // some cannot be taken off
    });
    let allowed = rustix::thread::sched_getaffinity(None).unwrap().count() as usize;
    allowed >= online.count() && std::fs::read_to_string(PARAMETER).is_ok_and(|value| value.trim() == "Y")
}

pub fn groups(count: usize, threads_max: usize) -> Vec<Arc<Group>> {
    let threads_max = if OVER_IO_URING { 1 } else { threads_max };
    let settings = |at| Settings {
        name: format!("fuse-test-{at}"),
        threads_min: 1,
        threads_max,
        spin_max: Duration::from_micros(20),
    };
    (0..count).map(|at| Group::new(settings(at)).unwrap()).collect()
}

pub fn everybody() -> MountOptions {
    MountOptions { source: "test".into(), allow_other: true, ..MountOptions::default() }
}

impl Mounted {
    pub fn new(filesystem: Arc<dyn FileSystem>, config: Config) -> Mounted {
        Mounted::with(filesystem, config, &everybody(), groups(2, 4))
    }

    pub fn with(
        filesystem: Arc<dyn FileSystem>,
        config: Config,
        options: &MountOptions,
        groups: Vec<Arc<Group>>,
    ) -> Mounted {
        let folder = tempfile::tempdir().unwrap();
        let offered = OVER_IO_URING && offers_io_uring();
        let device = mount(folder.path(), options).unwrap();
        let config = Config { io_uring: OVER_IO_URING, ..config };
        let session = Arc::new(start(device, filesystem, &groups, config).unwrap());
        assert_eq!(session.negotiated().over_io_uring(), offered);
        if OVER_IO_URING && !offered {
            println!("skipped: the kernel does not offer io_uring: these requests come by /dev/fuse");
        }
        let (done, wait) = mpsc::channel();
        let path = folder.path().to_owned();
        std::thread::spawn(move || {
            if wait.recv_timeout(PATIENCE * patience()) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("the mount at {} hangs: aborting it", path.display());
                let _ = rustix::mount::unmount(&path, UnmountFlags::FORCE | UnmountFlags::DETACH);
            }
        });
        Mounted { session, groups, folder, done: Some(done) }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a shell script in the mount; it must succeed. Returns what it printed.
    pub fn sh(&self, script: &str) -> String {
        let output = self.try_sh(script);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{script}\n{}\n{out}\n{err}", output.status);
        out.into_owned()
    }

    pub fn try_sh(&self, script: &str) -> Output {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", &(60 * patience()).to_string(), "bash", "-euc", script]).current_dir(self.path());
        command.stdin(std::process::Stdio::null()).output().unwrap()
    }

    pub fn python(&self, script: &str) -> String {
        std::fs::write(self.folder.path().with_extension("py"), script).unwrap();
        let file = self.folder.path().with_extension("py");
        let out = self.sh(&format!("python3 {}", file.display()));
        std::fs::remove_file(file).unwrap();
        out
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What a failed assertion left open must not keep the mount: lazily, and whoever still uses it gets errors.
        if !self.session.ended() {
            let _ = rustix::mount::unmount(self.folder.path(), UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
        drop(self.done.take());
        self.groups.iter().for_each(|group| group.stop());
    }
}

/// How many times as long everything may take: where processors are emulated, far longer.
fn patience() -> u32 {
    std::env::var("PATIENCE").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// Waits for something that happens soon.
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10) * patience();
    while !happened() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
