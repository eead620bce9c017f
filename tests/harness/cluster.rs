//! A server and its mounts, each behind a proxy of its own, as processes that end and come back.
//! With ROUTERS=N there are routers between the proxies and the server, as
//! [`ways`](crate::common::ways) says, and a mount has a proxy for each way. With RAILS=N each mount
//! has N proxies, and uses all of them as rails.

use std::cell::Cell;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::ways::{self, Routers, number};
use crate::common::{
    Process, SOON, aqueduct, free_addresses, is_mounted, mount_point, mount_sessions, mount_status, run, server_status,
    wait_until, with_transport,
};
use crate::proxy::{Cut, FAIR, Proxy, Weather};

/// A mount ends when nobody has it any more; a test elsewhere that has made a mount namespace of its own may have it for a while.
const MOUNT_ENDS: Duration = Duration::from_secs(100);

/// Where the server keeps removed files that are open.
pub const UNLINKED: &str = ".aqueduct-unlinked";

pub struct Cluster {
    home: PathBuf,
    exports: Vec<PathBuf>,
    address: String,
    server: Option<Process>,
    /// Of a volume: those that serve data, with their places in its file.
    data: Vec<Option<Process>>,
    /// The file of the volume that its servers are.
    volume: Option<PathBuf>,
    starts: usize,
    pub mounts: Vec<Mounted>,
    /// None before a volume: its servers tell addresses of their own network.
    behind: Option<Behind>,
}

/// Routers, and the key that who comes by them needs.
struct Behind {
    key: PathBuf,
    routers: Routers,
}

impl Behind {
    fn start(home: &Path) -> Option<Behind> {
        let routers = Routers::start(home)?.with_trouble();
        let key = home.join("key");
        run(aqueduct().arg("keygen").arg(&key)).succeeded();
        Some(Behind { key, routers })
    }
}

/// The ways of a mount to its server. What happens to the network happens to one of them after the
/// other, and then to all at once.
pub struct Wires {
    proxies: Vec<Proxy>,
    turn: Cell<usize>,
}

impl Wires {
    /// As many to the server as RAILS says, or one to each way of the routers, whatever rails lead
    /// through these.
    fn start(server: &str, routers: Option<&Routers>) -> Wires {
        let proxies = match routers {
            Some(routers) => routers.addresses.iter().map(|address| Proxy::start(address)).collect(),
            None => (0..number("RAILS", 1)).map(|_| Proxy::start(server)).collect(),
        };
        Wires { proxies, turn: Cell::new(0) }
    }

    /// Where the mount finds its server.
    fn address(&self) -> SocketAddr {
        self.proxies[0].address
    }

    fn addresses(&self) -> Vec<String> {
        self.proxies.iter().map(|proxy| proxy.address.to_string()).collect()
    }

    /// What the mount has to be told of them if they are rails.
    fn rails(&self) -> String {
        let all = self.addresses();
        if all.len() < 2 { String::new() } else { format!(",rails={},rail_suspect=0.5", all.join(",")) }
    }

    /// Those to which something happens now.
    fn next(&self) -> &[Proxy] {
        let turn = self.turn.replace(self.turn.get() + 1) % (self.proxies.len() + 1);
        self.proxies.get(turn..=turn).unwrap_or(&self.proxies)
    }

    pub fn set_weather(&self, weather: Weather) {
        let chosen = if weather == FAIR { &self.proxies } else { self.next() };
        chosen.iter().for_each(|proxy| proxy.set_weather(weather));
    }

    /// Breaks connections, as [`Proxy::cut_where`] does.
    pub fn cut_where(&self, how: Cut, mut chosen: impl FnMut(usize) -> bool) -> usize {
        self.next().iter().map(|proxy| proxy.cut_where(how, &mut chosen)).sum()
    }
}

pub struct Mounted {
    pub point: PathBuf,
    pub proxy: Wires,
    source: String,
    options: String,
    /// None while it is dead.
    process: Option<Process>,
    starts: usize,
}

/// Whether lines of a volume's file say that its directories share nothing.
pub fn is_plain(lines: &str) -> bool {
    ["striped", "whole-file"].iter().any(|mode| lines.contains(mode))
}

impl Cluster {
    /// With the server's configuration, and for each mount the number of its export and its options.
    pub fn start(home: &Path, exports: &[PathBuf], config: &str, mounts: &[(usize, &str)]) -> Cluster {
        fs::write(home.join("aqueduct.toml"), config).unwrap();
        let address = "127.0.0.1:0".to_owned();
        let cluster = Cluster {
            home: home.to_owned(),
            exports: exports.to_vec(),
            address,
            server: None,
            data: Vec::new(),
            volume: None,
            starts: 0,
            mounts: Vec::new(),
            behind: Behind::start(home),
        };
        cluster.start_all(mounts)
    }

    /// The same of a volume of one export before which there are several servers, with lines of its
    /// file. Its mounts go to
    /// them past their proxies, as soon as they know them.
    pub fn start_volume(
        home: &Path,
        export: &Path,
        (config, lines, servers): (&str, &str, usize),
        mounts: &[(usize, &str)],
    ) -> Cluster {
        fs::write(home.join("aqueduct.toml"), config).unwrap();
        let addresses = free_addresses(servers);
        let file = home.join("volume.toml");
        // Such servers have directories of their own.
        let is_plain = is_plain(lines);
        let directory = |number: usize| match number {
            1.. if is_plain => home.join(format!("store-{number}")),
            _ => export.to_owned(),
        };
        let server = |(number, address): (usize, &String)| {
            let directory = directory(number);
            fs::create_dir_all(&directory).unwrap();
            format!("[[server]]\nid = 's{number}'\nlisten = ['{address}']\ndir = '{}'\n", directory.display())
        };
        let text: String = addresses.iter().enumerate().map(server).collect();
        let coherent = if is_plain { "" } else { "coherent = true\n" };
        fs::write(&file, format!("name = 'v'\n{lines}\n{coherent}{text}")).unwrap();
        run(aqueduct().args(["volume", "create"]).arg(&file)).succeeded();
        for number in (0..servers).filter(|_| is_plain) {
            run(aqueduct().args(["volume", "init", "--server", &format!("s{number}")]).arg(&file)).succeeded();
        }
        let mut cluster = Cluster {
            home: home.to_owned(),
            exports: vec![export.to_owned()],
            address: addresses[0].clone(),
            server: None,
            data: (1..servers).map(|_| None).collect(),
            volume: Some(file),
            starts: 0,
            mounts: Vec::new(),
            behind: None,
        };
        (0..servers - 1).for_each(|number| cluster.start_data(number));
        cluster.start_all(mounts)
    }

    fn start_all(mut self, mounts: &[(usize, &str)]) -> Cluster {
        let cluster = &mut self;
        cluster.start_server();
        for (number, (export, options)) in mounts.iter().enumerate() {
            let mut options = (*options).to_owned();
            let routers = cluster.behind.as_ref().map(|behind| &behind.routers);
            let proxy = Wires::start(&cluster.address, routers);
            let source = match (&cluster.volume, &cluster.behind) {
                // Each server of a volume would have rails of its own.
                (Some(_), _) => format!("v@{}:/", proxy.address()),
                (None, None) => {
                    options.push_str(&proxy.rails());
                    format!("{}:{}", proxy.address(), cluster.exports[*export].display())
                }
                (None, Some(behind)) => {
                    let routes = behind.routers.options_by(&proxy.addresses());
                    options.push_str(&format!(",key={},{routes}", behind.key.display()));
                    let rails = ways::rails_behind(cluster.address.rsplit(':').next().unwrap());
                    if !rails.is_empty() {
                        options.push_str(&format!(",{rails},rail_suspect=0.5"));
                    }
                    format!("{}@servers:{}", cluster.address, cluster.exports[*export].display())
                }
            };
            cluster.mounts.push(Mounted { point: mount_point(), proxy, source, options, process: None, starts: 0 });
            wait_until("the mount is there", SOON, || cluster.is_mounted_again(number));
        }
        self
    }

    /// Starts a server of data, with the state that it had.
    pub fn start_data(&mut self, number: usize) {
        let log = self.home.join(format!("data-{number}-{:03}.log", self.starts));
        self.starts += 1;
        let mut command = aqueduct();
        command.args(["serve", "--server", &format!("s{}", number + 1), "--volume"]).args(&self.volume);
        command.args(["--squash", "none", "--state"]).arg(self.home.join(format!("state-{number}")));
        let mut process = Process::start(&mut command, &log);
        await_address(&mut process);
        self.data[number] = Some(process);
    }

    /// Kills a server of data.
    pub fn kill_data(&mut self, number: usize) {
        let mut process = self.data[number].take().expect("a server");
        process.signal(Signal::KILL);
        process.ends_within(SOON);
    }

    /// Bytes that mounts have written straight to servers of data that are there.
    pub fn straight(&self) -> u64 {
        let Some(file) = &self.volume else { return 0 };
        let text = fs::read_to_string(file).unwrap();
        let addresses = text.lines().filter_map(|line| line.strip_prefix("listen = ['")?.strip_suffix("']"));
        let sessions = addresses.skip(1).flat_map(|address| match server_status(address)["sessions"].take() {
            Value::Array(sessions) => sessions,
            _ => Vec::new(),
        });
        let of_clients = sessions.filter(|session| session["export"] == "(data)");
        of_clients.filter_map(|session| session["bytes_written"].as_u64()).sum()
    }

    /// The servers of data.
    pub fn data(&self) -> &[Option<Process>] {
        &self.data
    }

    pub fn server(&self) -> Option<&Process> {
        self.server.as_ref()
    }

    pub fn mount_process(&self, number: usize) -> Option<&Process> {
        self.mounts[number].process.as_ref()
    }

    /// Rails through routers lead to several of this machine's addresses.
    fn listens(&self) -> String {
        let has_rails = self.behind.is_some() && number("RAILS", 1) > 1;
        if has_rails { self.address.replace("127.0.0.1:", "0.0.0.0:") } else { self.address.clone() }
    }

    /// Starts the server, with the address and state that it had.
    pub fn start_server(&mut self) {
        let log = self.home.join(format!("server-{:03}.log", self.starts));
        self.starts += 1;
        let mut command = aqueduct();
        command.arg("serve");
        match &self.volume {
            Some(file) => command.args(["--server", "s0", "--volume"]).arg(file),
            None => command.args(["--listen", &self.listens()]).args(&self.exports),
        };
        // Mounts come through proxies: to the server they are other machines.
        command.args(["--squash", "none", "--config"]).arg(self.home.join("aqueduct.toml"));
        command.arg("--state").arg(self.home.join("state"));
        if let Some(behind) = &self.behind {
            command.arg("--key").arg(&behind.key);
        }
        let mut process = Process::start(&mut command, &log);
        self.address = await_address(&mut process).replace("0.0.0.0:", "127.0.0.1:");
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
        let Some(behind) = &self.behind else { return server_status(&self.address) };
        let text = run(aqueduct().args(["status", "--json", &self.address, "--key"]).arg(&behind.key)).succeeded();
        serde_json::from_str::<Value>(&text).unwrap()["server"].take()
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

/// Waits until a server listens, and says where.
fn await_address(process: &mut Process) -> String {
    let started = Instant::now();
    loop {
        let output = process.output();
        if let Some(line) = output.lines().find_map(|line| line.strip_prefix("listening on ")) {
            return line.trim().to_owned();
        }
        assert!(process.has_ended().is_none() && started.elapsed() < SOON, "the server does not listen: {output}");
        thread::sleep(Duration::from_millis(3));
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
