//! The ways from mounts to their server, where the environment says that they are not direct:
//! ROUTERS=N puts N routers in a row on each, WAYS=N (1) has as many side by side, TROUBLE=kill or
//! TROUBLE=drain ends and starts the first router of one way after the other while a test runs.
//! RAILS=N has the server listen on N addresses, of which mounts use all, behind routers too.
//! SERVERS=N has N servers of a volume in its place, in MODE=cluster, stripe, whole-file or
//! striped, written through all with STRAIGHT=1.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Process, SOON, aqueduct, wait_until};

/// Between two troubles: a mount that waits for a router finds another in this time.
const TROUBLE_EVERY: Duration = Duration::from_secs(2);

/// A server that listens on loopback alone takes nothing that comes by a router without a key.
pub const OPEN: [&str; 1] = ["--insecure"];

/// What leaves root what it is on mounts that do not come by the server's socket.
pub fn squash(is_far: bool) -> &'static [&'static str] {
    if is_far { &["--squash", "none"] } else { &[] }
}

/// Whether mounts go straight to their server; else it says that the test is about those.
pub fn are_direct() -> bool {
    let direct = number("ROUTERS", 0) == 0 && number("RAILS", 1) == 1;
    if !direct {
        super::skip("is about mounts that go straight to their server");
    }
    direct
}

/// Within what time the server frees what a killed client had: its grace is 5 s, and 15 s for one
/// behind a router.
pub fn freed_within() -> Duration {
    Duration::from_secs(if number("ROUTERS", 0) == 0 { 15 } else { 25 })
}

/// What the environment has as a number, else `usual`.
pub fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The rails of a mount behind routers, by several addresses of a server that listens on all of
/// this machine's; nothing without RAILS.
pub fn rails_behind(port: &str) -> String {
    let count = number("RAILS", 1);
    let rails: Vec<String> = (1..=count).map(|rail| format!("127.0.0.{rail}:{port}@servers")).collect();
    if count > 1 { format!("rails={}", rails.join(",")) } else { String::new() }
}

/// A router that knows the next one, or is in the servers' network.
struct Router {
    files: [PathBuf; 3],
    network: String,
    address: String,
    process: Option<Process>,
}

impl Router {
    fn start(home: &Path, name: &str, next: Option<&str>) -> Router {
        let files = ["toml", "sock", "log"].map(|end| home.join(format!("router-{name}.{end}")));
        let own = if next.is_none() { "servers" } else { "between" };
        let route = next.map(|next| format!("[[route]]\nnetwork = 'servers'\ngateways = ['{next}']\n"));
        let network = format!("[[network]]\nname = '{own}'\nports = []\n{}", route.unwrap_or_default());
        let address = format!("127.0.0.1:0@{own}");
        let mut router = Router { files, network, address, process: None };
        router.start_again();
        router
    }

    /// Starts it where it listened before.
    fn start_again(&mut self) {
        let [config, control, log] = &self.files;
        fs::write(config, format!("listen = ['{}']\ncontrol = {control:?}\n{}", self.address, self.network)).unwrap();
        let process = Process::start(aqueduct().arg("route").arg("--config").arg(config), log);
        wait_until("the router listens", SOON, || process.output().contains("listening on"));
        let output = process.output();
        self.address = output.lines().find_map(|line| line.strip_prefix("listening on ")).unwrap().to_owned();
        self.process = Some(process);
    }

    fn end(&mut self, signal: Signal) {
        let mut process = self.process.take().expect("a router");
        process.signal(signal);
        process.ends_within(SOON);
    }

    /// Where it listens, without its network.
    fn address(&self) -> &str {
        self.address.split_once('@').expect("an address in a network").0
    }
}

/// Routers in a row, the one that mounts go to first.
struct Way(Vec<Router>);

/// All ways from mounts to the network `servers`.
pub struct Routers {
    ways: Vec<Way>,
    trouble: Option<Trouble>,
    pub addresses: Vec<String>,
    pub hops: usize,
}

impl Routers {
    /// As the environment says; none without ROUTERS. Their files are in `home`.
    pub fn start(home: &Path) -> Option<Routers> {
        let hops = number("ROUTERS", 0);
        let way = |way: usize| {
            let mut routers: Vec<Router> = Vec::new();
            for hop in (0..hops).rev() {
                let next = routers.first().map(|next| next.address().to_owned());
                routers.insert(0, Router::start(home, &format!("{way}-{hop}"), next.as_deref()));
            }
            Way(routers)
        };
        if hops == 0 {
            return None;
        }
        let ways: Vec<Way> = (0..number("WAYS", 1)).map(way).collect();
        let addresses = ways.iter().map(|Way(routers)| routers[0].address().to_owned()).collect();
        Some(Routers { ways, trouble: None, addresses, hops })
    }

    /// Has the environment's TROUBLE come over them, if there are two ways at least.
    pub fn with_trouble(mut self) -> Routers {
        let signal = match std::env::var("TROUBLE").ok().as_deref() {
            Some("kill") => Signal::KILL,
            // It drains, and ends.
            Some("drain") => Signal::TERM,
            Some(other) => panic!("TROUBLE={other} is neither kill nor drain"),
            None => return self,
        };
        assert!(self.ways.len() > 1, "TROUBLE takes WAYS=2 at least: with one, mounts would only wait");
        self.trouble = Some(Trouble::start(std::mem::take(&mut self.ways), signal));
        self
    }

    /// What tells a mount of them: a route for each way.
    pub fn options(&self) -> String {
        self.options_by(&self.addresses)
    }

    /// The same when they are reached at other addresses than their own, by proxies.
    pub fn options_by(&self, addresses: &[String]) -> String {
        let route = |address: &String| format!("route=servers@{address}:hops={}", self.hops);
        addresses.iter().map(route).collect::<Vec<_>>().join(",")
    }
}

/// Ends the first router of one way after the other, and starts it again.
struct Trouble {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<usize>>,
    began: Instant,
}

impl Trouble {
    fn start(mut ways: Vec<Way>, signal: Signal) -> Trouble {
        let (end, ended) = channel::<()>();
        let run = move || {
            let mut times = 0;
            while ended.recv_timeout(TROUBLE_EVERY) == Err(RecvTimeoutError::Timeout) {
                let turn = times % ways.len();
                let router = &mut ways[turn].0[0];
                router.end(signal);
                thread::sleep(TROUBLE_EVERY / 4);
                router.start_again();
                times += 1;
            }
            times
        };
        let thread = thread::Builder::new().name("trouble".to_owned()).spawn(run).unwrap();
        Trouble { end: Some(end), thread: Some(thread), began: Instant::now() }
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        self.end = None;
        let times = self.thread.take().map(|thread| thread.join());
        // A router that cannot be started again fails the test, unless that fails already.
        if !thread::panicking() {
            let times = times.unwrap().expect("routers come back");
            println!("{times} routers were ended in {:?}", self.began.elapsed());
        }
    }
}
