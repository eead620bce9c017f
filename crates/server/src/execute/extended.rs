//! What stands before the bodies of requests and replies: jobs, rights, and how long a request was
//! queued.

use aqueduct_fs::Errno;
use aqueduct_net::Frame;
use aqueduct_wire::{Extensions, Flags, Header, Map, Op};

use super::Job;
use crate::links::{self, Asker};
use crate::server::Role;
use crate::session::Session;

/// What of a request's extensions is needed until its end.
#[derive(Default)]
pub(crate) struct Asked {
    /// Microseconds that its frame was queued, if its reply is to say so.
    pub(crate) queue_time: Option<u32>,
    job: Option<Box<str>>,
    /// The token of the right under which it is made.
    pub(crate) right: Option<Box<[u8]>>,
}

/// Takes the extensions off a request's body, and notes of its session which job it works for.
pub(crate) fn take(session: &Session, role: &Role, frame: &mut Frame) -> Result<Asked, Errno> {
    if !frame.header.flags.contains(Flags::EXTENDED) {
        return Ok(Asked::default());
    }
    let (extensions, rest) = Extensions::take(&frame.body).map_err(|error| error.errno())?;
    let takes_rights = matches!(role, Role::Data(_)) && frame.header.op == Op::Write as u16;
    if extensions.right.is_some() && !takes_rights {
        return Err(Errno::EOPNOTSUPP); // to answer without a look at it would be as if it were good
    }
    let length = frame.body.len() - rest.len();
    frame.body.drain(..length);
    if let Some(job) = &extensions.job {
        session.note_job(job);
    }
    let queued = || frame.came().map_or(0, |came| came.elapsed().as_micros().try_into().unwrap_or(u32::MAX));
    Ok(Asked { queue_time: extensions.asks_queue_time.then(queued), job: extensions.job, right: extensions.right })
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

    /// For the log: which job asked, if it is known.
    pub(super) fn job_told(&self) -> String {
        self.asked.job.as_ref().map_or_else(String::new, |job| format!(" (job {job})"))
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
