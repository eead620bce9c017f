//! What the layer above has answered and held back comes to the server: in slots of the releasing
//! class, so that it waits behind nothing that waits for it, and in the epoch in which it was held
//! back only.

use aqueduct_fs::{Context, Errno, Request, WriteAt, Written};
use aqueduct_wire::{Class, Extensions, HEADER_SIZE, Op, Ordinal};
use bytes::Bytes;

use crate::exchange::{Exchange, SMALL};
use crate::holder::Brought;
use crate::requests::used;
use crate::session::Session;

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
        let mut frame = vec![0; HEADER_SIZE];
        if ordinal.is_some() {
            Extensions { ordinal, ..Extensions::default() }.encode(&mut frame);
        }
        aqueduct_wire::encode_write(context, &write, &mut frame);
        let exchange = Exchange {
            class: Class::Releasing,
            bulk: data.len() > SMALL,
            changes: true,
            payload: Some(data.clone()),
            held: true,
            extended: ordinal.is_some(),
            only_in: Some(epoch),
            ..Exchange::new(Op::Write, frame)
        };
        let sent = self.exchange(context, exchange, &mut Brought::default()).await;
        let (reply, epoch) = sent.map_err(|error| self.opens.explain(error, [write.open]))?;
        let written = aqueduct_wire::decode_reply(Op::Write, &reply.body).map_err(|_| Errno::EPROTO)?.written()?;
        self.counters.bytes_written.add(written.count.into());
        // One of another epoch is not the answer.
        let is_kept = written.count == 0 || self.keep_written((write, epoch), written, data);
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
