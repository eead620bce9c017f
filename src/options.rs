//! Mount options (`-o`): what mount(8) users write in /etc/fstab, and what follows.

use std::path::PathBuf;
use std::time::Duration;

use aqueduct_client::SUSPECT_MIN;
use aqueduct_fs::caching::{Caching, Rules};
use aqueduct_fuse::CacheMode;
use aqueduct_wire::Checksums;
use clap::ValueEnum;
use serde::Deserialize;

use crate::failure::Failure;

/// Every option that means something here, and what.
const OPTIONS: &[(&str, &str)] = &[
    ("ro, rw", "read-only, or not (rw)"),
    ("allow_other", "users other than the one who mounts may enter (on for root)"),
    ("default_permissions", "this kernel checks mode and ACLs too, beside the server's (on with cache=lease)"),
    ("nosuid, noexec", "no set-id programs, no programs"),
    ("dev, nodev", "open device files, or not (nodev: FUSE checks no permission for them)"),
    ("noatime", "reading leaves access times alone"),
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
        "checksum=auto|on|off",
        "whether what travels has checksums; auto: where the server is another machine (the default)",
    ),
    ("port=PORT", "the server's port (7170), unless the source names it"),
    (
        "io_uring=auto|off",
        "the kernel's requests come by io_uring where it offers that (auto; it does from Linux 6.14 on with the parameter enable_uring of its module fuse), or by /dev/fuse",
    ),
    (
        "read_ahead=SIZE",
        "how far the kernel reads ahead for programs that read files from beginning to end (2M), set when root mounts; 0: as far as it does by itself",
    ),
    ("workers=N", "threads with connections of their own, 1 to 64 (2)"),
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
    "suid",
    "exec",
    "async",
    "atime",
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

/// A soft mount waits this long unless told otherwise: longer than a server takes to restart.
const SOFT_TIMEOUT: Duration = Duration::from_secs(30);

/// How far the kernel reads ahead. It asks for the next MiB while a program reads the one before, also where the round trip takes as long as the copy. Against the kernel's
/// own 128 KiB one program that reads a file is 1.3 to 2 times as fast (docs/datapath.md); who faults in a mapping is given as much around it.
const READ_AHEAD: usize = 2 << 20;

/// Less is less than the kernel does without being told.
const READ_AHEAD_MIN: usize = 64 << 10;

/// More is memory that a program fills which reads only the beginning.
const READ_AHEAD_MAX: usize = 64 << 20;

/// What a mount keeps, in bytes, until the server has it on its disk: a second of a fast network's traffic, and little beside what the kernel would
/// let a program write to a local disk before it has to wait.
const REPLAY_WINDOW: usize = 256 << 20;

/// Less would have nearly each write committed by itself: two of the longest under way in two workers.
const REPLAY_WINDOW_MIN: usize = 4 << 20;

/// A server that answers nothing for so long, not even the questions of the kernel, is taken for gone: longer than what a network loses is sent again.
const SUSPECT: Duration = Duration::from_secs(5);
/// Whether what travels has checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ChecksumChoice {
    /// Where the other side is another machine, and where it insists
    Auto,
    /// Always: who adds none is not talked to
    On,
    /// Never
    Off,
}

impl ChecksumChoice {
    /// As the libraries know it.
    pub fn checksums(self) -> Checksums {
        match self {
            ChecksumChoice::Auto => Checksums::Auto,
            ChecksumChoice::On => Checksums::On,
            ChecksumChoice::Off => Checksums::Off,
        }
    }
}

/// The options of one mount, resolved.
#[derive(Debug, PartialEq)]
pub struct Options {
    pub read_only: bool,
    pub allow_other: bool,
    pub default_permissions: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    pub noatime: bool,
    pub strict_unlock: bool,
    pub write_through: bool,
    pub sync: bool,
    pub dirsync: bool,
    pub soft: bool,
    pub timeout: Duration,
    pub suspect: Duration,
    pub cache: CacheMode,
    /// It was asked for, and is not just the default.
    pub cache_is_said: bool,
    /// How much the kernel keeps of what leases cover: in general, and by patterns of paths.
    pub caching: Caching,
    pub caching_rules: Vec<(String, Caching)>,
    pub attr_timeout: Duration,
    pub entry_timeout: Duration,
    pub key: Option<PathBuf>,
    pub checksum: ChecksumChoice,
    pub port: Option<u16>,
    pub workers: usize,
    pub io_uring: bool,
    pub read_ahead: usize,
    pub replay_window: usize,
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
            timeout: SOFT_TIMEOUT,
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
            workers: WORKERS,
            io_uring: true,
            read_ahead: READ_AHEAD,
            replay_window: REPLAY_WINDOW,
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
        || scratch.flag(option)
        || option.split_once('=').is_some_and(|(key, _)| names().any(|name| name == key))
}

fn is_ignored(option: &str) -> bool {
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

impl Options {
    /// What the options of a command line mean; the last of several wins.
    pub fn parse(list: &[String], is_root: bool) -> Result<Options, Failure> {
        let mut options = Options { allow_other: is_root, ..Options::default() };
        for option in list.iter().map(|option| option.trim()) {
            let known = is_ignored(option) || options.flag(option);
            if let Some((key, value)) = option.split_once('=').filter(|_| !known) {
                options.set(key, value)?;
            } else if option == "remount" {
                return Err(Failure::usage(
                    "cannot change a mount while it is mounted",
                    "remount is not supported",
                    "unmount it and mount it again with the other options",
                ));
            } else if !known {
                return Err(unknown(option));
            }
        }
        if list.iter().any(|option| option == "noallow_other") {
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
    fn flag(&mut self, name: &str) -> bool {
        let (field, value) = match name {
            "ro" => (&mut self.read_only, true),
            "rw" => (&mut self.read_only, false),
            "allow_other" => (&mut self.allow_other, true),
            "default_permissions" => (&mut self.default_permissions, true),
            "nosuid" => (&mut self.nosuid, true),
            "dev" => (&mut self.nodev, false),
            "nodev" => (&mut self.nodev, true),
            "noexec" => (&mut self.noexec, true),
            "noatime" => (&mut self.noatime, true),
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

    fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        match key {
            "timeo" => self.timeout = seconds(key, value)?.max(Duration::from_millis(100)),
            "suspect" => {
                let suspect = seconds(key, value)?;
                let expected = "seconds, 2 or more";
                self.suspect =
                    Some(suspect).filter(|s| *s >= SUSPECT_MIN).ok_or_else(|| bad_value(key, value, expected))?;
            }
            "attr_timeout" => self.attr_timeout = seconds(key, value)?,
            "entry_timeout" => self.entry_timeout = seconds(key, value)?,
            "cache" => match value.split_once(':') {
                Some((mode, pattern)) => {
                    let caching = caching(mode).ok_or_else(|| {
                        bad_value(
                            key,
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
                        _ => return Err(bad_value(key, value, "lease, none, close-to-open or immutable")),
                    }
                }
            },
            "checksum" => {
                let choice = ChecksumChoice::from_str(value, false);
                self.checksum = choice.map_err(|_| bad_value(key, value, "auto, on or off"))?;
            }
            "key" if value.is_empty() => return Err(bad_value(key, value, "the path of a key file")),
            "key" => self.key = Some(value.into()),
            "port" => {
                let port = value.parse().ok().filter(|port| *port != 0);
                self.port = Some(port.ok_or_else(|| bad_value(key, value, "a port, 1 to 65535"))?);
            }
            "replay_window" => {
                self.replay_window = size(value)
                    .filter(|size| *size == 0 || *size >= REPLAY_WINDOW_MIN)
                    .ok_or_else(|| bad_value(key, value, "0 or a size from 4M on, such as 64M or 1G"))?;
            }
            "io_uring" => {
                self.io_uring = match value {
                    "auto" => true,
                    "off" => false,
                    _ => return Err(bad_value(key, value, "auto or off")),
                };
            }
            "read_ahead" => {
                self.read_ahead = size(value)
                    .filter(|size| *size == 0 || (READ_AHEAD_MIN..=READ_AHEAD_MAX).contains(size))
                    .ok_or_else(|| bad_value(key, value, "0 or a size from 64K to 64M, such as 4M"))?;
            }
            "workers" => {
                let workers = value.parse().ok().filter(|workers| (1..=WORKERS_MAX).contains(workers));
                self.workers = workers.ok_or_else(|| bad_value(key, value, "a number from 1 to 64"))?;
            }
            _ => return Err(unknown(&format!("{key}={value}"))),
        }
        Ok(())
    }
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
fn size(value: &str) -> Option<usize> {
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
        format!("cannot use the mount option {key}={value}"),
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
            "replay_window" => "replay_window=64M".to_owned(),
            "timeo" | "suspect" | "attr_timeout" | "entry_timeout" | "key" | "port" | "workers" => format!("{name}=3"),
            "checksum" => "checksum=on".to_owned(),
            "io_uring" => "io_uring=off".to_owned(),
            "read_ahead" => "read_ahead=1M".to_owned(),
            name => name.to_owned(),
        };
        for name in names() {
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
