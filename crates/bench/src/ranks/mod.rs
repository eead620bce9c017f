//! The processes of one measurement: on one host or many, and what they tell each other.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why ranks could not work together.
#[derive(Debug, thiserror::Error)]
pub enum TeamError {
    /// A rank has ended, or cannot be reached.
    #[error("rank {rank} on {host}: {reason}")]
    Lost {
        /// Which.
        rank: usize,
        /// Its host.
        host: String,
        /// Why.
        reason: String,
    },
    /// What was received makes no sense.
    #[error("{0}")]
    Protocol(String),
}

/// One rank's view of all ranks. Every rank calls the same collective functions in the same order, as under MPI.
#[derive(Debug)]
pub struct Team {}

impl Team {
    /// A team of one: no processes, no sockets.
    pub fn alone() -> Team {
        Team {}
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        0
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        1
    }

    /// The host of each rank, by rank.
    pub fn hosts(&self) -> Vec<String> {
        vec![String::new()]
    }

    /// Waits until all ranks are here.
    pub fn barrier(&mut self) -> Result<(), TeamError> {
        Ok(())
    }

    /// What each rank says, by rank: at rank 0; `None` elsewhere.
    pub fn gather<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<Option<Vec<T>>, TeamError> {
        Ok(Some(vec![own]))
    }

    /// What rank 0 says; the others' own is ignored.
    pub fn broadcast<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<T, TeamError> {
        Ok(own)
    }

    /// What each rank says, by rank, for all.
    pub fn gather_for_all<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<Vec<T>, TeamError> {
        let all = self.gather(own)?;
        self.broadcast(all.unwrap_or_default())
    }

    /// Whether any rank says so, asked often and without waiting for the others (stonewalling): what has been heard so far. At rank 0 of one, what was said.
    pub fn any_said(&mut self) -> bool {
        false
    }
}
