//! Many deaths of servers of data under programs that check all that they do: each is killed, made
//! to stand still, or cut off from everybody, in turn.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use aqueduct_model::Random;
use rustix::process::Signal;

use crate::common::ways::number;
use crate::common::{
    Enough, Mount, SOON, aqueduct, directory, free_addresses, patience, run, signal, wait_until, within,
};
use crate::lanes::{BLOCK, block, work};
use crate::proxy::{FAIR, Proxy, Weather};
use crate::volumes::Volume;

/// A server of data that says nothing is known to write nothing any more after this: its authority,
/// and what is added for who ends it.
const DETECTION: Duration = Duration::from_secs(5);

/// Nobody waits for longer than this beyond it.
const BEYOND: Duration = Duration::from_secs(2);

/// For so long a server stands still, or is cut off: longer than it takes to be given up.
const AWAY: Duration = Duration::from_millis(7500);

/// For so long something that goes straight is waited for before a death.
const STRAIGHT_MAX: Duration = Duration::from_secs(10);

/// A service manager that stops a service signals all of its processes. Who watches over a server
/// of data has to tell of its end all the same: what the server may have been writing is waited for
/// until its next start else.
#[test]
fn who_watches_tells_of_the_end_of_a_server_though_both_were_told_to_end() {
    within(3 * SOON, || {
        let names = TcpListener::bind("127.0.0.1:0").unwrap();
        names.set_nonblocking(true).unwrap();
        let ended = serde_json::json!({
            "names": names.local_addr().unwrap().to_string(), "cluster": null, "beat": [],
            "routes": { "network": [], "route": [] },
        });
        // What is started here stands for the server.
        let script = "exec 3<&0; (exec -a aqueduct-watch \"$0\" $$ <&3) & echo $!; exec sleep 600";
        let mut server = Command::new("bash");
        server.args(["-c", script]).arg(aqueduct().get_program());
        let mut server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let watcher: u32 = line.trim().parse().unwrap();
        let mut pipe = server.stdin.take().unwrap();
        writeln!(pipe, "{ended}").unwrap();
        // It has begun when it has read that.
        let unread = || rustix::io::ioctl_fionread(&pipe).unwrap();
        wait_until("it has read what it was told", SOON, || unread() == 0);
        for end in [Signal::TERM, Signal::INT, Signal::HUP] {
            signal(watcher, end);
        }
        server.kill().unwrap();
        server.wait().unwrap();
        wait_until("the server of the names is told", SOON, || names.accept().is_ok());
        signal(watcher, Signal::KILL);
    });
}

/// The process that watches over this one.
fn watcher_of(server: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{server}/task")).unwrap().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let is_watcher = |child: &u32| {
        fs::read(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.starts_with(b"aqueduct-watch\0"))
    };
    let pids = |children: String| children.split(' ').filter_map(|child| child.parse().ok()).collect::<Vec<u32>>();
    children.flat_map(pids).find(is_watcher)
}

/// Without anybody who watches over it a server of data executes no write.
#[test]
fn who_watches_over_a_server_of_data_is_replaced() {
    within(4 * SOON, || {
        let volume = Volume::with("mode = 'stripe'\nwrites = 'data'", 2);
        let mount = volume.mount(0);
        let file = fs::File::create(mount.join("file")).unwrap();
        let goes_straight = |what: &str| {
            let before = volume.written_to(1);
            wait_until(what, SOON, || {
                (0..32).for_each(|at| file.write_all_at(&block(7), at * BLOCK as u64).unwrap());
                file.sync_all().unwrap();
                volume.written_to(1) > before
            });
        };
        goes_straight("writes go straight");
        let server = volume.servers[1].as_ref().unwrap().pid();
        let first = watcher_of(server).unwrap();
        signal(first, Signal::KILL);
        wait_until("another one watches", SOON, || watcher_of(server).is_some_and(|watcher| watcher != first));
        goes_straight("writes go straight again");
    });
}

/// A volume whose servers of data are reached by everybody, and reach the server of the names, by
/// wires of their own.
struct Wired {
    volume: Volume,
    /// To each server of data, and from it.
    wires: Vec<[Proxy; 2]>,
}

impl Wired {
    fn start(lines: &str, count: usize) -> Wired {
        let (home, export) = (directory(), directory());
        let addresses = free_addresses(count);
        let wires: Vec<_> = addresses[1..].iter().map(|own| [own, &addresses[0]].map(|to| Proxy::start(to))).collect();
        let file = home.path().join("volume.toml");
        let text = |addresses: &[String]| {
            let server = |(number, address): (usize, &String)| {
                format!("[[server]]\nid = 's{number}'\nlisten = ['{address}']\ndir = '{}'\n", export.path().display())
            };
            let servers: String = addresses.iter().enumerate().map(server).collect();
            format!("name = 'scratch'\n{lines}\ncoherent = true\n{servers}")
        };
        let mut told = addresses.clone();
        wires.iter().zip(&mut told[1..]).for_each(|([to, _], told)| *told = to.address.to_string());
        fs::write(&file, text(&told)).unwrap();
        run(aqueduct().args(["volume", "create"]).arg(&file)).succeeded();
        let mut files = vec![None];
        for (number, [_, names]) in wires.iter().enumerate() {
            let own = home.path().join(format!("volume-{}.toml", number + 1));
            let mut known = told.clone();
            (known[0], known[number + 1]) = (names.address.to_string(), addresses[number + 1].clone());
            fs::write(&own, text(&known)).unwrap();
            fs::copy(file.with_extension("key"), own.with_extension("key")).unwrap();
            files.push(Some(own));
        }
        let servers = (0..count).map(|_| None).collect();
        let mut volume = Volume { servers, addresses, file, home, export, lines: lines.to_owned(), files };
        (0..count).for_each(|number| volume.start_server(number));
        Wired { volume, wires }
    }

    fn is_dead(&mut self, victim: usize) -> bool {
        self.volume.servers[victim].as_mut().unwrap().has_ended().is_some()
    }

    /// Bytes that went straight to a server of data since it was started, which are waited for.
    fn is_written_to(&self, victim: usize) -> u64 {
        let began = Instant::now();
        loop {
            let written = self.volume.written_to(victim);
            if written > 0 || began.elapsed() > STRAIGHT_MAX {
                return written;
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// One death. What it was.
    fn death(&mut self, turn: usize, away: Duration, random: &mut Random) -> &'static str {
        let count = self.wires.len();
        let victim = 1 + turn % count;
        match turn / count % 3 {
            0 => {
                self.volume.kill(victim);
                sleep(Duration::from_millis(random.below(1500) as u64));
                self.volume.start_server(victim);
                "killed"
            }
            1 => {
                self.volume.servers[victim].as_ref().unwrap().stop();
                sleep(away);
                self.volume.servers[victim].as_ref().unwrap().signal(Signal::CONT);
                self.revive(victim);
                "stopped"
            }
            _ => {
                let all = |wires: &[Proxy; 2], weather| wires.iter().for_each(|wire| wire.set_weather(weather));
                all(&self.wires[victim - 1], Weather { stalled: true, ..FAIR });
                sleep(away);
                all(&self.wires[victim - 1], FAIR);
                self.revive(victim);
                "cut off"
            }
        }
    }

    /// Who watched over it may have ended it.
    fn revive(&mut self, victim: usize) {
        let until = Instant::now() + Duration::from_secs(1);
        while !self.is_dead(victim) && Instant::now() < until {
            sleep(Duration::from_millis(20));
        }
        if self.is_dead(victim) {
            self.volume.start_server(victim);
        }
    }
}

/// Returns the longest step of a worker.
fn many_deaths(lines: &str, servers: usize, away: Duration, (seed, deaths): (u64, usize)) -> Duration {
    let mut wired = Wired::start(&format!("{lines}\nwrites = 'data'\nfence = 'timed'"), servers);
    let mounts = [wired.volume.mount(0), wired.volume.mount(0)];
    let (done, mut random) = (AtomicBool::new(false), Random::new(seed));
    let of_workers: Vec<&Mount> = mounts.iter().collect();
    let (mut kinds, mut straight, mut under_load) = (BTreeMap::<&str, usize>::new(), 0, 0);
    let told: Vec<(u32, Duration)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|number| {
                let (mounts, done) = (&of_workers, &done);
                scope.spawn(move || work(mounts, &format!("file-{number}"), seed * 100 + number, done))
            })
            .collect();
        let enough = Enough(&done);
        for turn in 0..deaths {
            if workers.iter().any(|worker| worker.is_finished()) {
                break; // one has found something
            }
            sleep(Duration::from_millis(500 + random.below(1500) as u64));
            let written = wired.is_written_to(1 + turn % (servers - 1));
            (straight, under_load) = (straight + written, under_load + usize::from(written > 0));
            *kinds.entry(wired.death(turn, away, &mut random)).or_default() += 1;
            if (turn + 1) % 25 == 0 {
                println!("{} deaths: {kinds:?}", turn + 1);
            }
        }
        drop(enough);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let longest = told.iter().map(|(_, longest)| *longest).max().unwrap_or_default();
    let versions: u32 = told.iter().map(|(versions, _)| *versions).sum();
    println!(
        "{lines:?}: {kinds:?}, {under_load} of servers that had been written to straight, {} MiB; {versions} versions, all in order; the longest step {longest:?}",
        straight >> 20
    );
    drop(mounts);
    assert!(straight > 0, "nothing went straight");
    assert!(wired.volume.servers[0].as_mut().unwrap().has_ended().is_none(), "the server of the names has ended");
    longest
}

const STRIPE: &str = "mode = 'stripe'\nstripe_size = '128KiB'";

/// DEATHS (300) of them, half of each mode.
#[test]
#[ignore = "takes half an hour"]
fn many_servers_of_data_die_under_load() {
    within(Duration::from_secs(4 * 3600), || {
        let deaths = number("DEATHS", 300);
        let stripe = many_deaths(STRIPE, 4, AWAY, (31, deaths.div_ceil(2)));
        let longest = stripe.max(many_deaths("mode = 'cluster'", 3, AWAY, (32, deaths / 2)));
        assert!(longest <= (DETECTION + BEYOND) * patience(), "somebody waited for {longest:?}");
    });
}

#[test]
fn servers_of_data_die_in_each_way_under_load() {
    // Far longer than anybody may wait, also on a busy machine.
    let away = DETECTION * 4;
    within(SOON * 10, move || {
        let longest = many_deaths(STRIPE, 2, away, (33, 3));
        assert!(longest < away - DETECTION, "somebody waited for {longest:?}, as if for a server that was away");
    });
}
