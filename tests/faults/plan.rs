//! Which faults happen when: a pure function of the seed.

use std::time::Duration;

use aqueduct_model::Random;

use crate::proxy::Cut;

/// Mounts that the faults can reach; those of the first export come first, then one of each other.
pub const MOUNTS: usize = 4;

/// The mounts whose traffic has checksums: bits of it may be turned over.
pub const MOUNTS_CHECKED: [usize; 2] = [1, 2];

/// The mount of the export with quotas.
pub const MOUNT_LIMITED: usize = 3;

/// Mounts of the first export, whose processes may be killed: the programs there know how to go on.
pub const MOUNTS_MORTAL: usize = 2;

/// A mount that cannot reach its server for the session's grace has lost it, as promised. Faults that overlap or follow each other closely keep it away for
/// less than this, so that a busy machine does not turn them into more than the grace that the suite's server gives.
const AWAY_MAX: Duration = Duration::from_secs(5);

/// After so much quiet every mount has found its server again.
const QUIET: Duration = Duration::from_millis(1500);

/// What happens to whom; times are for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, and started again after a while.
    KillServer(Duration),
    /// SIGTERM, and started again after a while.
    EndServer(Duration),
    /// SIGSTOP, then SIGCONT.
    StopServer(Duration),
    StopMount(usize, Duration),
    /// SIGKILL; the mount is cleared and made again.
    KillMount(usize),
    /// Each connection with this chance in percent.
    Cut(usize, Cut, usize),
    /// All connections are cut, and none can be made.
    Refuse(usize, Duration),
    /// Nothing passes for a while; then it goes on, or is cut.
    Stall(usize, Duration, bool),
    Delay(usize, Duration, Duration),
    /// Pieces of so many bytes.
    Trickle(usize, usize, Duration),
    /// One bit in every so manyth piece is turned over.
    Flip(usize, usize, Duration),
    FillDisk(Duration),
    LimitUser(Duration),
}

/// All kinds, for tables.
pub const KINDS: [&str; 15] = [
    "server_kill",
    "server_end",
    "server_stop",
    "mount_stop",
    "mount_kill",
    "cut",
    "reset",
    "half_frame",
    "refuse",
    "stall",
    "delay",
    "trickle",
    "bit_flips",
    "disk_full",
    "quota",
];

#[derive(Clone, Debug)]
pub struct Planned {
    pub index: usize,
    pub at: Duration,
    pub fault: Fault,
}

impl Fault {
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::KillServer(_) => "server_kill",
            Fault::EndServer(_) => "server_end",
            Fault::StopServer(_) => "server_stop",
            Fault::StopMount(..) => "mount_stop",
            Fault::KillMount(_) => "mount_kill",
            Fault::Cut(_, Cut::Reset, _) => "reset",
            Fault::Cut(_, Cut::After(_), _) => "half_frame",
            Fault::Cut(..) => "cut",
            Fault::Refuse(..) => "refuse",
            Fault::Stall(..) => "stall",
            Fault::Delay(..) => "delay",
            Fault::Trickle(..) => "trickle",
            Fault::Flip(..) => "bit_flips",
            Fault::FillDisk(_) => "disk_full",
            Fault::LimitUser(_) => "quota",
        }
    }

    /// How long it lasts.
    pub fn time(&self) -> Duration {
        match self {
            Fault::KillServer(time) | Fault::EndServer(time) | Fault::StopServer(time) => *time,
            Fault::StopMount(_, time) | Fault::Refuse(_, time) | Fault::Stall(_, time, _) => *time,
            Fault::Flip(_, _, time)
            | Fault::Delay(_, _, time)
            | Fault::Trickle(_, _, time)
            | Fault::FillDisk(time)
            | Fault::LimitUser(time) => *time,
            Fault::KillMount(_) => Duration::from_millis(300),
            Fault::Cut(..) => Duration::ZERO,
        }
    }

    fn draw(random: &mut Random) -> Fault {
        let mount = random.below(MOUNTS);
        let mut up_to = |milliseconds| Duration::from_millis(random.below(milliseconds) as u64);
        let (away, while_stopped) = (up_to(2000), up_to(2900) + Duration::from_millis(100));
        let (short, delay) = (up_to(1500), up_to(60));
        let share = [30, 60, 100][random.below(3)];
        match random.below(100) {
            0..18 => Fault::KillServer(away),
            18..26 => Fault::EndServer(away),
            26..33 => Fault::StopServer(while_stopped),
            33..39 => Fault::StopMount(mount, while_stopped),
            39..42 => Fault::KillMount(mount % MOUNTS_MORTAL),
            42..50 => Fault::Cut(mount, Cut::Orderly, share),
            50..58 => Fault::Cut(mount, Cut::Reset, share),
            58..68 => Fault::Cut(mount, Cut::After(random.below(200)), share),
            68..74 => Fault::Refuse(mount, short),
            74..81 => Fault::Stall(mount, while_stopped, random.chance(50)),
            81..85 => Fault::Delay(mount, delay, short),
            85..89 => Fault::Trickle(mount, 1 + random.below(500), short),
            89..92 => Fault::Flip(*random.pick(&MOUNTS_CHECKED), 5 + random.below(50), short),
            92..96 => Fault::FillDisk(short),
            _ => Fault::LimitUser(short),
        }
    }

    /// What it needs for itself, as a number below [`RESOURCES`].
    pub fn resource(&self) -> usize {
        match self {
            Fault::KillServer(_) | Fault::EndServer(_) | Fault::StopServer(_) => 0,
            Fault::FillDisk(_) => 1,
            Fault::LimitUser(_) => 2,
            Fault::StopMount(mount, _) | Fault::KillMount(mount) => 3 + mount,
            Fault::Cut(mount, ..)
            | Fault::Refuse(mount, _)
            | Fault::Stall(mount, ..)
            | Fault::Delay(mount, ..)
            | Fault::Trickle(mount, ..)
            | Fault::Flip(mount, ..) => 3 + MOUNTS + mount,
        }
    }

    /// The mounts that it keeps from their server.
    fn keeps_away(&self) -> Vec<usize> {
        match self {
            Fault::FillDisk(_) | Fault::LimitUser(_) | Fault::Delay(..) | Fault::Trickle(..) => Vec::new(),
            Fault::KillServer(_) | Fault::EndServer(_) | Fault::StopServer(_) => (0..MOUNTS).collect(),
            Fault::StopMount(mount, _) | Fault::KillMount(mount) => vec![*mount],
            Fault::Cut(mount, ..) | Fault::Refuse(mount, _) | Fault::Stall(mount, ..) | Fault::Flip(mount, ..) => {
                vec![*mount]
            }
        }
    }
}

/// Things that only one fault at a time can happen to.
pub const RESOURCES: usize = 3 + 2 * MOUNTS;

/// `count` faults, about two a second.
pub fn plan(seed: u64, count: usize) -> Vec<Planned> {
    let mut random = Random::new(seed);
    let mut at = Duration::from_millis(300);
    let mut free = [Duration::ZERO; RESOURCES];
    let mut away = [(Duration::ZERO, Duration::ZERO); MOUNTS];
    let mut planned = Vec::new();
    while planned.len() < count {
        let fault = Fault::draw(&mut random);
        let end = at + fault.time() + Duration::from_millis(100);
        let mut then = away;
        for mount in fault.keeps_away() {
            let (since, until) = away[mount];
            then[mount] = (if at > until + QUIET { at } else { since }, until.max(end));
        }
        if free[fault.resource()] <= at && then.iter().all(|(since, until)| *until - *since <= AWAY_MAX) {
            away = then;
            free[fault.resource()] = end;
            planned.push(Planned { index: planned.len(), at, fault });
            at += Duration::from_millis(random.below(700) as u64);
        } else {
            at += Duration::from_millis(50);
        }
    }
    planned
}
