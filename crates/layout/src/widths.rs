//! Over how many servers a file or a directory says that blocks are spread, as it is told and set.

use aqueduct_fs::{Context, Errno, Handle, Reply, Request, wide};

use crate::attribute::{SERVERS_MAX, State};
use crate::plain::Plain;

/// Whether no file can have so many objects as a value says.
pub(crate) fn is_too_wide(value: &[u8]) -> bool {
    wide::width_of(value).is_some_and(|width| usize::from(width) > SERVERS_MAX)
}

impl Plain {
    /// What is written at a file or directory; of a file no more than it has objects, or will have.
    pub(crate) async fn width_told(&self, context: &Context, handle: &[u8], size: u32) -> Result<Reply, Errno> {
        let value = self.tree.call(context, Request::GetXattr { handle, name: wide::KEPT, size }).await?.bytes()?;
        let handle = Handle::new(handle).ok_or(Errno::ESTALE)?;
        let Some(width) = wide::width_of(&value).filter(|width| *width > 0) else { return Ok(Reply::Bytes(value)) };
        if !self.attr_of(&handle).await?.is_regular() {
            return Ok(Reply::Bytes(value));
        }
        let most = match self.attribute_of(&handle).await {
            Ok(Some(attribute)) if attribute.state != State::Making => attribute.servers.len(),
            _ if self.config.width == 1 => 1,
            _ => self.eligible().len().min(SERVERS_MAX),
        };
        Ok(Reply::Bytes(usize::from(width).min(most).to_string().into_bytes()))
    }
}
