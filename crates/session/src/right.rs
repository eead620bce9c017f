//! Writes at a server of data, under rights that the server of the names gives.

use aqueduct_fs::{Context, Errno, OpenId, Request, WriteAt, Written};
use aqueduct_wire::{Class, Extensions, Flags, HEADER_SIZE, NO_PLACE, Op, Ordinal};
use bytes::Bytes;

use crate::exchange::{Exchange, SMALL};
use crate::holder::Brought;
use crate::link::Owner;
use crate::session::Session;

impl Session {
    /// Asks the server of the names for a right on the inode of an open, which this client holds
    /// exclusively, at a server of data: the token. `epochs`: those of the session, in another
    /// of which it is EIO, and of the map by which that server was chosen; ESTALE when another map
    /// holds, of which the holder is told.
    pub async fn right(
        &self,
        context: &Context,
        (open, place): (OpenId, u16),
        epochs: (u64, u64),
    ) -> Result<Box<[u8]>, Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_right(open, place, &mut frame);
        // The wire has the lower half, as maps are told apart by that.
        let (only_in, map) = (Some(epochs.0), epochs.1 as u32);
        let exchange = Exchange { only_in, map, ..Exchange::new(Op::Right, frame) };
        let (reply, _) = self.exchange(context, exchange, &mut Brought::default()).await?;
        Ok(reply.body.into())
    }

    /// Asks which map of the server's volume holds, and tells the holder.
    pub async fn ask_for_map(&self, context: &Context) -> Result<(), Errno> {
        let exchange = Exchange::new(Op::Map, vec![0; HEADER_SIZE]);
        let (reply, _) = self.exchange(context, exchange, &mut Brought::default()).await?;
        self.mapped(aqueduct_wire::Map::decode(&reply.body).map_err(|_| Errno::EPROTO)?);
        Ok(())
    }

    /// Asks the server of the names for a lease to write the inode of an open beside others, for
    /// which all give up what they keep of it. `brought` has it. EIO in another epoch than this
    /// one.
    pub async fn right_beside_others(
        &self,
        context: &Context,
        open: OpenId,
        epoch: u64,
        brought: &mut Brought,
    ) -> Result<(), Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_right(open, NO_PLACE, &mut frame);
        brought.asks |= Flags::EXCLUSIVE;
        let exchange = Exchange { only_in: Some(epoch), ..Exchange::new(Op::Right, frame) };
        self.exchange(context, exchange, brought).await.map(drop)
    }

    /// Has the server of the names end what was sent to a server of data: nothing of it is
    /// executed any more when this returns. EIO in another epoch than this one.
    pub async fn revoke(&self, context: &Context, place: u16, epoch: u64) -> Result<(), Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_revoke(place, &mut frame);
        let exchange = Exchange { only_in: Some(epoch), ..Exchange::new(Op::Revoke, frame) };
        self.exchange(context, exchange, &mut Brought::default()).await.map(drop)
    }

    /// Writes at a server of data under the right of a token, and waits for the answer however
    /// long it takes. Whoever gives that up does not know what becomes of it before the right has
    /// ended; with an error `brought` says whether that is so. Keeps no copy. `ordinal`: it is
    /// written beside other clients.
    pub async fn write_by_right(
        &self,
        context: &Context,
        (write, data): (WriteAt, Bytes),
        (token, ordinal): (&[u8], Option<Ordinal>),
        brought: &mut Brought,
    ) -> Result<Written, Errno> {
        let mut frame = vec![0; HEADER_SIZE];
        Extensions { right: Some(token.into()), ordinal, ..Extensions::default() }.encode(&mut frame);
        aqueduct_wire::encode_write(context, &write, &mut frame);
        let exchange = Exchange {
            class: Class::Releasing,
            bulk: data.len() > SMALL,
            changes: true,
            payload: Some(data),
            extended: true,
            patient: true,
            ..Exchange::new(Op::Write, frame)
        };
        let (reply, _) = self.exchange(context, exchange, brought).await?;
        let written = aqueduct_wire::decode_reply(Op::Write, &reply.body).map_err(|_| Errno::EPROTO)?.written()?;
        self.counters.bytes_written.add(written.count.into());
        Ok(written)
    }

    /// Makes stable what was written through an open at a server of data, and waits for the answer
    /// however long it takes: the verifier of what is stable.
    pub async fn commit_at(&self, context: &Context, open: OpenId) -> Result<u64, Errno> {
        let request = Request::Commit { open, offset: 0, length: 0 };
        let mut frame = vec![0; HEADER_SIZE];
        let op = aqueduct_wire::encode_request(context, &request, &mut frame);
        let exchange = Exchange { patient: true, ..Exchange::new(op, frame) };
        let (reply, _) = self.exchange(context, exchange, &mut Brought::default()).await?;
        let committed = aqueduct_wire::decode_reply(op, &reply.body).map_err(|_| Errno::EPROTO)?;
        Ok(committed.written()?.verifier)
    }
}
