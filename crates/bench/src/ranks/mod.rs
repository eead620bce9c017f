//! The processes of one measurement: on one host or many, and what they tell each other.
//!
//! A measurement has N ranks, each a process of the same program with the same arguments. They come to be in one of these ways:
//!
//! - This process is one of those that a launcher has started (mpiexec of MPICH or Open MPI, srun): [`Options::rendezvous`] where they cannot find each other.
//! - It starts the others as its children ([`Options::ranks`]), or by ssh ([`Options::hosts`]), and is rank 0 itself.
//! - It starts all, rank 0 too, and only waits: where the first host is another, or each rank has a command line of its own ([`Options::launch`]).
//! - There is one rank: no processes, no sockets.
//!
//! Each rank has a connection to rank 0. It begins with the handshake of Aqueduct's protocol, by which both ends prove to have the measurement's secret, and goes on with
//! frames of which each has its tag. It is no `net::Connection` of a worker group: a rank waits for what it needs and for nothing else, so that no thread
//! of ours runs beside what is measured; and signals have to end the wait.
//!
//! **What a barrier costs**: on one host with 2 cores (loopback, Linux 6.18, release) 18 to 55 us for 2 ranks, about 70 us for 4 and 200 to 250 us for 16. Between hosts it
//! is a round trip and what rank 0 needs for each rank in turn, so the last rank leaves it that much later than the first. The test
//! `what_a_barrier_costs_can_be_seen` prints it for this host.

mod address;
mod channel;
mod found;
mod launch;
mod meet;
mod options;
mod pmi;
mod signals;
mod slurm;
mod star;
mod sys;

use std::process::ExitCode;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use options::{Options, RANKS_MAX};

use crate::Failure;
use launch::Children;
use star::Star;

/// The addresses of this host, in this process's network namespace: those first that others are likely to reach.
pub fn own_addresses() -> Vec<std::net::IpAddr> {
    address::own()
}

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

impl From<TeamError> for Failure {
    fn from(error: TeamError) -> Failure {
        match error {
            TeamError::Lost { rank, host, reason } => Failure::new(
                format!("rank {rank} on {host} does not take part any more, and the measurement ends"),
                reason,
                format!(
                    "see rank {rank}'s own message above, and the log of {host}'s kernel: was it killed, or short of memory?"
                ),
            ),
            TeamError::Protocol(why) => Failure::new(
                "the ranks do not understand each other, and the measurement ends",
                why,
                "start the same program with the same arguments on all hosts",
            ),
        }
    }
}

/// One rank's view of all ranks. Every rank calls the same collective functions in the same order, as under MPI.
///
/// What is told travels as JSON, which has no infinities.
#[derive(Debug)]
pub struct Team {
    rank: usize,
    hosts: Vec<String>,
    /// None: the only one.
    star: Option<Star>,
    /// What is added to this host's clock.
    offset: f64,
    said: bool,
    ended: bool,
    /// Waited for when the connections are gone.
    children: Children,
}

impl Team {
    /// A team of one: no processes, no sockets.
    pub fn alone() -> Team {
        let hosts = vec![address::host_name()];
        Team { rank: 0, hosts, star: None, offset: 0.0, said: false, ended: false, children: Children::default() }
    }

    /// All ranks of this measurement, started if nobody has done that yet. From now on the first Ctrl-C or SIGTERM only is told to who asks
    /// [`interrupted`](Team::interrupted) or [`goes_on`](Team::goes_on), at all ranks.
    ///
    /// In a process that only starts ranks this does not return: it ends with rank 0's exit code. So does one that a launcher has started in vain, with 0.
    pub fn start(options: &Options) -> Result<Team, Failure> {
        signals::watch();
        let (star, rank, size, children) = if let Some(assignment) = launch::assignment()? {
            let (star, rank, size) = launch::take_part(assignment)?;
            (star, rank, size, Children::default())
        } else if let Some((star, rank, size)) = found::take_part(options)? {
            (star, rank, size, Children::default())
        } else if let Some((star, size, children)) = launch::start(options)? {
            (star, 0, size, children)
        } else {
            return Ok(Team::alone());
        };
        let mut team = Team::alone();
        (team.rank, team.star, team.children) = (rank, Some(star), children);
        match team.begin(size) {
            Ok(()) => Ok(team),
            // Somebody else has failed already, which rank 0 reports.
            Err(_) if team.star.as_ref().is_some_and(Star::is_lost_elsewhere) => std::process::exit(1),
            Err(error) => Err(team.star.as_ref().and_then(Star::failure).unwrap_or_else(|| error.into())),
        }
    }

    fn begin(&mut self, size: usize) -> Result<(), TeamError> {
        if let Some(star) = &mut self.star {
            self.hosts = star.meet_all(size, address::host_name())?;
            self.offset = star.clock_offset(size, monotonic)?;
        }
        Ok(())
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.hosts.len()
    }

    /// The host of each rank, by rank.
    pub fn hosts(&self) -> Vec<String> {
        self.hosts.clone()
    }

    /// How many ranks are on rank 0's host, which is what IOR calls tasks per node.
    pub fn tasks_per_node(&self) -> usize {
        self.hosts.iter().filter(|host| **host == self.hosts[0]).count()
    }

    /// On how many hosts the ranks are.
    pub fn nodes(&self) -> usize {
        let mut hosts: Vec<_> = self.hosts.iter().collect();
        hosts.sort();
        hosts.dedup();
        hosts.len()
    }

    /// Seconds on a clock that all ranks share, as well as their distance allows: on one host exactly; between hosts rank 0's, to about half of the round trip, as
    /// measured when they met.
    pub fn time(&self) -> f64 {
        monotonic() + self.offset
    }

    /// How many seconds this host's clock (CLOCK_MONOTONIC) is ahead of that of rank 0's host. 0 on
    /// rank 0's host.
    pub fn clock_ahead(&self) -> f64 {
        -self.offset
    }

    /// Waits until all ranks are here.
    pub fn barrier(&mut self) -> Result<(), TeamError> {
        self.said = false;
        self.star.as_mut().map_or(Ok(()), Star::barrier)
    }

    /// What each rank says, by rank: at rank 0; `None` elsewhere.
    pub fn gather<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<Option<Vec<T>>, TeamError> {
        let Some(star) = &mut self.star else { return Ok(Some(vec![own])) };
        let Some(all) = star.gather(encode(&own)?)? else { return Ok(None) };
        all.iter().map(|body| decode(body)).collect::<Result<_, _>>().map(Some)
    }

    /// What rank 0 says; the others' own is ignored.
    pub fn broadcast<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<T, TeamError> {
        let Some(star) = &mut self.star else { return Ok(own) };
        match star.broadcast(|| encode(&own))? {
            Some(body) => decode(&body),
            None => Ok(own),
        }
    }

    /// What each rank says, by rank, for all.
    pub fn gather_for_all<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<Vec<T>, TeamError> {
        let all = self.gather(own)?;
        self.broadcast(all.unwrap_or_default())
    }

    /// Says something to all, which they hear when they ask [`any_said`](Team::any_said): that the time is over, when stonewalling. The next barrier ends it.
    pub fn say(&mut self) {
        self.said = true;
        if let Some(star) = &mut self.star {
            star.say();
        }
    }

    /// Whether any rank has said so since the last barrier, asked often and without waiting for the others (stonewalling): what has been heard so far. The socket is looked
    /// at once in a millisecond; other calls read a clock.
    pub fn any_said(&mut self) -> bool {
        self.star.as_mut().map_or(self.said, Star::any_said)
    }

    /// Whether the user wants it to end, at any rank, or it cannot go on because a rank is lost: asked often, as [`any_said`](Team::any_said). Ranks hear it at
    /// different times, so it says only that this rank may leave its loop; which collective calls follow, [`goes_on`](Team::goes_on) decides.
    pub fn interrupted(&mut self) -> bool {
        match &mut self.star {
            Some(star) => star.interrupted(),
            None => signals::asked(),
        }
    }

    /// Whether there is to be another repetition or phase: the same answer for all ranks, `false` if any was interrupted.
    pub fn goes_on(&mut self) -> Result<bool, TeamError> {
        let interrupted = self.interrupted();
        Ok(!self.gather_for_all(interrupted)?.contains(&true))
    }

    /// Ends the measurement with what this rank has come to; to be called last, by all ranks. At rank 0, what the process ends with: the failure of
    /// whichever rank failed. The others leave it to rank 0 to report.
    pub fn finish(mut self, result: Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
        self.ended = true;
        let Some(star) = &mut self.star else { return result };
        let result = match result {
            Ok(code) => star.end().map(|()| code).map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        let Err(failure) = result else { return result };
        if !failure.is_usage {
            star.listen();
        }
        if star.is_lost_elsewhere() {
            return Ok(ExitCode::FAILURE);
        }
        let was_told = star.fail(self.hosts[self.rank].clone(), &failure);
        match star.failure() {
            _ if self.rank != 0 && was_told => Ok(failure.code()),
            // What makes no sense makes none anywhere: it is this rank's own.
            Some(first) if !failure.is_usage => Err(first),
            _ => Err(failure),
        }
    }
}

/// Who leaves without a word has ended as far as the others are concerned.
impl Drop for Team {
    fn drop(&mut self) {
        if let Some(star) = self.star.as_mut().filter(|_| !self.ended) {
            star.leave();
        }
        self.star = None; // closed before the children are waited for
    }
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, TeamError> {
    serde_json::to_vec(value)
        .map_err(|error| TeamError::Protocol(format!("this cannot be told to other ranks: {error}")))
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, TeamError> {
    serde_json::from_slice(body)
        .map_err(|error| TeamError::Protocol(format!("what another rank says makes no sense: {error}")))
}

/// Seconds since this host has started.
fn monotonic() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
