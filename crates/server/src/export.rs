//! What a server serves: file systems, each under a name.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::FileSystem;

use crate::access::Access;

/// A file system under a name.
pub struct Export {
    /// What clients ask for; the directory's path unless the configuration names it.
    pub name: String,
    /// See [`export_id`].
    pub id: u32,
    /// Answers its requests.
    pub filesystem: Arc<dyn FileSystem>,
    /// Nothing may be changed. The file system enforces it; this tells the clients.
    pub read_only: bool,
    /// Where it lies on the server, for `aqueduct status`.
    pub path: String,
    /// What it allows to whom. The server translates ids if it has maps.
    pub access: Access,
    /// Changes of names and attributes are on disk before they are answered. Sessions are then
    /// written down so that they outlive the machine.
    pub durable: bool,
    /// How changes by others than the clients come to light.
    pub external: External,
}

/// The number of an export, derived from its name so that it survives restarts.
pub fn export_id(name: &str) -> u32 {
    // FNV-1a, 32 bits (Fowler, Noll, Vo): two exports of one server are refused when they collide.
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// How changes from outside come to light in an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum External {
    /// They are told to the server. Should one be missed, what clients keep is no older than this.
    Watch(Duration),
    /// By clients, who keep nothing that is older than this.
    Poll(Duration),
    /// There are none.
    #[default]
    None,
}

impl External {
    /// As it is configured and shown.
    pub fn name(self) -> &'static str {
        match self {
            External::Watch(_) => "watch",
            External::Poll(_) => "poll",
            External::None => "none",
        }
    }

    /// How old what clients keep may become, in milliseconds; 0: as old as they like.
    pub(crate) fn age_max(self) -> u32 {
        match self {
            External::Watch(age) | External::Poll(age) => u32::try_from(age.as_millis()).unwrap_or(u32::MAX).max(1),
            External::None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_told_in_milliseconds() {
        assert_eq!(External::Poll(Duration::from_secs(3)).age_max(), 3000);
        assert_eq!(External::Watch(Duration::from_micros(10)).age_max(), 1, "0 would be no bound");
        assert_eq!(External::Poll(Duration::from_secs(1_000_000_000)).age_max(), u32::MAX);
        assert_eq!(External::None.age_max(), 0);
    }
}
