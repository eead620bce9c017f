//! The map of the volume that the server has a part of. It may change while it is served: clients
//! are told, and rights are given by the present one only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use aqueduct_wire::{Header, Kind, Map, Notice};
use aqueduct_worker::lock;

use crate::config::Role;
use crate::lease::clock::now;
use crate::right::Places;
use crate::session::Session;
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
        let epoch = map.epoch;
        let map = Arc::new(map);
        *lock(&self.map) = Some(map.clone());
        if !tells {
            return;
        }
        // Before it is looked who has attached: who attaches later looks at it after that.
        self.map_told.fetch_max(epoch, Ordering::SeqCst);
        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        for session in sessions.iter().filter(|session| session.attached.get().is_some()) {
            self.tell_map(session, &map);
        }
    }

    /// A client has attached, which is told of maps from now on: of one that came since its
    /// greeting at once.
    pub(crate) fn tell_map_since(&self, session: &Arc<Session>) {
        let map = self.map().filter(|map| {
            let told = self.map_told.load(Ordering::SeqCst);
            told >= map.epoch && map.epoch > session.map_told.load(Ordering::SeqCst)
        });
        map.iter().for_each(|map| self.tell_map(session, map));
    }

    fn tell_map(&self, session: &Arc<Session>, map: &Map) {
        let mut body = Vec::new();
        Notice::Map(map.clone()).encode(&mut body);
        self.tell(session, None, Header::new(Kind::Notice), &body);
    }
}
