//! What the settings of a server come to: its configuration.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aqueduct_client::SUSPECT_MIN;
use aqueduct_net::Initiator;
use aqueduct_server::Limits;
use aqueduct_wire::{Checksums, Key};
use serde::Deserialize;

use crate::choice::{ChecksumChoice, ReadAheadChoice};
use crate::exporting::MetricsSettings;
use crate::exports::{ExportConfig, ExportSettings};
use crate::failure::Failure;
use crate::place::{PORT, UNIX};
use crate::processors::{self, CpuChoice, Processors};
use crate::routes::{NetworkSettings, RouteSettings, RoutesFile, Routing};
use crate::slow::{SlowConfig, SlowSettings};
use crate::volume::VolumePart;
use crate::{host, keyfile, options};

/// Threads of a server at most: those above one for each core only wait for disks.
const THREADS_MAX: usize = 64;

/// How long a server that was told to end lets operations finish: as long as a slow disk takes,
/// and less than service managers wait.
const DRAIN: Duration = Duration::from_secs(10);

/// A server, resolved.
#[derive(Debug)]
pub struct ServeConfig {
    /// Where it listens; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// Unix sockets on which it listens besides.
    pub sockets: Vec<PathBuf>,
    /// The folder for sockets by which mounts of this machine's loopback addresses find it.
    /// `None`: they come by TCP.
    pub local_sockets: Option<PathBuf>,
    /// Only clients that have one of these are served; none: all are.
    pub keys: Vec<Key>,
    /// Whether what travels has checksums.
    pub checksums: Checksums,
    /// Whether files are read ahead of who reads them in order.
    pub read_ahead: bool,
    /// What clients' logs and its status call it.
    pub name: String,
    /// The folder for what must outlive the server. `None`: nothing does, and clients of the next
    /// server find none of their open files.
    pub state: Option<PathBuf>,
    /// The directories that it serves; each has a name of its own.
    pub exports: Vec<ExportConfig>,
    /// How much of everything there may be.
    pub limits: Limits,
    /// For each export; `None`: as many as the descriptors of this process allow.
    pub opens_max: Option<usize>,
    /// Threads at most; one for each core is always there.
    pub threads_max: usize,
    /// Where they run; `None`: wherever this process may.
    pub processors: Option<Processors>,
    /// How long operations may take to finish when the server is stopped.
    pub drain: Duration,
    /// What it is in a volume of several servers; `None`: it stands alone.
    pub volume: Option<VolumePart>,
    /// Where its metrics are told; `None`: nowhere but in its status.
    pub metrics: Option<aqueduct_observe::Config>,
    /// Which requests are slow, and where requests are written down.
    pub slow: SlowConfig,
    /// Who connects to other servers in networks that have a name.
    pub routes: Option<Arc<Initiator>>,
    /// It makes copies for clients: see [`Server::start_as_agent`](crate::Server::start_as_agent).
    pub agent: bool,
    /// The program that watches over a server of data: it calls [`watch`](crate::watch) when it is
    /// called [`WATCH_NAME`](crate::WATCH_NAME). `None`: there is none, and a server of data only
    /// reads.
    pub watch: Option<PathBuf>,
}

/// The settings of a server, as a person wrote them: the configuration file, with the command line
/// put over it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeSettings {
    /// `ADDRESS:PORT`, or names for addresses, or `unix:PATH`; none: loopback.
    pub listen: Vec<String>,
    /// The folder for sockets by which mounts of this machine's loopback addresses find the
    /// server; empty for none.
    pub local_sockets: Option<PathBuf>,
    /// The file with the keys of those who may connect.
    pub key: Option<PathBuf>,
    /// Addresses other than loopback are listened on without a key.
    pub insecure: bool,
    /// Whether what travels has checksums.
    pub checksum: Option<ChecksumChoice>,
    /// Whether files are read ahead.
    pub read_ahead: Option<ReadAheadChoice>,
    /// On which processors its threads run.
    pub cpus: Option<CpuChoice>,
    /// The folder for what must outlive the server.
    pub state: Option<PathBuf>,
    /// Where its metrics are told, as `ADDRESS:PORT`.
    pub metrics: Option<String>,
    /// The file with the token that who asks for them has to send.
    pub metrics_token: Option<PathBuf>,
    /// The file of networks and routes by which other servers are reached.
    pub routes: Option<PathBuf>,
    /// Networks that it is a part of.
    pub network: Vec<NetworkSettings>,
    /// Ways to others.
    pub route: Vec<RouteSettings>,
    /// It makes copies for those who may mount its exports.
    pub agent: bool,
    /// The exports.
    pub export: Vec<ExportSettings>,
    /// How much of everything there may be.
    pub limits: LimitSettings,
    /// Which requests are slow, and the log of requests.
    pub slow: SlowSettings,
    /// What it is in a volume, which has a file of its own.
    #[serde(skip)]
    pub volume: Option<VolumePart>,
}

/// The section `[limits]`, as it is written; what is missing is as usual.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "each is a field of `Limits` or of `ServeConfig`, with the unit that its name says")]
pub struct LimitSettings {
    pub sessions_max: Option<usize>,
    pub connections_max: Option<usize>,
    pub opens_max: Option<usize>,
    pub threads_max: Option<usize>,
    pub slots: Option<u32>,
    pub pending_max: Option<usize>,
    pub unjoined_per_address_max: Option<usize>,
    pub unjoined_max: Option<usize>,
    pub frame_memory_mib: Option<usize>,
    pub unsent_memory_mib: Option<usize>,
    pub suspect_seconds: Option<f64>,
    pub session_grace_seconds: Option<f64>,
    pub vanished_grace_seconds: Option<f64>,
    pub recovery_grace_seconds: Option<f64>,
    pub hello_timeout_seconds: Option<f64>,
    pub lease_seconds: Option<u32>,
    pub leases_max: Option<usize>,
    pub leases_of_client_max: Option<usize>,
    pub slow_operation_seconds: Option<f64>,
    pub drain_seconds: Option<f64>,
}

impl Default for ServeConfig {
    /// What is usual. It serves nothing yet, and has no state folder.
    fn default() -> ServeConfig {
        ServeConfig {
            listen: vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT)],
            sockets: Vec::new(),
            local_sockets: None,
            keys: Vec::new(),
            checksums: Checksums::Auto,
            read_ahead: true,
            name: host::name(),
            state: None,
            exports: Vec::new(),
            limits: Limits::default(),
            opens_max: None,
            threads_max: THREADS_MAX,
            processors: None,
            drain: DRAIN,
            volume: None,
            metrics: None,
            slow: SlowConfig::default(),
            routes: None,
            agent: false,
            watch: None,
        }
    }
}

/// There is no export.
pub(crate) fn nothing_to_serve() -> Failure {
    Failure::usage(
        "cannot serve",
        "no directory was named",
        "name one (aqueduct serve /srv/data), or an [[export]] in the file of --config",
    )
}

impl ServeConfig {
    /// What the settings come to: addresses and files are looked up, and everything is checked.
    pub fn resolve(settings: ServeSettings) -> Result<ServeConfig, Failure> {
        let ServeSettings {
            listen,
            local_sockets,
            key,
            insecure,
            checksum,
            read_ahead,
            cpus,
            state,
            metrics,
            metrics_token,
            routes,
            network,
            route,
            agent,
            export,
            limits,
            slow,
            volume,
        } = settings;
        let metrics = MetricsSettings { address: metrics, token: metrics_token }.resolve()?;
        let routing = Routing { file: routes, more: RoutesFile { network, route }, ..Routing::default() };
        let usual = ServeConfig::default();
        let (sockets, addresses): (Vec<String>, Vec<String>) =
            listen.into_iter().partition(|text| text.starts_with(UNIX));
        let sockets: Vec<PathBuf> = sockets.iter().map(|text| text[UNIX.len()..].into()).collect();
        let listen = match addresses.is_empty() {
            true if sockets.is_empty() => usual.listen,
            true => Vec::new(),
            false => {
                // A store is served to who has the volume's key.
                let is_store = volume.as_ref().is_some_and(VolumePart::is_store);
                resolve_listen(&addresses, key.is_some() || insecure || is_store)?
            }
        };
        let keys = key.as_deref().map_or_else(|| Ok(Vec::new()), keyfile::load)?;
        if export.is_empty() {
            return Err(nothing_to_serve());
        }
        let exports = export.into_iter().map(ExportSettings::resolve).collect::<Result<Vec<_>, _>>()?;
        let own: Vec<IpAddr> = listen.iter().map(SocketAddr::ip).collect();
        let processors = processors::resolve(cpus.as_ref(), || processors::cards_of(&own))?;
        Ok(ServeConfig {
            listen,
            sockets,
            local_sockets: local_sockets.map_or_else(aqueduct_server::local_folder, |path| {
                Some(path).filter(|path| !path.as_os_str().is_empty())
            }),
            keys,
            checksums: checksum.map_or(usual.checksums, ChecksumChoice::checksums),
            read_ahead: read_ahead.map_or(usual.read_ahead, |choice| choice == ReadAheadChoice::Auto),
            state: Some(state.map_or_else(default_state, Ok)?),
            exports,
            opens_max: limits.opens_max,
            threads_max: limits.threads_max.unwrap_or(usual.threads_max),
            processors,
            drain: seconds("drain_seconds", limits.drain_seconds, usual.drain)?,
            limits: limits.resolve()?,
            volume,
            metrics,
            slow: slow.resolve()?,
            routes: routing.resolve()?,
            agent,
            ..usual
        })
    }
}

impl ServeConfig {
    /// The socket by which an agent reaches what it serves itself.
    pub fn own_socket(&self) -> Option<PathBuf> {
        self.state.as_ref().map(|state| state.join("agent.sock"))
    }
}

impl ServeSettings {
    /// Reads a configuration file (TOML).
    pub fn read(path: &Path) -> Result<ServeSettings, Failure> {
        let what = format!("cannot use the configuration file {}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::new(&what, error, "give the path of a readable file to --config"))?;
        // The message of the parser names line and column, and shows the line; it ends with a line
        // break.
        toml::from_str(&text).map_err(|error| {
            Failure::usage(what, error.to_string().trim_end(), "correct it; 'aqueduct serve --help' shows an example")
        })
    }
}

impl LimitSettings {
    /// Checks them, and puts in what is usual.
    pub fn resolve(self) -> Result<Limits, Failure> {
        let usual = Limits::default();
        Ok(Limits {
            sessions_max: at_least_one("sessions_max", self.sessions_max, usual.sessions_max)?,
            connections_max: at_least_one("connections_max", self.connections_max, usual.connections_max)?,
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
            hello_timeout: some_seconds("hello_timeout_seconds", self.hello_timeout_seconds, usual.hello_timeout)?,
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

/// The same, of what does not work within no time at all.
fn some_seconds(key: &str, value: Option<f64>, usual: Duration) -> Result<Duration, Failure> {
    let time = seconds(key, value, usual)?;
    if time.is_zero() { Err(nobody(key)) } else { Ok(time) }
}

fn at_least_one(key: &str, value: Option<usize>, usual: usize) -> Result<usize, Failure> {
    let count = value.unwrap_or(usual);
    if count == 0 { Err(nobody(key)) } else { Ok(count) }
}

fn nobody(key: &str) -> Failure {
    Failure::usage(
        format!("cannot use {key} = 0 of [limits]"),
        "nobody could be served",
        "give a larger number, or leave the line out for the usual one",
    )
}

/// The longest that leases may last: so long, and a little more, a client that has gone holds up
/// who changes what it has kept.
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

/// Where this user's copies under way tell of themselves to others of his processes. `None`: he
/// has no folder for what lasts no longer than processes do.
pub fn copies_folder() -> Option<PathBuf> {
    Some(aqueduct_net::local::folder()?.join("copies"))
}

#[cfg(test)]
mod tests {
    use aqueduct_server::{Access, Squash};
    use proptest::prelude::*;

    use super::*;
    use crate::choice::{ExternalChoice, SquashChoice};
    use crate::exports::ExternalConfig;

    #[test]
    fn other_addresses_than_loopback_must_be_asked_for() {
        let open = ["0.0.0.0:7170".to_owned()];
        let message = resolve_listen(&open, false).unwrap_err().to_string();
        assert!(message.contains("--key") && message.contains("keygen") && message.contains("--insecure"), "{message}");
        assert_eq!(resolve_listen(&open, true).unwrap(), ["0.0.0.0:7170".parse().unwrap()]);
        assert_eq!(ServeConfig::default().listen, ["127.0.0.1:7170".parse().unwrap()]);
        assert!(resolve_listen(&["nonsense".to_owned()], false).is_err());
    }

    /// What stands behind each limit in the file that is installed.
    #[test]
    fn the_installed_file_tells_the_usual_limits() {
        let text = include_str!("../../../packaging/aqueduct.toml").split_once("[limits]").unwrap().1;
        let settings = text.lines().filter_map(|line| line.strip_prefix("# "));
        let settings: Vec<&str> =
            settings.filter(|line| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))).collect();
        let limits: LimitSettings = toml::from_str(&settings.join("\n")).unwrap();
        let (usual, told) = (ServeConfig::default(), [limits.opens_max, limits.threads_max]);
        assert_eq!(told, [Some(aqueduct_posix::OPENS_MAX), Some(usual.threads_max)]);
        assert_eq!((settings.len(), limits.drain_seconds), (20, Some(usual.drain.as_secs_f64())));
        assert_eq!(format!("{:?}", limits.resolve().unwrap()), format!("{:?}", usual.limits));
    }

    #[test]
    fn leases_last_no_longer_than_anybody_would_wait() {
        let usual = Duration::from_secs(7);
        assert_eq!([lease(None, usual).unwrap(), lease(Some(0), usual).unwrap()], [usual, Duration::ZERO]);
        assert!(lease(Some(60), usual).is_ok() && lease(Some(61), usual).is_err());
    }

    /// What a configuration file of this text comes to, with these exports besides.
    fn resolved(text: &str, exports: Vec<ExportSettings>) -> Result<ServeConfig, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("aqueduct.toml");
        std::fs::write(&path, text).unwrap();
        let mut settings = ServeSettings::read(&path)?;
        settings.export.extend(exports);
        ServeConfig::resolve(settings)
    }

    fn export(path: &Path) -> ExportSettings {
        ExportSettings { path: Some(path.to_owned()), ..ExportSettings::default() }
    }

    #[test]
    fn a_file_and_other_settings_come_together() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let text = format!(
            "listen = ['[::1]:0']\nstate = '/s'\n[[export]]\npath = '{}'\nname = 'data'\nread_only = true\n\
             external = 'poll'\nexternal_age_seconds = 1.5\n[limits]\nsessions_max = 3\nsession_grace_seconds = 0.5\nsuspect_seconds = 7\nlease_seconds = 3\n",
            root.display()
        );
        let squashed =
            ExportSettings { squash: Some(SquashChoice::All), external: Some(ExternalChoice::None), ..export(&root) };
        let config = resolved(&text, vec![squashed]).unwrap();
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
        let message = resolved("[limits]\nsesions_max = 3\n", vec![export(&root)]).unwrap_err().to_string();
        assert!(message.contains("sesions_max"), "{message}");
    }

    #[test]
    fn a_limit_that_lets_nobody_be_served_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for key in ["sessions_max", "connections_max", "hello_timeout_seconds"] {
            let limited = |value| resolved(&format!("[limits]\n{key} = {value}\n"), vec![export(folder.path())]);
            let said = limited(0).unwrap_err().to_string();
            assert!(said.contains(key) && said.contains("nobody could be served"), "{said}");
            assert!(limited(1).is_ok(), "{key}");
        }
    }

    #[test]
    fn a_key_opens_other_addresses_than_loopback() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        keyfile::generate(&key).unwrap();
        let serve = |settings| ServeConfig::resolve(ServeSettings { export: vec![export(folder.path())], ..settings });
        let listen = vec!["0.0.0.0:0".to_owned()];
        let with_key = ServeSettings { listen: listen.clone(), key: Some(key.clone()), ..ServeSettings::default() };
        let keys = serve(with_key).unwrap().keys;
        assert_eq!(keys.len(), 1);
        let text = format!("listen = ['0.0.0.0:0']\nkey = '{}'\n", key.display());
        assert_eq!(resolved(&text, vec![export(folder.path())]).unwrap().keys, keys);
        let missing = ServeSettings { listen, key: Some(folder.path().join("none")), ..ServeSettings::default() };
        assert!(serve(missing).unwrap_err().to_string().contains("none"));
        assert!(serve(ServeSettings::default()).unwrap().keys.is_empty());
    }

    /// A line of [limits], with a key of it or another, and a value that may be of the wrong type
    /// or size.
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
            let Ok(file) = toml::from_str::<ServeSettings>(&format!("[limits]\n{}", lines.concat())) else { return Ok(()) };
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
            // Whatever it says, it says it without a panic.
            let _ = toml::from_str::<ServeSettings>(&text);
        }
    }

    #[test]
    fn read_ahead_is_on_unless_it_is_switched_off() {
        let folder = tempfile::tempdir().unwrap();
        let resolved = |text| resolved(text, vec![export(folder.path())]);
        for (text, on) in [("", true), ("read_ahead = 'auto'", true), ("read_ahead = 'off'", false)] {
            assert_eq!(resolved(text).unwrap().read_ahead, on, "{text}");
        }
        assert!(resolved("read_ahead = 'on'").unwrap_err().to_string().contains("read_ahead"));
    }

    #[test]
    fn something_must_be_served() {
        assert!(ServeConfig::resolve(ServeSettings::default()).is_err());
    }
}
