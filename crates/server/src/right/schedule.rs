//! Rights under a virtual clock, with the real lease machine, granter and authorities: clients, the
//! server of the names and servers of data stop, die and are cut off from each other, in any
//! order, from a seed. What is read is always explained, nothing that was acknowledged is lost,
//! and what a client sent never lands after somebody else was let in.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_fs::{Aspects, ClientId};
use aqueduct_wire::RightKey;

mod client;
mod data;
mod names;
mod shared;
mod troubles;

use client::Client;
use data::Data;
use names::Names;

use super::granter::Fence;
use crate::lease::schedule::Random;
use crate::lease::{Clients, InodeKey, Now, SHARDS};

const CLIENTS: usize = 3;
const INODES: usize = 2;
const PLACES: usize = 2;

/// Messages take up to this long, and some up to that long.
const DELAY_MAX: Duration = Duration::from_millis(60);
const LATE_MAX: Duration = Duration::from_secs(3);

/// A step at a server takes up to this long, and some writes up to that long.
const STEP_MAX: Duration = Duration::from_millis(30);
const SLOW_MAX: Duration = Duration::from_secs(2);

/// Troubles end then; all that waits has come to its end by that time.
const TROUBLED: Duration = Duration::from_secs(45);
const ENDS: Duration = Duration::from_secs(120);

/// What is written under exclusive leases.
const FLUSH: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES).union(Aspects::WRITES);

/// Mistakes that somebody could make; the checks have to find each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A server of data forgets its floor.
    ForgetsFloor,
    /// A start of it takes the rights of the one before for its own.
    TakesOldRights,
    /// It says that rights are over while something runs under them.
    DrainsEarly,
    /// It counts its authority from the answer.
    CountsFromAnswer,
    /// Nobody ends one that stood still between the look at its authority and its write.
    NobodyWatches,
    /// The server of the names does not wait for the end of rights whose lease it breaks.
    BreaksUnderRights,
    /// It forgets at a start who was given rights.
    ForgetsRights,
    /// A client returns what it gave up, and which may run still.
    ReturnsGivenUp,
    /// It returns what is not stable.
    ReturnsUnstable,
    /// It writes again at the server of the names what a server of data may be writing.
    RepeatsAtOnce,
    /// It writes again what was not answered before what was.
    RepeatsInDisorder,
    /// It takes what was committed for stable though the host has lost it.
    TrustsAnyVerifier,
    /// A server of data lets writers write over what others may repeat.
    OverwritesUnsettled,
    /// The server of the names lets several repeat what lies over each other.
    RepeatsUnordered,
    /// A client repeats beside others what may be executed still.
    RepeatsBeside,
    /// It returns a lease though it does not know what became of a write.
    ReturnsUnknown,
    /// It changes the file itself when it may not repeat a write.
    ChangesAfterRefusal,
}

/// Who can be cut off from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Names,
    Data(usize),
    Client(usize),
}

#[derive(Debug)]
enum Event {
    ToNames(Node, names::Message),
    ToClient(usize, client::Message),
    ToData(usize, data::Message),
    /// A program does something.
    Act(usize),
    Trouble,
    Names(names::Step),
    Data(usize, data::Step),
    Client(usize, client::Step),
    /// Of the process beside the server of data, for this start of it.
    Watch(usize, u64),
}

/// A write of a program.
#[derive(Clone, Copy, Debug)]
struct Write {
    inode: usize,
    place: usize,
    /// Of which owner, or of which several writers.
    tenure: u64,
    /// Of several writers.
    is_shared: bool,
    began: Now,
}

/// A write that has reached the file system.
#[derive(Clone, Copy, Debug)]
struct Applied {
    write: usize,
    /// The host whose memory has it alone.
    only_at: Option<usize>,
    at: Now,
}

/// When clients were renewed, and which are not any more; and whose exclusive leases were broken,
/// which the next process knows.
#[derive(Default)]
struct Known(RefCell<HashMap<ClientId, (Now, usize)>>, RefCell<HashSet<ClientId>>);

impl Clients for Known {
    fn renewed(&self, client: ClientId) -> Option<Now> {
        self.0.borrow().get(&client).map(|(renewed, _)| *renewed)
    }

    fn is_suspended(&self, client: ClientId) -> bool {
        self.0.borrow().get(&client).is_some_and(|(_, suspended)| *suspended > 0)
    }

    fn suspend(&self, client: ClientId) {
        self.0.borrow_mut().entry(client).or_default().1 += 1;
    }

    fn resume(&self, client: ClientId) {
        self.0.borrow_mut().entry(client).or_default().1 -= 1;
        self.1.borrow_mut().remove(&client);
    }
}

struct World {
    bug: Bug,
    fence: Fence,
    random: Random,
    now: Now,
    /// The same, for who watches.
    clock: Arc<AtomicU64>,
    events: BTreeMap<(Now, u64), Event>,
    count: u64,
    key: RightKey,
    folder: tempfile::TempDir,
    /// `None`: it is down.
    names: Option<Names>,
    names_start: u64,
    known: Known,
    data: [Data; PLACES],
    clients: Vec<Client>,
    /// Whose sessions there are, and until when those that have ended may believe what they had.
    sessions: BTreeMap<ClientId, usize>,
    lapses: BTreeMap<ClientId, Now>,
    stopped_until: BTreeMap<Node, Now>,
    cut_until: BTreeMap<(Node, Node), Now>,
    writes: Vec<Write>,
    blocks: [[Vec<Applied>; PLACES]; INODES],
    /// What nobody may miss any more.
    firm: [[usize; PLACES]; INODES],
    /// The latest exclusive lease, and whose.
    tenures: [(u64, ClientId); INODES],
    /// Nothing of leases up to this one may change the inode.
    closed: [u64; INODES],
    /// What was lost with these leases was told.
    excused: HashSet<(usize, u64)>,
    tally: Tally,
}

/// What schedules were.
#[derive(Debug, Default)]
struct Tally {
    straight: usize,
    synced: usize,
    again: usize,
    broken: usize,
    /// Written beside others, and what could not be repeated there.
    beside: usize,
    refused: usize,
    /// The latest look that was answered.
    answered: Now,
}

fn key(inode: usize) -> InodeKey {
    InodeKey((inode * SHARDS) as u128)
}

fn handle(inode: usize) -> [u8; 1] {
    [inode as u8]
}

impl World {
    fn new(seed: u64, bug: Bug) -> World {
        let shm = std::path::Path::new("/dev/shm");
        let folder = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
        let key = RightKey::of_volume(&[1; 32]);
        let is_timed = seed.is_multiple_of(3) || matches!(bug, Bug::CountsFromAnswer | Bug::NobodyWatches);
        let fence = if is_timed { Fence::Timed } else { Fence::Answer };
        let mut world = World {
            bug,
            fence,
            random: Random(seed),
            now: Duration::from_secs(1),
            clock: Arc::default(),
            events: BTreeMap::new(),
            count: 1000,
            key,
            folder: folder.unwrap(),
            names: None,
            names_start: 0,
            known: Known::default(),
            data: Default::default(),
            clients: Vec::new(),
            sessions: BTreeMap::new(),
            lapses: BTreeMap::new(),
            stopped_until: BTreeMap::new(),
            cut_until: BTreeMap::new(),
            writes: vec![Write { inode: 0, place: 0, tenure: 0, is_shared: false, began: Now::ZERO }],
            blocks: Default::default(),
            firm: Default::default(),
            tenures: [(0, ClientId(0)); INODES],
            closed: [0; INODES],
            excused: HashSet::new(),
            tally: Tally::default(),
        };
        world.start_names();
        (0..PLACES).for_each(|place| world.start_data(place));
        for index in 0..CLIENTS {
            world.clients.push(Client::default());
            world.begin_session(index);
            world.at(Duration::ZERO, Event::Act(index));
            world.at(Duration::ZERO, Event::Client(index, client::Step::Ping));
        }
        world.at(Duration::from_secs(1), Event::Trouble);
        world
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.count += 1;
        self.events.insert((self.now + after, self.count), event);
    }

    /// A step at a server takes a while.
    fn step(&mut self, event: Event) {
        let takes = self.random.duration(STEP_MAX);
        self.at(takes, event);
    }

    fn send(&mut self, event: Event) {
        let is_late = self.random.below(40) == 0;
        let delay = self.random.duration(if is_late { LATE_MAX } else { DELAY_MAX });
        self.at(delay, event);
    }

    /// When an event can happen: who it is about stands still, or is cut off from who sent it.
    fn held_until(&self, event: &Event) -> Now {
        let (to, from) = match event {
            Event::ToNames(from, _) => (Node::Names, Some(*from)),
            Event::ToClient(index, message) => (Node::Client(*index), Some(message.from())),
            Event::ToData(place, message) => (Node::Data(*place), message.from()),
            Event::Act(index) | Event::Client(index, _) => (Node::Client(*index), None),
            Event::Data(place, _) => (Node::Data(*place), None),
            Event::Trouble | Event::Names(_) | Event::Watch(..) => return Now::ZERO,
        };
        let stopped = self.stopped_until.get(&to).copied().unwrap_or_default();
        let link = from.map(|from| (to.min(from), to.max(from)));
        let cut = link.and_then(|link| self.cut_until.get(&link)).copied();
        stopped.max(cut.unwrap_or_default())
    }

    fn run(&mut self) {
        while let Some(((at, number), event)) = self.events.pop_first() {
            if at > ENDS {
                break;
            }
            let held = self.held_until(&event);
            if held > at {
                self.events.insert((held, number), event);
                continue;
            }
            self.now = at;
            self.clock.store(at.as_nanos() as u64, std::sync::atomic::Ordering::SeqCst);
            match event {
                Event::ToNames(from, message) => self.at_names(from, message),
                Event::ToClient(index, message) => self.at_client(index, message),
                Event::ToData(place, message) => self.at_data(place, message),
                Event::Act(index) => self.act(index),
                Event::Trouble => self.trouble(),
                Event::Names(step) => self.step_of_names(step),
                Event::Data(place, step) => self.step_of_data(place, step),
                Event::Client(index, step) => self.step_of_client(index, step),
                Event::Watch(place, start) => self.watch(place, start),
            }
        }
        let late = ENDS - Duration::from_secs(20);
        assert!(self.tally.answered > late, "somebody waits for ever since {:?}", self.tally.answered);
    }

    fn visible(&self, inode: usize, place: usize) -> usize {
        self.blocks[inode][place].last().map_or(0, |applied| applied.write)
    }

    /// A write reaches the file system, through the server of data of a host or that of the names.
    fn apply(&mut self, write: usize, host: Option<usize>) {
        let Write { inode, place, tenure, is_shared, .. } = self.writes[write];
        let (visible, now) = (self.visible(inode, place), self.now);
        assert!(tenure > self.closed[inode], "write {write} of {tenure} changes what others were shown at {now:?}");
        let before = self.writes[visible].tenure;
        assert!(visible == 0 || tenure >= before, "write {write} lands on {visible} of a later owner at {now:?}");
        // Who writes again through the server of the names writes all again, and nobody looks.
        let is_in_order = host.is_none() || is_shared || write >= visible;
        assert!(is_in_order, "write {write} lands on the later {visible} at {now:?}");
        self.tally.straight += usize::from(host.is_some());
        if is_shared {
            self.check_repeat(write);
        }
        // What several write is stable at once.
        let only_at = host.filter(|_| !is_shared);
        self.blocks[inode][place].push(Applied { write, only_at, at: now });
    }

    /// A write that is there already lands on nothing that began after somebody could see it.
    fn check_repeat(&self, write: usize) {
        let Write { inode, place, .. } = self.writes[write];
        let mut applied = self.blocks[inode][place].iter().skip_while(|applied| applied.write != write);
        let Some(first) = applied.next() else { return };
        for later in applied {
            let is_over = later.write != write && self.writes[later.write].began > first.at;
            assert!(!is_over, "write {write} lands on {}, whose writer saw it, at {:?}", later.write, self.now);
        }
    }

    /// Nobody may miss these any more.
    fn make_firm(&mut self, writes: &[usize]) {
        for write in writes {
            let Write { inode, place, tenure, is_shared, .. } = self.writes[*write];
            if !is_shared && !self.excused.contains(&(inode, tenure)) {
                self.firm[inode][place] = self.firm[inode][place].max(*write);
            }
        }
        self.check("what was acknowledged");
    }

    fn check(&self, what: &str) {
        for inode in 0..INODES {
            for place in 0..PLACES {
                let (visible, firm) = (self.visible(inode, place), self.firm[inode][place]);
                let is_between = self.is_written_again(inode);
                assert!(visible >= firm || is_between, "{what}: {visible} instead of {firm} at {:?}", self.now);
            }
        }
    }

    /// The owner gives the server of the names what it may have lost, one write after the other.
    fn is_written_again(&self, inode: usize) -> bool {
        self.tenures[inode].0 > self.closed[inode]
    }

    /// Who holds an inode for itself has lost what it wrote and nobody was promised.
    fn excuse(&mut self, inode: usize, session: ClientId) {
        self.tally.broken += 1;
        let (tenure, owner) = self.tenures[inode];
        if owner == session {
            self.excused.insert((inode, tenure));
        }
        self.known.1.borrow_mut().insert(session);
    }
}

/// Runs schedules. Returns what they were.
fn schedules(seeds: std::ops::Range<u64>, bug: Bug) -> Tally {
    let mut sum = Tally::default();
    for seed in seeds {
        let mut world = World::new(seed, bug);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        if let Err(panic) = result {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
        sum.straight += world.tally.straight;
        sum.synced += world.tally.synced;
        sum.again += world.tally.again;
        sum.broken += world.tally.broken;
        sum.beside += world.tally.beside;
        sum.refused += world.tally.refused;
    }
    sum
}

/// RIGHT_SCHEDULES says how many.
#[test]
fn what_goes_straight_is_neither_lost_nor_late() {
    let count = std::env::var("RIGHT_SCHEDULES").map_or(100, |count| count.parse().expect("a number"));
    let tally = schedules(0..count, Bug::None);
    println!("{count} schedules: {tally:?}");
    let least = count as usize;
    assert!(tally.straight > 20 * least && tally.synced > 5 * least, "hardly anything goes straight: {tally:?}");
    assert!(tally.again > least && 2 * tally.broken > least, "hardly anything goes wrong: {tally:?}");
    assert!(tally.beside > 5 * least, "hardly anybody writes beside others: {tally:?}");
}

fn is_found(bug: Bug, most: u64) {
    let found = std::panic::catch_unwind(|| schedules(0..most, bug));
    assert!(found.is_err(), "{bug:?} was not found");
    println!("{bug:?} was found");
}

#[test]
fn planted_mistakes_of_rights_are_found() {
    for bug in [
        Bug::ForgetsFloor,
        Bug::DrainsEarly,
        Bug::NobodyWatches,
        Bug::ForgetsRights,
        Bug::ReturnsGivenUp,
        Bug::ReturnsUnstable,
        Bug::RepeatsAtOnce,
        Bug::RepeatsInDisorder,
        Bug::OverwritesUnsettled,
        Bug::RepeatsBeside,
        Bug::ReturnsUnknown,
        Bug::ChangesAfterRefusal,
    ] {
        is_found(bug, 300);
    }
}

/// Those that only few schedules tell from what is right: minutes. RIGHT_MISTAKE chooses one.
#[test]
#[ignore = "make test-long"]
fn rare_mistakes_of_rights_are_found() {
    let wanted = std::env::var("RIGHT_MISTAKE");
    for bug in [
        Bug::TakesOldRights,
        Bug::CountsFromAnswer,
        Bug::BreaksUnderRights,
        Bug::TrustsAnyVerifier,
        Bug::RepeatsUnordered,
    ] {
        if wanted.as_ref().is_ok_and(|wanted| *wanted != format!("{bug:?}")) {
            continue;
        }
        is_found(bug, 20_000);
    }
}

/// What a server of data has told who watches over it, and when.
type Told = Arc<Mutex<(Option<Now>, Now)>>;
