//! What the kernel of this machine counts: processors, pressure, disks, interfaces. Files of /proc
//! are small, local and never wait for a disk.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use aqueduct_node::mounts::{self, Mount};
use aqueduct_observe::activity::{self, Reading, Readings};

/// Of a second.
const MICROSECONDS: f64 = 1e6;

/// Whether the threads of a process that ran and waited for processors for so many seconds, of
/// `seconds` in all, have too little of them: they want one for 0.8 of the time, and wait for
/// three quarters of that. On a machine that others keep busy they wait for half.
pub(crate) fn lacks_processors([ran, waited]: [f64; 2], seconds: f64) -> bool {
    const WANTS: f64 = 0.8;
    const WAITS: f64 = 0.75;
    let wanted = ran + waited;
    wanted >= WANTS * seconds && waited >= WAITS * wanted
}

/// Whether its threads want processors for so much of the time that these can be what limits.
pub(crate) fn wants_processors([ran, waited]: [f64; 2], seconds: f64) -> bool {
    const WANTS: f64 = 0.25;
    ran + waited >= WANTS * seconds
}

/// Whether a process lacks processors and this one, on the same machine, does not as much: it has
/// half as much of them or less, of what it wants. What a whole machine lacks is none's fault.
pub(crate) fn lacks_more(one: [f64; 2], own: [f64; 2]) -> bool {
    const LESS: f64 = 0.5;
    // Who wants none has all that it wants.
    let has = |[ran, waited]: [f64; 2]| if ran + waited > 0.0 { ran / (ran + waited) } else { 1.0 };
    has(one) <= LESS * has(own)
}

/// The time of all processors together, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Processors {
    /// Working.
    pub busy: f64,
    /// Waiting for the machine below, of a virtual machine.
    pub steal: f64,
    /// All of it.
    pub all: f64,
}

/// What a disk has done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disk {
    /// Bytes read and written.
    pub bytes: [u64; 2],
    /// Operations that ended, reads and writes.
    pub operations: [u64; 2],
    /// Seconds in which something was under way.
    pub busy: f64,
    /// Seconds of all operations together.
    pub queued: f64,
}

/// What an interface has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Bytes that came and went.
    pub bytes: [u64; 2],
    /// Packets that were dropped, coming and going.
    pub dropped: [u64; 2],
}

/// Seconds in which some, or all, of what could run waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Some waited.
    pub some: f64,
    /// All that was not idle waited; 0 where the kernel does not tell.
    pub full: f64,
}

/// All of it at one moment. What the kernel does not tell is empty or 0.
#[derive(Clone, Debug)]
pub struct Look {
    /// When.
    pub at: Instant,
    /// Processors.
    pub processors: Processors,
    /// For processors, memory and disks.
    pub pressure: [Pressure; 3],
    /// By name.
    pub disks: BTreeMap<String, Disk>,
    /// By name.
    pub interfaces: BTreeMap<String, Interface>,
    /// Segments that TCP has sent, and those that it has sent again.
    pub segments: [u64; 2],
}

impl Look {
    /// Looks now.
    pub fn now() -> Look {
        let read = |path: &str| fs::read_to_string(Path::new("/proc").join(path)).unwrap_or_default();
        Look {
            at: Instant::now(),
            processors: processors(&read("stat")),
            pressure: ["cpu", "memory", "io"].map(|what| pressure(&read(&format!("pressure/{what}")))),
            disks: disks(&read("diskstats")),
            // Of this process's network namespace.
            interfaces: interfaces(&read("net/dev")),
            segments: segments(&read("net/snmp")),
        }
    }

    /// The share of all processors that worked or was stolen since an earlier look, 0 to 1.
    pub fn busy_since(&self, before: &Look) -> f64 {
        let all = self.processors.all - before.processors.all;
        let busy = self.processors.busy + self.processors.steal - before.processors.busy - before.processors.steal;
        if all > 0.0 { (busy / all).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Seconds of processors that worked or were stolen since an earlier look, and of all.
    pub fn processors_since(&self, before: &Look) -> [f64; 2] {
        let all = (self.processors.all - before.processors.all).max(0.0);
        [self.busy_since(before) * all, all]
    }

    /// The share of all processors that was stolen since an earlier look.
    pub fn stolen_since(&self, before: &Look) -> f64 {
        let all = self.processors.all - before.processors.all;
        if all > 0.0 { ((self.processors.steal - before.processors.steal) / all).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The share of TCP's segments that were sent again since an earlier look, of this namespace.
    pub fn resent_since(&self, before: &Look) -> f64 {
        let [sent, again] = [0, 1].map(|at: usize| self.segments[at].saturating_sub(before.segments[at]));
        if sent > 0 { again as f64 / sent as f64 } else { 0.0 }
    }

    /// The busiest disk since an earlier look, and the share of that time that it was busy.
    pub fn busiest_since(&self, before: &Look) -> Option<(&str, f64)> {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let share = |(name, disk): (&String, &Disk)| {
            let earlier = before.disks.get(name)?;
            Some((name.clone(), ((disk.busy - earlier.busy) / seconds).clamp(0.0, 1.0)))
        };
        let (name, share) = self.disks.iter().filter_map(share).max_by(|one, two| one.1.total_cmp(&two.1))?;
        Some((self.disks.get_key_value(&name)?.0, share))
    }
}

/// What a file says, by [`activity`]'s reading of it.
fn read(parse: impl FnOnce(&str, &mut Readings), text: &str) -> Readings {
    let mut readings = Readings::default();
    parse(text, &mut readings);
    readings
}

/// Reads /proc/stat.
pub fn processors(text: &str) -> Processors {
    let mut processors = Processors::default();
    let (mut idle, all) = (0.0, read(activity::processors, text));
    for reading in all.all().iter().filter(|reading| reading.target == "all") {
        let seconds = reading.value as f64 / MICROSECONDS;
        match &*reading.counter {
            "idle_microseconds" | "iowait_microseconds" => idle += seconds,
            "steal_microseconds" => processors.steal = seconds,
            _ => processors.busy += seconds,
        }
    }
    Processors { all: processors.busy + idle + processors.steal, ..processors }
}

/// Reads a file of /proc/pressure.
pub fn pressure(text: &str) -> Pressure {
    let all = read(|text, readings| activity::pressure("all", text, readings), text);
    let seconds = |counter| all.value("pressure", "all", counter).unwrap_or(0) as f64 / MICROSECONDS;
    Pressure { some: seconds("some_microseconds"), full: seconds("full_microseconds") }
}

/// Reads /proc/diskstats; disks that have never done anything are left out.
pub fn disks(text: &str) -> BTreeMap<String, Disk> {
    let mut disks = BTreeMap::<String, Disk>::new();
    for Reading { target, counter, value, .. } in read(activity::diskstats, text).all() {
        let disk = disks.entry(target.clone()).or_default();
        match &**counter {
            "read_bytes" => disk.bytes[0] = *value,
            "write_bytes" => disk.bytes[1] = *value,
            "read_operations" => disk.operations[0] = *value,
            "write_operations" => disk.operations[1] = *value,
            "busy_microseconds" => disk.busy = *value as f64 / MICROSECONDS,
            "queued_microseconds" => disk.queued = *value as f64 / MICROSECONDS,
            _ => {}
        }
    }
    disks
}

/// Reads /proc/net/dev.
pub fn interfaces(text: &str) -> BTreeMap<String, Interface> {
    let mut interfaces = BTreeMap::<String, Interface>::new();
    for Reading { target, counter, value, .. } in read(activity::interfaces, text).all() {
        let interface = interfaces.entry(target.clone()).or_default();
        match &**counter {
            "receive_bytes" => interface.bytes[0] = *value,
            "transmit_bytes" => interface.bytes[1] = *value,
            "receive_drops" => interface.dropped[0] = *value,
            "transmit_drops" => interface.dropped[1] = *value,
            _ => {}
        }
    }
    interfaces
}

/// Reads /proc/net/snmp: segments that TCP has sent, and those of them that it has sent again.
pub fn segments(text: &str) -> [u64; 2] {
    let all = read(activity::protocols, text);
    ["OutSegs", "RetransSegs"].map(|counter| all.value("tcp", "all", counter).unwrap_or(0))
}

/// A path that cannot be followed for so long leads through what does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What lies below a path: the device and type of its file system. `None`: it cannot be told, or
/// not in time.
pub fn device_of(path: &Path) -> Option<String> {
    below(&mounts::nearest(path, PATIENCE)?, &mounts::all().ok()?)
}

fn below(path: &Path, mounts: &[Mount]) -> Option<String> {
    // The longest, and of those on each other the last.
    let holds = mounts.iter().filter(|mount| path.starts_with(&mount.target));
    let Mount { kind, source, .. } = holds.max_by_key(|mount| mount.target.as_os_str().len())?;
    Some(if source.starts_with('/') { format!("{source} ({kind})") } else { kind.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        let stat = processors("cpu  100 0 50 800 50 0 0 20 0 0\ncpu0 1 2 3\n");
        assert_eq!(stat, Processors { busy: 1.5, steal: 0.2, all: 10.2 });
        let some = pressure("some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.0 total=1000000\n");
        assert_eq!(some, Pressure { some: 2.5, full: 1.0 });
        let all =
            disks("   8  0 sda 10 0 80 5 20 0 160 7 0 1500 12 0 0 0 0\n   7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\nnonsense\n");
        let disk = Disk { bytes: [40_960, 81_920], operations: [10, 20], busy: 1.5, queued: 0.012 };
        assert_eq!(all, BTreeMap::from([("sda".to_owned(), disk)]));
        let dev = interfaces("Inter-|   Receive\n face |bytes\n  eth0: 1 2 0 3 0 0 0 0 9 8 0 7 0 0 0 0\n");
        assert_eq!(dev["eth0"], Interface { bytes: [1, 9], dropped: [3, 7] });
        assert_eq!(segments("Tcp: RtoAlgorithm OutSegs RetransSegs\nTcp: 1 500 5\nUdp: a\n"), [500, 5]);
    }

    #[test]
    fn who_lacks_more_has_half_as_much_of_what_it_wants() {
        // What it ran and waited, and what this process did.
        for (one, own, lacks) in [
            ([1.0, 9.0], [1.0, 4.0], true),
            ([1.0, 9.0], [1.0, 6.0], false),
            ([1.0, 9.0], [1.0, 0.0], true),
            ([0.0, 5.0], [1.0, 9.0], true),
            // It waits more than twice as long for what it has, and has nearly all.
            ([1.0, 0.2], [1.0, 0.09], false),
            ([1.0, 0.0], [1.0, 0.0], false),
            // Nothing was wanted, here or there.
            ([0.0, 0.0], [0.0, 0.0], false),
            ([0.0, 0.0], [1.0, 1.0], false),
            ([1.0, 3.0], [0.0, 0.0], true),
        ] {
            assert_eq!(lacks_more(one, own), lacks, "{one:?} beside {own:?}");
        }
    }

    #[test]
    fn the_mount_with_the_longest_path_has_what_is_below() {
        let mount = |target: &str, kind: &str, source: &str| Mount {
            target: target.into(),
            kind: kind.to_owned(),
            source: source.to_owned(),
            ..Mount::default()
        };
        let mounts =
            [mount("/", "ext4", "/dev/sda1"), mount("/my disk", "xfs", "/dev/sdb"), mount("/my", "tmpfs", "x")];
        assert_eq!(below(Path::new("/my disk/a"), &mounts).unwrap(), "/dev/sdb (xfs)");
        assert_eq!(below(Path::new("/my/a"), &mounts).unwrap(), "tmpfs");
        assert_eq!(below(Path::new("/mydisk"), &mounts).unwrap(), "/dev/sda1 (ext4)");
        assert!(device_of(Path::new("/proc/self/nothing")).unwrap().starts_with("proc"));
    }

    #[test]
    fn noise_says_nothing() {
        for text in ["", "cpu", "Tcp:\n", "x y z", "some total=x", ":\n"] {
            assert_eq!(processors(text).busy, 0.0);
            assert_eq!((segments(text), pressure(text)), ([0, 0], Pressure::default()));
            assert!(disks(text).is_empty() && interfaces(text).is_empty());
        }
    }

    #[test]
    fn this_machine_is_looked_at() {
        let before = Look::now();
        let mut sum = 0u64;
        while before.at.elapsed() < std::time::Duration::from_millis(50) {
            sum = sum.wrapping_mul(31).wrapping_add(7);
        }
        std::hint::black_box(sum);
        let now = Look::now();
        assert!((0.0..=1.0).contains(&now.busy_since(&before)) && now.processors.all > 0.0);
        assert!((0.0..=1.0).contains(&now.stolen_since(&before)) && now.interfaces.contains_key("lo"));
    }
}
