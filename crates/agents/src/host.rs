//! What agents need of the host: files of the kernel (sysfs, procfs, control groups), programs,
//! and processes. The one door, so that what a network card with virtual functions would answer
//! can be made up.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use crate::image::Content;

/// How long another may take that works on the same agents: it waits for them to begin and to end.
const LOCK_MAX: Duration = Duration::from_secs(60);

/// Between two tries to take a lock.
const LOCK_LOOK: Duration = Duration::from_millis(20);

/// A host on which agents are set up.
pub trait Host {
    /// The content of a small file of the kernel, or of one that was made.
    fn read(&self, path: &Path) -> io::Result<String>;

    /// Writes to a file of the kernel in one call, or makes a file.
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;

    /// Writes a file anew, so that it has its old content or the new one.
    fn replace(&self, path: &Path, text: &str) -> io::Result<()>;

    /// Makes a folder where there is none, and has nobody else work on it until this is dropped.
    fn lock(&self, folder: &Path) -> io::Result<Lock>;

    /// The names in a folder, in order.
    fn names(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Makes a folder, and those above it.
    fn make_folder(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder: all that is in it, or (`only_itself`) nothing but the folder, as control
    /// groups want it.
    fn remove_folder(&self, path: &Path, only_itself: bool) -> io::Result<()>;

    /// Makes an image of files for a virtual machine.
    fn image(&self, path: &Path, files: &[(PathBuf, Content)]) -> io::Result<()>;

    /// Runs a program to its end, and gives what it has printed; or what it has printed of its
    /// failure.
    fn run(&self, command: &[String]) -> Result<String, String>;

    /// Starts a program in the background, with its output going to a file; gives its process id.
    fn start(&self, command: &[String], log: &Path) -> io::Result<u32>;

    /// Sends a signal to a process. One that has gone is no error.
    fn signal(&self, pid: u32, signal: Signal);
}

/// A folder on which nobody else works.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock ends with it")] File);

impl Lock {
    /// Waits a certain time for the folder.
    pub(crate) fn of(folder: &Path) -> io::Result<Lock> {
        let end = Instant::now() + LOCK_MAX;
        loop {
            fs::create_dir_all(folder)?;
            let taken = File::open(folder).and_then(|file| {
                flock(&file, FlockOperation::NonBlockingLockExclusive)?;
                // Who had it before may have removed it.
                let (own, now) = (file.metadata()?, fs::metadata(folder)?);
                Ok(((own.dev(), own.ino()) == (now.dev(), now.ino())).then_some(Lock(file)))
            });
            match taken {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) => {}
                Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotFound) => {
                    return Err(error);
                }
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => sleep(LOCK_LOOK),
            }
        }
    }
}

/// The host on which this process runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisHost;

impl Host for ThisHost {
    fn read(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(path)
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path)?.write_all(text.as_bytes())
    }

    fn replace(&self, path: &Path, text: &str) -> io::Result<()> {
        let new = path.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, path)
    }

    fn lock(&self, folder: &Path) -> io::Result<Lock> {
        Lock::of(folder)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = fs::read_dir(path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<String>>>()?;
        names.sort();
        Ok(names)
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn remove_folder(&self, path: &Path, only_itself: bool) -> io::Result<()> {
        if only_itself { fs::remove_dir(path) } else { fs::remove_dir_all(path) }
    }

    fn image(&self, path: &Path, files: &[(PathBuf, Content)]) -> io::Result<()> {
        crate::image::write(path, files)
    }

    fn run(&self, command: &[String]) -> Result<String, String> {
        let [program, arguments @ ..] = command else { return Err("there is no program".into()) };
        let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match (output.status.success(), text(&output.stderr), text(&output.stdout)) {
            (true, _, printed) => Ok(printed),
            (false, told, printed) if told.is_empty() => Err(format!("{} {printed}", output.status)),
            (false, told, _) => Err(told),
        }
    }

    fn start(&self, command: &[String], log: &Path) -> io::Result<u32> {
        let [program, arguments @ ..] = command else { return Err(io::ErrorKind::InvalidInput.into()) };
        let file = File::create(log)?;
        let mut started = Command::new(program);
        started.args(arguments).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(started.spawn()?.id())
    }

    fn signal(&self, pid: u32, signal: Signal) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // It may have ended already.
            let _ = kill_process(pid, signal);
        }
    }
}

/// A process that may end, and whose number may be taken by another then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began, in ticks since the host started: with the number it is one process and no
    /// other.
    pub began: u64,
}

impl Process {
    /// The process of this number, if one runs that is no zombie.
    pub fn of(host: &dyn Host, pid: u32) -> Option<Process> {
        let text = host.read(Path::new(&format!("/proc/{pid}/stat"))).ok()?;
        // The name, in brackets, may hold anything.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        if matches!(fields.next()?, "Z" | "X") {
            return None;
        }
        let began = fields.nth(18)?.parse().ok()?;
        Some(Process { pid, began })
    }

    /// Whether it still runs.
    pub fn is_alive(&self, host: &dyn Host) -> bool {
        Process::of(host, self.pid).is_some_and(|now| now == *self)
    }
}
