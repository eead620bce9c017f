//! What happens in a history: a pure function of its seed.

use std::time::Duration;

use aqueduct_model::Random;
use serde::{Deserialize, Serialize};

use crate::history::FILES;

/// Workers on one mount.
pub const WORKERS_OF_MOUNT: usize = 2;

/// Workers of a history at most: more would only wait for the processors.
const WORKERS_MAX: usize = 8;

/// What a server's session outlives in any case: the grace is 5 s, and a busy machine slow.
const SURE: Duration = Duration::from_millis(2500);

/// A trouble that takes so long is worth watching what a cache does meanwhile.
const WATCHED: Duration = Duration::from_millis(700);

/// How long leases last in histories: less than usual, so that more of them outlast one.
pub const LEASE: Duration = Duration::from_secs(2);

/// Longer than a lease and the server's patience (2 s): what is believed still when others have changed it shows in what is left.
const LONGEST: Duration = LEASE.saturating_add(Duration::from_millis(2400));

/// After so long those who watch have in their caches what there is.
const WARM: Duration = Duration::from_millis(400);

/// As long as a history lasts that has no other trouble.
const FAR_TIME: Duration = Duration::from_millis(150);

/// What the workers of a history mostly do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Theme {
    Data,
    /// Small writes to files that are mostly one mount's.
    Gathered,
    Names,
    Log,
    Pages,
    Locks,
    Mixed,
}

const THEMES: [Theme; 8] =
    [Theme::Data, Theme::Data, Theme::Names, Theme::Names, Theme::Log, Theme::Pages, Theme::Locks, Theme::Mixed];

/// One history in so many is of small writes.
const GATHERED_ONE_IN: u64 = 4;

/// What happens to whom, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// SIGSTOP, then SIGCONT.
    StopMount(usize, Duration),
    StopServer(Duration),
    /// SIGKILL, and started again after a while.
    KillServer(Duration),
    /// SIGKILL; the mount is cleared and made again.
    KillMount(usize),
    /// All connections break.
    Cut(usize),
    /// Nothing passes for a while, and nothing is lost.
    Partition(usize, Duration),
    /// All connections break, and none can be made for a while.
    Refuse(usize, Duration),
    /// Each piece is late.
    Delay(usize, Duration, Duration),
    /// The kernel's caches of all file systems are dropped.
    DropCaches,
}

impl Trouble {
    pub fn name(&self) -> &'static str {
        match self {
            Trouble::StopMount(..) => "mount stopped",
            Trouble::StopServer(_) => "server stopped",
            Trouble::KillServer(_) => "server killed",
            Trouble::KillMount(_) => "mount killed",
            Trouble::Cut(_) => "connections cut",
            Trouble::Partition(..) => "partition",
            Trouble::Refuse(..) => "connections refused",
            Trouble::Delay(..) => "delay",
            Trouble::DropCaches => "caches dropped",
        }
    }

    pub fn time(&self) -> Duration {
        match *self {
            Trouble::StopMount(_, time)
            | Trouble::StopServer(time)
            | Trouble::KillServer(time)
            | Trouble::Partition(_, time)
            | Trouble::Refuse(_, time)
            | Trouble::Delay(_, _, time) => time,
            Trouble::KillMount(_) | Trouble::Cut(_) | Trouble::DropCaches => Duration::ZERO,
        }
    }

    /// Whether programs may lose descriptors, locks and outcomes.
    fn may_fail(&self) -> bool {
        matches!(self, Trouble::KillMount(_)) || !matches!(self, Trouble::Delay(..)) && self.time() > SURE
    }

    fn draw(random: &mut Random, mounts: &[usize], length: Duration) -> Trouble {
        let mount = *random.pick(mounts);
        let late = Duration::from_micros(200 + random.below(20_000) as u64);
        // A server that is away holds up everybody: mostly not for long.
        let away = length.min(Duration::from_millis(500 + random.below(1500) as u64));
        match random.below(100) {
            0..30 => Trouble::StopMount(mount, length),
            30..38 => Trouble::StopServer(away),
            38..48 => Trouble::KillServer(away / 4),
            48..56 => Trouble::KillMount(mount),
            56..66 => Trouble::Cut(mount),
            66..80 => Trouble::Partition(mount, length),
            80..88 => Trouble::Refuse(mount, length),
            88..97 => Trouble::Delay(mount, late, away),
            _ => Trouble::DropCaches,
        }
    }
}

/// How many histories of a thousand have which trouble.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// A mount is far away: what is on its way takes milliseconds.
    pub far: usize,
    /// Of tens to hundreds of milliseconds.
    pub short: usize,
    /// Of seconds.
    pub long: usize,
    /// Longer than a lease and the server's patience.
    pub longest: usize,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub theme: Theme,
    /// The mounts that take part.
    pub mounts: Vec<usize>,
    /// Each a mount, and its number there.
    pub workers: Vec<(usize, usize)>,
    /// Files are opened by so many of their names.
    pub hot: usize,
    /// The mount on which workers only look at one thing, again and again: as long as it has that in a cache they do not notice what happens.
    pub watching: Option<usize>,
    /// The mount whose workers begin before the others.
    pub first: Option<usize>,
    /// When the others begin: not before the trouble, for what is contended is in no cache, and held back by nobody.
    pub quiet: Duration,
    /// Operations of each worker.
    pub operations: usize,
    /// The longest pause between two operations.
    pub pause: Duration,
    /// When what happens.
    pub troubles: Vec<(Duration, Trouble)>,
    pub may_fail: bool,
}

/// `mounts`: how many there are.
pub fn plan(seed: u64, mounts: usize, weather: &Weather) -> Plan {
    let mut random = Random::new(seed);
    let theme = *random.pick(&THEMES);
    let theme = if seed.is_multiple_of(GATHERED_ONE_IN) { Theme::Gathered } else { theme };
    let count = if random.chance(60) { 2 } else { 2 + random.below(mounts - 1) };
    let mut chosen: Vec<usize> = (0..mounts).collect();
    while chosen.len() > count {
        chosen.swap_remove(random.below(chosen.len()));
    }
    let both = random.chance(40);
    let mut workers: Vec<_> = chosen.iter().map(|mount| (*mount, 0)).collect();
    if both {
        workers.extend(chosen.iter().map(|mount| (*mount, 1)));
        workers.truncate(WORKERS_MAX);
    }
    let mut plan = Plan {
        seed,
        theme,
        mounts: chosen,
        hot: *random.pick(&[1, 2, FILES]),
        watching: None,
        first: None,
        quiet: Duration::ZERO,
        operations: (48 / workers.len()).max(8),
        workers,
        pause: Duration::from_micros(*random.pick(&[0, 0, 200, 1000])),
        troubles: Vec::new(),
        may_fail: false,
    };
    if theme == Theme::Gathered {
        plan.hot = plan.mounts.len().min(FILES);
    }
    let lot = random.below(1000);
    let mut share = 0;
    let kinds = [weather.longest, weather.long, weather.short, weather.far];
    let kind = kinds.iter().position(|kind| {
        share += kind;
        lot < share
    });
    match kind {
        Some(0) => plan.disturb(&mut random, LONGEST, 3000),
        Some(1) => plan.disturb(&mut random, WATCHED, 3300),
        Some(2) => plan.disturb(&mut random, Duration::from_millis(40), 400),
        Some(_) => {
            let delay = Duration::from_micros(500 + random.below(8000) as u64);
            let far = Trouble::Delay(*random.pick(&plan.mounts), delay, FAR_TIME);
            plan.troubles.push((Duration::ZERO, far));
        }
        None => {}
    }
    plan
}

impl Plan {
    /// A trouble or two, of so many milliseconds. Work is spread over the time that they take, and a little more.
    fn disturb(&mut self, random: &mut Random, at_least: Duration, more: usize) {
        let length = at_least + Duration::from_millis(random.below(more) as u64);
        let mut before = Duration::from_millis(5 + random.below(40) as u64);
        let first = loop {
            let first = Trouble::draw(random, &self.mounts, length);
            // What takes seconds has to do with one mount.
            if length < WATCHED || first.time() == length {
                break first;
            }
        };
        if let Trouble::StopMount(mount, time) | Trouble::Partition(mount, time) | Trouble::Refuse(mount, time) = first
            && time >= WATCHED
            && random.chance(75)
        {
            before = WARM;
            (self.first, self.hot, self.quiet) = (Some(mount), 1, before + WARM / 8);
            if self.theme == Theme::Gathered {
                // What it has written is what the others look at.
                let at = self.mounts.iter().position(|chosen| *chosen == mount).expect("one of them");
                self.mounts.swap(0, at);
            } else {
                self.watching = Some(mount);
                if !matches!(self.theme, Theme::Names | Theme::Log) {
                    self.theme = Theme::Data;
                }
            }
        } else if self.theme == Theme::Gathered {
            // Something is to be held back when it begins.
            before = WARM / 2;
        }
        self.troubles.push((before, first));
        if random.chance(30) {
            let second = Trouble::draw(random, &self.mounts, length.min(Duration::from_millis(600)));
            let at = before + Duration::from_millis(random.below(length.as_millis() as usize + 50) as u64);
            self.troubles.push((at, second));
        }
        self.may_fail = self.troubles.iter().any(|(_, trouble)| trouble.may_fail());
        self.operations = self.operations.max(12);
        if self.theme == Theme::Gathered {
            self.operations *= 3;
        }
        let span = first.time().max(Duration::from_millis(200)) + Duration::from_millis(300);
        self.pause = span * 2 / self.operations as u32;
    }
}
