//! What stands before the bodies of requests and replies: jobs, rights, and how long a request was
//! queued.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::{Context, Errno};
use aqueduct_net::{Connection, Frame};
use aqueduct_wire::{Caller, Extensions, Flags, Header, Map, Op};

use super::Job;
use crate::access::Attached;
use crate::jobs::JobTraffic;
use crate::links::{self, Asker};
use crate::server::{Role, Server};
use crate::session::Session;

/// What of a request's extensions is needed until its end.
#[derive(Default)]
pub(crate) struct Asked {
    /// Microseconds that its frame was queued, if its reply is to say so.
    pub(crate) queue_time: Option<u32>,
    /// The job for which it is made.
    pub(crate) job: Option<Arc<JobTraffic>>,
    /// The token of the right under which it is made.
    pub(crate) right: Option<Box<[u8]>>,
}

/// Takes the extensions off a request's body, and notes of its session which job it works for.
pub(crate) fn take(
    server: &Server,
    session: &Session,
    connection: &Connection,
    frame: &mut Frame,
) -> Result<Asked, Errno> {
    if !frame.header.flags.contains(Flags::EXTENDED) {
        return Ok(Asked::default());
    }
    let (extensions, rest) = Extensions::take(&frame.body).map_err(|error| error.errno())?;
    let takes_rights = matches!(server.config.role, Role::Data(_)) && frame.header.op == Op::Write as u16;
    if extensions.right.is_some() && !takes_rights {
        return Err(Errno::EOPNOTSUPP); // to answer without a look at it would be as if it were good
    }
    let length = frame.body.len() - rest.len();
    frame.body.drain(..length);
    let job = extensions.job.map(|job| session.jobs.note(&job, &server.metrics.jobs));
    // While all threads are at work it waits in the kernel, and after that for those before it.
    let queued = || {
        let read = frame.came().map_or(Duration::ZERO, |came| came.elapsed());
        read.max(connection.data_age()).as_micros().try_into().unwrap_or(u32::MAX)
    };
    Ok(Asked { queue_time: extensions.asks_queue_time.then(queued), job, right: extensions.right })
}

impl Job {
    /// What a reply says before anything else; empty: nothing.
    pub(super) fn prefix(&self, header: &mut Header) -> Vec<u8> {
        links::prefix(self.asked.queue_time, header)
    }

    /// Who asks for it.
    pub(super) fn asker(&self) -> Asker {
        let (link, request) = (self.running.link().clone(), self.header.request);
        Asker { link, request, queue_time: self.asked.queue_time }
    }

    /// As whom it is executed, and for whom.
    pub(super) fn context(&self, attached: &Attached, caller: Caller) -> Context {
        let job = self.asked.job.as_ref().map(|job| job.name.clone());
        Context { job, ..attached.context(self.session.client(), caller) }
    }

    /// One more request, with the bytes that were read and written.
    pub(super) fn count(&self, bytes_read: usize, bytes_written: usize) {
        self.session.counters.count(bytes_read, bytes_written);
        if let Some(job) = &self.asked.job {
            job.traffic.count(bytes_read as u64, bytes_written as u64);
        }
    }

    /// For the log: which job asked, if it is known.
    pub(super) fn job_told(&self) -> String {
        self.asked.job.as_ref().map_or_else(String::new, |job| format!(" (job {})", job.name))
    }

    /// The map of the server's volume; one that stands alone is a volume of its own.
    pub(super) fn map(&self, body: &[u8]) -> Result<(), Errno> {
        if !body.is_empty() {
            return Err(Errno::EPROTO);
        }
        let mut body = Vec::new();
        match &self.server.config.map {
            Some(map) => map.encode(&mut body),
            None => {
                let addresses = self.server.addresses().into_iter().filter(|address| !address.ip().is_unspecified());
                let names = addresses.map(|address| address.to_string()).collect();
                Map { names, ..Map::default() }.encode(&mut body);
            }
        }
        self.reply(aqueduct_wire::Kind::Reply, Ok(()), &body);
        Ok(())
    }
}
