//! A cluster with its workers: plays one history after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::checker::{Limits, Promise, Violation, check};
use crate::cluster::{Cluster, is_plain};
use crate::common::{Process, SOON, directory};
use crate::history::{BLOCKS, Call, DIRECTORIES, Event, FILES, History, LOG, PAGE, PAGES, PATHS, Truth, Value, WORD};
use crate::plan::{LEASE, Plan, WORKERS_OF_MOUNT};
use crate::trouble;
use crate::worker::{self, Order, Part, Work, now};

/// A history takes no longer after its last trouble: a dead session's grace, a restarted server's, a lease; a busy machine is slower.
const HANG: Duration = Duration::from_secs(90);

/// Histories in one folder: each goes on with what the ones before it left; the log must not get too long.
const HISTORIES_OF_FOLDER: usize = 25;

/// How many operations of a worker that begins before the others there are for each of another's.
const OFTEN: u32 = 6;

/// A short while, until all workers have read their orders.
const AHEAD: u64 = 2_000_000;

/// How the mounts are mounted, and what is demanded of them.
#[derive(Clone, Debug)]
pub struct Setting {
    pub mounts: usize,
    pub options: String,
    pub promise: Promise,
    /// Of the volume; 0: there is one server, and no volume.
    pub servers: usize,
    /// Lines of the volume's file.
    pub volume: String,
}

/// What some histories were, together.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub histories: usize,
    pub operations: usize,
    /// Operations that ran while another worker's changed the same thing.
    pub conflicts: usize,
    /// Operations on what another mount had written, and neither synced nor closed yet.
    pub midst: usize,
    /// Operations of which nobody knows what became of them.
    pub unknown: usize,
    pub troubles: BTreeMap<&'static str, usize>,
    /// Servers of data that were killed.
    pub deaths: usize,
    pub violations: usize,
    /// Writes that mounts have held back, and the requests that came of them; without those of mounts that were killed.
    pub gathered: (u64, u64),
    /// Bytes that went straight to servers of data; without those of servers that were killed.
    pub straight: u64,
}

struct Worker {
    process: Process,
    orders: UnixStream,
    answers: BufReader<UnixStream>,
    part: Part,
}

pub struct Arena {
    /// Goes before its folder.
    cluster: Cluster,
    home: TempDir,
    export: PathBuf,
    is_plain: bool,
    listener: UnixListener,
    /// By mount and number.
    workers: BTreeMap<(usize, usize), Worker>,
    promise: Promise,
    folder: String,
    folders: usize,
    histories_of_folder: usize,
    /// A new folder is due: somebody may still change this one, or it is not as it should be.
    stale: bool,
}

impl Arena {
    pub fn start(setting: &Setting) -> Arena {
        let home = directory();
        let (export, control) = (home.path().join("export"), home.path().join("control"));
        [&export, &control].iter().for_each(|path| fs::create_dir(path).unwrap());
        let mounts = vec![(0, setting.options.as_str()); setting.mounts];
        let config = format!("[limits]\nlease_seconds = {}\n", LEASE.as_secs());
        let cluster = match setting.servers {
            0 => Cluster::start(home.path(), std::slice::from_ref(&export), &config, &mounts),
            servers => Cluster::start_volume(home.path(), &export, (&config, &setting.volume, servers), &mounts),
        };
        let listener = UnixListener::bind(control.join("orders")).unwrap();
        let mut arena = Arena {
            home,
            export,
            is_plain: is_plain(&setting.volume),
            cluster,
            listener,
            workers: BTreeMap::new(),
            promise: setting.promise,
            folder: String::new(),
            folders: 0,
            histories_of_folder: 0,
            stale: true,
        };
        for mount in 0..setting.mounts {
            for number in 0..WORKERS_OF_MOUNT {
                arena.start_worker((mount, number));
            }
        }
        arena
    }

    fn start_worker(&mut self, key: (usize, usize)) {
        let number = key.0 * WORKERS_OF_MOUNT + key.1;
        let control = self.home.path().join("control");
        let part = Part {
            socket: control.join("orders"),
            record: control.join(format!("record-{number}")),
            number,
            mount: key.0,
            point: self.cluster.mounts[key.0].point.clone(),
        };
        let process =
            Process::start(&mut worker::command(&part), &self.home.path().join(format!("worker-{number}.log")));
        let (orders, _) = self.listener.accept().unwrap();
        orders.set_read_timeout(Some(HANG)).unwrap();
        let mut answers = BufReader::new(orders.try_clone().unwrap());
        answers.read_line(&mut String::new()).unwrap();
        self.workers.insert(key, Worker { process, orders, answers, part });
    }

    /// One history, and what is wrong with it.
    pub fn play(&mut self, plan: &Plan, tally: &mut Tally) -> (History, Vec<Violation>) {
        if self.stale || self.histories_of_folder == HISTORIES_OF_FOLDER {
            self.folders += 1;
            self.folder = format!("folder-{}", self.folders);
            self.order(plan.workers[0], &Order::Prepare { folder: self.folder.clone() });
            assert!(self.await_answer(plan.workers[0]), "the folder was not made");
            (self.stale, self.histories_of_folder) = (false, 0);
        }
        self.histories_of_folder += 1;
        let before = self.truth();
        let start = now() + AHEAD;
        for (number, key) in plan.workers.iter().enumerate() {
            let is_first = plan.first == Some(key.0);
            let quiet = if is_first { Duration::ZERO } else { plan.quiet };
            // Until what it believes has to end, or what it holds back to go.
            let often = if is_first { OFTEN } else { 1 };
            let work = Work {
                folder: self.folder.clone(),
                history: tally.histories as u64,
                seed: plan.seed.wrapping_mul(1000).wrapping_add(number as u64),
                theme: plan.theme,
                hot: plan.hot,
                own: plan.mounts.iter().position(|mount| *mount == key.0).unwrap_or_default() % FILES,
                watches: plan.watching == Some(key.0),
                operations: plan.operations * often as usize,
                pause: plan.pause / often,
                start: start + quiet.as_nanos() as u64,
            };
            self.order(*key, &Order::Work(Box::new(work)));
        }
        tally.deaths += trouble::deaths(&self.cluster, &plan.troubles);
        let troubles = trouble::play(&mut self.cluster, &plan.troubles);
        let mut events = Vec::new();
        let mut died = false;
        for key in &plan.workers {
            died |= !self.await_answer(*key);
            let Part { record, number, mount, .. } = &self.workers[key].part;
            events.extend(worker::recorded(record, *number, *mount));
        }
        events.sort_by_key(|event: &Event| event.begin);
        let may_fail = plan.may_fail;
        let (after, ended) = (self.truth(), now());
        let history = History { before, events, after, ended, may_fail, troubles };
        let violations = check(&history, self.promise, Limits::default());
        let unknown = tally.add(plan, &history, violations.len());
        self.stale = unknown > 0 || died || !violations.is_empty();
        (history, violations)
    }

    fn order(&mut self, key: (usize, usize), order: &Order) {
        let worker = self.workers.get_mut(&key).expect("a worker");
        writeln!(worker.orders, "{}", serde_json::to_string(order).unwrap()).unwrap();
    }

    /// False when the worker died; then there is another.
    fn await_answer(&mut self, key: (usize, usize)) -> bool {
        let worker = self.workers.get_mut(&key).expect("a worker");
        match worker.answers.read_line(&mut String::new()) {
            Ok(1..) => true,
            Ok(0) => {
                worker.process.ends_within(SOON);
                println!("a worker died: {}", worker.process.output());
                self.start_worker(key);
                false
            }
            Err(error) => {
                let (record, output) = (&worker.part.record, worker.process.output());
                let last = fs::read_to_string(record).unwrap_or_default().lines().last().unwrap_or_default().to_owned();
                panic!("a worker hangs ({error}) at {last}: {output}");
            }
        }
    }

    /// What the server has.
    fn truth(&self) -> Truth {
        // Where directories share nothing, what lies there is not what files hold.
        let root = if self.is_plain { &self.cluster.mounts[0].point } else { &self.export }.join(&self.folder);
        let mut truth = Truth::default();
        for (name, path) in PATHS.iter().enumerate() {
            if let Ok(metadata) = fs::metadata(root.join(path)) {
                truth.names[name] = Some(metadata.ino());
                truth.modes.insert(metadata.ino(), metadata.mode() & 0o7777);
                truth.files.insert(metadata.ino(), fs::read(root.join(path)).unwrap());
            }
        }
        truth.log = worker::records(&fs::read(root.join(LOG)).unwrap());
        let pages = fs::read(root.join(PAGES)).unwrap();
        assert_eq!(pages.len(), BLOCKS * PAGE, "nobody changes the size of the mapped file");
        truth.pages = pages.chunks(PAGE).map(|page| u64::from_le_bytes(page[..WORD].try_into().unwrap())).collect();
        truth
    }

    /// Writes that were held back, and requests that came of them.
    pub fn gathered(&self) -> (u64, u64) {
        self.cluster.gathered()
    }

    /// Bytes that went straight to servers of data.
    pub fn straight(&self) -> u64 {
        self.cluster.straight()
    }

    /// Ends everything as it should be ended; what went wrong.
    pub fn end(mut self) -> Vec<String> {
        self.workers.clear();
        self.cluster.end()
    }
}

impl Tally {
    /// Gives how many outcomes are not known.
    fn add(&mut self, plan: &Plan, history: &History, violations: usize) -> usize {
        let lost =
            |event: &&Event| !matches!(event.result, Some(Ok(_) | Err(libc::ENOENT | libc::EEXIST | libc::EAGAIN)));
        let unknown = history.events.iter().filter(lost).count();
        self.histories += 1;
        self.operations += history.events.len();
        self.unknown += unknown;
        self.conflicts += conflicts(&history.events);
        self.midst += midst(&history.events);
        self.violations += violations;
        for (_, trouble) in &plan.troubles {
            *self.troubles.entry(trouble.name()).or_default() += 1;
        }
        unknown
    }
}

/// What an operation is about, and whether it changes it.
fn touches(event: &Event, nodes: &BTreeMap<(usize, u32), u64>) -> (BTreeSet<String>, bool) {
    let name = |name: usize| PATHS[name].to_owned();
    let changes = match event.call {
        Call::Read { .. } | Call::ReadLog { .. } | Call::Load { .. } | Call::LookAt { .. } => false,
        Call::Stat { .. } | Call::List { .. } | Call::Close { .. } | Call::Sync { .. } => false,
        Call::Open { how, .. } => !matches!(how, crate::history::How::Read | crate::history::How::Write),
        _ => true,
    };
    let names: Vec<usize> = match event.call {
        Call::Stat { name } | Call::Remove { name } => vec![name],
        Call::Rename { from, to } | Call::Link { from, to } => vec![from, to],
        Call::Open { place: crate::history::Place::Name(name), .. } => vec![name],
        Call::List { directory } => {
            (0..PATHS.len()).filter(|name| PATHS[*name].starts_with(DIRECTORIES[directory])).collect()
        }
        _ => Vec::new(),
    };
    let node = event.call.handle().and_then(|handle| nodes.get(&(event.worker, handle)));
    (names.into_iter().map(name).chain(node.map(u64::to_string)).collect(), changes)
}

/// The inodes of descriptors.
fn nodes(events: &[Event]) -> BTreeMap<(usize, u32), u64> {
    let opens = events.iter().filter_map(|event| match (&event.call, &event.result) {
        (Call::Open { handle, .. }, Some(Ok(Value::Node(node)))) => Some(((event.worker, *handle), *node)),
        _ => None,
    });
    opens.collect()
}

/// How many operations were about what another mount had written and may have held back still.
fn midst(events: &[Event]) -> usize {
    let nodes = nodes(events);
    let of_handle = |event: &Event| event.call.handle().and_then(|handle| nodes.get(&(event.worker, handle)).copied());
    // By inode and descriptor: the mount.
    let mut written: BTreeMap<(u64, usize, u32), usize> = BTreeMap::new();
    let mut count = 0;
    for event in events {
        let node = match (&event.call, &event.result) {
            (Call::Stat { .. }, Some(Ok(Value::Attributes { node, .. }))) => Some(*node),
            _ => of_handle(event),
        };
        let Some(node) = node else { continue };
        let of_node = written.range((node, 0, 0)..=(node, usize::MAX, u32::MAX));
        count += usize::from(of_node.into_iter().any(|(_, mount)| *mount != event.mount));
        match event.call {
            Call::Write { handle, .. } => _ = written.insert((node, event.worker, handle), event.mount),
            Call::Sync { handle } | Call::Close { handle } => _ = written.remove(&(node, event.worker, handle)),
            _ => {}
        }
    }
    count
}

/// How many operations ran while another worker changed what they are about.
fn conflicts(events: &[Event]) -> usize {
    let nodes = nodes(events);
    let touched: Vec<_> = events.iter().map(|event| touches(event, &nodes)).collect();
    let meets = |one: usize, two: usize| {
        let (first, second) = (&events[one], &events[two]);
        first.worker != second.worker
            && first.begin <= second.end
            && second.begin <= first.end
            && (touched[one].1 || touched[two].1)
            && !touched[one].0.is_disjoint(&touched[two].0)
    };
    (0..events.len()).filter(|one| (0..events.len()).any(|two| meets(*one, two))).count()
}
