//! The map of the volume that the server has a part of. It may change while it is served: clients
//! are told, and rights are given by the present one only.

use std::sync::Arc;

use aqueduct_wire::{Header, Kind, Map, Notice};
use aqueduct_worker::lock;

use crate::config::Role;
use crate::lease::clock::now;
use crate::right::Places;
use crate::state::Server;

impl Server {
    /// The present map; `None`: the server stands alone.
    pub(crate) fn map(&self) -> Option<Arc<Map>> {
        lock(&self.map).clone()
    }

    /// Another map holds from now on. `tells`: all clients are told of it, as who has the names
    /// does.
    pub fn set_map(&self, map: Map, tells: bool) {
        if let Role::Names(granter) = &self.config.role {
            // First: who hears of the map finds a server that gives rights by it.
            granter.set_places(&Places::of(&map), now());
        }
        *lock(&self.map) = Some(Arc::new(map.clone()));
        if !tells {
            return;
        }
        let mut body = Vec::new();
        Notice::Map(map).encode(&mut body);
        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        for session in sessions.iter().filter(|session| session.attached.get().is_some()) {
            self.tell(session, None, Header::new(Kind::Notice), &body);
        }
    }
}
