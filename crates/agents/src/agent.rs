//! An agent, and where what is known of it is kept.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::settings::AgentKind;

/// Where groups keep what they know.
pub const RUN: &str = "/run/aqueduct/agents";

/// An agent, as it is to be or is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// Its number, from 1.
    pub number: u32,
    /// What it is.
    pub kind: AgentKind,
    /// Its network namespace.
    pub namespace: String,
    /// Its address.
    pub address: IpAddr,
    /// How it has its interface.
    pub interface: String,
    /// Its processors as the kernel lists them; empty: all.
    pub processors: String,
    /// Where its output goes.
    pub log: PathBuf,
}

/// The folder of a group.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(RUN).join(name)
}

/// The address of an agent's packets: of those that everybody may choose, and the same each time.
pub(crate) fn mac(address: IpAddr) -> String {
    let octets = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => address.octets()[12..].try_into().expect("four of sixteen"),
    };
    let [a, b, c, d] = octets;
    format!("02:71:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}
