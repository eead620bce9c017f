//! How agents fare.

use aqueduct_node::Failure;
use serde::Serialize;

use crate::agent::Agent;
use crate::cards::{Place, WIRE};
use crate::host::Host;
use crate::journal::Journal;

/// How an agent fares.
#[derive(Clone, Debug, Serialize)]
pub struct AgentStatus {
    /// The agent.
    #[serde(flatten)]
    pub agent: Agent,
    /// Its process, if it was started.
    pub pid: Option<u32>,
    /// It runs.
    pub alive: bool,
    /// Bytes that its interface has received, since it was set up.
    pub received_bytes: u64,
    /// Bytes that its interface has sent.
    pub sent_bytes: u64,
}

/// All agents of a group. `None`: there is no such group.
pub fn status(host: &dyn Host, name: &str) -> Result<Option<Vec<AgentStatus>>, Failure> {
    let Some(journal) = Journal::read(host, name)? else { return Ok(None) };
    let of = |agent: &Agent| {
        let process = journal.process(agent.number);
        let told = Place::within(&agent.namespace, WIRE).told(host);
        let bytes = |way: &str| told.as_ref().and_then(|told| told["stats64"][way]["bytes"].as_u64()).unwrap_or(0);
        AgentStatus {
            agent: agent.clone(),
            pid: process.map(|process| process.pid),
            alive: process.is_some_and(|process| process.is_alive(host)),
            received_bytes: bytes("rx"),
            sent_bytes: bytes("tx"),
        }
    };
    Ok(Some(journal.agents.iter().map(of).collect()))
}
