//! A server and its mounts, each behind a proxy of its own, as processes that end and come back.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{
    Process, SOON, aqueduct, is_mounted, mount_point, mount_sessions, mount_status, server_status, wait_until,
    with_transport,
};
use crate::proxy::Proxy;

/// A mount ends when nobody has it any more; a test elsewhere that has made a mount namespace of its own may have it for a while.
const MOUNT_ENDS: Duration = Duration::from_secs(100);

/// Where the server keeps removed files that are open.
pub const UNLINKED: &str = ".aqueduct-unlinked";

pub struct Cluster {
    home: PathBuf,
    exports: Vec<PathBuf>,
    address: String,
    server: Option<Process>,
    starts: usize,
    pub mounts: Vec<Mounted>,
}

pub struct Mounted {
    pub point: PathBuf,
    pub proxy: Proxy,
    source: String,
    options: String,
    /// None while it is dead.
    process: Option<Process>,
    starts: usize,
}

impl Cluster {
    /// With the server's configuration, and for each mount the number of its export and its options.
    pub fn start(home: &Path, exports: &[PathBuf], config: &str, mounts: &[(usize, &str)]) -> Cluster {
        fs::write(home.join("aqueduct.toml"), config).unwrap();
        let address = "127.0.0.1:0".to_owned();
        let mut cluster = Cluster {
            home: home.to_owned(),
            exports: exports.to_vec(),
            address,
            server: None,
            starts: 0,
            mounts: Vec::new(),
        };
        cluster.start_server();
        for (number, (export, options)) in mounts.iter().enumerate() {
            let proxy = Proxy::start(&cluster.address);
            let source = format!("{}:{}", proxy.address, exports[*export].display());
            let options = (*options).to_owned();
            cluster.mounts.push(Mounted { point: mount_point(), proxy, source, options, process: None, starts: 0 });
            wait_until("the mount is there", SOON, || cluster.is_mounted_again(number));
        }
        cluster
    }

    pub fn server(&self) -> Option<&Process> {
        self.server.as_ref()
    }

    pub fn mount_process(&self, number: usize) -> Option<&Process> {
        self.mounts[number].process.as_ref()
    }

    /// Starts the server, with the address and state that it had.
    pub fn start_server(&mut self) {
        let log = self.home.join(format!("server-{:03}.log", self.starts));
        self.starts += 1;
        let mut command = aqueduct();
        command.args(["serve", "--listen", &self.address, "--state"]).arg(self.home.join("state"));
        command.arg("--config").arg(self.home.join("aqueduct.toml")).args(&self.exports);
        let mut process = Process::start(&mut command, &log);
        let started = Instant::now();
        self.address = loop {
            let output = process.output();
            if let Some(line) = output.lines().find_map(|line| line.strip_prefix("listening on ")) {
                break line.trim().to_owned();
            }
            assert!(process.has_ended().is_none() && started.elapsed() < SOON, "the server does not listen: {output}");
            thread::sleep(Duration::from_millis(3));
        };
        self.server = Some(process);
    }

    /// Ends it with a signal; gives its exit code.
    pub fn end_server(&mut self, signal: Signal) -> Option<i32> {
        let mut process = self.server.take().expect("a server");
        process.signal(signal);
        process.ends_within(SOON).code()
    }

    pub fn kill_mount(&mut self, number: usize) {
        let mut process = self.mounts[number].process.take().expect("a mount");
        process.signal(Signal::KILL);
        process.ends_within(SOON);
    }

    /// Whether a mount is there (again). Clears a dead one and starts a new one if need be; that takes a while, or longer while the server cannot be reached.
    pub fn is_mounted_again(&mut self, number: usize) -> bool {
        let mounted = &mut self.mounts[number];
        match mounted.process.as_mut().map(|process| process.has_ended().is_none()) {
            Some(true) => return is_mounted(&mounted.point),
            Some(false) => mounted.process = None,
            None if is_mounted(&mounted.point) => {
                rustix::mount::unmount(&mounted.point, UnmountFlags::DETACH).unwrap();
            }
            None => {}
        }
        let log = self.home.join(format!("mount-{number}-{:03}.log", mounted.starts));
        mounted.starts += 1;
        let mut command = aqueduct();
        command.arg("mount").arg(&mounted.source).arg(&mounted.point);
        // Every other one by /dev/fuse.
        let plain = format!("{},io_uring=off", mounted.options);
        let options = if number.is_multiple_of(2) { with_transport(&mounted.options) } else { plain };
        let options = options.trim_start_matches(',');
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        mounted.process = Some(Process::start(&mut command, &log));
        false
    }

    pub fn status(&self) -> Value {
        server_status(&self.address)
    }

    /// Writes that mounts have held back since they were started, and the requests that came of them.
    pub fn gathered(&self) -> (u64, u64) {
        let statuses: Vec<_> = self.mounts.iter().map(|mounted| mount_status(&mounted.point)).collect();
        let sum = |what: &str| statuses.iter().filter_map(|status| status["gathered"][what].as_u64()).sum();
        (sum("writes"), sum("requests"))
    }

    /// Sessions of mounts.
    pub fn sessions(&self) -> usize {
        mount_sessions(&self.status())
    }

    /// What is open on the server below the exports. Descriptors that only name something (O_PATH) are a cache of its own, and the folder of removed files
    /// may stay open.
    pub fn open_files(&self) -> Vec<PathBuf> {
        let process = PathBuf::from(format!("/proc/{}", self.server.as_ref().unwrap().pid()));
        let opens = |fd: fs::DirEntry| {
            let info = fs::read_to_string(process.join("fdinfo").join(fd.file_name())).ok()?;
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
            let names_only = i32::from_str_radix(flags.trim(), 8).ok()? & libc::O_PATH != 0;
            fs::read_link(fd.path()).ok().filter(|_| !names_only)
        };
        let below = |link: &PathBuf| self.exports.iter().any(|export| link.starts_with(export) && link != export);
        let fds = fs::read_dir(process.join("fd")).unwrap().flatten();
        fds.filter_map(opens).filter(|link| below(link) && !link.ends_with(UNLINKED)).collect()
    }

    /// Removed files that are kept.
    pub fn kept_files(&self) -> Vec<PathBuf> {
        let folders = self.exports.iter().filter_map(|export| fs::read_dir(export.join(UNLINKED)).ok());
        folders.flatten().map(|entry| entry.unwrap().path()).collect()
    }

    /// Ends everything as it should be ended; what went wrong.
    pub fn end(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for mounted in &mut self.mounts {
            let Some(mut process) = mounted.process.take() else { continue };
            process.signal(Signal::TERM);
            let started = Instant::now();
            while process.has_ended().is_none() && started.elapsed() < MOUNT_ENDS {
                thread::sleep(Duration::from_millis(5));
            }
            match process.has_ended() {
                Some(status) if status.success() && !is_mounted(&mounted.point) => {}
                status => wrong.push(format!("the mount {} ended with {status:?}", mounted.point.display())),
            }
        }
        // A mount does not wait until its server has heard that it goes.
        wait_until("all sessions have ended", SOON, || self.sessions() == 0);
        match self.end_server(Signal::TERM) {
            Some(0) => {}
            status => wrong.push(format!("the server ended with {status:?}")),
        }
        let files = fs::read_dir(self.home.join("state/sessions")).unwrap().flatten();
        // Beside them lies the file that the process of a server locks.
        let sessions = files.filter(|file| !file.file_name().to_string_lossy().starts_with("server-")).count();
        if sessions > 0 {
            wrong.push(format!("{sessions} sessions are left in the state folder"));
        }
        wrong
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for mounted in &mut self.mounts {
            drop(mounted.process.take());
            while is_mounted(&mounted.point) && rustix::mount::unmount(&mounted.point, UnmountFlags::DETACH).is_ok() {}
            let _ = fs::remove_dir(&mounted.point);
        }
    }
}
