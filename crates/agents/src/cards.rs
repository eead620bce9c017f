//! Interfaces: which way agents get theirs on this host, the virtual functions of a card, and the
//! processors near it.

use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use aqueduct_node::{CpuChoice, Failure, Processors};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::command::{LOOK, run, words};
use crate::host::Host;
use crate::settings::{InterfaceChoice, Settings};

/// How an agent's interface is called in its namespace.
pub(crate) const WIRE: &str = "wire";

/// How long a card may take to make its virtual functions.
const FUNCTION_MAX: Duration = Duration::from_secs(10);

/// Where an interface is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its network namespace; `None`: that of this process.
    pub namespace: Option<String>,
    /// Its name there.
    pub name: String,
}

impl Place {
    pub(crate) fn here(name: impl Into<String>) -> Place {
        Place { namespace: None, name: name.into() }
    }

    pub(crate) fn within(namespace: &str, name: &str) -> Place {
        Place { namespace: Some(namespace.into()), name: name.into() }
    }

    /// `ip` where it is.
    fn ip(&self, arguments: &str) -> Vec<String> {
        match &self.namespace {
            Some(namespace) => words(&format!("ip -n {namespace} {arguments}")),
            None => words(&format!("ip {arguments}")),
        }
    }

    /// What `ip` tells of it.
    pub(crate) fn told(&self, host: &dyn Host) -> Option<Value> {
        let told = host.run(&self.ip(&format!("-d -s -j link show dev {}", self.name))).ok()?;
        serde_json::from_str::<Vec<Value>>(&told).ok()?.into_iter().next()
    }

    pub(crate) fn is_there(&self, host: &dyn Host) -> bool {
        host.run(&self.ip(&format!("-j link show dev {}", self.name))).is_ok()
    }
}

/// How the agents of a group get their interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Virtual functions of a card. `free`: those that it has and nobody uses, by their indexes;
    /// `None`: they are made first.
    Sriov { card: String, free: Option<Vec<u32>> },
    /// Addresses of their own on a card.
    Macvlan { card: String },
    /// Wires to a bridge. `None`: of their own.
    Veth { bridge: Option<String> },
}

/// What a group of agents has of virtual functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// It has made those of the card: the host uses none of them.
    pub made: bool,
    /// What agents have that are up.
    pub held: Vec<u32>,
    /// What others of its agents have, and will have given back.
    pub back: Vec<u32>,
}

/// The sysfs folder of a card's device; `None`: it has none, or the sysfs that is mounted here
/// shows another network namespace.
fn device(host: &dyn Host, card: &str, told: &Value) -> Option<PathBuf> {
    let folder = Path::new("/sys/class/net").join(card);
    let index: u64 = host.read(&folder.join("ifindex")).ok()?.trim().parse().ok()?;
    let address = host.read(&folder.join("address")).ok()?;
    let is_it = told["ifindex"].as_u64() == Some(index) && told["address"].as_str() == Some(address.trim());
    is_it.then(|| folder.join("device"))
}

fn number(host: &dyn Host, path: &Path) -> Option<u32> {
    host.read(path).ok()?.trim().parse().ok()
}

/// Chooses how these agents get their interfaces.
pub(crate) fn choose(host: &dyn Host, settings: &Settings, agents: &[u32], known: &Known) -> Result<Way, Failure> {
    let Some(card) = settings.uplink.clone() else { return Ok(Way::Veth { bridge: None }) };
    let Some(told) = Place::here(&card).told(host) else {
        return Err(Failure::usage(
            format!("cannot use uplink = \"{card}\""),
            "there is no such interface",
            "name one that 'ip link' lists",
        ));
    };
    if told["linkinfo"]["info_kind"] == "bridge" {
        return match settings.interface {
            InterfaceChoice::Auto | InterfaceChoice::Veth => Ok(Way::Veth { bridge: Some(card) }),
            other => Err(Failure::usage(
                format!("cannot use interface = \"{other:?}\"").to_lowercase(),
                format!("{card} is a bridge"),
                "name a card with uplink, or leave interface out",
            )),
        };
    }
    let is_ethernet = told["link_type"] == "ether";
    match settings.interface {
        InterfaceChoice::Veth => Ok(Way::Veth { bridge: None }),
        InterfaceChoice::Macvlan => Ok(Way::Macvlan { card }),
        InterfaceChoice::Sriov => functions(host, (&card, &told), agents, known),
        InterfaceChoice::Auto => match functions(host, (&card, &told), agents, known) {
            Ok(way) => Ok(way),
            Err(why) => {
                tracing::info!(%card, %why, "virtual functions cannot be had");
                Ok(if is_ethernet { Way::Macvlan { card } } else { Way::Veth { bridge: None } })
            }
        },
    }
}

/// Virtual functions of a card, where it can have so many.
fn functions(host: &dyn Host, (card, told): (&str, &Value), agents: &[u32], known: &Known) -> Result<Way, Failure> {
    let (wanted, last) = (agents.len(), agents.iter().max().copied().unwrap_or(0));
    let cannot = |why: String, hint: &str| {
        Failure::new(format!("cannot give {wanted} agents virtual functions of {card}"), why, hint)
    };
    let device = device(host, card, told);
    let most = device.as_ref().and_then(|device| number(host, &device.join("sriov_totalvfs")));
    let (Some(device), Some(most)) = (device, most) else {
        let hint = "switch SR-IOV on in its firmware and the host's, or use interface = \"macvlan\"";
        return Err(cannot("the card has none (no sriov_totalvfs in sysfs)".into(), hint));
    };
    let now = number(host, &device.join("sriov_numvfs")).unwrap_or(0);
    if last > most {
        return Err(cannot(format!("it has {most} at most"), "ask for fewer agents"));
    }
    let card = card.to_owned();
    if now == 0 {
        return Ok(Way::Sriov { card, free: None });
    }
    let (mut free, mut used) = (Vec::new(), Vec::new());
    for index in (0..now).filter(|index| !known.held.contains(index)) {
        match use_of_function(host, &card, index) {
            Some(why) if !known.made && !known.back.contains(&index) => used.push(format!("{index} ({why})")),
            _ => free.push(index),
        }
    }
    if free.len() >= wanted {
        return Ok(Way::Sriov { card, free: Some(free) });
    }
    let used = if used.is_empty() { String::new() } else { format!(", of which others use {}", used.join(", ")) };
    Err(cannot(
        format!("it has {now}{used}, and their number changes only by way of 0, which ends what uses them"),
        &format!("where nobody uses them: echo 0 > {}", device.join("sriov_numvfs").display()),
    ))
}

/// Who uses a virtual function of a card that this process has not made; `None`: nobody.
fn use_of_function(host: &dyn Host, card: &str, index: u32) -> Option<String> {
    let name = match interface_of(host, card, index) {
        Ok(Some(name)) => name,
        Ok(None) => return Some("it has no interface in this network namespace".into()),
        Err(error) => return Some(format!("it cannot be looked for: {error}")),
    };
    let told = host.run(&words(&format!("ip -j addr show dev {name}")));
    let told = told.and_then(|text| serde_json::from_str::<Vec<Value>>(&text).map_err(|error| error.to_string()));
    let told = match told.map(|all| all.into_iter().next()) {
        Ok(Some(told)) => told,
        Ok(None) => return Some(format!("{name} cannot be looked at")),
        Err(why) => return Some(format!("{name} cannot be looked at: {why}")),
    };
    let folder = Path::new("/sys/class/net").join(&name);
    // Of a virtual network, or an address of its own, on it.
    let upper = host
        .names(&folder)
        .unwrap_or_default()
        .into_iter()
        .find_map(|file| file.strip_prefix("upper_").map(str::to_owned));
    // Routes go only over what is up.
    let is_up = told["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "UP"));
    let address = told["addr_info"].as_array().and_then(|all| all.first()?["local"].as_str());
    match (told["master"].as_str(), upper, address) {
        (Some(master), ..) => Some(format!("{name} belongs to {master}")),
        (_, Some(upper), _) => Some(format!("{upper} lies on {name}")),
        (.., Some(address)) => Some(format!("{name} has the address {address}")),
        _ => is_up.then(|| format!("{name} is up")),
    }
}

/// How the interface of a virtual function is called; nothing where it has none here.
fn interface_of(host: &dyn Host, card: &str, index: u32) -> io::Result<Option<String>> {
    let folder = Path::new("/sys/class/net").join(card).join(format!("device/virtfn{index}/net"));
    match host.names(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        names => Ok(names?.into_iter().next()),
    }
}

/// The file of a card that says how many virtual functions it has, and makes them.
pub(crate) const FUNCTIONS: &str = "device/sriov_numvfs";

/// That file of a card.
pub(crate) fn functions_file(card: &str) -> PathBuf {
    Path::new("/sys/class/net").join(card).join(FUNCTIONS)
}

/// A virtual function that an agent gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// The card.
    pub card: String,
    /// Which of its functions.
    pub index: u32,
    /// The namespace that it goes to.
    pub namespace: String,
    /// The address of its packets (MAC).
    pub address: String,
    /// The virtual network of its packets; 0: none.
    pub vlan: u16,
    /// What it may send, in Mbit/s; 0: as much as goes.
    pub rate: u64,
    /// How it was called before; known once it is there.
    pub called: Option<String>,
}

impl Function {
    /// Waits until the card has made it, and notes how it is called.
    pub(crate) fn find(&mut self, host: &dyn Host) -> Result<(), Failure> {
        let end = Instant::now() + FUNCTION_MAX;
        loop {
            let failed = |error| {
                let what = format!("cannot look for virtual function {} of {}", self.index, self.card);
                Failure::new(what, error, "see that sysfs is mounted at /sys")
            };
            self.called = interface_of(host, &self.card, self.index).map_err(failed)?;
            if self.called.is_some() || Instant::now() > end {
                break;
            }
            sleep(LOOK);
        }
        match &self.called {
            Some(_) => Ok(()),
            None => Err(Failure::new(
                format!("cannot use virtual function {} of {}", self.index, self.card),
                "it has no interface in this network namespace: its driver is missing, or somebody has it",
                "load the driver of virtual functions, or take back what uses it",
            )),
        }
    }

    fn settings(&self, address: &str, vlan: u16, rate: u64) -> Vec<Vec<String>> {
        let of = |what: String| words(&format!("ip link set {} vf {} {what}", self.card, self.index));
        let mut all = vec![of(format!("mac {address}"))];
        // Not every driver knows these: they are asked for where they are wanted.
        all.extend((self.vlan > 0).then(|| of(format!("vlan {vlan}"))));
        all.extend((self.rate > 0).then(|| of(format!("max_tx_rate {rate}"))));
        all
    }

    fn commands(&self) -> Vec<Vec<String>> {
        let called = self.called.as_deref().unwrap_or("VF");
        let mut all = self.settings(&self.address, self.vlan, self.rate);
        all.push(words(&format!("ip link set {called} down")));
        all.push(words(&format!("ip link set {called} netns {}", self.namespace)));
        all.push(words(&format!("ip -n {} link set {called} name {WIRE}", self.namespace)));
        all
    }

    pub(crate) fn take(&self, host: &dyn Host) -> Result<(), Failure> {
        self.commands().iter().try_for_each(|command| run(host, command).map(drop))
    }

    /// Moves it back to this process's namespace, under the name that it had.
    pub(crate) fn give_back(&self, host: &dyn Host) -> Result<(), Failure> {
        let Some(called) = &self.called else { return Ok(()) };
        let mut result = Ok(());
        for name in [WIRE, called] {
            let place = Place::within(&self.namespace, name);
            if place.is_there(host) {
                let own = std::process::id();
                let commands = [
                    format!("link set {name} down"),
                    format!("link set {name} name {called}"),
                    format!("link set {called} netns {own}"),
                ];
                // To give it the name that it has is refused by some kernels.
                let needed = commands.iter().filter(|command| name != called || !command.contains(" name "));
                result = needed
                    .map(|command| run(host, &place.ip(command)))
                    .find(Result::is_err)
                    .map_or(Ok(()), |failed| failed.map(drop));
                break;
            }
        }
        let reset = self.settings("00:00:00:00:00:00", 0, 0);
        // A card that has gone meanwhile has nothing to reset.
        let card = Place::here(&self.card);
        if card.is_there(host) {
            reset.iter().try_for_each(|command| run(host, command).map(drop))?;
        }
        result
    }

    pub(crate) fn shown(&self) -> Vec<String> {
        self.commands().iter().map(|command| command.join(" ")).collect()
    }
}

/// The processors for agents: near the card if it says where it is, less those that are the
/// host's.
pub(crate) fn processors(host: &dyn Host, settings: &Settings) -> Result<Vec<usize>, Failure> {
    let status = host.read(Path::new("/proc/self/status")).unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).and_then(list);
    let Some(allowed) = allowed else {
        let hint = "give processors = 0, so that they are not held to any";
        return Err(Failure::new(
            "cannot tell on which processors to run agents",
            "/proc/self/status does not say it",
            hint,
        ));
    };
    let near = settings.uplink.as_ref().and_then(|card| {
        let told = Place::here(card).told(host)?;
        // -1: it is near none.
        let node = number(host, &device(host, card, &told)?.join("numa_node"))?;
        let near = list(&host.read(Path::new(&format!("/sys/devices/system/node/node{node}/cpulist"))).ok()?)?;
        Some(allowed.iter().copied().filter(|number| near.contains(number)).collect::<Vec<_>>())
    });
    let all = near.filter(|near| !near.is_empty()).unwrap_or(allowed);
    let left: Vec<usize> = all.iter().copied().skip(settings.host_processors as usize).collect();
    match left.is_empty() {
        false => Ok(left),
        true => Err(Failure::usage(
            format!("cannot leave {} processors to the host", settings.host_processors),
            format!("there are {} for agents", all.len()),
            "give a smaller host_processors",
        )),
    }
}

/// Numbers as the kernel lists them.
pub(crate) fn list(text: &str) -> Option<Vec<usize>> {
    match text.trim().parse().ok()? {
        CpuChoice::These(these) => Some(Processors::numbers(&these).collect()),
        CpuChoice::Near => None,
    }
}
