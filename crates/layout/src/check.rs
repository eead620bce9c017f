//! Whether all objects that stubs name are there, and whether stubs name all objects that are
//! there. It changes nothing, and may be asked while the volume is used.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use aqueduct_fs::{Errno, Handle, Reply, Request};

use crate::attribute::{Attribute, BLOCK, State, object_name};
use crate::plain::{FOLDER, GONE, Plain, gone_name};
use crate::store::{Store, own};

/// The packed bytes of one page of a listing.
const PAGE_SIZE: u32 = 64 << 10;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files whose bytes lie in objects, those included that are about to be or to go.
    pub files: u64,
    /// Objects on the stores that were reached.
    pub objects: u64,
    /// Files that cannot be read, by their paths, and why.
    pub damaged: Vec<(String, String)>,
    /// Objects that no file names: the server's id, and the object's name.
    pub orphans: Vec<(String, String)>,
    /// Servers whose stores were not looked at, and why.
    pub unseen: Vec<(String, String)>,
}

impl Report {
    /// Whether all is as it has to be, and all was looked at.
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty() && self.orphans.is_empty() && self.unseen.is_empty()
    }
}

/// What the tree says.
#[derive(Default)]
pub(crate) struct Walk {
    pub(crate) stubs: HashMap<[u8; 16], (String, Handle, Attribute)>,
    /// Ordinary files that are longer than those are made, and their lengths.
    pub(crate) large: Vec<(String, Handle, u64)>,
    damaged: Vec<(String, String)>,
}

impl Plain {
    /// Looks at all files and all objects. Stores that were not reached yet are not looked at.
    pub async fn check(&self) -> Result<Report, Errno> {
        let mut report = Report::default();
        // Objects first: what is made later is named by a stub that is looked at later.
        let mut found: Vec<(Arc<Store>, HashSet<String>)> = Vec::new();
        for store in &self.stores {
            match if store.is_reached() { store.names().await } else { Err(Errno::EHOSTUNREACH) } {
                Ok(names) => found.push((store.clone(), names)),
                Err(error) => report.unseen.push((store.id().to_owned(), error.to_string())),
            }
        }
        report.objects = found.iter().map(|(_, names)| names.len() as u64).sum();
        let walk = self.walk(String::new(), self.root.clone()).await?;
        report.files = walk.stubs.len() as u64;
        for (path, handle, attribute) in walk.stubs.values() {
            if let Some(why) = self.missing(handle, attribute, &found).await {
                report.damaged.push((path.clone(), why));
            }
        }
        let mut unnamed = unnamed(&found, &walk);
        if !unnamed.is_empty() {
            // A file may have moved from where was not looked yet to where was: so once more.
            let again = self.walk(String::new(), self.root.clone()).await?;
            let still: HashSet<_> = self::unnamed(&found, &again).into_iter().collect();
            unnamed.retain(|orphan| still.contains(orphan));
            for (at, name) in unnamed {
                let store = &found[at].0;
                if store.names().await?.contains(&name) {
                    report.orphans.push((store.id().to_owned(), name));
                }
            }
        }
        report.damaged.extend(walk.damaged);
        report.damaged.sort();
        report.orphans.sort();
        Ok(report)
    }

    /// What a file lacks that it still has by its attribute.
    async fn missing(
        &self,
        handle: &Handle,
        attribute: &Attribute,
        found: &[(Arc<Store>, HashSet<String>)],
    ) -> Option<String> {
        for (part, server) in attribute.servers.iter().enumerate() {
            if attribute.made & (1 << part) == 0 {
                continue;
            }
            let name = object_name(&attribute.id, part).1;
            let Some(known) = self.stores.iter().find(|store| store.key() == *server) else {
                return Some(format!("object {name} is on a server that the volume has not"));
            };
            let listed = found.iter().find(|(store, _)| store.key() == *server);
            if listed.is_none_or(|(_, names)| names.contains(&name)) {
                continue;
            }
            // It was made or removed meanwhile, unless it is still missing while the file names it.
            let is_there = known.names().await.is_ok_and(|names| names.contains(&name));
            let names_it = matches!(self.attribute_of(handle).await, Ok(Some(now)) if now.id == attribute.id);
            if !is_there && names_it && !self.is_going(handle, &attribute.id).await {
                return Some(format!("object {name} is missing on server {}", known.id()));
            }
        }
        None
    }

    /// Whether a stub has lost its last name: its objects go before it does.
    async fn is_going(&self, handle: &Handle, id: &[u8; 16]) -> bool {
        let name = gone_name(id);
        let request = Request::Lookup { parent: self.gone.bytes(), name: name.as_bytes() };
        let links = match self.tree.call(&own(), request).await.and_then(Reply::entry) {
            Ok(entry) if entry.handle == *handle => 1,
            _ => 0,
        };
        self.attr_of(handle).await.map_or(true, |attr| attr.nlink <= links)
    }

    /// All stubs below a folder, those included that are to go.
    pub(crate) async fn walk(&self, path: String, folder: Handle) -> Result<Walk, Errno> {
        let mut walk = Walk::default();
        let mut folders = vec![(path, folder)];
        while let Some((path, folder)) = folders.pop() {
            let entries = match self.entries(&folder).await {
                Err(Errno::ENOENT | Errno::ESTALE) => continue, // it was removed meanwhile
                entries => entries?,
            };
            for (name, handle, attr) in entries {
                let path = format!("{path}/{name}");
                let ours = path.strip_prefix('/').and_then(|path| path.strip_prefix(FOLDER));
                let is_gone = ours.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('/') == Some(GONE));
                if attr.is_directory() && (ours.is_none_or(|rest| rest.starts_with(|at| at != '/')) || is_gone) {
                    folders.push((path, handle));
                } else if attr.is_regular() {
                    self.see(&mut walk, (path, handle, attr.size)).await;
                }
            }
        }
        Ok(walk)
    }

    pub(crate) async fn see(&self, walk: &mut Walk, (path, handle, size): (String, Handle, u64)) {
        match self.attribute_of(&handle).await {
            Ok(Some(attribute)) => {
                if attribute.state == State::Making && size > self.config.inline_max {
                    walk.large.push((path.clone(), handle.clone(), size));
                }
                walk.stubs.insert(attribute.id, (path, handle, attribute));
            }
            Ok(None) if size < BLOCK => {}
            Ok(None) => match self.is_copy(&handle).await {
                Ok(true) => walk.damaged.push((path, "it is a stub without its attribute".to_owned())),
                Ok(false) if size > self.config.inline_max => walk.large.push((path, handle, size)),
                Ok(false) | Err(Errno::ENOENT | Errno::ESTALE) => {}
                Err(error) => walk.damaged.push((path, format!("it cannot be read: {error}"))),
            },
            Err(Errno::ENOENT | Errno::ESTALE) => {}
            Err(_) => walk.damaged.push((path, "its layout is that of another file, or of no volume".to_owned())),
        }
    }

    async fn entries(&self, folder: &Handle) -> Result<Vec<(String, Handle, aqueduct_fs::Attr)>, Errno> {
        let open = self.tree.call(&own(), Request::OpenDirectory { handle: folder.bytes() }).await?.opened()?.id;
        let (mut entries, mut cookie) = (Vec::new(), 0);
        let read = loop {
            let request = Request::ReadDirectory { open, cookie, size: PAGE_SIZE, plus: true };
            let page = match self.tree.call(&own(), request).await.and_then(Reply::directory) {
                Ok(page) => page,
                Err(error) => break Err(error),
            };
            for entry in page.entries() {
                cookie = entry.cookie;
                let Some((handle, attr)) = entry.inode else { continue };
                let name = String::from_utf8_lossy(entry.name).into_owned();
                entries.extend(Handle::new(handle).map(|handle| (name, handle, attr)));
            }
            if page.end {
                break Ok(());
            }
        };
        self.tree.call(&own(), Request::ReleaseDirectory { open }).await?;
        read.map(|()| entries)
    }
}

/// Objects that no stub names, by their stores' places.
fn unnamed(found: &[(Arc<Store>, HashSet<String>)], walk: &Walk) -> Vec<(usize, String)> {
    let mut named: HashSet<(u64, String)> = HashSet::new();
    for (_, _, attribute) in walk.stubs.values() {
        let (servers, other) = (attribute.servers.iter().enumerate(), attribute.other.iter().enumerate());
        named.extend(servers.chain(other).map(|(part, server)| (*server, object_name(&attribute.id, part).1)));
    }
    let mut unnamed = Vec::new();
    for (at, (store, names)) in found.iter().enumerate() {
        let orphans = names.iter().filter(|name| !named.contains(&(store.key(), (*name).clone())));
        unnamed.extend(orphans.map(|name| (at, name.clone())));
    }
    unnamed
}
