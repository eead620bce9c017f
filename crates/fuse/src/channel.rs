//! Where a request came from and its answer goes. The dispatcher knows no more of it than this, so that a ring can stand beside /dev/fuse.

use std::io;
use std::sync::Arc;

use aqueduct_fs::Errno;

/// The largest errno that the kernel takes in a reply. It refuses a reply with a larger one, and whoever asked would wait for ever.
const ERRNO_MAX: i32 = 511;

/// Carries replies to the kernel.
pub(crate) trait Channel: Send + Sync {
    /// Answers the request `unique` with an error (negative) or 0 and these bytes, as one message. An error means that the kernel did not take it:
    /// whoever asked has gone.
    fn answer(&self, unique: u64, error: i32, body: &[&[u8]]) -> io::Result<()>;
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

    /// The request failed.
    pub(crate) fn failed(&self, errno: Errno) {
        let number = if errno.raw() > ERRNO_MAX { Errno::EIO.raw() } else { errno.raw() };
        // If the kernel does not take it, nobody waits for it.
        let _ = self.answer(-number, &[]);
    }

    fn answer(&self, error: i32, body: &[&[u8]]) -> io::Result<()> {
        let result = self.channel.answer(self.unique, error, body);
        if let Err(refused) = &result {
            tracing::debug!(unique = self.unique, %refused, "the kernel did not take a reply");
        }
        result
    }
}
