//! What this host has for mounts and servers, what each thing gives, and what to do about what is
//! missing: `aqueduct doctor`.
//!
//! [`Facts`] are gathered once, from the kernel itself where it can be asked: versions do not
//! tell, since distributions carry features back. [`examine`] judges them, and touches nothing.

mod facts;

use aqueduct_fuse::{Feature, Offer};
use serde::Serialize;

pub use facts::{Facts, Limits};

/// Requests of the kernel have up to so many pages when they carry 1 MiB, the most that is used.
const PAGES_MAX: u64 = 256;

/// With so many descriptors each of a server's first exports has all the open files that it may.
const DESCRIPTORS: u64 = 131_072;

/// Below this, in bytes, one connection cannot fill a wire: 10 Gbit/s with 3 ms there and back.
const SOCKET_BUFFER: u64 = 4 << 20;

/// So many clients may come at once, as when a job begins.
const CONNECTING: u64 = 1024;

/// How a host fares in one matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Good,
    /// It works, but slower or with less than it could.
    Less,
    /// Something does not work without it.
    Missing,
    /// It could not be found out.
    Unknown,
}

/// One matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// How the host fares.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What it is for.
    pub gives: &'static str,
    /// What to do, where something is to be done.
    #[serde(rename = "do")]
    pub advice: Option<String>,
}

impl Finding {
    fn new(what: &'static str, gives: &'static str, found: impl Into<String>) -> Finding {
        Finding { what, state: State::Good, found: found.into(), gives, advice: None }
    }

    /// In this state unless it `is_good`, with what to do then.
    fn unless(self, is_good: bool, state: State, advice: impl Into<String>) -> Finding {
        if is_good { self } else { Finding { state, advice: Some(advice.into()), ..self } }
    }
}

/// Judges a host.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![device(facts)];
    match &facts.offer {
        Ok(offer) => findings.extend(kernel(facts, offer)),
        Err(error) => findings.push(Finding::new("FUSE of the kernel", "what mounts can do here", "not asked").unless(
            false,
            State::Unknown,
            format!("it could not be asked: {error}"),
        )),
    }
    findings.extend(pages(facts));
    findings.extend([helper(facts), others(facts), descriptors(&facts.limits)]);
    findings.extend(network(facts));
    findings
}

fn device(facts: &Facts) -> Finding {
    let finding = Finding::new("/dev/fuse", "mounts", if facts.device.is_none() { "can be opened" } else { "refused" });
    let error = facts.device.as_deref().unwrap_or_default();
    let advice =
        format!("load the module (modprobe fuse) or let this user open it; in a container give it /dev/fuse: {error}");
    finding.unless(facts.device.is_none(), State::Missing, advice)
}

/// What the kernel's FUSE can do.
fn kernel(facts: &Facts, offer: &Offer) -> Vec<Finding> {
    let yes = |feature| if offer.has(feature) { "yes" } else { "no" };
    let named = |what, feature, gives, state, advice: &str| {
        Finding::new(what, gives, yes(feature)).unless(offer.has(feature), state, advice)
    };
    let version = format!("Linux {}, protocol 7.{}", facts.release, offer.minor);
    vec![
        Finding::new("FUSE of the kernel", "what mounts can do here", version),
        named(
            "requests of 1 MiB",
            Feature::LargeRequests,
            "fewer requests for large reads and writes",
            State::Less,
            "128 KiB each are used: a kernel from 4.20 on has them",
        ),
        named(
            "kept attributes",
            Feature::Attributes,
            "stat without asking the process of the mount",
            State::Less,
            "the mount answers each stat itself: a kernel from 5.10 on can keep them",
        ),
        named(
            "shared mappings beside direct I/O",
            Feature::SharedMappings,
            "files open for writing can be mapped shared, and pass the page cache otherwise",
            State::Less,
            "what is open for reading is cached instead, and files opened with O_RDWR|O_APPEND cannot be mapped \
             shared: a kernel from 6.6 on can do both",
        ),
        named(
            "quiet closes",
            Feature::QuietCloses,
            "closing a file that was only read is no request",
            State::Less,
            "each close is told to the mount: a kernel from 5.16 on can leave that out",
        ),
        named(
            "files without a name",
            Feature::UnnamedFiles,
            "O_TMPFILE",
            State::Less,
            "O_TMPFILE gives EOPNOTSUPP, and programs make files with names instead: a kernel from 6.1 on has it",
        ),
        named(
            "kept names",
            Feature::Names,
            "paths are walked without a request: find, git and make as fast as locally",
            State::Less,
            "the mount answers lookups itself, but for directories that are asked for often (5.10 on), which it keeps for \
             a quarter of a second: a kernel from 6.16 on can keep all names",
        ),
        rings(facts, offer),
    ]
}

fn rings(facts: &Facts, offer: &Offer) -> Finding {
    let found = match (offer.has(Feature::Rings), facts.enable_uring.as_deref()) {
        (true, _) => "yes",
        (false, Some(_)) => "the kernel has them, switched off",
        (false, None) => "no",
    };
    let advice = match facts.enable_uring {
        Some(_) => {
            "echo Y > /sys/module/fuse/parameters/enable_uring, and 'options fuse enable_uring=1' in \
             /etc/modprobe.d/fuse.conf for the next boot; then mount again"
        }
        None => "requests come by /dev/fuse: a kernel from 6.14 on has rings",
    };
    Finding::new("requests by io_uring", "small requests with half of the system calls", found).unless(
        offer.has(Feature::Rings),
        State::Less,
        advice,
    )
}

fn pages(facts: &Facts) -> Option<Finding> {
    let limit = facts.max_pages_limit?;
    let finding = Finding::new("fs.fuse.max_pages_limit", "requests of 1 MiB", format!("{limit} pages"));
    let advice = format!("sysctl fs.fuse.max_pages_limit={PAGES_MAX}, and in /etc/sysctl.d for the next boot");
    Some(finding.unless(limit >= PAGES_MAX, State::Less, advice))
}

fn helper(facts: &Facts) -> Finding {
    let found = facts.helper.as_ref().map_or("not there".into(), |path| path.display().to_string());
    Finding::new("fusermount3", "plain users can mount", found).unless(
        facts.helper.is_some(),
        State::Less,
        "only root can mount: install the package fuse3",
    )
}

fn others(facts: &Facts) -> Finding {
    let found = if facts.user_allow_other { "set" } else { "not set" };
    Finding::new("user_allow_other", "plain users can let others into their mounts", found).unless(
        facts.user_allow_other,
        State::Less,
        "if they are to: a line user_allow_other in /etc/fuse.conf (mounts of root need it not)",
    )
}

fn descriptors(limits: &Limits) -> Finding {
    let found = limits.descriptors.map_or("no limit".to_owned(), |limit| limit.to_string());
    let is_good = limits.descriptors.is_none_or(|limit| limit >= DESCRIPTORS);
    let advice = format!(
        "a server shares them among its exports: LimitNOFILE={DESCRIPTORS} of the service, or a hard limit in \
         /etc/security/limits.d"
    );
    Finding::new("descriptors of a process", "files open at a server at once", found).unless(
        is_good,
        State::Less,
        advice,
    )
}

fn network(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(control) = &facts.congestion_control {
        let finding = Finding::new("congestion control", "the speed of TCP", control.clone());
        // Measured on loopback: a third to a fifth of cubic's rate. There cubic is set anyway.
        let advice = "it paces each connection, which costs processor time on fast wires: try \
                      'ip route change ... congctl cubic' for the storage network, and compare with aqueduct net bw";
        findings.push(finding.unless(control != "bbr", State::Less, advice));
    }
    let buffers = [("net.ipv4.tcp_rmem", facts.limits.receive), ("net.ipv4.tcp_wmem", facts.limits.send)];
    for (name, most) in buffers {
        let Some(most) = most else { continue };
        let finding = Finding::new(name, "what one connection has under way", format!("{most} bytes at most"));
        let advice = format!("raise the third number of {name} to {SOCKET_BUFFER} or more, in /etc/sysctl.d");
        findings.push(finding.unless(most >= SOCKET_BUFFER, State::Less, advice));
    }
    if let Some(most) = facts.limits.connecting {
        let finding = Finding::new("net.core.somaxconn", "clients that come to a server at once", most.to_string());
        let advice = format!("sysctl net.core.somaxconn={CONNECTING}, if this host is to serve many clients");
        findings.push(finding.unless(most >= CONNECTING, State::Less, advice));
    }
    findings
}
