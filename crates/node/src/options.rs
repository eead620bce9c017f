//! Mount options (`-o`): what mount(8) users write in /etc/fstab, and what follows.

use std::path::PathBuf;
use std::time::Duration;

use aqueduct_client::SUSPECT_MIN;
use aqueduct_fs::caching::{Caching, Rules};
use aqueduct_fuse::{CacheMode, Names};
use aqueduct_net::routes::Way;
use aqueduct_observe::OtlpConfig;

use crate::attach::{PATIENCE, REPLAY_WINDOW, STRAIGHT_FROM, SUSPECT};
use crate::choice::{ChecksumChoice, Choice};
use crate::exporting::MetricsSettings;
use crate::failure::Failure;
use crate::processors::CpuChoice;
use crate::rails::{Rail, RailOptions};
use crate::{routes, spans};

/// Every option that means something here, and what.
const OPTIONS: &[(&str, &str)] = &[
    ("ro, rw", "read-only, or not (rw)"),
    ("allow_other", "users other than the one who mounts may enter (on for root)"),
    ("default_permissions", "this kernel checks mode and ACLs too, beside the server's (on with cache=lease)"),
    ("nosuid, noexec", "no set-id programs, no programs"),
    ("dev, nodev", "open device files, or not (nodev: FUSE checks no permission for them)"),
    ("devices", "the same as dev, for mount(8) and /etc/fstab: mount(8) keeps dev to itself, and hands on nodev alone"),
    ("noatime", "reading leaves access times alone"),
    (
        "remount",
        "change a mount that is there, as root: to ro or rw, nosuid or suid, nodev or devices, noexec or exec, noatime or atime; what is not named stays; with bind: of this mount point alone",
    ),
    (
        "strict_unlock",
        "with cache=lease: each close ends the fcntl locks of its process, also of a file opened for reading and locked since; costs a request for each",
    ),
    (
        "write_through",
        "with cache=lease: each write, and each mode and time of a file that is being written, is at the server when its system call returns, instead of at the latest a second later, or when the file is closed",
    ),
    ("sync, dirsync", "writes, or changes of directories, are synchronous"),
    ("hard", "wait for a server that is away, however long (the default)"),
    ("soft", "give EIO when the server has not answered for timeo; implies write_through"),
    ("timeo=SECONDS", "with soft: how long to wait (30)"),
    ("suspect=SECONDS", "a server that answers nothing for so long is connected to anew (5; 2 or more)"),
    (
        "cache=lease|none|close-to-open|immutable",
        "lease: keep what the server calls back before it changes (the default); none: always ask; close-to-open: as NFS does; immutable: nothing there changes, keep all for an hour",
    ),
    (
        "cache=MODE:PATTERN",
        "the same for a part of the mount: paths from its root that fit, and all below them, such as cache=immutable:/sw or cache=none:/**/*.log; the last that fits counts",
    ),
    ("attr_timeout=SECONDS", "believe attributes for so long (0); above 0 turns cache=lease off"),
    (
        "entry_timeout=SECONDS",
        "believe names for so long (0); above 0 turns default_permissions on and cache=lease off",
    ),
    ("key=FILE", "the key that the server has too: see 'aqueduct keygen'"),
    ("replay_window=SIZE", "keep so much of what is not on the server's disk yet (256M); 0: lose it with the server"),
    (
        "straight_from=SIZE",
        "what is written of a file goes straight to the volume's servers of data from so much on at once (128K), where the volume has writes = \"data\" or its directories share nothing",
    ),
    (
        "checksum=auto|on|off",
        "whether what travels has checksums; auto: where the server is another machine (the default)",
    ),
    ("port=PORT", "the server's port (7170), unless the source names it"),
    (
        "route=NET@GATEWAY[:PORT]",
        "servers HOST@NET are reached through the router at GATEWAY; again for further networks and routers, which share the connections; behind it :hops=N (1), and :priority=N (0; those with the smallest number first)",
    ),
    ("routes=FILE", "the file of networks and routes (/etc/aqueduct/routes.toml, if it is there)"),
    (
        "io_uring=auto|off",
        "the kernel's requests come by io_uring where it offers that (auto; it does from Linux 6.14 on with the parameter enable_uring of its module fuse), or by /dev/fuse",
    ),
    (
        "names=strict|timeout|ask",
        "strict (the default): names are never old; timeout: kernels that cannot be made to forget them (before Linux 6.16) keep them for a second, in which what others have renamed or removed may still be found; ask: the kernel keeps none, so that what is mounted on directories of this mount (containers, overlays) stays there from Linux 6.16 on too, and each look at a name takes longer",
    ),
    (
        "read_ahead=SIZE",
        "how far the kernel reads ahead for programs that read files from beginning to end (2M), set when root mounts; 0: as far as it does by itself",
    ),
    (
        "rails=auto|single|RAIL[,RAIL...]",
        "the ways to the server that are used at once, each [LOCAL/]HOST[:PORT][@NET] with LOCAL an address or interface of this machine; auto: one for each pair of interfaces of both sides in one subnet, or of an interface and a gateway; single: as the routing table says (the default)",
    ),
    (
        "rail_policy=adaptive|stripe|independent",
        "adaptive: by rate, round trip and load, long reads cut (the default); stripe: in turn, long reads cut in equal parts; independent: each worker stays on one rail",
    ),
    ("rail_suspect=SECONDS", "a rail that is silent for so long, while others are not, is given up (1; 0.2 to 60)"),
    (
        "trace=MILLISECONDS|off",
        "operations that take so long or longer are slow, and shown by 'aqueduct trace' with where the time went (10)",
    ),
    (
        "otlp=http://HOST[:PORT]",
        "slow operations are sent as spans to this collector of OpenTelemetry, by OTLP over HTTP (port 4318), or https",
    ),
    ("metrics=ADDR:PORT", "tell metrics there by HTTP, at /metrics, to Prometheus and its like"),
    ("metrics_token=FILE", "only to who sends the token in this file; needed where others than this machine can ask"),
    ("workers=N", "threads with connections of their own, 1 to 64 (2)"),
    (
        "cpus=LIST|near",
        "the processors that these threads run on, as 0-3+8; near: those near the network cards by which the server is reached; turns io_uring off, whose threads follow the programs",
    ),
];

/// What others read, or what is so anyway.
const IGNORED: &[&str] = &[
    "defaults",
    "_netdev",
    "nofail",
    "noauto",
    "auto",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "async",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "diratime",
    "nodiratime",
    "nomand",
    "silent",
    "loud",
    "noallow_other",
];

/// Workers unless said otherwise: two beat four wherever we measured.
const WORKERS: usize = 2;
const WORKERS_MAX: usize = 64;

/// Longer than a disk and a network of a site take together, and short enough to be felt by nobody
/// who does one thing.
pub(crate) const TRACE_THRESHOLD: Duration = Duration::from_millis(10);

/// How far the kernel reads ahead. It asks for the next MiB while a program reads the one before, also where the round trip takes as long as the copy. Against the kernel's
/// own 128 KiB one program that reads a file is 1.3 to 2 times as fast (docs/datapath.md); who faults in a mapping is given as much around it.
const READ_AHEAD: usize = 2 << 20;

/// Less is less than the kernel does without being told.
const READ_AHEAD_MIN: usize = 64 << 10;

/// More is memory that a program fills which reads only the beginning.
const READ_AHEAD_MAX: usize = 64 << 20;

/// Less would have nearly each write committed by itself: two of the longest under way in two workers.
const REPLAY_WINDOW_MIN: usize = 4 << 20;

/// The options of one mount, resolved.
#[derive(Debug, PartialEq)]
pub struct Options {
    /// Nothing can be changed through the mount.
    pub read_only: bool,
    /// Users other than the one who mounts may enter.
    pub allow_other: bool,
    /// The kernel checks mode and ACLs too.
    pub default_permissions: bool,
    /// No set-id programs.
    pub nosuid: bool,
    /// No device files.
    pub nodev: bool,
    /// No programs.
    pub noexec: bool,
    /// Reading leaves access times alone.
    pub noatime: bool,
    /// Each close ends the fcntl locks of its process.
    pub strict_unlock: bool,
    /// Nothing that was written is held back.
    pub write_through: bool,
    /// Writes are synchronous.
    pub sync: bool,
    /// Changes of directories are synchronous.
    pub dirsync: bool,
    /// Requests give EIO when the server has not answered for `timeout`.
    pub soft: bool,
    /// With `soft`: how long to wait.
    pub timeout: Duration,
    /// A server that answers nothing for so long is connected to anew.
    pub suspect: Duration,
    /// What the kernel keeps.
    pub cache: CacheMode,
    /// It was asked for, and is not just the default.
    pub cache_is_said: bool,
    /// How much the kernel keeps of what leases cover: in general, and by patterns of paths.
    pub caching: Caching,
    /// The same for parts of the mount; the last that fits counts.
    pub caching_rules: Vec<(String, Caching)>,
    /// Attributes are believed for so long.
    pub attr_timeout: Duration,
    /// Names are believed for so long.
    pub entry_timeout: Duration,
    /// The file with the key that the server has too.
    pub key: Option<PathBuf>,
    /// Whether what travels has checksums.
    pub checksum: ChecksumChoice,
    /// The server's port, unless the source names it.
    pub port: Option<u16>,
    /// Ways to networks that have a name.
    pub ways: Vec<Way>,
    /// The file of further ones.
    pub routes: Option<PathBuf>,
    /// The ways to the server that are used at once.
    pub rails: RailOptions,
    /// Operations are slow that take so long or longer; `None`: nobody looks.
    pub trace: Option<Duration>,
    /// The collector to which slow operations are sent.
    pub otlp: Option<OtlpConfig>,
    /// Where metrics are told.
    pub metrics: MetricsSettings,
    /// Threads with connections of their own.
    pub workers: usize,
    /// Where they run; `None`: wherever this process may.
    pub cpus: Option<CpuChoice>,
    /// What the kernel keeps of names.
    pub names: Names,
    /// The kernel's requests come by io_uring where it offers that.
    pub io_uring: bool,
    /// Bits of FUSE's INIT that the kernel is taken not to offer.
    pub init_without: u64,
    /// The highest minor version of FUSE's protocol to agree on; `None`: whatever both know.
    pub init_minor: Option<u32>,
    /// How far the kernel reads ahead, in bytes; 0: as far as it does by itself.
    pub read_ahead: usize,
    /// What is not on the server's disk yet is kept up to so many bytes.
    pub replay_window: usize,
    /// From so many bytes on of a file what is held back goes straight to servers of data.
    pub straight_from: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            allow_other: false,
            default_permissions: false,
            nosuid: false,
            // The kernel asks nobody before it opens a device file on a FUSE mount: any user could.
            nodev: true,
            noexec: false,
            noatime: false,
            strict_unlock: false,
            write_through: false,
            sync: false,
            dirsync: false,
            soft: false,
            timeout: PATIENCE,
            suspect: SUSPECT,
            cache: CacheMode::Lease,
            cache_is_said: false,
            caching: Caching::Lease,
            caching_rules: Vec::new(),
            attr_timeout: Duration::ZERO,
            entry_timeout: Duration::ZERO,
            key: None,
            checksum: ChecksumChoice::Auto,
            port: None,
            ways: Vec::new(),
            routes: None,
            rails: RailOptions::default(),
            trace: Some(TRACE_THRESHOLD),
            otlp: None,
            metrics: MetricsSettings::default(),
            workers: WORKERS,
            cpus: None,
            names: Names::Strict,
            io_uring: true,
            init_without: 0,
            init_minor: None,
            read_ahead: READ_AHEAD,
            replay_window: REPLAY_WINDOW,
            straight_from: STRAIGHT_FROM,
        }
    }
}

/// The table, for --help.
pub fn help() -> String {
    let mut text = String::new();
    for (name, meaning) in OPTIONS {
        text.push_str(&format!("  {name:<26} {meaning}\n"));
    }
    text.push_str("  _netdev, nofail, noauto, user, x-* and the like are accepted, for mount(8) and systemd to read");
    text
}

/// Whether an option is known, whatever its value.
pub fn is_known(option: &str) -> bool {
    let mut scratch = Options::default();
    is_ignored(option)
        || option == "remount"
        || scratch.flag(option)
        || option.split_once('=').is_some_and(|(key, _)| names().any(|name| name == key))
}

/// Whether it is for others to read, or so anyway.
pub(crate) fn is_ignored(option: &str) -> bool {
    option.is_empty()
        || IGNORED.contains(&option)
        || option.starts_with("x-")
        || option.starts_with("X-")
        || option.starts_with("comment=")
}

/// The names alone.
fn names() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().flat_map(|(names, _)| names.split(", ")).map(|name| name.split('=').next().unwrap_or(name))
}

/// The options of a list, trimmed, with those that follow a rail and are rails too put together
/// with it: its list has commas as that of the options has.
fn with_rails(list: &[String]) -> Vec<String> {
    let mut options: Vec<String> = Vec::with_capacity(list.len());
    for option in list.iter().map(|option| option.trim()) {
        let is_option = is_ignored(option) || names().any(|name| name == option);
        match options.last_mut().filter(|last| last.starts_with("rails=") && !is_option && Rail::is_one(option)) {
            Some(rails) => *rails = format!("{rails},{option}"),
            None => options.push(option.to_owned()),
        }
    }
    options
}

impl Options {
    /// What the options of a command line mean; the last of several wins.
    pub fn parse(list: &[String], is_root: bool) -> Result<Options, Failure> {
        let mut options = Options { allow_other: is_root, ..Options::default() };
        for option in with_rails(list) {
            let option = option.as_str();
            let known = is_ignored(option) || options.flag(option);
            if let Some((key, value)) = option.split_once('=').filter(|_| !known) {
                options.set(key, value)?;
            } else if option == "remount" {
                return Err(Failure::usage(
                    "cannot mount with the option remount",
                    "it is for mounts that are there",
                    "leave it out, or use 'aqueduct mount -o remount,...' or mount(8)",
                ));
            } else if !known {
                return Err(unknown(option));
            }
        }
        if list.iter().any(|option| option.trim() == "noallow_other") {
            options.allow_other = false;
        }
        options.check_rules()?;
        options.cache_is_said = list.iter().any(|option| option.trim().starts_with("cache="));
        options.check_timeouts()?;
        // Over names that the kernel remembers it walks without asking us, so it has to check on the way.
        options.default_permissions |= options.entry_timeout > Duration::ZERO;
        Ok(options)
    }

    /// How much may be kept where there are leases.
    pub fn rules(&self) -> Result<Rules, Failure> {
        let mut rules = Rules::new(self.caching);
        for (pattern, caching) in &self.caching_rules {
            rules.add(pattern, *caching).map_err(|error| {
                let hint = "give a pattern of paths from the root of the mount, such as /sw or /**/*.log";
                Failure::usage("cannot mount with these options", error, hint)
            })?;
        }
        Ok(rules)
    }

    /// Parts of a mount are treated differently by leases only; where nothing is kept in general, there are none else.
    fn check_rules(&mut self) -> Result<(), Failure> {
        self.rules()?;
        match self.cache {
            _ if self.caching_rules.is_empty() => {}
            CacheMode::CloseToOpen => {
                return Err(Failure::usage(
                    "cannot mount with these options",
                    "cache=close-to-open is for whole mounts",
                    "leave out cache=close-to-open, or the cache options with patterns",
                ));
            }
            CacheMode::None | CacheMode::Lease => self.cache = CacheMode::Lease,
        }
        Ok(())
    }

    /// Timeouts mean that nothing calls back what is kept.
    fn check_timeouts(&mut self) -> Result<(), Failure> {
        let timeouts = [("attr_timeout", self.attr_timeout), ("entry_timeout", self.entry_timeout)];
        match timeouts.iter().find(|(_, time)| self.cache == CacheMode::Lease && !time.is_zero()) {
            Some((name, _)) if self.cache_is_said => Err(Failure::usage(
                "cannot mount with these options",
                format!("{name} lets what is kept be old, and cache=lease promises that it is not"),
                format!("leave {name} out, or say cache=none"),
            )),
            Some(_) => {
                self.cache = CacheMode::None;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Sets an option without a value; false: there is no such.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let (field, value) = match name {
            "ro" => (&mut self.read_only, true),
            "rw" => (&mut self.read_only, false),
            "allow_other" => (&mut self.allow_other, true),
            "default_permissions" => (&mut self.default_permissions, true),
            "nosuid" => (&mut self.nosuid, true),
            "suid" => (&mut self.nosuid, false),
            "dev" | "devices" => (&mut self.nodev, false),
            "nodev" => (&mut self.nodev, true),
            "noexec" => (&mut self.noexec, true),
            "exec" => (&mut self.noexec, false),
            "noatime" => (&mut self.noatime, true),
            "atime" => (&mut self.noatime, false),
            "strict_unlock" => (&mut self.strict_unlock, true),
            "write_through" => (&mut self.write_through, true),
            "sync" => (&mut self.sync, true),
            "dirsync" => (&mut self.dirsync, true),
            "soft" => (&mut self.soft, true),
            "hard" => (&mut self.soft, false),
            _ => return false,
        };
        *field = value;
        true
    }

    fn set_cache(&mut self, value: &str) -> Result<(), Failure> {
        match value.split_once(':') {
            Some((mode, pattern)) => {
                let caching = caching(mode).ok_or_else(|| {
                    bad_value(
                        "cache",
                        value,
                        "lease, none or immutable, and a pattern: close-to-open is for whole mounts",
                    )
                })?;
                self.caching_rules.push((pattern.to_owned(), caching));
            }
            None => {
                (self.cache, self.caching) = match (value, caching(value)) {
                    ("none", _) => (CacheMode::None, Caching::None),
                    ("close-to-open", _) => (CacheMode::CloseToOpen, Caching::Lease),
                    (_, Some(caching)) => (CacheMode::Lease, caching),
                    _ => return Err(bad_value("cache", value, "lease, none, close-to-open or immutable")),
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        match key {
            "timeo" => self.timeout = seconds(key, value)?.max(Duration::from_millis(100)),
            "suspect" => {
                let suspect = Some(seconds(key, value)?).filter(|suspect| *suspect >= SUSPECT_MIN);
                self.suspect = suspect.ok_or_else(|| bad_value(key, value, "seconds, 2 or more"))?;
            }
            "attr_timeout" => self.attr_timeout = seconds(key, value)?,
            "entry_timeout" => self.entry_timeout = seconds(key, value)?,
            "cache" => self.set_cache(value)?,
            "checksum" => {
                self.checksum =
                    ChecksumChoice::by_name(value).ok_or_else(|| bad_value(key, value, "auto, on or off"))?;
            }
            "key" | "routes" | "metrics_token" if value.is_empty() => {
                return Err(bad_value(key, value, "the path of a file"));
            }
            "key" => self.key = Some(value.into()),
            "port" => {
                let port = value.parse().ok().filter(|port| *port != 0);
                self.port = Some(port.ok_or_else(|| bad_value(key, value, "a port, 1 to 65535"))?);
            }
            "trace" if value == "off" => self.trace = None,
            "trace" => self.trace = Some(milliseconds(key, value)?),
            "otlp" => self.otlp = Some(spans::collector(value, spans::MOUNT, 0)?),
            "metrics" => self.metrics.address = Some(value.to_owned()),
            "metrics_token" => self.metrics.token = Some(value.into()),
            "route" => self.ways.push(routes::parse(value)?),
            "routes" => self.routes = Some(value.into()),
            "replay_window" => {
                self.replay_window = size(value)
                    .filter(|size| *size == 0 || *size >= REPLAY_WINDOW_MIN)
                    .ok_or_else(|| bad_value(key, value, "0 or a size from 4M on, such as 64M or 1G"))?;
            }
            "straight_from" => {
                self.straight_from = size(value)
                    .filter(|size| *size > 0)
                    .ok_or_else(|| bad_value(key, value, "a size, such as 128K or 1M"))?;
            }
            "io_uring" => {
                self.io_uring = match value {
                    "auto" => true,
                    "off" => false,
                    _ => return Err(bad_value(key, value, "auto or off")),
                };
            }
            "names" => self.names = names_kept(value).ok_or_else(|| bad_value(key, value, NAMES))?,
            "init_without" => self.init_without = bits(value).ok_or_else(|| bad_value(key, value, BITS))?,
            "init_minor" => self.init_minor = Some(value.parse().map_err(|_| bad_value(key, value, "a number"))?),
            "read_ahead" => {
                self.read_ahead = size(value)
                    .filter(|size| *size == 0 || (READ_AHEAD_MIN..=READ_AHEAD_MAX).contains(size))
                    .ok_or_else(|| bad_value(key, value, "0 or a size from 64K to 64M, such as 4M"))?;
            }
            "rails" | "rail_policy" | "rail_suspect" => {
                self.rails.set(key, value).map_err(|expected| bad_value(key, value, expected))?;
            }
            "workers" => {
                let workers = value.parse().ok().filter(|workers| (1..=WORKERS_MAX).contains(workers));
                self.workers = workers.ok_or_else(|| bad_value(key, value, "a number from 1 to 64"))?;
            }
            "cpus" => self.cpus = Some(value.parse().map_err(|_| bad_value(key, value, CPUS))?),
            _ => return Err(unknown(&format!("{key}={value}"))),
        }
        Ok(())
    }
}

/// A time of at most a million seconds.
pub(crate) fn milliseconds(key: &str, value: &str) -> Result<Duration, Failure> {
    let time = value.parse().ok().filter(|ms| (0.0..=1e9).contains(ms));
    let time = time.map(|ms: f64| Duration::from_secs_f64(ms / 1e3));
    time.ok_or_else(|| bad_value(key, value, "milliseconds, such as 10 or 0.5, or off"))
}

/// What `cpus` takes.
const CPUS: &str = "near, or processors such as 0-3+8";

/// What `init_without` takes: for tests of what is done on kernels without these capabilities, as
/// `init_minor` is, and so not among the options that are told to users.
const BITS: &str = "numbers of bits, 0 to 63, joined by +";

/// What the option of names takes.
const NAMES: &str = "strict, timeout or ask";

fn names_kept(value: &str) -> Option<Names> {
    match value {
        "strict" => Some(Names::Strict),
        "timeout" => Some(Names::Timeout),
        "ask" => Some(Names::Ask),
        _ => None,
    }
}

/// Numbers of bits, joined by `+`.
fn bits(text: &str) -> Option<u64> {
    text.split('+').try_fold(0, |all, bit| Some(all | 1u64.checked_shl(bit.parse().ok()?)?))
}

/// How much may be kept, by the name of the mode.
fn caching(mode: &str) -> Option<Caching> {
    match mode {
        "lease" => Some(Caching::Lease),
        "none" => Some(Caching::None),
        "immutable" => Some(Caching::Immutable),
        _ => None,
    }
}

/// Bytes, with K, M or G for powers of 1024.
pub(crate) fn size(value: &str) -> Option<usize> {
    let units = [(['K', 'k'], 10), (['M', 'm'], 20), (['G', 'g'], 30)];
    let united = units.iter().find_map(|(unit, shift)| Some((value.strip_suffix(*unit)?, *shift)));
    let (digits, shift) = united.unwrap_or((value, 0));
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// The longest time that can be asked for, in seconds: 31 years. Clocks to which it is added do not overflow.
pub const SECONDS_MAX: f64 = 1e9;

/// A time that was given in seconds; `None` when it is none, or longer than anybody waits.
pub fn duration(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds <= SECONDS_MAX)
}

fn seconds(key: &str, value: &str) -> Result<Duration, Failure> {
    let parsed: Option<f64> = value.parse().ok();
    parsed.and_then(duration).ok_or_else(|| bad_value(key, value, "seconds, 0 or more, such as 0.5 or 10"))
}

fn bad_value(key: &str, value: &str, expected: &str) -> Failure {
    Failure::usage(
        format!("cannot use the option {key}={value}"),
        format!("'{value}' is not {expected}"),
        format!("give {key} {expected}"),
    )
}

fn unknown(option: &str) -> Failure {
    Failure::usage(
        format!("cannot use the mount option '{option}'"),
        "there is no such option",
        format!("use one of: {} (and those of mount(8), which are ignored)", names().collect::<Vec<_>>().join(" ")),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Options, Failure> {
        Options::parse(&text.split(',').map(str::to_owned).collect::<Vec<_>>(), false)
    }

    #[test]
    fn every_option_of_the_table_is_understood() {
        let value = |name: &str| match name {
            "cache" => "cache=none".to_owned(),
            "replay_window" | "straight_from" => format!("{name}=64M"),
            "timeo" | "suspect" | "attr_timeout" | "entry_timeout" | "key" | "port" | "workers" | "cpus" => {
                format!("{name}=3")
            }
            "checksum" => "checksum=on".to_owned(),
            "io_uring" => "io_uring=off".to_owned(),
            "names" => "names=timeout".to_owned(),
            "read_ahead" => "read_ahead=1M".to_owned(),
            "route" => "route=net2@10.1.0.1".to_owned(),
            "routes" => "routes=/r".to_owned(),
            "rails" => "rails=auto".to_owned(),
            "rail_policy" => "rail_policy=stripe".to_owned(),
            "rail_suspect" => "rail_suspect=0.5".to_owned(),
            "metrics" | "metrics_token" => format!("{name}=/m"),
            "trace" => "trace=0.5".to_owned(),
            "otlp" => "otlp=http://127.0.0.1:4318".to_owned(),
            name => name.to_owned(),
        };
        for name in names().filter(|name| *name != "remount") {
            parse(&value(name)).unwrap();
            assert!(is_known(&value(name)), "{name}");
        }
    }

    /// An option, or what looks like one.
    fn any_option() -> impl Strategy<Value = String> {
        let name = prop_oneof![
            prop::sample::select(names().collect::<Vec<_>>()).prop_map(str::to_owned),
            prop::sample::select(IGNORED).prop_map(|name| (*name).to_owned()),
            "[a-z_.-]{0,12}",
        ];
        let value = prop_oneof![
            "[0-9]{1,22}",
            any::<f64>().prop_map(|number| number.to_string()),
            "[0-9]{0,6}[kKmMgGtT]?",
            "none|lease|close-to-open|[\\PC]{0,12}",
        ];
        prop_oneof![4 => (name.clone(), value).prop_map(|(name, value)| format!("{name}={value}")), 2 => name, 1 => "\\PC*"]
    }

    proptest! {
        /// Whatever is asked for is understood within its limits, or refused with three lines that say what, why and what to do.
        #[test]
        fn any_options_are_understood_or_refused(list in prop::collection::vec(any_option(), 0..6), is_root: bool) {
            match Options::parse(&list, is_root) {
                Ok(options) => {
                    prop_assert!(list.iter().all(|option| is_known(option.trim())), "{list:?}");
                    prop_assert!((1..=WORKERS_MAX).contains(&options.workers) && options.port != Some(0));
                    prop_assert!(options.replay_window == 0 || options.replay_window >= REPLAY_WINDOW_MIN);
                    prop_assert!(options.read_ahead == 0 || (READ_AHEAD_MIN..=READ_AHEAD_MAX).contains(&options.read_ahead));
                    let times = [options.timeout, options.suspect, options.attr_timeout, options.entry_timeout];
                    prop_assert!(times.iter().all(|time| time.as_secs_f64() <= SECONDS_MAX), "{times:?}");
                    prop_assert!(options.suspect >= SUSPECT_MIN && options.timeout > Duration::ZERO);
                }
                Err(failure) => {
                    let told = failure.to_string();
                    prop_assert!(told.contains("\n     why: ") && told.contains("\n      do: "), "{told}");
                }
            }
        }
    }

    #[test]
    fn parts_of_a_mount_are_kept_otherwise() {
        let options = parse("cache=none,cache=immutable:/sw,cache=lease:/**/*.h").unwrap();
        assert_eq!((options.cache, options.caching), (CacheMode::Lease, Caching::None));
        let expected = [("/sw".to_owned(), Caching::Immutable), ("/**/*.h".to_owned(), Caching::Lease)];
        assert_eq!(options.caching_rules, expected);
        assert_eq!(parse("cache=immutable").unwrap().caching, Caching::Immutable);
        assert!(parse("cache=lease").unwrap().rules().unwrap().is_trivial());
        for refused in [
            "cache=immutable:sw",
            "cache=close-to-open:/sw",
            "cache=close-to-open,cache=none:/sw",
            "cache=none:/[",
            "cache=lies:/sw",
            "cache=none,cache=lease:/sw,attr_timeout=3",
        ] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn routes_are_added_to_each_other() {
        let options = parse("route=net2@10.1.0.1,route=net2@10.1.0.2:hops=2,routes=/r").unwrap();
        let ways: Vec<String> = options.ways.iter().map(routes::text).collect();
        assert_eq!(ways, ["net2@10.1.0.1:7171", "net2@10.1.0.2:7171:hops=2"]);
        assert_eq!(options.routes, Some("/r".into()));
        assert!(parse("route=10.1.0.1").is_err() && parse("routes=").is_err());
    }

    #[test]
    fn options_of_an_fstab_line_are_understood() {
        let options = parse(
            "ro,nosuid,soft,timeo=2.5,suspect=8,_netdev,nofail,x-systemd.automount,cache=close-to-open,attr_timeout=1",
        )
        .unwrap();
        let expected = Options {
            read_only: true,
            nosuid: true,
            soft: true,
            timeout: Duration::from_millis(2500),
            suspect: Duration::from_secs(8),
            cache: CacheMode::CloseToOpen,
            cache_is_said: true,
            attr_timeout: Duration::from_secs(1),
            ..Options::default()
        };
        assert_eq!(options, expected);
        assert!(!parse("ro,rw").unwrap().read_only);
        assert!(parse("entry_timeout=1").unwrap().default_permissions);
        assert_eq!(parse("cache=lease,attr_timeout=0").unwrap().cache, CacheMode::Lease);
        assert!(Options::parse(&[], true).unwrap().allow_other);
        assert!(!Options::parse(&["rw".into(), " noallow_other".into()], true).unwrap().allow_other, "as written");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_does() {
        assert!(parse("sfot").unwrap_err().to_string().contains("soft"));
        assert!(parse("vers=3").unwrap_err().to_string().contains("vers=3"));
        for bad in [
            "timeo=x",
            "timeo=-1",
            "timeo=inf",
            "timeo=1e19",
            "suspect=1",
            "port=0",
            "port=70000",
            "workers=0",
            "key=",
            "replay_window=1M",
            "replay_window=9T",
            "checksum=maybe",
            "cache=lies",
            "cache=lease,attr_timeout=1",
            "entry_timeout=0.1,cache=lease",
            "remount",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
