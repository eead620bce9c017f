//! What a request of a compound may take from those before it.

use aqueduct_fs::{OpenId, Reply, Request};

/// What the requests of a compound may refer to: the latest inode and the latest open of those
/// before.
#[derive(Default)]
pub(super) struct Latest {
    handle: Vec<u8>,
    open: Option<OpenId>,
}

impl Latest {
    pub(super) fn note(&mut self, reply: &Reply) {
        match reply {
            Reply::Entry(entry) => self.handle = entry.handle.bytes().to_vec(),
            Reply::Opened(opened) => self.open = Some(opened.id),
            Reply::Created(entry, opened) => {
                self.handle = entry.handle.bytes().to_vec();
                self.open = Some(opened.id);
            }
            _ => {}
        }
    }

    pub(super) fn substitute<'a>(&'a self, request: Request<'a>) -> Request<'a> {
        aqueduct_wire::substitute_latest(request, &self.handle, self.open)
    }
}
