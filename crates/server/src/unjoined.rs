//! The connections that have no session yet.

use std::collections::HashMap;
use std::sync::Mutex;

use aqueduct_worker::lock;

use crate::config::Limits;
use crate::origin::Identity;

/// How many there are, in all and of each client.
#[derive(Default)]
pub(crate) struct Unjoined(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    all: usize,
    of: HashMap<Identity, usize>,
}

impl Unjoined {
    /// Counts one more of a client; else why there may be none.
    pub(crate) fn come(&self, peer: Identity, limits: &Limits) -> Result<(), String> {
        let mut unjoined = lock(&self.0);
        let all: usize = unjoined.all;
        let its = unjoined.of.get(&peer).copied().unwrap_or_default();
        if its >= limits.unjoined_per_address_max || all >= limits.unjoined_max {
            return Err(format!("{its} of this address, of {all} in all, have no session yet"));
        }
        unjoined.all += 1;
        unjoined.of.insert(peer, its + 1);
        Ok(())
    }

    /// One has joined a session, or has ended without.
    pub(crate) fn go(&self, peer: Identity) {
        let mut unjoined = lock(&self.0);
        unjoined.all = unjoined.all.saturating_sub(1);
        if let Some(its) = unjoined.of.get_mut(&peer) {
            *its -= 1;
            if *its == 0 {
                unjoined.of.remove(&peer);
            }
        }
    }
}
