//! The machine: what it is, for the record, and in what state it measures.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{statvfs, sync};
use serde_json::{Map, Value, json};

use crate::Failure;

/// Memory is touched in pieces of so much.
const PIECE: u64 = 64 << 20;

/// So many hexadecimal digits of its hash name a build.
const BUILD_DIGITS: usize = 16;

/// Memory that is not touched, whatever is asked for: a share of what is free.
const LEFT_FREE: f64 = 0.1;

/// The whole machine, as facts by name. What cannot be found out is absent.
pub fn facts() -> BTreeMap<String, Value> {
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| Value::from(text.to_string_lossy().into_owned());
    let mut facts: BTreeMap<String, Value> = [
        ("kernel", text(uname.release())),
        ("host", text(uname.nodename())),
        ("architecture", text(uname.machine())),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("is_debug_build", json!(cfg!(debug_assertions))),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let mut add = |name: &str, value: Option<Value>| value.map(|value| facts.insert(name.to_owned(), value));
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    add("cpu", field("model name").or_else(|| field("Model")).map(Value::from));
    add("cpus", cpus());
    add("memory", memory("MemTotal").map(Value::from));
    add("memory_available", memory("MemAvailable").map(Value::from));
    add("congestion_control", first_line("/proc/sys/net/ipv4/tcp_congestion_control"));
    add("governor", first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    add("huge_pages", first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
    add("clock", first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource"));
    add("virtualisation", virtualisation(&field("flags").unwrap_or_default()));
    add("load", load().map(Value::from));
    add("steal_ticks", Ticks::now().map(|ticks| json!(ticks.stolen)));
    facts
}

/// What tells a build of a program from all others. `None`: it cannot be read.
pub fn build(program: &Path) -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut fs::File::open(program).ok()?, &mut hasher).ok()?;
    Some(hasher.finalize().to_hex()[..BUILD_DIGITS].to_owned())
}

fn cpus() -> Option<Value> {
    std::thread::available_parallelism().ok().map(|count| json!(count.get()))
}

fn first_line(path: &str) -> Option<Value> {
    fs::read_to_string(path).ok()?.lines().next().map(Value::from)
}

fn virtualisation(flags: &str) -> Option<Value> {
    let product = fs::read_to_string("/sys/class/dmi/id/product_name").ok();
    let hypervisor = fs::read_to_string("/sys/hypervisor/type").ok();
    let name = hypervisor.or(product).map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    let is_guest = flags.split_whitespace().any(|flag| flag == "hypervisor");
    match (is_guest, name) {
        (true, Some(name)) => Some(json!(name)),
        (true, None) => Some(json!("a hypervisor")),
        (false, _) => Some(json!("none")),
    }
}

/// A line of /proc/meminfo, in bytes.
fn memory(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Processes that ran or waited, over the last minute.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// The file system in which a path lies: its source, type and options.
pub fn mount_of(path: &Path) -> Option<Value> {
    let path = fs::canonicalize(path).ok()?;
    mount_among(&fs::read_to_string("/proc/self/mountinfo").ok()?, &path)
}

fn mount_among(table: &str, path: &Path) -> Option<Value> {
    let mut found: Option<(usize, Map<String, Value>)> = None;
    for line in table.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (left, right): (Vec<&str>, Vec<&str>) = (left.split(' ').collect(), right.split(' ').collect());
        let (Some(target), Some(options), Some(kind)) = (left.get(4), left.get(5), right.first()) else { continue };
        let target = unescape(target);
        // Of several on one place the last is on top.
        if path.starts_with(&target) && found.as_ref().is_none_or(|(length, _)| target.len() >= *length) {
            let fields = [
                ("target", json!(target)),
                ("type", json!(kind)),
                ("source", json!(unescape(right.get(1).copied().unwrap_or_default()))),
                ("options", json!(options)),
                ("super_options", json!(right.get(2).copied().unwrap_or_default())),
            ];
            found = Some((target.len(), fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()));
        }
    }
    found.map(|(_, fields)| Value::Object(fields))
}

/// The kernel writes blanks in paths as `\040`.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, letter)| text.replace(code, letter))
}

/// What processors have done since the start, all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    total: u64,
    /// Taken by the host for somebody else.
    pub stolen: u64,
}

impl Ticks {
    /// Until now.
    pub fn now() -> Option<Ticks> {
        Ticks::of(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn of(text: &str) -> Option<Ticks> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user already.
        let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
        Some(Ticks { total: ticks.iter().sum(), stolen: *ticks.get(7)? })
    }

    /// The share of all processors' time that was stolen since then, in per cent.
    pub fn stolen_since(self, earlier: Ticks) -> f64 {
        let total = self.total.saturating_sub(earlier.total);
        let stolen = self.stolen.saturating_sub(earlier.stolen);
        if total == 0 { 0.0 } else { 100.0 * stolen as f64 / total as f64 }
    }
}

/// Writes back what is dirty and drops what is clean.
pub fn drop_caches() -> Result<(), Failure> {
    sync();
    fs::write("/proc/sys/vm/drop_caches", "3\n").map_err(|error| {
        let hint = "measure as root, or say cache = \"keep\" in [measure]";
        Failure::new("cannot drop the kernel's caches", format!("/proc/sys/vm/drop_caches: {error}"), hint)
    })
}

/// Writes to so many bytes of memory and gives them back, so that the host has given them to this machine before anything is measured.
pub fn touch_memory(bytes: u64) {
    let free = memory("MemAvailable").unwrap_or(bytes);
    let bytes = bytes.min((free as f64 * (1.0 - LEFT_FREE)) as u64);
    let pieces: Vec<Vec<u8>> = (0..bytes.div_ceil(PIECE)).map(|_| vec![1; PIECE as usize]).collect();
    std::hint::black_box(&pieces);
}

/// Bytes that can still be written below a directory, and which file system that is.
pub fn room(directory: &Path) -> std::io::Result<(u64, u64)> {
    let found = statvfs(directory)?;
    Ok((found.f_bavail.saturating_mul(found.f_frsize), std::os::unix::fs::MetadataExt::dev(&fs::metadata(directory)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_facts() {
        let facts = facts();
        for name in ["kernel", "host", "cpus", "memory", "virtualisation", "load"] {
            assert!(facts.contains_key(name), "{name}: {facts:?}");
        }
        assert!(facts["memory"].as_u64().unwrap() > 1 << 20);
        assert!(mount_of(Path::new("/")).unwrap()["type"].is_string());
        assert!(room(Path::new("/")).is_ok());
        touch_memory(1 << 20);
    }

    #[test]
    fn the_innermost_mount_counts() {
        let table = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                     30 22 0:26 / /mnt/a\\040b rw,nosuid - fuse.aqueduct host:/x rw,max_read=1\n\
                     31 22 0:27 / /mnt rw - tmpfs tmpfs rw\n";
        let of = |path: &str| mount_among(table, Path::new(path)).unwrap();
        assert_eq!(of("/mnt/a b/c")["type"], "fuse.aqueduct");
        assert_eq!(of("/mnt/a b/c")["super_options"], "rw,max_read=1");
        assert_eq!(of("/mnt/ab")["type"], "tmpfs");
        assert_eq!(of("/mntx")["type"], "ext4");
    }

    #[test]
    fn stolen_time_is_a_share_of_all() {
        let before = Ticks::of("cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 1 2 3\n").unwrap();
        let after = Ticks::of("cpu  150 0 110 920 0 0 0 20 90 0\n").unwrap();
        assert_eq!(after.stolen_since(before), 10.0);
        assert_eq!(before.stolen_since(before), 0.0);
        assert_eq!(Ticks::of("intr 5"), None);
    }
}
