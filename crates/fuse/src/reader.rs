//! Takes requests from one descriptor of the device and has them answered, on the threads of one worker group.
//!
//! While requests are small only the first reader takes them: every request would wake the others as well, which costs more than they could help (see
//! `aqueduct_worker` for the same of threads). All read while requests are bulk, or more than one takes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use aqueduct_worker::{Group, Readiness, Ready, Registration, Wide, lock};
use bytes::Bytes;

use crate::abi::{BatchForgetIn, Field, ForgetIn, ForgetOne, InHeader, InterruptIn, ReadIn, WriteIn, opcode};
use crate::buffer::{Buffer, HAND_OVER_MIN};
use crate::channel::{Channel, Responder};
use crate::device::{DeviceChannel, Read};
use crate::interrupt::Verdict;
use crate::job::Job;
use crate::releases::Reading;
use crate::serve::serve_now;
use crate::shared::Shared;

/// Requests taken before the group's other work has its turn: what waits in the kernel comes again at once.
const BATCH: usize = 16;

/// Requests that move at most this much are small: one reader does well alone.
const SMALL_MAX: usize = 16 << 10;

/// The readers of a mount, and whether all of them take requests.
#[derive(Default)]
pub(crate) struct Readers {
    others: Mutex<Vec<Weak<Reader>>>,
    /// All take requests.
    wide: Wide,
    /// How many of the others take requests now.
    active: AtomicUsize,
}

impl Readers {
    /// Has all readers take requests for a while.
    fn widen(&self) {
        self.wide.begin();
        let others = lock(&self.others);
        if self.active.load(Ordering::SeqCst) == others.len() {
            return;
        }
        for reader in others.iter().filter_map(Weak::upgrade) {
            if let Err(error) = reader.resume() {
                tracing::debug!(%error, "a reader stays at rest");
            }
        }
    }

    /// Leaves the requests to the first reader. An event may have woken another one only: read until nothing is there after this.
    fn narrow(&self) {
        if self.active.load(Ordering::SeqCst) > 0 {
            lock(&self.others).iter().filter_map(Weak::upgrade).for_each(|reader| reader.rest());
        }
    }
}

/// One descriptor and its registration.
pub(crate) struct Reader {
    /// Never rests.
    first: bool,
    readers: Arc<Readers>,
    shared: Arc<Shared>,
    channel: Arc<DeviceChannel>,
    group: Weak<Group>,
    registration: Mutex<Option<Registration>>,
    stopped: AtomicBool,
}

impl Reader {
    pub(crate) fn start(
        readers: &Arc<Readers>,
        shared: Arc<Shared>,
        channel: Arc<DeviceChannel>,
        group: &Arc<Group>,
        first: bool,
    ) -> io::Result<Arc<Reader>> {
        let reader = Arc::new(Reader {
            first,
            readers: readers.clone(),
            shared,
            channel,
            group: Arc::downgrade(group),
            registration: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        if first {
            reader.resume()?;
        } else {
            lock(&readers.others).push(Arc::downgrade(&reader));
        }
        Ok(reader)
    }

    /// Takes requests, unless it does already or has been stopped.
    fn resume(self: &Arc<Self>) -> io::Result<()> {
        let Some(group) = self.group.upgrade() else { return Ok(()) };
        let mut registration = lock(&self.registration);
        if registration.is_none() && !self.stopped.load(Ordering::SeqCst) {
            *registration = Some(group.register_exclusive(self.channel.fd(), self.clone())?);
            self.readers.active.fetch_add(usize::from(!self.first), Ordering::SeqCst);
        }
        Ok(())
    }

    fn rest(&self) {
        let registration = lock(&self.registration).take();
        if registration.is_some() {
            self.readers.active.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Takes no more requests.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let registration = lock(&self.registration).take();
        drop(registration); // outside the lock: it may hold the last reference to this reader
    }

    /// Takes what is there; false when there may be more.
    fn take_batch(&self, group: &Arc<Group>) -> bool {
        let mut kept = None;
        for _ in 0..BATCH {
            let mut buffer = match kept.take().map_or_else(|| self.shared.pool.take(), Ok) {
                Ok(buffer) => buffer,
                Err(error) => {
                    tracing::warn!(%error, "no memory to take a request: it waits");
                    return true;
                }
            };
            let reading = self.shared.releases.reading();
            match self.channel.read(buffer.request_area()) {
                Read::Request(length) => kept = self.take(group, buffer, length, reading),
                Read::Empty => return true,
                Read::Ended => {
                    self.stop();
                    self.shared.end();
                    return true;
                }
            }
        }
        false
    }

    fn take(&self, group: &Arc<Group>, buffer: Buffer, length: usize, reading: Reading<'_>) -> Option<Buffer> {
        let request = buffer.request(length);
        let Some((header, body)) = InHeader::parse(request).filter(|(header, _)| header.len as usize == length) else {
            tracing::debug!(length, "a request without a well-formed header");
            return Some(buffer);
        };
        tracing::trace!(opcode = header.opcode, unique = header.unique, node = header.nodeid, length, "request");
        match header.opcode {
            opcode::FORGET => self.forget(header.nodeid, body),
            opcode::BATCH_FORGET => self.forget_batch(body),
            opcode::INTERRUPT => {
                self.shared.metrics.interrupts.increment();
                self.interrupt(&header, body);
            }
            // The answer to a notification that asks for data, which we do not send; it wants no reply.
            opcode::NOTIFY_REPLY => {}
            _ => return self.answer(group, &header, buffer, length, reading),
        }
        Some(buffer)
    }

    fn forget(&self, node: u64, body: &[u8]) {
        if let Some((forget, _)) = ForgetIn::parse(body) {
            self.shared.metrics.forgotten.increment();
            self.shared.nodes.forget(node, forget.nlookup);
        }
    }

    fn forget_batch(&self, body: &[u8]) {
        let Some((batch, mut rest)) = BatchForgetIn::parse(body) else { return };
        self.shared.metrics.forgotten.add(batch.count.into());
        for _ in 0..batch.count {
            let Some((one, after)) = ForgetOne::parse(rest) else { return };
            self.shared.nodes.forget(one.nodeid, one.nlookup);
            rest = after;
        }
    }

    /// An INTERRUPT wants no reply, but to be told to come again.
    fn interrupt(&self, header: &InHeader, body: &[u8]) {
        let Some((interrupt, _)) = InterruptIn::parse(body) else { return };
        if self.shared.interrupts.interrupt(interrupt.unique) == Verdict::Again {
            if self.shared.negotiated.over_io_uring() {
                // The kernel looks among what came by /dev/fuse for whom to send it again.
                return self.shared.interrupts.expect(interrupt.unique);
            }
            // Refused when its request was answered meanwhile.
            let _ = self.channel.answer(header.unique, -libc::EAGAIN, &[]);
        }
    }

    /// Has a request answered; returns the buffer unless the request keeps it.
    fn answer(
        &self,
        group: &Arc<Group>,
        header: &InHeader,
        buffer: Buffer,
        length: usize,
        reading: Reading<'_>,
    ) -> Option<Buffer> {
        let small = is_small(header, buffer.request(length));
        let (frame, buffer) = if header.opcode == opcode::WRITE && length >= HAND_OVER_MIN {
            (buffer.into_request(length), None)
        } else {
            (Bytes::copy_from_slice(buffer.request(length)), Some(buffer))
        };
        let responder = Responder::new(self.channel.clone(), header.unique);
        self.shared.metrics.by_device.increment();
        let job = Job::new(self.shared.clone(), *header, frame, responder);
        drop(reading); // a release is entered with its job
        if !small {
            self.readers.widen();
        }
        serve_now(job, group);
        buffer
    }
}

impl Ready for Reader {
    fn ready(&self, _: Readiness) {
        let Some(group) = self.group.upgrade() else { return };
        let _busy = self.shared.busy();
        if self.first && !self.readers.wide.is_on() {
            self.readers.narrow();
        }
        let began = Instant::now();
        if !self.take_batch(&group) || began.elapsed() > Wide::SMALL_WORK_MAX {
            self.readers.widen();
        }
    }
}

fn is_small(header: &InHeader, request: &[u8]) -> bool {
    const HEADERS: usize = <InHeader as Field>::SIZE + <WriteIn as Field>::SIZE;
    match header.opcode {
        opcode::READ => ReadIn::parse(&request[<InHeader as Field>::SIZE..])
            .is_some_and(|(read, _)| read.size as usize <= SMALL_MAX),
        _ => request.len() <= SMALL_MAX + HEADERS,
    }
}
