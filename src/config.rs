//! What the arguments and the configuration file come to: the resolved configuration of a server and of a mount.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aqueduct_client::SUSPECT_MIN;
use aqueduct_server::Limits;
use aqueduct_wire::{Checksums, Key};
use serde::Deserialize;

use crate::exports::{ExportConfig, FileExport};
use crate::failure::Failure;
use crate::options::{self, ChecksumChoice, Options};
use crate::{args, keyfile};

/// The port of a server that says nothing else.
pub const PORT: u16 = 7170;

/// Threads of a server at most: those above one for each core only wait for disks.
const THREADS_MAX: usize = 64;

/// How long a server that was told to end lets operations finish: as long as a slow disk takes, and less than service managers wait.
const DRAIN: Duration = Duration::from_secs(10);

/// A server, resolved.
#[derive(Debug)]
pub struct ServeConfig {
    pub listen: Vec<SocketAddr>,
    /// Only clients that have one of these are served; none: all are.
    pub keys: Vec<Key>,
    pub checksums: Checksums,
    pub read_ahead: bool,
    pub state: PathBuf,
    pub exports: Vec<ExportConfig>,
    pub limits: Limits,
    /// For each export; `None`: as many as the descriptors of this process allow.
    pub opens_max: Option<usize>,
    pub threads_max: usize,
    pub drain: Duration,
}

/// The configuration file, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    listen: Vec<String>,
    key: Option<PathBuf>,
    insecure: bool,
    checksum: Option<ChecksumChoice>,
    read_ahead: Option<ReadAheadChoice>,
    state: Option<PathBuf>,
    export: Vec<FileExport>,
    limits: FileLimits,
}

/// Whether files are read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ReadAheadChoice {
    /// Where a read has had to wait.
    Auto,
    /// By the kernel alone.
    Off,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FileLimits {
    sessions_max: Option<usize>,
    connections_max: Option<usize>,
    opens_max: Option<usize>,
    threads_max: Option<usize>,
    slots: Option<u32>,
    pending_max: Option<usize>,
    unjoined_per_address_max: Option<usize>,
    unjoined_max: Option<usize>,
    frame_memory_mib: Option<usize>,
    unsent_memory_mib: Option<usize>,
    suspect_seconds: Option<f64>,
    session_grace_seconds: Option<f64>,
    vanished_grace_seconds: Option<f64>,
    recovery_grace_seconds: Option<f64>,
    hello_timeout_seconds: Option<f64>,
    lease_seconds: Option<u32>,
    leases_max: Option<usize>,
    leases_of_client_max: Option<usize>,
    slow_operation_seconds: Option<f64>,
    drain_seconds: Option<f64>,
}

impl ServeConfig {
    /// Reads the configuration file, if one is named, and puts the arguments over it.
    pub fn resolve(arguments: args::Serve) -> Result<ServeConfig, Failure> {
        let file = arguments.config.as_deref().map_or_else(|| Ok(File::default()), File::read)?;
        let listen = if arguments.listen.is_empty() { &file.listen } else { &arguments.listen };
        let checksums = arguments.checksum.or(file.checksum).map_or(Checksums::Auto, ChecksumChoice::checksums);
        let key = arguments.key.clone().or(file.key);
        let listen = resolve_listen(listen, key.is_some() || arguments.insecure || file.insecure)?;
        let keys = key.as_deref().map_or_else(|| Ok(Vec::new()), keyfile::load)?;
        let mut exports = file.export;
        exports.extend(arguments.dirs.iter().map(|path| FileExport::of_argument(path.clone(), &arguments)));
        if exports.is_empty() {
            return Err(Failure::usage(
                "cannot serve",
                "no directory was named",
                "name one (aqueduct serve /srv/data), or an [[export]] in the file of --config",
            ));
        }
        let exports =
            exports.into_iter().map(|export| export.resolve(arguments.read_only)).collect::<Result<Vec<_>, _>>()?;
        let state = arguments.state.or(file.state).map_or_else(default_state, Ok)?;
        let (opens_max, threads_max) = (file.limits.opens_max, file.limits.threads_max.unwrap_or(THREADS_MAX));
        let drain = seconds("drain_seconds", file.limits.drain_seconds, DRAIN)?;
        Ok(ServeConfig {
            listen,
            keys,
            checksums,
            read_ahead: file.read_ahead != Some(ReadAheadChoice::Off),
            state,
            exports,
            limits: file.limits.resolve()?,
            opens_max,
            threads_max,
            drain,
        })
    }
}

impl File {
    fn read(path: &Path) -> Result<File, Failure> {
        let what = format!("cannot use the configuration file {}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::new(&what, error, "give the path of a readable file to --config"))?;
        // The message of the parser names line and column, and shows the line; it ends with a line break.
        toml::from_str(&text).map_err(|error| {
            Failure::usage(what, error.to_string().trim_end(), "correct it; 'aqueduct serve --help' shows an example")
        })
    }
}

impl FileLimits {
    fn resolve(self) -> Result<Limits, Failure> {
        let usual = Limits::default();
        Ok(Limits {
            sessions_max: self.sessions_max.unwrap_or(usual.sessions_max),
            connections_max: self.connections_max.unwrap_or(usual.connections_max),
            unjoined_per_address_max: self.unjoined_per_address_max.unwrap_or(usual.unjoined_per_address_max).max(1),
            unjoined_max: self.unjoined_max.unwrap_or(usual.unjoined_max).max(1),
            frame_memory: self.frame_memory_mib.map_or(usual.frame_memory, |mib| mib.saturating_mul(1 << 20)),
            unsent_memory: self.unsent_memory_mib.map_or(usual.unsent_memory, |mib| mib.saturating_mul(1 << 20)),
            slots: self.slots.unwrap_or(usual.slots).max(1),
            pending_max: self.pending_max.unwrap_or(usual.pending_max),
            suspect: seconds("suspect_seconds", self.suspect_seconds, usual.suspect)?.max(SUSPECT_MIN),
            session_grace: seconds("session_grace_seconds", self.session_grace_seconds, usual.session_grace)?,
            vanished_grace: seconds("vanished_grace_seconds", self.vanished_grace_seconds, usual.vanished_grace)?,
            recovery_grace: seconds("recovery_grace_seconds", self.recovery_grace_seconds, usual.recovery_grace)?,
            hello_timeout: seconds("hello_timeout_seconds", self.hello_timeout_seconds, usual.hello_timeout)?,
            lease: lease(self.lease_seconds, usual.lease)?,
            leases_max: self.leases_max.unwrap_or(usual.leases_max),
            leases_of_client_max: self.leases_of_client_max.unwrap_or(usual.leases_of_client_max),
            slow_operation: seconds("slow_operation_seconds", self.slow_operation_seconds, usual.slow_operation)?,
            ..usual
        })
    }
}

fn seconds(key: &str, value: Option<f64>, usual: Duration) -> Result<Duration, Failure> {
    let Some(seconds) = value else { return Ok(usual) };
    options::duration(seconds).ok_or_else(|| {
        Failure::usage(
            format!("cannot use {key} = {seconds} of [limits]"),
            format!("it is not a time of 0 to {} seconds", options::SECONDS_MAX),
            "give seconds, 0 or more",
        )
    })
}

/// The longest that leases may last: so long, and a little more, a client that has gone holds up who changes what it has kept.
const LEASE_SECONDS_MAX: u32 = 60;

fn lease(value: Option<u32>, usual: Duration) -> Result<Duration, Failure> {
    match value {
        None => Ok(usual),
        Some(seconds @ ..=LEASE_SECONDS_MAX) => Ok(Duration::from_secs(seconds.into())),
        Some(seconds) => Err(Failure::usage(
            format!("cannot use lease_seconds = {seconds} of [limits]"),
            format!(
                "who changes a file would wait that long for a client that has gone, and {LEASE_SECONDS_MAX} is the most"
            ),
            format!("give whole seconds, 0 to {LEASE_SECONDS_MAX}"),
        )),
    }
}

/// `open`: others than this machine may be let in.
fn resolve_listen(listen: &[String], open: bool) -> Result<Vec<SocketAddr>, Failure> {
    let mut addresses = Vec::new();
    for text in listen {
        let found = text.to_socket_addrs().map_err(|error| {
            Failure::usage(
                format!("cannot listen on '{text}'"),
                error,
                format!("give ADDRESS:PORT, such as 127.0.0.1:{PORT} or [::1]:{PORT}"),
            )
        })?;
        addresses.extend(found);
    }
    if listen.is_empty() {
        addresses.push(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT));
    }
    match addresses.iter().find(|address| !address.ip().is_loopback()) {
        Some(address) if !open => Err(Failure::usage(
            format!("will not listen on {address}"),
            "whoever reaches that address could do everything there, as any user",
            "give a key with --key FILE (aqueduct keygen FILE makes one), or add --insecure if you trust everybody on that network, or listen on a loopback address",
        )),
        _ => Ok(addresses),
    }
}

/// The folder for what must outlive the server.
pub fn default_state() -> Result<PathBuf, Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/aqueduct".into());
    }
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("XDG_STATE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .map(|base| base.join("aqueduct"))
        .ok_or_else(|| {
            Failure::usage(
                "cannot choose a folder for the server's key",
                "neither XDG_STATE_HOME nor HOME is set",
                "name one with --state",
            )
        })
}

/// What is mounted.
#[derive(Debug, PartialEq)]
pub enum Source {
    /// A server (`host:port`) and its export.
    Remote { server: String, export: String },
    /// A directory of this machine.
    Local(PathBuf),
}

/// A mount, resolved.
#[derive(Debug)]
pub struct MountConfig {
    pub source: Source,
    /// The source as it is shown by mount(8) and df(1).
    pub shown: String,
    pub target: PathBuf,
    /// The server has to have it too.
    pub key: Option<Key>,
    pub options: Options,
}

impl MountConfig {
    /// Puts arguments and options together.
    pub fn resolve(arguments: &args::Mount) -> Result<MountConfig, Failure> {
        let options = Options::parse(&arguments.options, rustix::process::geteuid().is_root())?;
        let source = if arguments.local {
            let path = std::fs::canonicalize(&arguments.source).map_err(|error| {
                Failure::new(format!("cannot serve {}", arguments.source), error, "name a directory that exists")
            })?;
            Source::Local(path)
        } else {
            parse_source(&arguments.source, options.port)?
        };
        let shown = match &source {
            Source::Local(path) => path.to_string_lossy().into_owned(),
            Source::Remote { .. } => arguments.source.clone(),
        };
        let keys = options.key.as_deref().map(keyfile::load).transpose()?;
        let key = keys.and_then(|keys| keys.into_iter().next());
        Ok(MountConfig { source, shown, target: arguments.target.clone(), key, options })
    }
}

/// Takes `HOST[:PORT]:EXPORT` apart. The host may be an IPv6 address in brackets.
fn parse_source(text: &str, port: Option<u16>) -> Result<Source, Failure> {
    let bad = |why: &str| {
        Failure::usage(
            format!("cannot mount '{text}'"),
            why,
            "name the source as HOST:/EXPORT or HOST:PORT:/EXPORT, or use --local for a directory of this machine",
        )
    };
    let (host, rest) = split_host(text).ok_or_else(|| bad("it names no export"))?;
    if host.is_empty() || host.contains('/') {
        return Err(bad("it names no host"));
    }
    let (port, export) = match rest.split_once(':') {
        Some((digits, export)) if is_number(digits) => {
            (Some(digits.parse().ok().filter(|port| *port != 0).ok_or_else(|| bad("the port is not one"))?), export)
        }
        _ if is_number(rest) => return Err(bad("it names no export")),
        _ => (port, rest),
    };
    if export.is_empty() {
        return Err(bad("it names no export"));
    }
    Ok(Source::Remote { server: format!("{host}:{}", port.unwrap_or(PORT)), export: export.to_owned() })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `[::1]:rest` and `host:rest`, taken apart; brackets stay, as sockets want them.
fn split_host(text: &str) -> Option<(&str, &str)> {
    if text.starts_with('[') {
        let end = text.find(']')? + 1;
        return Some((&text[..end], text[end..].strip_prefix(':')?));
    }
    text.split_once(':')
}

/// `HOST[:PORT]` with the port filled in.
pub fn server_address(text: &str) -> String {
    let bare_v6 = text.parse::<std::net::Ipv6Addr>().is_ok();
    match text.rsplit_once(':') {
        _ if bare_v6 => format!("[{text}]:{PORT}"),
        Some((host, port)) if is_number(port) && !host.is_empty() => text.to_owned(),
        _ => format!("{text}:{PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_server::{Access, Squash};
    use proptest::prelude::*;

    use super::*;
    use crate::exports::SquashChoice;
    use crate::external::{ExternalChoice, ExternalConfig};

    fn source(text: &str) -> Option<(String, String)> {
        match parse_source(text, None).ok()? {
            Source::Remote { server, export } => Some((server, export)),
            Source::Local(_) => None,
        }
    }

    #[test]
    fn sources_are_taken_apart() {
        let remote = |server: &str, export: &str| Some((server.to_owned(), export.to_owned()));
        assert_eq!(source("host:/srv/data"), remote("host:7170", "/srv/data"));
        assert_eq!(source("host:8000:/srv/data"), remote("host:8000", "/srv/data"));
        assert_eq!(source("10.0.0.1:data"), remote("10.0.0.1:7170", "data"));
        assert_eq!(source("[::1]:/x"), remote("[::1]:7170", "/x"));
        assert_eq!(source("[fe80::1%eth0]:7171:/x:y"), remote("[fe80::1%eth0]:7171", "/x:y"));
        for bad in [
            "host",
            "host:",
            "host:7170",
            "host:7170:",
            ":/x",
            "host:0:/x",
            "host:99999:/x",
            "[::1]",
            "[::1]/x",
            "/a:/b",
        ] {
            assert_eq!(source(bad), None, "{bad}");
        }
        let with_option = parse_source("host:/x", Some(9)).unwrap();
        assert_eq!(with_option, Source::Remote { server: "host:9".into(), export: "/x".into() });
    }

    #[test]
    fn addresses_get_the_port() {
        for (text, expected) in [
            ("host", "host:7170"),
            ("host:1", "host:1"),
            ("::1", "[::1]:7170"),
            ("[::1]", "[::1]:7170"),
            ("[::1]:5", "[::1]:5"),
        ] {
            assert_eq!(server_address(text), expected);
        }
    }

    #[test]
    fn other_addresses_than_loopback_must_be_asked_for() {
        let open = ["0.0.0.0:7170".to_owned()];
        let message = resolve_listen(&open, false).unwrap_err().to_string();
        assert!(message.contains("--key") && message.contains("keygen") && message.contains("--insecure"), "{message}");
        assert_eq!(resolve_listen(&open, true).unwrap(), ["0.0.0.0:7170".parse().unwrap()]);
        assert_eq!(resolve_listen(&[], false).unwrap(), ["127.0.0.1:7170".parse().unwrap()]);
        assert!(resolve_listen(&["nonsense".to_owned()], false).is_err());
    }

    #[test]
    fn leases_last_no_longer_than_anybody_would_wait() {
        let usual = Duration::from_secs(7);
        assert_eq!([lease(None, usual).unwrap(), lease(Some(0), usual).unwrap()], [usual, Duration::ZERO]);
        assert!(lease(Some(60), usual).is_ok() && lease(Some(61), usual).is_err());
    }

    #[test]
    fn a_file_and_arguments_come_together() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let path = root.join("aqueduct.toml");
        let text = format!(
            "listen = ['[::1]:0']\nstate = '/s'\n[[export]]\npath = '{}'\nname = 'data'\nread_only = true\n\
             external = 'poll'\nexternal_age_seconds = 1.5\n[limits]\nsessions_max = 3\nsession_grace_seconds = 0.5\nsuspect_seconds = 7\nlease_seconds = 3\n",
            root.display()
        );
        std::fs::write(&path, text).unwrap();
        let arguments = args::Serve {
            config: Some(path.clone()),
            dirs: vec![root.clone()],
            squash: Some(SquashChoice::All),
            external: Some(ExternalChoice::None),
            ..args::Serve::default()
        };
        let config = ServeConfig::resolve(arguments).unwrap();
        assert_eq!(config.listen, ["[::1]:0".parse().unwrap()]);
        assert_eq!((config.limits.sessions_max, config.limits.session_grace), (3, Duration::from_millis(500)));
        assert_eq!(config.limits.suspect, Duration::from_secs(7));
        assert_eq!(config.limits.lease, Duration::from_secs(3));
        let by_path = root.to_str().unwrap().to_owned();
        let usual = |name, read_only, squash| {
            let access = Access { squash, ..Access::default() };
            let external = ExternalConfig::default();
            ExportConfig {
                path: root.clone(),
                name,
                read_only,
                cross_mounts: false,
                sync: true,
                rate: None,
                external,
                access,
            }
        };
        let data = ExternalConfig { choice: Some(ExternalChoice::Poll), age: Some(Duration::from_millis(1500)) };
        let by_path = usual(by_path, false, Some(Squash::All));
        let expected = [
            ExportConfig { external: data, ..usual("data".into(), true, None) },
            ExportConfig { external: ExternalConfig { choice: Some(ExternalChoice::None), age: None }, ..by_path },
        ];
        assert_eq!(config.exports, expected);

        std::fs::write(&path, "[limits]\nsesions_max = 3\n").unwrap();
        let arguments = args::Serve { config: Some(path), dirs: vec![root], ..args::Serve::default() };
        assert!(ServeConfig::resolve(arguments).unwrap_err().to_string().contains("sesions_max"));
    }

    #[test]
    fn a_key_opens_other_addresses_than_loopback() {
        let folder = tempfile::tempdir().unwrap();
        let (key, config) = (folder.path().join("key"), folder.path().join("aqueduct.toml"));
        keyfile::generate(&key).unwrap();
        let serve = |arguments: args::Serve| {
            ServeConfig::resolve(args::Serve { dirs: vec![folder.path().into()], ..arguments })
        };
        let listen = vec!["0.0.0.0:0".to_owned()];
        let by_argument =
            serve(args::Serve { listen: listen.clone(), key: Some(key.clone()), ..args::Serve::default() });
        let keys = by_argument.unwrap().keys;
        assert_eq!(keys.len(), 1);
        std::fs::write(&config, format!("listen = ['0.0.0.0:0']\nkey = '{}'\n", key.display())).unwrap();
        let by_file = serve(args::Serve { config: Some(config), ..args::Serve::default() });
        assert_eq!(by_file.unwrap().keys, keys);
        let missing = args::Serve { listen, key: Some(folder.path().join("none")), ..args::Serve::default() };
        assert!(serve(missing).unwrap_err().to_string().contains("none"));
        assert!(serve(args::Serve::default()).unwrap().keys.is_empty());
    }

    /// A line of [limits], with a key of it or another, and a value that may be of the wrong type or size.
    fn any_limit() -> impl Strategy<Value = String> {
        const NUMBERS: &[&str] =
            &["sessions_max", "connections_max", "opens_max", "threads_max", "slots", "pending_max", "slot"];
        const TIMES: &[&str] = &[
            "suspect",
            "session_grace",
            "vanished_grace",
            "recovery_grace",
            "hello_timeout",
            "slow_operation",
            "drain",
        ];
        let time = prop::sample::select(TIMES).prop_map(|key| format!("{key}_seconds"));
        let key = prop_oneof![prop::sample::select(NUMBERS).prop_map(|key| (*key).to_owned()), time];
        let value = prop_oneof![
            any::<i64>().prop_map(|number| number.to_string()),
            (0u32..10_000).prop_map(|number| number.to_string()),
            any::<f64>().prop_map(|number| format!("{number:?}")),
            Just("1e300".to_owned()),
            "\"\\PC{0,5}\"|inf|-1|\\[\\]",
        ];
        (key, value).prop_map(|(key, value)| format!("{key} = {value}\n"))
    }

    proptest! {
        #[test]
        fn any_limits_are_understood_or_refused(lines in prop::collection::vec(any_limit(), 0..6)) {
            let Ok(file) = toml::from_str::<File>(&format!("[limits]\n{}", lines.concat())) else { return Ok(()) };
            match file.limits.resolve() {
                Ok(limits) => {
                    let times = [limits.suspect, limits.session_grace, limits.vanished_grace, limits.recovery_grace,
                        limits.hello_timeout, limits.slow_operation];
                    prop_assert!(times.iter().all(|time| time.as_secs_f64() <= options::SECONDS_MAX), "{times:?}");
                    prop_assert!(limits.slots >= 1 && limits.suspect >= SUSPECT_MIN);
                }
                Err(failure) => prop_assert!(failure.to_string().contains("[limits]"), "{failure}"),
            }
        }

        #[test]
        fn any_file_is_understood_or_refused(text in "(\\[*(export|limits|state|listen)\\]*| = |\n|'|\"|[0-9.]|\\PC){0,40}") {
            let _ = toml::from_str::<File>(&text); // whatever it says, it says it without a panic
        }

        #[test]
        fn any_source_is_taken_apart_or_refused(text in "(\\[|\\]|:|/|[0-9]{1,6}|[a-z.%]|\\PC){0,12}", port: Option<u16>) {
            if let Ok(Source::Remote { server, export }) = parse_source(&text, port) {
                let (host, port) = server.rsplit_once(':').unwrap();
                prop_assert!(!host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok(), "{server}");
                prop_assert!(!export.is_empty() && text.starts_with(host) && text.ends_with(&export), "{export}");
            }
            let address = server_address(&text);
            prop_assert!(address.contains(':'), "{address}");
        }
    }

    /// The file of --help, and the one that is installed with what is commented out put in.
    #[test]
    fn the_sample_files_are_understood() {
        let command = <args::Arguments as clap::CommandFactory>::command();
        let help = command.find_subcommand("serve").unwrap().get_after_help().unwrap().to_string();
        let of_help = help.split_once("The configuration file:\n").unwrap().1;
        let setting = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
        let installed = include_str!("../packaging/aqueduct.toml").lines();
        let put_in = installed.map(|line| line.strip_prefix("# ").filter(|rest| setting(rest)).unwrap_or(line));
        for text in [of_help.to_owned(), put_in.collect::<Vec<_>>().join("\n")] {
            let file: File = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert!(file.export.len() == 1 && file.limits.drain_seconds == Some(10.0), "{text}");
            file.limits.resolve().unwrap();
        }
    }

    #[test]
    fn read_ahead_is_on_unless_it_is_switched_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("aqueduct.toml");
        let resolved = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let dirs = vec![folder.path().into()];
            ServeConfig::resolve(args::Serve { config: Some(path.clone()), dirs, ..args::Serve::default() })
        };
        for (text, on) in [("", true), ("read_ahead = 'auto'", true), ("read_ahead = 'off'", false)] {
            assert_eq!(resolved(text).unwrap().read_ahead, on, "{text}");
        }
        assert!(resolved("read_ahead = 'on'").unwrap_err().to_string().contains("read_ahead"));
    }

    #[test]
    fn something_must_be_served() {
        assert!(ServeConfig::resolve(args::Serve::default()).is_err());
    }
}
