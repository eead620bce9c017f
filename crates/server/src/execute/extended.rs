//! What stands before the bodies of requests and replies: jobs, rights, and how long a request was
//! queued.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aqueduct_fs::{Context, Errno};
use aqueduct_metrics::trace::{Hop, HopTime, SlowOperation};
use aqueduct_net::{Connection, Frame};
use aqueduct_wire::{Caller, Extensions, Flags, Header, Map, Op};

use super::Job;
use super::job::Asked;
use crate::attached::Attached;
use crate::config::Role;
use crate::links::Asker;
use crate::session::Session;
use crate::state::Server;
use crate::timing::Timing;

fn hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// Takes the extensions off a request's body, and notes of its session which job it works for.
pub(crate) fn take(
    server: &Server,
    session: &Session,
    connection: &Connection,
    frame: &mut Frame,
) -> Result<Asked, Errno> {
    if !frame.header.flags.contains(Flags::EXTENDED) {
        let timing = Timing::of(server, connection, frame, false);
        return Ok(Asked { timing, job: None, right: None, ordinal: None, staged: None, trace: None });
    }
    let (extensions, rest) = Extensions::take(&frame.body).map_err(|error| error.errno())?;
    let timing = Timing::of(server, connection, frame, extensions.asks_queue_time);
    let is_write = frame.header.op == Op::Write as u16;
    let takes_rights = is_write && matches!(server.config.role, Role::Data(_));
    // Repeated where the names are.
    let is_repeat = is_write && frame.header.flags.contains(Flags::HELD);
    if extensions.right.is_some() && !takes_rights || extensions.ordinal.is_some() && !takes_rights && !is_repeat {
        return Err(Errno::EOPNOTSUPP); // to answer without a look at it would be as if it were good
    }
    if extensions.staged.is_some() && (!is_write || frame.header.sequence == 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    let length = frame.body.len() - rest.len();
    frame.body.drain(..length);
    let job = extensions.job.map(|job| session.jobs.note(&job, &server.metrics.jobs));
    let Extensions { right, ordinal, staged, trace, .. } = extensions;
    Ok(Asked { timing, job, right, ordinal, staged, trace })
}

impl Job {
    /// What a reply says before anything else; empty: nothing.
    pub(super) fn prefix(&self, header: &mut Header) -> Vec<u8> {
        self.timing().prefix(header)
    }

    /// How long it takes.
    pub(super) fn timing(&self) -> Timing {
        let lease = Duration::from_nanos(self.waited.load(Ordering::Relaxed));
        Timing { lease, ..self.asked.timing }
    }

    /// Who asks for it.
    pub(super) fn asker(&self) -> Asker {
        let (link, request) = (self.running.link().clone(), self.header.request);
        Asker { link, request, queue_time: self.asked.timing.queue_time() }
    }

    /// As whom it is executed, and for whom.
    pub(super) fn context(&self, attached: &Attached, caller: Caller) -> Context {
        let job = self.asked.job.as_ref().map(|job| job.name.clone());
        Context { job, ..attached.context(self.session.client(), caller) }
    }

    /// One more request, with the bytes that were read and written.
    pub(super) fn count(&self, bytes_read: usize, bytes_written: usize) {
        self.session.counters.count(bytes_read, bytes_written);
        self.bytes.fetch_add((bytes_read + bytes_written) as u64, Ordering::Relaxed);
        if let Some(job) = &self.asked.job {
            job.traffic.count(bytes_read as u64, bytes_written as u64);
        }
    }

    /// It was answered after so long under way: whoever wants to know is told.
    pub(super) fn trace(&self, under_way: Duration) {
        if matches!(self.op, Op::Transfer | Op::Beat | Op::Status) {
            return; // which wait for whoever asks, or tell of this
        }
        let timing = self.timing();
        let took = timing.queued + under_way;
        self.server.tracer.ended(took, || self.slow_operation(&timing, took));
    }

    fn slow_operation(&self, timing: &Timing, took: Duration) -> SlowOperation {
        let us = |time: Duration| time.as_micros() as u64;
        let (queue, lease) = (us(timing.queued), us(timing.lease));
        let file_system = us(took).saturating_sub(queue + lease);
        let hops = [(Hop::ServerQueue, queue), (Hop::LeaseWait, lease), (Hop::FileSystem, file_system)];
        let hop = |(hop, us)| HopTime { hop, us, server: None, detail: None };
        let (bytes, errno) = (self.bytes.load(Ordering::Relaxed), self.status.load(Ordering::Relaxed));
        let began = SystemTime::now().checked_sub(took).and_then(|began| began.duration_since(UNIX_EPOCH).ok());
        SlowOperation {
            at_us: began.map_or(0, us),
            took_us: us(took),
            operation: self.op.name().to_owned(),
            bytes: (bytes > 0).then_some(bytes),
            job: self.asked.job.as_ref().map(|job| job.name.to_string()),
            client: Some(self.session.name.clone()),
            export: self.session.attached.get().map(|attached| attached.export.name.clone()),
            errno: (errno > 0).then_some(errno),
            trace: self.asked.trace.map(hex),
            hops: hops.into_iter().filter(|(_, us)| *us > 0).map(hop).collect(),
            ..SlowOperation::default()
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
        match self.server.map() {
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
