//! Objects come to lie at other servers, while their file is used, in steps each of which may be
//! the last.
//!
//! 1. The attribute names the new places as *other* ones: somebody knows of what will be there.
//! 2. The objects are copied, and what is changed meanwhile again. Each is marked from the moment
//!    that it is made: a client may have a token of a time at which the file lay there before.
//! 3. While nobody else uses the file: the rest, all of it stable; then the attribute with the new
//!    places as the file's, the old ones as the others, and the next epoch, durable.
//! 4. The marks go; what lies at the other places is removed, and then the attribute names none.
//!
//! Whatever lies at other places is of no use at any step, and goes with the file, at the latest.

use std::sync::Arc;

use aqueduct_fs::{Errno, Handle};

use crate::attribute::{Attribute, UNKNOWN};
use crate::copy::{Copying, Origin};
use crate::job::Job;
use crate::pinned::{File, Kind};
use crate::placing::{balanced, evacuated};
use crate::plain::Plain;
use crate::spread::Spread;
use crate::store::Store;
use crate::stripe::{ServerKey, server_key};

/// What objects are moved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Each server has its share.
    Balance,
    /// Servers that are to be emptied have none.
    Drain,
}

/// A file for which something is to be done.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it was seen: to be told, and not to be opened.
    pub path: String,
    /// Bytes that are to be copied, holes included.
    pub bytes: u64,
    pub(crate) handle: Handle,
}

impl Plain {
    /// The files of which objects are not where they are to lie. One that is renamed meanwhile may
    /// be missing.
    pub async fn misplaced(&self, goal: Goal) -> Result<Vec<Found>, Errno> {
        let walk = self.walk(String::new(), self.root.clone()).await?;
        let mut found = Vec::new();
        for (path, handle, attribute) in walk.stubs.into_values() {
            let moves = self.places(&attribute, goal).is_some_and(|places| places != attribute.servers);
            if !moves && attribute.other.is_empty() {
                continue;
            }
            let length = match self.attr_of(&handle).await {
                Err(Errno::ENOENT | Errno::ESTALE) => continue,
                attr => attr?.size,
            };
            let places = self.places(&attribute, goal).unwrap_or_default();
            let parts = places.iter().zip(&attribute.servers).enumerate().filter(|(_, (to, from))| to != from);
            let bytes = parts.map(|(part, _)| attribute.stripe().length_of(length, part)).sum();
            found.push(Found { path, bytes, handle });
        }
        Ok(found)
    }

    /// Has new files avoid a server, and [`Goal::Drain`] empty it; or not any more. ENOENT: the
    /// volume has none of this id.
    pub async fn set_draining(&self, id: &str, drains: bool) -> Result<(), Errno> {
        let key = server_key(id);
        if self.stores.iter().all(|store| store.key() != key) {
            return Err(Errno::ENOENT);
        }
        self.notes.change(|ledger| ledger.with(key, drains)).await
    }

    /// Takes the store of a server for what it has to be from now on, whatever it was before.
    /// ENOENT: the volume has none of this id. EHOSTUNREACH: it does not answer.
    pub async fn accept(&self, id: &str) -> Result<(), Errno> {
        let store = self.stores.iter().find(|store| store.id() == id).ok_or(Errno::ENOENT)?;
        if !store.is_reached() {
            return Err(Errno::EHOSTUNREACH);
        }
        let seen = self.in_time(store.seen_now()).await?;
        self.notes.change(|ledger| ledger.with_seen(store.key(), seen)).await?;
        store.forget();
        self.in_time(store.vouch()).await
    }

    /// How many objects lie at a server. ENOENT: the volume has none of this id. EHOSTUNREACH: it
    /// is not reached, nor soon.
    pub async fn objects_at(&self, id: &str) -> Result<usize, Errno> {
        let store = self.stores.iter().find(|store| store.id() == id).ok_or(Errno::ENOENT)?;
        // This server, or that one, may just have been started.
        self.in_time(async { Ok(store.backing().await) }).await?;
        Ok(self.listing(store).await?.count() as usize)
    }

    /// The files with objects at a server, and what they take there. ENOENT: the volume has none
    /// of this id.
    pub async fn lying_at(&self, id: &str) -> Result<Vec<Found>, Errno> {
        let key = server_key(id);
        let mut found = Vec::new();
        for (path, handle, attribute) in self.walk(String::new(), self.root.clone()).await?.stubs.into_values() {
            let length = match self.attr_of(&handle).await {
                Err(Errno::ENOENT | Errno::ESTALE) => continue,
                attr => attr?.size,
            };
            let parts = attribute.servers.iter().enumerate().filter(|(_, server)| **server == key);
            let lengths: Vec<u64> = parts.map(|(part, _)| attribute.stripe().length_of(length, part)).collect();
            if !lengths.is_empty() {
                found.push(Found { path, bytes: lengths.iter().sum(), handle });
            }
        }
        Ok(found)
    }

    fn places(&self, attribute: &Attribute, goal: Goal) -> Option<Vec<ServerKey>> {
        match goal {
            Goal::Balance => balanced(attribute, self.eligible()),
            Goal::Drain => evacuated(attribute, self.eligible()),
        }
    }

    /// Moves the objects of a file that are not where they are to lie. False: all are there, or
    /// the file is gone. EBUSY: it is written to as fast as it is copied. ECANCELED: the job is to
    /// end. Whatever it returns, the file is whole.
    pub async fn relocate(&self, found: &Found, goal: Goal, job: &Job) -> Result<bool, Errno> {
        let file = self.table.pin(&found.handle);
        let result = match self.relocate_pinned(&file, goal, job).await {
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            result => result,
        };
        self.unpin(file).await;
        result
    }

    async fn relocate_pinned(&self, file: &Arc<File>, goal: Goal, job: &Job) -> Result<bool, Errno> {
        self.tidy(file, job).await?;
        let (spread, servers, _taking) = {
            let (_pass, kind) = self.alone(file).await?;
            let spread = match kind {
                Kind::Spread(spread) => spread,
                // A promotion that nobody goes on with: what was made for it is in the way.
                Kind::Inline(Some(begun)) => {
                    let _taking = file.changed.begin().ok_or(Errno::EBUSY)?;
                    job.unless_ended(self.give_up(file, &begun), self.background.as_deref()).await?;
                    return Ok(false);
                }
                _ => return Ok(false),
            };
            let attribute = spread.now().attribute.clone();
            let servers = self.places(&attribute, goal).ok_or(Errno::ENOSPC)?;
            if servers == attribute.servers {
                return Ok(false);
            }
            let away = |key: &ServerKey| !self.stores.iter().any(|store| store.key() == *key && store.is_reached());
            if servers.iter().chain(&attribute.servers).any(away) {
                return Err(Errno::EHOSTUNREACH);
            }
            let taking = file.changed.begin().ok_or(Errno::EBUSY)?;
            let announced = Attribute { other: servers.clone(), ..attribute };
            self.store(&file.handle, &announced, false).await?;
            spread.now().attribute.other = announced.other;
            (spread, servers, taking)
        };
        let attribute = spread.now().attribute.clone();
        let size = spread.now().size;
        let moves = |part: &usize| servers[*part] != attribute.servers[*part];
        let parts = spread.parts().filter(moves).fold(0, |parts, part| parts | 1 << part);
        let target = Attribute { servers: servers.clone(), were: Vec::new(), ..attribute };
        let stores = self.stores_of(&target)?;
        let to = (Spread::new(target, size, stores), parts);
        let copying = Copying::new((self, file), Origin::Objects(spread.clone()), to, job);
        let followed = copying.follow().await;
        let done = self.switch(file, (&spread, servers), (&copying, followed)).await;
        copying.close(&copying.to).await;
        // What lies where nobody reads goes: the old objects, or the new ones.
        let tidied = match self.tidy(file, job).await {
            // Who has it end waits for that, but not for ever.
            Err(Errno::ECANCELED) => self.in_time(self.tidy_all(file)).await,
            tidied => tidied,
        };
        done.and(tidied).map(|()| true)
    }

    /// The new objects become the file's, unless copying them failed.
    async fn switch(
        &self,
        file: &File,
        (spread, servers): (&Arc<Spread>, Vec<ServerKey>),
        (copying, followed): (&Copying<'_>, Result<(), Errno>),
    ) -> Result<(), Errno> {
        followed?;
        let (_pass, kind) = self.alone(file).await?;
        if !matches!(kind, Kind::Spread(now) if Arc::ptr_eq(&now, spread)) {
            return Err(Errno::EBUSY);
        }
        copying.finish().await?;
        // What was not made stable is not known any more.
        if spread.now().has_failed {
            return Err(Errno::EIO);
        }
        let mut attribute = spread.now().attribute.clone();
        attribute.other = std::mem::replace(&mut attribute.servers, servers);
        attribute.epoch += 1;
        // Copies leave zeros out, and are of another clock's time.
        attribute.blocks = UNKNOWN;
        attribute.were = spread.had_all();
        let stored = {
            let _names = file.names.alone().await;
            // If that fails, the disk knows better.
            file.becomes(Kind::Unknown);
            spread.now().is_left = true;
            self.store(&file.handle, &attribute, true).await
        };
        copying.close(spread).await;
        stored
    }

    /// Removes what lies at other places than those of a file. Nobody waits for that, and it is
    /// done only when all of the file is where it has to be.
    pub(crate) async fn tidy(&self, file: &File, job: &Job) -> Result<(), Errno> {
        job.unless_ended(self.tidy_all(file), self.background.as_deref()).await
    }

    async fn tidy_all(&self, file: &File) -> Result<(), Errno> {
        let (spread, attribute) = {
            let (_pass, kind) = self.alone(file).await?;
            let Kind::Spread(spread) = kind else { return Ok(()) };
            let attribute = spread.now().attribute.clone();
            if attribute.other.is_empty() {
                return Ok(());
            }
            // What is read from the disk may not be stable there yet.
            self.store(&file.handle, &attribute, true).await?;
            for part in spread.made() {
                // All of the file is where it has to be: also by tokens.
                spread.free(part).await?;
            }
            (spread, attribute)
        };
        for (part, store) in self.other_places(&attribute) {
            if !store.is_reached() {
                return Err(Errno::EHOSTUNREACH);
            }
            store.remove(&attribute.id, part).await?;
        }
        let (_pass, kind) = self.alone(file).await?;
        if !matches!(kind, Kind::Spread(now) if Arc::ptr_eq(&now, &spread)) {
            return Ok(()); // it lies elsewhere by now, and what is written down of it is newer
        }
        let _making = spread.making().alone().await;
        let tidied = Attribute { other: Vec::new(), ..spread.now().attribute.clone() };
        self.store(&file.handle, &tidied, false).await?;
        spread.now().attribute = tidied;
        Ok(())
    }

    /// The other places of a file's objects, as far as the volume still has them.
    pub(crate) fn other_places(&self, attribute: &Attribute) -> Vec<(usize, Arc<Store>)> {
        let others = attribute.other.iter().zip(&attribute.servers).enumerate();
        let differ = others.filter(|(_, (other, server))| other != server);
        let of = |(part, (other, _)): (usize, (&ServerKey, _))| {
            let store = self.stores.iter().find(|store| store.key() == *other)?;
            Some((part, store.clone()))
        };
        differ.filter_map(of).collect()
    }
}
