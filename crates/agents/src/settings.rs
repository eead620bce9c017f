//! What a person wants of the agents of a host: the file of `--config`, checked.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use aqueduct_node::{ExportSettings, Failure, PORT};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Agents of one host at most: beyond that addresses and processors are shared out without sense.
pub const AGENTS_MAX: u32 = 250;

/// The letters of a group's name at most: the names of interfaces have 15, with a number behind.
const NAME_MAX: usize = 8;

/// What an agent is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentKind {
    /// A process with a network of its own.
    #[default]
    Process,
    /// Besides, files and processes of its own: a container.
    Container,
    /// Besides, a kernel of its own: a virtual machine.
    Vm,
}

/// What runs the instructions of virtual machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// The processor where it can (KVM), else a program.
    #[default]
    Auto,
    /// The processor, or none are started.
    Kvm,
    /// A program (TCG), ten times slower and anywhere.
    Tcg,
}

/// How an agent gets its interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceChoice {
    /// The first of the others that can be had.
    #[default]
    Auto,
    /// A virtual function of the card.
    Sriov,
    /// An address of its own on the card.
    Macvlan,
    /// A wire to a bridge.
    Veth,
}

/// The file of `--config`, as a person wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The group's name, with which the names of its namespaces and interfaces begin.
    pub name: String,
    /// What the agents are.
    pub kind: AgentKind,
    /// How they get their interfaces.
    pub interface: InterfaceChoice,
    /// The card that they share, or a bridge that they join. None: a bridge of their own.
    pub uplink: Option<String>,
    /// The first agent's address and the length of its network's prefix; the others count up.
    pub address: IpNet,
    /// What lies beyond their network is reached by this address.
    pub gateway: Option<IpAddr>,
    /// The virtual network of their packets, 1 to 4094.
    pub vlan: Option<u16>,
    /// What each interface carries, as `tc` writes it (`400mbit`).
    pub rate: Option<String>,
    /// How TCP avoids congestion (`cubic`); as the host does, unless given.
    pub congestion: Option<String>,
    /// Processors of each agent, near its card; 0: all.
    pub processors: u32,
    /// Of those near the card the first so many are left to the host.
    pub host_processors: u32,
    /// Processor time of each agent, in processors.
    pub processor_time: Option<f64>,
    /// Memory of each agent, as `4GiB`.
    pub memory: Option<String>,
    /// What each serves, as in the file of `aqueduct serve --config`.
    pub export: Vec<toml::Table>,
    /// The port on which it serves.
    pub port: u16,
    /// The file with the keys of those who may connect.
    pub key: Option<PathBuf>,
    /// It is served without a key.
    pub insecure: bool,
    /// What an agent that is not a process sees of this host besides what it serves.
    pub bind: Vec<PathBuf>,
    /// The program that runs containers.
    pub runtime: String,
    /// The kernel of virtual machines; unless given, the newest in /boot.
    pub kernel: Option<PathBuf>,
    /// The folder above `lib/modules` with that kernel's modules; unless given, `/`.
    pub modules: Option<PathBuf>,
    /// What runs the instructions of virtual machines.
    pub accelerator: Accelerator,
    /// Instead of serving: work for this store of jobs.
    pub store: Option<String>,
    /// With a store: root's jobs are done too, as root.
    pub allow_root: bool,
    /// Instead of both: this command, in which `{agent}` and `{address}` stand for the agent's.
    pub command: Vec<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            name: "aq".into(),
            kind: AgentKind::default(),
            interface: InterfaceChoice::default(),
            uplink: None,
            address: "10.96.0.2/24".parse().expect("an address"),
            gateway: None,
            vlan: None,
            rate: None,
            congestion: None,
            processors: 1,
            host_processors: 0,
            processor_time: None,
            memory: None,
            export: Vec::new(),
            port: PORT,
            key: None,
            insecure: false,
            bind: Vec::new(),
            runtime: "crun".into(),
            kernel: None,
            modules: None,
            accelerator: Accelerator::default(),
            store: None,
            allow_root: false,
            command: Vec::new(),
        }
    }
}

/// Settings that cannot be meant.
fn wrong(what: String, why: &str, hint: &str) -> Failure {
    Failure::usage(what, why, hint)
}

impl Settings {
    /// Reads a file (TOML) and checks it.
    pub fn read(path: &Path) -> Result<Settings, Failure> {
        let what = format!("cannot use the configuration file {}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::new(&what, error, "give the path of a readable file to --config"))?;
        let settings: Settings = toml::from_str(&text).map_err(|error| {
            let hint = "correct it; 'aqueduct agents up --help' shows an example";
            Failure::usage(what, error.to_string().trim_end(), hint)
        })?;
        settings.check()?;
        Ok(settings)
    }

    /// Whether all of it can be meant.
    pub fn check(&self) -> Result<(), Failure> {
        check_name(&self.name)?;
        if let Some(uplink) = &self.uplink {
            let is_one = (1..16).contains(&uplink.len()) && !uplink.contains(['/', ' ']) && !uplink.starts_with('-');
            if !is_one {
                let hint = "name an interface as 'ip link' lists it";
                return Err(wrong(format!("cannot use uplink = \"{uplink}\""), "no interface has such a name", hint));
            }
        }
        if self.uplink.is_none() && matches!(self.interface, InterfaceChoice::Sriov | InterfaceChoice::Macvlan) {
            let what = format!("cannot use interface = {:?}", self.interface).to_lowercase();
            return Err(wrong(what, "no card is named whose functions or addresses these are", "name it with uplink"));
        }
        if self.vlan.is_some_and(|vlan| !(1..=4094).contains(&vlan)) {
            return Err(wrong(
                format!("cannot use vlan = {:?}", self.vlan),
                "there is no such network",
                "give 1 to 4094",
            ));
        }
        self.rate_bits()?;
        self.memory_bytes()?;
        if self.processor_time.is_some_and(|time| !(0.01..=4096.0).contains(&time)) {
            let what = format!("cannot use processor_time = {:?}", self.processor_time);
            return Err(wrong(what, "it is no number of processors", "give 0.01 and more"));
        }
        self.check_work()
    }

    /// Whether there is one thing to do for the agents, and it can be done.
    fn check_work(&self) -> Result<(), Failure> {
        let works = [!self.export.is_empty(), self.store.is_some(), !self.command.is_empty()];
        let hint = "give one of: [[export]] tables, store = \"URL\", command = [\"PROGRAM\", ...]";
        match works.iter().filter(|is_there| **is_there).count() {
            0 => return Err(wrong("cannot start agents".into(), "nothing says what they are to do", hint)),
            1 => {}
            _ => return Err(wrong("cannot start agents".into(), "several things are said that they are to do", hint)),
        }
        if self.kind == AgentKind::Vm && !self.export.is_empty() {
            let why = "what it has of this host comes by virtio-fs, whose files have no lasting handles";
            let hint = "use kind = \"container\" to serve; a vm works for a store, or runs a command";
            return Err(wrong("cannot have a virtual machine serve".into(), why, hint));
        }
        if self.allow_root && self.store.is_none() {
            let hint = "give store = \"URL\", or take it out: who is root at exports their squash says";
            return Err(wrong("cannot use allow_root".into(), "only jobs of a store are done as root", hint));
        }
        for export in &self.export {
            let text = toml::Value::Table(export.clone());
            if let Err(error) = text.try_into::<ExportSettings>() {
                let hint = "write it as in the file of 'aqueduct serve --config'";
                return Err(Failure::usage("cannot use an [[export]]", error.to_string().trim_end(), hint));
            }
        }
        let exported = self.export.iter().filter_map(|export| export.get("path")?.as_str()).map(Path::new);
        let of_machines = self.kernel.iter().chain(&self.modules).map(PathBuf::as_path);
        let bound =
            self.bind.iter().map(PathBuf::as_path).chain(exported).chain(self.key.as_deref()).chain(of_machines);
        if let Some(path) = bound.into_iter().find(|path| path.is_relative()) {
            let why = "agents run elsewhere than this command";
            return Err(wrong(format!("cannot use the path {}", path.display()), why, "give it from the root: /..."));
        }
        if !self.export.is_empty() && self.key.is_none() && !self.insecure {
            return Err(wrong(
                "will not have agents serve".into(),
                "whoever reaches their addresses could do everything there, as any user",
                "give a key (aqueduct keygen FILE makes one), or insecure = true if you trust everybody on that network",
            ));
        }
        Ok(())
    }

    /// The address of an agent, the first being 1.
    pub fn address_of(&self, agent: u32) -> Result<IpAddr, Failure> {
        let ahead = agent.saturating_sub(1);
        let address = match self.address.addr() {
            IpAddr::V4(first) => u32::from(first).checked_add(ahead).map(|number| IpAddr::V4(number.into())),
            IpAddr::V6(first) => u128::from(first).checked_add(ahead.into()).map(|number| IpAddr::V6(number.into())),
        };
        address.filter(|address| self.address.contains(address) && *address != self.address.broadcast()).ok_or_else(
            || {
                wrong(
                    format!("cannot give agent {agent} an address"),
                    "the network is too small",
                    &format!("give an address with a longer network than {}", self.address),
                )
            },
        )
    }

    /// The address of the host on a bridge of the agents' own: the first of the network.
    pub fn host_address(&self) -> Option<IpAddr> {
        self.address.hosts().next().filter(|address| *address != self.address.addr())
    }

    /// Bits a second of each interface.
    pub fn rate_bits(&self) -> Result<Option<u64>, Failure> {
        let Some(text) = &self.rate else { return Ok(None) };
        let units = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)];
        let found = units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)));
        let bits = found.and_then(|(number, bits)| Some(number.parse::<f64>().ok()? * bits));
        match bits {
            Some(bits) if (1e3..=1e15).contains(&bits) => Ok(Some(bits as u64)),
            _ => Err(wrong(
                format!("cannot use rate = \"{text}\""),
                "it is no rate",
                "write it as 1gbit, 400mbit or 64kbit",
            )),
        }
    }

    /// Bytes of memory of each agent.
    pub fn memory_bytes(&self) -> Result<Option<u64>, Failure> {
        let Some(text) = &self.memory else { return Ok(None) };
        let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)];
        let found = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim(), bytes)));
        match found.and_then(|(number, bytes)| number.parse::<u64>().ok()?.checked_mul(*bytes)) {
            Some(bytes) if bytes > 0 && bytes < 1 << 60 => Ok(Some(bytes)),
            _ => Err(wrong(format!("cannot use memory = \"{text}\""), "it is no size", "write it as 512MiB or 4GiB")),
        }
    }
}

/// Whether a group may have this name.
pub fn check_name(name: &str) -> Result<(), Failure> {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_letter) {
        return Ok(());
    }
    Err(wrong(
        format!("cannot use the name '{name}' for agents"),
        "interfaces are named after it",
        &format!("give 1 to {NAME_MAX} small letters and digits"),
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checked(text: &str) -> Result<Settings, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agents.toml");
        std::fs::write(&path, text).unwrap();
        Settings::read(&path)
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let work = "insecure = true\n[[export]]\npath = '/srv'\n";
        assert!(checked(work).is_ok());
        for (text, told) in [
            ("", "nothing says"),
            ("store = 'x'\ncommand = ['y']", "several things"),
            ("[[export]]\npath = '/srv'", "as any user"),
            ("insecure = true\n[[export]]\npaht = '/srv'", "paht"),
            ("command = ['x']\nname = 'much-too-long'", "small letters"),
            ("command = ['x']\nrate = '1 parsec'", "400mbit"),
            ("command = ['x']\nmemory = '4 nibbles'", "4GiB"),
            ("command = ['x']\nvlan = 4095", "4094"),
            ("command = ['x']\ninterface = 'macvlan'", "uplink"),
            ("command = ['x']\nuplink = '-s'", "ip link"),
            ("command = ['x']\nprocessor_time = 0", "0.01"),
            ("comand = ['x']", "comand"),
            ("insecure = true\n[[export]]\npath = 'srv'", "from the root"),
        ] {
            let failure = checked(text).unwrap_err().to_string();
            assert!(failure.contains(told), "{text}: {failure}");
        }
    }

    #[test]
    fn agents_have_addresses_one_after_the_other() {
        let settings = Settings::default();
        assert_eq!(settings.address_of(1).unwrap().to_string(), "10.96.0.2");
        assert_eq!(settings.address_of(11).unwrap().to_string(), "10.96.0.12");
        assert_eq!(settings.host_address().unwrap().to_string(), "10.96.0.1");
        assert!(settings.address_of(254).unwrap_err().to_string().contains("too small"));
        let six = Settings { address: "fd00::10/64".parse().unwrap(), ..Settings::default() };
        assert_eq!(six.address_of(2).unwrap().to_string(), "fd00::11");
    }

    #[test]
    fn rates_and_sizes_are_understood() {
        let of = |rate: &str| Settings { rate: Some(rate.into()), ..Settings::default() }.rate_bits().unwrap();
        assert_eq!(
            [of("1.5gbit"), of("400mbit"), of("64kbit")],
            [Some(1_500_000_000), Some(400_000_000), Some(64_000)]
        );
        let of = |memory: &str| Settings { memory: Some(memory.into()), ..Settings::default() }.memory_bytes().unwrap();
        assert_eq!([of("512MiB"), of("4 GiB")], [Some(512 << 20), Some(4 << 30)]);
    }

    proptest! {
        #[test]
        fn any_file_is_understood_or_refused(text in "(name|rate|memory|vlan|address|command|export| = |\n|'|\\[|\\]|[0-9.a-z/]|\\PC){0,40}") {
            let _ = toml::from_str::<Settings>(&text).map(|settings| settings.check());
        }

        #[test]
        fn any_rate_and_size_is_understood_or_refused(text in "[0-9.e]{0,9}(gbit|mbit|MiB|GiB|TiB|\\PC{0,3})") {
            let settings = Settings { rate: Some(text.clone()), memory: Some(text), ..Settings::default() };
            let _ = (settings.rate_bits(), settings.memory_bytes());
        }
    }
}
