//! What setting agents up comes to on a host: steps, in order.

use std::path::Path;

use aqueduct_node::Failure;

use crate::agent::{Agent, folder, mac};
use crate::cards::{self, Function, Known, Place, WIRE, Way};
use crate::cgroups::Hierarchies;
use crate::command::words;
use crate::enter::Entry;
use crate::host::Host;
use crate::machine;
use crate::settings::{AgentKind, Settings};
use crate::step::{Step, Thing};
use crate::work::work;

/// Bytes that an idle wire may save: 2 ms at 1 Gbit/s, or four of the largest segments.
const BURST: u32 = 262_144;

/// How long a packet waits at most for its wire.
const QUEUE: &str = "25ms";

/// What an agent comes to.
#[derive(Clone, Debug)]
pub struct AgentPlan {
    /// The agent.
    pub agent: Agent,
    /// What sets it up.
    pub steps: Vec<Step>,
}

/// What a group comes to.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What all agents need.
    pub shared: Vec<Step>,
    /// Each agent.
    pub agents: Vec<AgentPlan>,
}

/// Makes plans for a host.
pub(crate) struct Planner<'a> {
    settings: &'a Settings,
    way: Way,
    processors: Vec<usize>,
    hierarchies: Hierarchies,
    program: &'a Path,
}

/// The names that interfaces of a group have on the host.
struct Names<'a>(&'a str);

impl Names<'_> {
    fn agent(&self, number: u32) -> String {
        format!("{}-{number}", self.0)
    }

    fn bridge(&self) -> String {
        format!("{}-br", self.0)
    }

    fn vlan(&self) -> String {
        format!("{}-vlan", self.0)
    }
}

impl<'a> Planner<'a> {
    /// Looks at the host, for these agents. `known`: what their group has of virtual functions.
    /// `program` is ours.
    pub(crate) fn new(
        host: &dyn Host,
        settings: &'a Settings,
        agents: &[u32],
        known: &Known,
        program: &'a Path,
    ) -> Result<Planner<'a>, Failure> {
        let way = cards::choose(host, settings, agents, known)?;
        if settings.vlan.is_some() && matches!(way, Way::Veth { .. }) {
            return Err(Failure::usage(
                "cannot put agents into a virtual network",
                "they have wires to a bridge",
                "leave vlan out, or name a card with uplink",
            ));
        }
        if settings.kind == AgentKind::Vm && !matches!(way, Way::Veth { .. }) {
            return Err(Failure::usage(
                "cannot give virtual machines a card's functions or addresses",
                "their cards are joined to a bridge",
                "leave uplink out, or name a bridge with it that has the card",
            ));
        }
        let processors = if settings.processors == 0 { Vec::new() } else { cards::processors(host, settings)? };
        Ok(Planner { settings, way, processors, hierarchies: Hierarchies::of(host), program })
    }

    /// What these agents need, and what all do.
    pub(crate) fn plan(&self, host: &dyn Host, numbers: &[u32]) -> Result<Plan, Failure> {
        let mut shared = self.shared(numbers.iter().max().copied().unwrap_or(0));
        let mut agents = Vec::new();
        for (at, number) in numbers.iter().enumerate() {
            let function = match &self.way {
                Way::Sriov { free: Some(free), .. } => free.get(at).copied().unwrap_or(number - 1),
                _ => number - 1,
            };
            let (plan, of_groups) = self.agent(host, *number, function)?;
            shared.extend(of_groups.into_iter().filter(|step| !shared.contains(step)).collect::<Vec<_>>());
            agents.push(plan);
        }
        Ok(Plan { shared, agents })
    }

    fn shared(&self, agents: u32) -> Vec<Step> {
        let names = Names(&self.settings.name);
        let make = |name: String, rest: &str| Step::Make {
            thing: Thing::Link(Place::here(&name)),
            command: words(&format!("ip link add {rest}")),
            undo: words(&format!("ip link del {name}")),
        };
        match &self.way {
            Way::Sriov { card, free: None } => {
                let path = cards::functions_file(card);
                vec![Step::Write { path, text: agents.to_string(), back: Some("0".into()) }]
            }
            Way::Macvlan { card } => self.settings.vlan.map_or_else(Vec::new, |vlan| {
                let name = names.vlan();
                let up = Step::set(&format!("ip link set {name} up"));
                vec![make(name.clone(), &format!("link {card} name {name} type vlan id {vlan}")), up]
            }),
            Way::Veth { bridge: None } => {
                let name = names.bridge();
                let mut steps = vec![make(name.clone(), &format!("name {name} type bridge"))];
                let address = self.settings.host_address();
                steps.extend(address.map(|address| {
                    Step::set(&format!("ip addr add {address}/{} dev {name}", self.settings.address.prefix_len()))
                }));
                steps.push(Step::set(&format!("ip link set {name} up")));
                steps
            }
            Way::Sriov { .. } | Way::Veth { .. } => Vec::new(),
        }
    }

    /// `function`: the virtual function that it gets, where it gets one.
    fn agent(&self, host: &dyn Host, number: u32, function: u32) -> Result<(AgentPlan, Vec<Step>), Failure> {
        let namespace = Names(&self.settings.name).agent(number);
        let address = self.settings.address_of(number)?;
        let processors = self.processors_of(number);
        let folder = folder(&self.settings.name).join(number.to_string());
        let agent = Agent {
            number,
            kind: self.settings.kind,
            namespace: namespace.clone(),
            address,
            interface: match &self.way {
                Way::Sriov { card, .. } => format!("function {function} of {card}"),
                Way::Macvlan { card } => format!("macvlan of {card}"),
                Way::Veth { bridge } => {
                    format!("veth of {}", bridge.clone().unwrap_or_else(|| Names(&self.settings.name).bridge()))
                }
            },
            processors: processors.clone(),
            log: folder.join("log"),
        };
        let mut steps = vec![
            Step::Folder { path: folder.clone() },
            Step::Make {
                thing: Thing::Namespace(namespace.clone()),
                command: words(&format!("ip netns add {namespace}")),
                undo: words(&format!("ip netns del {namespace}")),
            },
            Step::set(&format!("ip -n {namespace} link set lo up")),
        ];
        steps.extend(self.interface(&agent, function)?);
        match self.settings.kind {
            AgentKind::Vm => steps.extend(machine::bridge(&namespace)),
            _ => steps.extend(self.reach(&agent)),
        }
        let group = format!("aqueduct-{namespace}");
        let groups = self.hierarchies.groups(host, self.settings, &group, &processors)?;
        steps.extend(groups.own);
        let (files, work) = work(host, self.settings, self.program, &agent, self.hierarchies.mixed())?;
        steps.extend(files);
        let entry = Entry {
            namespace: Some(namespace),
            groups: groups.folders,
            processors: Some(processors).filter(|list| !list.is_empty()),
        };
        let mut command = vec![self.program.display().to_string(), "agents".into(), "enter".into()];
        command.extend(entry.arguments());
        command.push("--".into());
        command.extend(work);
        steps.push(Step::Start { command, log: agent.log.clone(), process: None });
        Ok((AgentPlan { agent, steps }, groups.shared))
    }

    /// The processors of an agent: its own, as long as there are any.
    fn processors_of(&self, number: u32) -> String {
        let each = self.settings.processors as usize;
        let first = (number as usize - 1) * each;
        let count = self.processors.len();
        let mut own: Vec<usize> = (first..first + each.min(count)).map(|at| self.processors[at % count]).collect();
        own.sort_unstable();
        own.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }

    /// What gives an agent its interface, `wire` in its namespace.
    fn interface(&self, agent: &Agent, function: u32) -> Result<Vec<Step>, Failure> {
        let Agent { namespace, .. } = agent;
        let shape = |before: &str, device: &str| {
            let bucket = |rate| format!("root tbf rate {rate} burst {BURST} latency {QUEUE}");
            self.settings
                .rate
                .as_ref()
                .map(|rate| Step::set(&format!("{before} qdisc add dev {device} {}", bucket(rate))))
        };
        let within = format!("tc -n {namespace}");
        Ok(match &self.way {
            Way::Sriov { card, .. } => vec![Step::Function(Function {
                card: card.clone(),
                index: function,
                namespace: namespace.clone(),
                address: mac(agent.address),
                vlan: self.settings.vlan.unwrap_or(0),
                rate: self.settings.rate_bits()?.map_or(0, |bits| (bits / 1_000_000).max(1)),
                called: None,
            })],
            Way::Macvlan { card } => {
                let parent = self.settings.vlan.map_or_else(|| card.clone(), |_| Names(&self.settings.name).vlan());
                let made = Step::Make {
                    thing: Thing::Link(Place::within(namespace, WIRE)),
                    command: words(&format!(
                        "ip link add link {parent} name {WIRE} netns {namespace} type macvlan mode bridge"
                    )),
                    undo: words(&format!("ip -n {namespace} link del {WIRE}")),
                };
                [Some(made), shape(&within, WIRE)].into_iter().flatten().collect()
            }
            Way::Veth { bridge } => {
                let bridge = bridge.clone().unwrap_or_else(|| Names(&self.settings.name).bridge());
                let made = Step::Make {
                    thing: Thing::Link(Place::here(namespace)),
                    command: words(&format!("ip link add {namespace} type veth peer name {WIRE} netns {namespace}")),
                    undo: words(&format!("ip link del {namespace}")),
                };
                let joined = Step::set(&format!("ip link set {namespace} master {bridge} up"));
                [Some(made), Some(joined), shape("tc", namespace), shape(&within, WIRE)].into_iter().flatten().collect()
            }
        })
    }

    /// What gives an interface its address and ways.
    fn reach(&self, agent: &Agent) -> Vec<Step> {
        let Agent { namespace, address, .. } = agent;
        let prefix = self.settings.address.prefix_len();
        let network = self.settings.address.trunc();
        let ip = format!("ip -n {namespace}");
        let congestion = self.settings.congestion.as_ref().map_or_else(String::new, |name| format!(" congctl {name}"));
        // The kernel probes an IPv6 address for a second before it uses it, unless told not to.
        let at_once = if address.is_ipv6() { " nodad" } else { "" };
        let mut steps = vec![
            Step::set(&format!("{ip} addr add {address}/{prefix} dev {WIRE}{at_once} noprefixroute")),
            Step::set(&format!("{ip} link set {WIRE} up")),
            Step::set(&format!("{ip} route add {network} dev {WIRE} src {address}{congestion}")),
        ];
        let gateway = self.settings.gateway;
        steps.extend(gateway.map(|gateway| Step::set(&format!("{ip} route add default via {gateway}{congestion}"))));
        steps
    }
}
