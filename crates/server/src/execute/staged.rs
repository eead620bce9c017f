//! STAGE, and writes of what was staged. A client brings data to a server of data, and asks the
//! server of the names to write them, which has the former do so. It says which goes first, and
//! what else a write needs; nothing that came late, or twice, is ever written by itself.

use aqueduct_fs::{Errno, Source};
use aqueduct_net::Payload;
use aqueduct_wire::DATA_EXPORT;
use bytes::Bytes;

use super::Job;
use crate::attached::Attached;

impl Job {
    /// STAGE. EOPNOTSUPP: here is no store of a volume that others write to.
    pub(super) fn stage(&self, attached: &Attached, body: &[u8], payload: Payload) -> Result<(), Errno> {
        let id = aqueduct_wire::decode_stage(body).map_err(|error| error.errno())?;
        let has_store = self.server.exports.iter().any(|export| export.access.members_only);
        if attached.export.name != DATA_EXPORT || !has_store {
            return Err(Errno::EOPNOTSUPP);
        }
        let Payload::Memory(data) = payload else { return Err(Errno::EPROTO) };
        let length = data.len();
        // A short one is not worth the whole buffer that it came in.
        let size = self.server.pool.size_for(length);
        let (data, size) = match 2 * length <= size {
            true => (Bytes::copy_from_slice(&data), length),
            false => (data, size),
        };
        self.server.staging.put((self.session.id, self.session.origin.identity()), id, (data, size))?;
        self.count(0, length);
        self.reply(aqueduct_wire::Kind::Reply, Ok(()), &[]);
        Ok(())
    }

    /// The data of a write, as it came.
    pub(super) fn source(&self, payload: Payload, is_append: bool) -> Result<Source, Errno> {
        match (self.asked.staged, payload) {
            (None, Payload::Memory(data)) => Ok(Source::Memory(data)),
            (None, Payload::None | Payload::Delivered(_)) => Ok(Source::Memory(Bytes::new())),
            (Some(staged), Payload::None) if !is_append => Ok(Source::Staged(staged)),
            (Some(_), _) => Err(Errno::EPROTO),
        }
    }

    /// The same when it is about to be written: to who has the place only the volume's other
    /// servers come, and what they name was brought here.
    pub(super) fn brought(&self, attached: &Attached, source: Source) -> Result<Source, Errno> {
        match source {
            Source::Staged(staged) if attached.export.access.members_only => {
                self.server.staging.take(&staged).map(Source::Memory)
            }
            source => Ok(source),
        }
    }
}
