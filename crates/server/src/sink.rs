//! The sink of a read that came by the wire: the reply itself.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use aqueduct_fs::Sink;
use aqueduct_net::Connection;
use aqueduct_wire::Header;

use crate::timing::Timing;

/// Sends the reply of one READ: its header, the data from wherever they are, and a trailer.
pub(crate) struct ReplySink {
    pub(crate) connection: Arc<Connection>,
    /// The reply's header, complete but for the lengths.
    pub(crate) header: Header,
    /// What it says beside the data, if anything.
    pub(crate) timing: Timing,
}

impl Sink for ReplySink {
    fn file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<usize> {
        let body = |header: &mut Header| self.timing.prefix(header);
        self.connection.send_file((self.header, &body), file, offset, length)
    }

    fn bytes(&mut self, data: &[u8]) -> io::Result<()> {
        self.connection.send_bytes((self.header, &|header: &mut Header| self.timing.prefix(header)), data);
        Ok(())
    }

    fn memory(&mut self, _length: usize) -> Option<&mut [u8]> {
        None
    }

    fn finish(self: Box<Self>, _valid: usize) -> io::Result<()> {
        Ok(()) // the trailer has told it
    }
}
