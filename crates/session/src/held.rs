//! What the layer above has answered and held back comes to the server: in slots of the releasing
//! class, so that it waits behind nothing that waits for it, and in the epoch in which it was held
//! back only. An append has a slot of its own, in which a recovery asks for it again.

use std::sync::Arc;

use aqueduct_fs::{Context, Errno, Request, Staged, WriteAt, Written};
use aqueduct_wire::{Class, Extensions, HEADER_SIZE, Op, Ordinal};
use bytes::Bytes;

use crate::exchange::{Exchange, SMALL};
use crate::holder::Brought;
use crate::requests::used;
use crate::session::Session;
use crate::slots::{KeptSlot, Slots};

impl Session {
    /// Sends a write that was held back, and keeps a copy of what was written until it is stable.
    /// EIO in another epoch than this one. `ordinal`: it is a repeat of what was written beside
    /// others; EIO as well when another client has repeated something there.
    pub async fn write_held(
        &self,
        context: &Context,
        (write, ordinal): (WriteAt, Option<Ordinal>),
        data: Bytes,
        epoch: u64,
    ) -> Result<Written, Errno> {
        let make = || {
            let mut frame = vec![0; HEADER_SIZE];
            if ordinal.is_some() {
                Extensions { ordinal, ..Extensions::default() }.encode(&mut frame);
            }
            aqueduct_wire::encode_write(context, &write, &mut frame);
            Exchange { extended: ordinal.is_some(), ..held_write(frame, data.clone(), epoch) }
        };
        self.send_held(context, (write, data.clone()), make).await
    }

    /// The same, of data that were staged where they are to lie: ENODATA when they are not there
    /// any more, and nothing was done.
    pub async fn write_held_staged(
        &self,
        context: &Context,
        write: WriteAt,
        (data, staged): (Bytes, Staged),
        epoch: u64,
    ) -> Result<Written, Errno> {
        let make = || {
            let mut frame = vec![0; HEADER_SIZE];
            aqueduct_wire::encode_write(context, &write, &mut frame);
            Exchange { staged: Some(staged), bulk: false, payload: None, ..held_write(frame, data.clone(), epoch) }
        };
        self.send_held(context, (write, data.clone()), make).await
    }

    async fn send_held(
        &self,
        context: &Context,
        (write, data): (WriteAt, Bytes),
        make: impl Fn() -> Exchange,
    ) -> Result<Written, Errno> {
        let sent = self.exchange_write(context, make, &mut Brought::default()).await;
        let (reply, epoch) = sent.map_err(|error| self.opens.explain(error, [write.open]))?;
        self.written_held((write, epoch), &reply.body, data)
    }

    /// The slots of which appends that are held back each keep one.
    pub fn slots_of_held(&self) -> &Arc<Slots> {
        &self.slots_releasing
    }

    /// Sends an append that was held back, in its slot, and keeps a copy of what was appended until
    /// it is stable. EIO in another epoch than this one: a recovery goes on with it.
    pub async fn append_held(
        &self,
        context: &Context,
        (write, slot): (WriteAt, &Arc<KeptSlot>),
        data: &Bytes,
        epoch: u64,
    ) -> Result<(), Errno> {
        let mut may_try_again = true;
        loop {
            let (sequence, at) = slot.present();
            if at == data.len() {
                return Ok(());
            }
            let (write, data) = (slot.rest(write, at), data.slice(at..));
            let mut frame = vec![0; HEADER_SIZE];
            aqueduct_wire::encode_write(context, &write, &mut frame);
            let kept = Some((slot.clone(), sequence));
            let exchange = Exchange { kept, ..held_write(frame, data.clone(), epoch) };
            let sent = self.releases.moment();
            match self.exchange(context, exchange, &mut Brought::default()).await {
                Ok((reply, epoch)) => match self.written_held((write, epoch), &reply.body, data)?.count {
                    0 => return Err(Errno::ENOSPC),
                    count => slot.advance(sequence, count),
                },
                Err(error) => {
                    if !(std::mem::take(&mut may_try_again) && self.gets_room(context, error, sent).await) {
                        return Err(self.opens.explain(error, [write.open]));
                    }
                    slot.advance(sequence, 0);
                }
            }
        }
    }

    /// What a write that was held back came to. EIO when it was answered in another epoch than the
    /// present one: that is not the answer.
    fn written_held(&self, of: (WriteAt, u64), body: &[u8], data: Bytes) -> Result<Written, Errno> {
        let written = aqueduct_wire::decode_reply(Op::Write, body).map_err(|_| Errno::EPROTO)?.written()?;
        if written.count as usize > data.len() {
            return Err(Errno::EPROTO);
        }
        self.counters.bytes_written.add(written.count.into());
        let is_kept = written.count == 0 || self.keep_written(of, written, data);
        if is_kept { Ok(written) } else { Err(Errno::EIO) }
    }

    /// Sends a request that was held back. EIO in another epoch than this one.
    pub async fn call_held(&self, context: &Context, request: Request<'_>, epoch: u64) -> Result<(), Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        let op = aqueduct_wire::encode_request(context, &request, &mut frame);
        let (class, only_in) = (Class::Releasing, Some(epoch));
        let exchange = Exchange { class, changes: true, held: true, only_in, ..Exchange::new(op, frame) };
        let sent = self.exchange(context, exchange, &mut Brought::default()).await;
        sent.map(drop).map_err(|error| self.opens.explain(error, used(&request).into_iter().flatten()))
    }
}

/// A write that was held back, to be sent in this epoch.
fn held_write(frame: Vec<u8>, data: Bytes, epoch: u64) -> Exchange {
    Exchange {
        class: Class::Releasing,
        bulk: data.len() > SMALL,
        changes: true,
        payload: Some(data),
        held: true,
        only_in: Some(epoch),
        ..Exchange::new(Op::Write, frame)
    }
}
