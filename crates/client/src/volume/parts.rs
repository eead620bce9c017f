//! What a volume is made of.

use std::sync::{Arc, Mutex, Weak};

use aqueduct_fs::{Errno, Handle, OpenId, Request};
use aqueduct_session::{Session, used};

use super::above::Above;
use super::behind::Behind;
use super::flights::Flights;
use super::lanes::{AllLanes, Left};
use super::map::Map;
use super::movers::Movers;
use super::opens::{Open, Opens};

/// The sessions to a volume's servers, and what is open there.
pub(crate) struct Volume {
    pub(crate) sessions: Vec<Arc<Session>>,
    /// `None`: there is one session.
    pub(super) map: Option<Arc<dyn Map>>,
    pub(crate) opens: Arc<Opens>,
    /// `None`: the sessions move all bytes.
    pub(crate) movers: Option<Movers>,
    /// Who keeps what each session grants, if somebody does.
    pub(super) above: Vec<Option<Arc<dyn Above>>>,
    /// Of inodes whose bytes another session moves than the one that answers for them.
    pub(super) flights: Flights,
    /// Of what is written straight to servers of data.
    pub(super) lanes: AllLanes,
    /// What they had not made stable when an epoch ended, for the recovery.
    pub(super) left: Mutex<Vec<Left>>,
    pub(crate) behind: Behind,
    pub(super) this: Weak<Volume>,
}

impl Volume {
    /// The session that answers for an inode.
    pub(crate) fn namespace(&self, handle: &[u8]) -> usize {
        self.map.as_ref().map_or(0, |map| map.namespace(handle).min(self.sessions.len() - 1))
    }

    /// The one that moves its bytes.
    pub(super) fn data(&self, handle: &[u8]) -> usize {
        self.map.as_ref().map_or(0, |map| map.data(handle).min(self.sessions.len() - 1))
    }

    /// The session that answers for an inode, and the one that moves its bytes.
    pub(crate) fn sessions_of(&self, handle: &[u8]) -> (usize, usize) {
        (self.namespace(handle), self.data(handle))
    }

    /// The session that answers a request. EXDEV: there are two.
    pub(crate) fn session_of(&self, request: &Request<'_>) -> Result<usize, Errno> {
        if self.map.is_none() {
            return Ok(0);
        }
        let of_open = |open: OpenId| self.opens.get(open).map(|open| open.session).ok_or(Errno::EBADF);
        let (first, second) = match inodes(request) {
            (None, _) => match (used(request), ended(request)) {
                ([Some(first), second], _) => (of_open(first)?, second.map(of_open).transpose()?),
                (_, Some(open)) => (of_open(open)?, None),
                _ => (0, None), // the root
            },
            (Some(first), second) => (self.namespace(first), second.map(|handle| self.namespace(handle))),
        };
        if second.is_none_or(|second| second == first) { Ok(first) } else { Err(Errno::EXDEV) }
    }

    /// The inode of an open.
    pub(crate) fn inode(&self, open: OpenId) -> Result<Handle, Errno> {
        self.opens.handle(open).and_then(|handle| Handle::new(&handle)).ok_or(Errno::EBADF)
    }

    /// The session that answers for what is open.
    pub(super) fn session(&self, open: &Open) -> &Arc<Session> {
        &self.sessions[open.session]
    }

    /// Whether nothing is on its way to other sessions that a lease on this inode covers.
    pub(crate) fn is_quiet(&self, handle: &[u8]) -> bool {
        self.map.is_none() || self.flights.count(handle) == 0
    }
}

/// The inodes that a request names by their handles.
fn inodes<'a>(request: &Request<'a>) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
    use Request::*;
    match *request {
        Lookup { parent: handle, .. }
        | GetAttr { handle, .. }
        | SetAttr { handle, .. }
        | ReadLink { handle }
        | Symlink { parent: handle, .. }
        | MakeNode { parent: handle, .. }
        | MakeDirectory { parent: handle, .. }
        | Unlink { parent: handle, .. }
        | RemoveDirectory { parent: handle, .. }
        | Open { handle, .. }
        | Create { parent: handle, .. }
        | CreateUnnamed { parent: handle, .. }
        | PutFiles { parent: handle, .. }
        | OpenDirectory { handle }
        | Statfs { handle }
        | GetXattr { handle, .. }
        | SetXattr { handle, .. }
        | ListXattr { handle, .. }
        | RemoveXattr { handle, .. }
        | Layout { handle, .. }
        | Access { handle, .. } => (Some(handle), None),
        Rename { parent, new_parent, .. } => (Some(parent), Some(new_parent)),
        Link { handle, parent, .. } => (Some(handle), Some(parent)),
        _ => (None, None),
    }
}

/// The open that a request ends.
pub(super) fn ended(request: &Request<'_>) -> Option<OpenId> {
    match *request {
        Request::Release { open } | Request::ReleaseDirectory { open } => Some(open),
        _ => None,
    }
}
