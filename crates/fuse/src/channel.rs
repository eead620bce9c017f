//! Where a request came from and its answer goes. The dispatcher knows no more of it than this, so that a ring can stand beside /dev/fuse.

use std::io;
use std::sync::Arc;

use aqueduct_fs::Errno;

use crate::ring::Loan;

/// The largest errno that the kernel takes in a reply. It refuses a reply with a larger one, and whoever asked would wait for ever.
const ERRNO_MAX: i32 = 511;

/// Carries replies to the kernel.
pub(crate) trait Channel: Send + Sync {
    /// Answers the request `unique` with an error (negative) or 0 and these bytes, as one message. An error means that the kernel did not take it:
    /// whoever asked has gone.
    fn answer(&self, unique: u64, error: i32, body: &[&[u8]]) -> io::Result<()>;

    /// Memory to put the bytes of the reply to `unique` into, where the channel has some of its own.
    fn lend(&self, _unique: u64) -> Option<Loan> {
        None
    }

    /// Answers the request `unique` with so many bytes of the memory that was lent, and has been given back.
    fn answer_lent(&self, _unique: u64, _length: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Answers one request.
#[derive(Clone)]
pub(crate) struct Responder {
    channel: Arc<dyn Channel>,
    unique: u64,
}

impl Responder {
    pub(crate) fn new(channel: Arc<dyn Channel>, unique: u64) -> Responder {
        Responder { channel, unique }
    }

    /// The request succeeded.
    pub(crate) fn done(&self, body: &[&[u8]]) -> io::Result<()> {
        self.answer(0, body)
    }

    /// Memory to put the bytes of the reply into, where the channel has some of its own.
    pub(crate) fn lend(&self) -> Option<Loan> {
        self.channel.lend(self.unique)
    }

    /// The request succeeded, with so many bytes of what was lent.
    pub(crate) fn done_lent(&self, loan: Loan, length: usize) -> io::Result<()> {
        drop(loan); // gives it back
        self.channel.answer_lent(self.unique, length).inspect_err(|refused| self.refused(refused))
    }

    /// The request failed.
    pub(crate) fn failed(&self, errno: Errno) {
        let number = if errno.raw() > ERRNO_MAX { Errno::EIO.raw() } else { errno.raw() };
        // If the kernel does not take it, nobody waits for it.
        let _ = self.answer(-number, &[]);
    }

    fn answer(&self, error: i32, body: &[&[u8]]) -> io::Result<()> {
        self.channel.answer(self.unique, error, body).inspect_err(|refused| self.refused(refused))
    }

    fn refused(&self, error: &io::Error) {
        tracing::debug!(unique = self.unique, %error, "the kernel did not take a reply");
    }
}
