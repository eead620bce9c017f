//! Locks that wait: whom the end of each is told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use aqueduct_fs::Cancel;
use aqueduct_net::Connection;
use aqueduct_wire::{Class, Header};
use aqueduct_worker::lock;

use crate::links::{Asker, Fence, Link};

/// The requests of a session that were answered PENDING and have not ended.
#[derive(Default)]
pub(crate) struct Waits(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: u64,
    waits: HashMap<u64, Wait>,
}

/// One of them.
struct Wait {
    /// Class, slot and sequence of its request, by which a repeat of it is known.
    place: Place,
    cancel: Cancel,
    told: Vec<Told>,
    /// Nobody is left who could be told: it was asked to stop. Whoever asks again waits anew.
    is_forsaken: bool,
}

type Place = (Class, u32, u32);

/// Somebody who is told of the end. Until then his link is not over.
struct Told {
    asker: Asker,
    /// His link was retired: he is told by whatever link the session has. One who gives it up all
    /// the same has not heard of that, and asks anew.
    outlives: bool,
    _fence: Fence,
}

impl From<Asker> for Told {
    fn from(asker: Asker) -> Told {
        Told { outlives: false, _fence: Fence::new(&asker.link), asker }
    }
}

impl Told {
    /// Whether he can be told.
    fn is_there(&self) -> bool {
        let link = &self.asker.link;
        if self.outlives { !link.is_given_up() } else { link.is_usable() }
    }
}

/// Whom the end of a wait is told: by which connection, if not by whichever there is, and under
/// which number he asked.
pub(crate) type ToldBy = (Option<Arc<Connection>>, u64);

fn place(header: &Header) -> Place {
    (header.class, header.slot, header.sequence)
}

impl Wait {
    /// Forgets who cannot be told any more. Returns what is to be raised if that is everybody:
    /// granted to nobody, it would keep everybody else out. Then their links are over when it has
    /// ended.
    fn prune(&mut self) -> Option<Cancel> {
        if self.told.iter().any(Told::is_there) {
            self.told.retain(Told::is_there);
            return None;
        }
        self.forsake()
    }

    /// Nobody is told any more.
    fn forsake(&mut self) -> Option<Cancel> {
        (!std::mem::replace(&mut self.is_forsaken, true)).then(|| self.cancel.clone())
    }
}

impl Waits {
    /// A request begins to wait. Returns its number; `None` when so many wait already.
    pub(crate) fn add(&self, header: &Header, cancel: &Cancel, asker: Asker, most: usize) -> Option<u64> {
        let mut table = lock(&self.0);
        if table.waits.len() >= most {
            return None;
        }
        table.last += 1;
        let number = table.last;
        let told = vec![asker.into()];
        let wait = Wait { place: place(header), cancel: cancel.clone(), told, is_forsaken: false };
        table.waits.insert(number, wait);
        Some(number)
    }

    /// These are told of its end as well. It goes on if any of all can be.
    pub(crate) fn tell_too(&self, number: u64, askers: &[Asker]) {
        let mut table = lock(&self.0);
        let cancel = table.waits.get_mut(&number).and_then(|wait| {
            wait.told.extend(askers.iter().cloned().map(Told::from));
            wait.prune()
        });
        drop(table);
        cancel.iter().for_each(Cancel::raise);
    }

    /// If the request of this place waits still, whoever has sent it again is told of its end as
    /// well, unless that are many; whether he is.
    pub(crate) fn join(&self, header: &Header, asker: Asker, most: usize) -> bool {
        let mut table = lock(&self.0);
        let is_it = |wait: &&mut Wait| wait.place == place(header) && !wait.is_forsaken && wait.told.len() < most;
        let wait = table.waits.values_mut().find(is_it);
        wait.map(|wait| wait.told.push(asker.into())).is_some()
    }

    /// A link has ended.
    pub(crate) fn left(&self) {
        let cancels: Vec<Cancel> = lock(&self.0).waits.values_mut().filter_map(Wait::prune).collect();
        cancels.iter().for_each(Cancel::raise);
    }

    /// A link retires: what would be told there is the session's from now on, whatever becomes of
    /// its other links.
    pub(crate) fn outlive(&self, link: &Arc<Link>) {
        let mut table = lock(&self.0);
        let told = table.waits.values_mut().flat_map(|wait| &mut wait.told);
        told.filter(|told| Arc::ptr_eq(&told.asker.link, link)).for_each(|told| told.outlives = true);
    }

    /// The session has ended: all are asked to stop.
    pub(crate) fn end(&self) {
        let cancels: Vec<Cancel> = lock(&self.0).waits.values_mut().filter_map(Wait::forsake).collect();
        cancels.iter().for_each(Cancel::raise);
    }

    /// A wait is over. Returns who is told.
    pub(crate) fn remove(&self, number: u64) -> Vec<ToldBy> {
        let wait = lock(&self.0).waits.remove(&number);
        let told_by = |told: Told| match told.outlives {
            true => told.is_there().then_some((None, told.asker.request)),
            false => Some((Some(told.asker.link.connection()?), told.asker.request)),
        };
        wait.into_iter().flat_map(|wait| wait.told).filter_map(told_by).collect()
    }

    /// Asks a request that waits to stop; false when none of this number does.
    pub(crate) fn cancel(&self, request: u64) -> bool {
        let is_it = |wait: &&Wait| wait.told.iter().any(|told| told.asker.request == request);
        let cancel = lock(&self.0).waits.values().find(is_it).map(|wait| wait.cancel.clone());
        cancel.inspect(Cancel::raise).is_some()
    }
}
