//! Data that go to the server that has their place, past the one that says when they are written.

use aqueduct_fs::{Context, Errno, Staged, WriteAt, Written};
use aqueduct_wire::{Class, HEADER_SIZE, Op};
use bytes::Bytes;

use crate::exchange::{Exchange, SMALL};
use crate::holder::Brought;
use crate::session::Session;

impl Session {
    /// Brings data to the server, under a name that nobody guesses, where they are nobody's until a
    /// write of another session names them. EAGAIN: it has no room now. EOPNOTSUPP: it takes none.
    pub async fn stage(&self, context: &Context, data: Bytes) -> Result<Staged, Errno> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|_| Errno::EAGAIN)?;
        let length = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
        let mut frame = vec![0; HEADER_SIZE];
        aqueduct_wire::encode_stage(&id, &mut frame);
        let exchange = Exchange {
            class: Class::Releasing,
            bulk: data.len() > SMALL,
            payload: Some(data),
            ..Exchange::new(Op::Stage, frame)
        };
        self.exchange(context, exchange, &mut Brought::default()).await?;
        Ok(Staged { id, length })
    }

    /// Has the server write what was staged there. No copy is kept: with the verifier of another
    /// start of its machine it is lost unless it was made stable. ENODATA: it is not there, and
    /// nothing was done.
    pub async fn write_staged(&self, context: &Context, write: WriteAt, staged: Staged) -> Result<Written, Errno> {
        self.opens.check([write.open])?;
        // Of what lies over each other the copies must not be written over what is stable.
        if let Some(handle) = self.opens.handle(write.open) {
            self.make_stable(&handle, &context.cancel).await?;
        }
        let make = || {
            let mut frame = vec![0; HEADER_SIZE];
            aqueduct_wire::encode_write(context, &write, &mut frame);
            Exchange { changes: true, staged: Some(staged), ..Exchange::new(Op::Write, frame) }
        };
        let sent = self.exchange_write(context, make, &mut Brought::default()).await;
        let (reply, _) = sent.map_err(|error| self.opens.explain(error, [write.open]))?;
        let written = aqueduct_wire::decode_reply(Op::Write, &reply.body).map_err(|_| Errno::EPROTO)?.written()?;
        if written.count > staged.length {
            return Err(Errno::EPROTO);
        }
        self.counters.bytes_written.add(written.count.into());
        Ok(written)
    }
}
