//! A journal that is begun anew: what it is written to was full for a moment.

use std::io;

use aqueduct_wire::Header;
use aqueduct_worker::lock;

use super::{BODY_LENGTH_MAX, Folder, Journal, KIND_FORGOTTEN, KIND_REPLY, Kept, Room};

/// The last request of a slot: where and which it was, and how it was answered.
pub(crate) struct Answered<'a> {
    pub(crate) request: Header,
    pub(crate) era: u8,
    /// `None`: its answer is not known any more.
    pub(crate) answer: Option<(&'a Header, &'a [u8])>,
}

impl Journal {
    /// Whether what it needs could not be written.
    pub(crate) fn is_lost(&self) -> bool {
        lock(&self.lost).is_some()
    }

    /// Writes the session down anew, of which nothing is executed until this returns: from then on
    /// it outlives the process again.
    pub(crate) fn begin_anew(&self, folder: &Folder, answered: &[Answered<'_>]) -> io::Result<()> {
        // What is noted of the session meanwhile waits, and goes to the new file.
        let _changing = lock(&self.changing);
        let Some(mut head) = lock(&self.lost).clone() else { return Ok(()) };
        head.boot.clone_from(&folder.boot);
        let Some(kept) = lock(&folder.create(&head)?.kept).take() else { return Ok(()) };
        let written = answered.iter().try_for_each(|answered| kept.write_answer(answered));
        // What was written for the disk has to be there before it is relied on.
        let written = written.and_then(|()| if kept.durable { kept.stored.file()?.sync_data() } else { Ok(()) });
        let mut lost = lock(&self.lost);
        if written.is_err() || lost.is_none() {
            // Where nothing is lost any more the session has ended meanwhile.
            kept.remove();
            return written;
        }
        tracing::info!(path = %kept.stored.path.display(), "a session is written down again: it survives a restart");
        *lock(&self.kept) = Some(kept);
        *lost = None;
        Ok(())
    }
}

impl Kept {
    fn write_answer(&self, answered: &Answered<'_>) -> io::Result<()> {
        match answered.answer {
            Some((reply, body)) if body.len() <= BODY_LENGTH_MAX => self.write(
                &answered.request,
                (Room::Reply, false),
                (KIND_REPLY, Some(answered.era)),
                &[&reply.encode(), body],
            ),
            _ => self.write(&answered.request, (Room::Reply, false), (KIND_FORGOTTEN, Some(answered.era)), &[]),
        }
    }
}
