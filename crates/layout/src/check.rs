//! Whether all objects that stubs name are there, and whether stubs name all objects that are
//! there. It changes nothing, and may be asked while the volume is used.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;

use aqueduct_fs::{Attr, Errno, Handle, Reply, Request};

use crate::attribute::{Attribute, State, UNKNOWN, object_name};
use crate::backing::own;
use crate::copy::HELD_TIME;
use crate::holdings::Listing;
use crate::marker;
use crate::plain::{Plain, gone_name, size_of};
use crate::spread::seconds_of;
use crate::store::{Store, within};
use crate::stripe::ServerKey;
use crate::taken::{Odd, Taken};
use crate::walk::{Walk, Wrong};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files whose bytes lie in objects, those included that are about to be or to go.
    pub files: u64,
    /// Objects on the stores that were reached.
    pub objects: u64,
    /// Files that cannot be read, or may have lost something, by their paths, and why.
    pub damaged: Vec<(String, String)>,
    /// Files of which something is written down that is not so, by their paths, and what.
    pub sizes: Vec<(String, String)>,
    /// Objects that no file names: the server's id, and the object's name.
    pub orphans: Vec<(String, String)>,
    /// Servers whose stores were not looked at, and why.
    pub unseen: Vec<(String, String)>,
}

impl Report {
    /// Whether all is as it has to be, and all was looked at.
    pub fn is_clean(&self) -> bool {
        let Report { damaged, sizes, orphans, unseen, .. } = self;
        damaged.is_empty() && sizes.is_empty() && orphans.is_empty() && unseen.is_empty()
    }
}

/// Something that is wrong with a file.
#[derive(Clone, Debug)]
pub(crate) struct Flaw {
    pub(crate) path: String,
    pub(crate) handle: Handle,
    pub(crate) what: What,
}

/// See [`Flaw`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// By what is written at it.
    Wrong(Wrong),
    /// A server has not the object that it has to have.
    Missing { server: String, object: String },
    /// An object is on a server that the volume has no more.
    Gone { object: String },
    /// The layout names a server that the volume has no more, which has nothing of the file.
    Empty,
    /// Objects have so many bytes behind the file's end.
    Longer(u64),
    /// Objects take so much, and so much is written down, in units of 512 bytes. No byte of the
    /// file is missing for that.
    Blocks { taken: u64, written: u64 },
    /// See [`Odd::Shrunk`]; the same.
    Shrunk { taken: u64, written: u64 },
    /// An object has lost so many bytes at its end.
    Cut { server: String, object: String, bytes: u64 },
    /// An object was changed last so many seconds before it was when its file was used last.
    Older { server: String, object: String, seconds: u64 },
    /// An object does not count for its file's project.
    Counted { server: String, object: String, project: u32 },
}

impl What {
    /// Whether all of the file is there, and can be read.
    pub(crate) fn is_readable(&self) -> bool {
        matches!(self, What::Longer(_) | What::Blocks { .. } | What::Counted { .. })
    }

    /// For who has to do something about it.
    pub(crate) fn text(&self) -> String {
        match self {
            What::Wrong(Wrong::Naked(_)) => "it is a stub without its attribute".into(),
            What::Wrong(Wrong::Copy) => {
                "it is a copy of a file's stub, made past the volume: it has no data of its own".into()
            }
            What::Wrong(Wrong::Unknown) => "its layout is of no volume, or of another".into(),
            What::Wrong(Wrong::Short) => "its stub was made shorter past the volume".into(),
            What::Wrong(Wrong::Unread(error)) => format!("it could not be read: {error}"),
            What::Missing { server, object } => format!("object {object} is missing on server {server}"),
            What::Gone { object } => format!("object {object} is on a server that the volume has not"),
            What::Empty => "its layout names a server that the volume has not, with nothing of it there".into(),
            What::Longer(bytes) => format!("its objects have {bytes} bytes behind its end"),
            What::Blocks { taken, written } => {
                format!("its objects take {} KiB, and {} KiB are written down", taken / 2, written / 2)
            }
            What::Shrunk { taken, written } => format!(
                "its objects take {} KiB, and {} KiB are written down: a part of it may be lost, and reads as zeros",
                taken / 2,
                written / 2
            ),
            What::Cut { server, object, bytes } => {
                format!("object {object} on server {server} has lost {bytes} bytes at its end")
            }
            What::Counted { server, object, project } => {
                format!(
                    "object {object} on server {server} counts for another project than {project}, which the file has"
                )
            }
            What::Older { server, object, seconds } => format!(
                "object {object} on server {server} was changed last {seconds} s before it was when the file was used last: it may be an older copy"
            ),
        }
    }
}

/// The stores that were reached, and what they have.
pub(crate) type Found = Vec<(Arc<Store>, Listing)>;

impl Plain {
    /// Looks at all files and all objects. Stores that were not reached yet are not looked at.
    pub async fn check(&self) -> Result<Report, Errno> {
        let mut report = Report::default();
        // Objects first: what is made later is named by a stub that is looked at later.
        let found = self.objects(&mut report.unseen).await;
        report.objects = found.iter().map(|(_, listing)| listing.count()).sum();
        let walk = self.walk(String::new(), self.root.clone()).await?;
        report.files = walk.stubs.len() as u64;
        for flaw in self.flaws(&walk, &found).await {
            let list = if flaw.what.is_readable() { &mut report.sizes } else { &mut report.damaged };
            list.push((flaw.path, flaw.what.text()));
        }
        let mut unnamed = unnamed(&found, &walk);
        if !unnamed.is_empty() {
            // A file may have moved from where was not looked yet to where was: so once more.
            let again = self.walk(String::new(), self.root.clone()).await?;
            let still: HashSet<_> = self::unnamed(&found, &again).into_iter().collect();
            unnamed.retain(|orphan| still.contains(orphan));
            for Orphan { at, folder, name } in unnamed {
                let store = &found[at].0;
                if self.in_time(store.attr_in(folder, &name)).await?.is_some() {
                    report.orphans.push((store.id().to_owned(), name));
                }
            }
        }
        report.damaged.sort();
        report.sizes.sort();
        report.orphans.sort();
        Ok(report)
    }

    /// What the stores have. Those that cannot be asked are told of.
    pub(crate) async fn objects(&self, unseen: &mut Vec<(String, String)>) -> Found {
        let mut found = Vec::new();
        for store in &self.stores {
            match if store.is_reached() { self.listing(store).await } else { Err(Errno::EHOSTUNREACH) } {
                Ok(listing) => found.push((store.clone(), listing)),
                Err(error) => unseen.push((store.id().to_owned(), error.to_string())),
            }
        }
        found
    }

    /// What a store has.
    pub(crate) async fn listing(&self, store: &Store) -> Result<Listing, Errno> {
        let mut listing = Listing::default();
        for number in 0..marker::FOLDERS {
            self.in_time(store.list(number, &mut listing)).await?;
        }
        Ok(listing)
    }

    /// What is asked of a store. EHOSTUNREACH: it does not answer, and is not waited for.
    pub(crate) async fn in_time<T>(&self, asked: impl Future<Output = Result<T, Errno>>) -> Result<T, Errno> {
        within(HELD_TIME, asked, self.background.as_deref()).await.unwrap_or(Err(Errno::EHOSTUNREACH))
    }

    /// All that is wrong with files.
    pub(crate) async fn flaws(&self, walk: &Walk, found: &Found) -> Vec<Flaw> {
        let (mut flaws, mut silent) = (Vec::new(), HashSet::new());
        for (path, handle, wrong) in &walk.wrong {
            let what = What::Wrong(wrong.clone());
            flaws.push(Flaw { path: path.clone(), handle: handle.clone(), what });
        }
        for (path, handle, attribute) in walk.stubs.values() {
            let what = match self.lacks(handle, attribute, found).await {
                None if attribute.state == State::Spread => {
                    match self.differs((handle, attribute), found, &mut silent).await {
                        None => self.miscounted((handle, attribute), &mut silent).await,
                        differs => differs,
                    }
                }
                lacks => lacks,
            };
            flaws.extend(what.map(|what| Flaw { path: path.clone(), handle: handle.clone(), what }));
        }
        flaws.sort_by(|one, other| one.path.cmp(&other.path));
        flaws
    }

    /// What a file lacks that it still has by its attribute.
    pub(crate) async fn lacks(&self, handle: &Handle, attribute: &Attribute, found: &Found) -> Option<What> {
        let known = |server| self.stores.iter().find(|store| store.key() == server);
        for (part, server) in attribute.servers.iter().enumerate() {
            if attribute.made & (1 << part) == 0 {
                continue;
            }
            let (folder, name) = object_name(&attribute.id, part);
            let Some(known) = known(*server) else { return Some(What::Gone { object: name }) };
            let listed = found.iter().find(|(store, _)| store.key() == *server);
            if listed.is_none_or(|(_, listing)| listing.has(folder, &name)) {
                continue;
            }
            // It was made or removed meanwhile, unless it is still missing while the file names it.
            let is_there = self.in_time(known.has(&attribute.id, part)).await.unwrap_or(true);
            let names_it = matches!(self.attribute_of(handle).await, Ok(Some(now)) if now.id == attribute.id && now.servers == attribute.servers);
            if !is_there && names_it && !self.is_going(handle, &attribute.id).await {
                return Some(What::Missing { server: known.id().to_owned(), object: name });
            }
        }
        let is_empty = attribute.state != State::Making && attribute.servers.iter().any(|key| known(*key).is_none());
        is_empty.then_some(What::Empty)
    }

    /// What is written down of a file that is not so. While it is used, only how long its objects
    /// are at least is written down. Stores that are `silent` are not asked.
    async fn differs(
        &self,
        (handle, attribute): (&Handle, &Attribute),
        found: &Found,
        silent: &mut HashSet<ServerKey>,
    ) -> Option<What> {
        let is_settled = attribute.blocks != UNKNOWN;
        let is_known = is_settled || !attribute.were.is_empty();
        if !is_known || attribute.servers.iter().any(|server| silent.contains(server)) {
            return None;
        }
        let before = self.attr_of(handle).await.ok()?;
        let size = size_of(attribute, before.size)?;
        let (mut taken, mut lost) = (Taken::default(), None);
        for (part, server) in attribute.servers.iter().enumerate().filter(|(part, _)| attribute.made & (1 << part) != 0)
        {
            let (store, _) = found.iter().find(|(store, _)| store.key() == *server)?;
            let attr = match self.in_time(store.attr(&attribute.id, part)).await {
                Err(Errno::EHOSTUNREACH) => {
                    silent.insert(*server);
                    return None;
                }
                attr => attr.ok()??,
            };
            taken.add(&attr, attribute.stripe().length_of(size, part));
            lost = lost.or_else(|| lost_of((attribute, part), (size, &attr), store));
        }
        // Whoever uses it meanwhile changes the stub.
        let after = self.attr_of(handle).await.ok()?;
        let is_same = after.ctime == before.ctime && self.attribute_of(handle).await == Ok(Some(attribute.clone()));
        if !is_same {
            return None;
        }
        let (written, taken_now) = (attribute.blocks, taken.blocks());
        lost.or_else(|| {
            Some(match taken.judge(written).filter(|_| is_settled)? {
                Odd::Longer(bytes) => What::Longer(bytes),
                Odd::Blocks => What::Blocks { taken: taken_now, written },
                Odd::Shrunk => What::Shrunk { taken: taken_now, written },
            })
        })
    }

    /// An object that does not count for its file's project.
    async fn miscounted(
        &self,
        (handle, attribute): (&Handle, &Attribute),
        silent: &mut HashSet<ServerKey>,
    ) -> Option<What> {
        let project = self.project(handle).await.ok().filter(|project| *project != 0)?;
        for part in (0..attribute.servers.len()).filter(|part| attribute.made & (1 << part) != 0) {
            let server = attribute.servers[part];
            let store = self.stores.iter().find(|store| store.key() == server && !silent.contains(&server))?;
            match self.in_time(store.project(&attribute.id, part)).await {
                Err(Errno::EHOSTUNREACH) => _ = silent.insert(server),
                Ok(Some(found)) if found != project => {
                    let (server, (_, object)) = (store.id().to_owned(), object_name(&attribute.id, part));
                    return Some(What::Counted { server, object, project });
                }
                _ => {}
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
}

/// What an object has lost, by what is written down of it, while its file is so long.
fn lost_of((attribute, part): (&Attribute, usize), (size, attr): (u64, &Attr), store: &Store) -> Option<What> {
    let (server, (_, object)) = (store.id().to_owned(), object_name(&attribute.id, part));
    let bytes = attribute.least(part, size).saturating_sub(attr.size);
    if bytes > 0 {
        return Some(What::Cut { server, object, bytes });
    }
    let changed = attribute.were.get(part).map_or(0, |was| was.changed);
    let seconds = changed.saturating_sub(seconds_of(attr));
    (seconds > 0 && attribute.blocks != UNKNOWN).then_some(What::Older { server, object, seconds })
}

/// An object that no stub names: the place of its store, and where it is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Orphan {
    pub(crate) at: usize,
    pub(crate) folder: usize,
    pub(crate) name: String,
}

/// Objects that no stub names, and what is in the folders of objects and is none.
pub(crate) fn unnamed(found: &Found, walk: &Walk) -> Vec<Orphan> {
    let mut named: HashSet<(u64, String)> = HashSet::new();
    for (_, _, attribute) in walk.stubs.values() {
        let (servers, other) = (attribute.servers.iter().enumerate(), attribute.other.iter().enumerate());
        named.extend(servers.chain(other).map(|(part, server)| (*server, object_name(&attribute.id, part).1)));
    }
    let claimed: HashSet<String> = walk.claimed.iter().map(gone_name).collect();
    let is_claimed = |name: &str| name.split_once('.').is_some_and(|(id, _)| claimed.contains(id));
    let mut unnamed = Vec::new();
    for (at, (store, listing)) in found.iter().enumerate() {
        let is_orphan = |name: &String| !named.contains(&(store.key(), name.clone())) && !is_claimed(name);
        for (folder, name) in listing.objects().filter(|(_, name)| is_orphan(name)).chain(listing.strays()) {
            unnamed.push(Orphan { at, folder, name: name.clone() });
        }
    }
    unnamed.sort_by(|one, other| (one.at, &one.name).cmp(&(other.at, &other.name)));
    unnamed
}
