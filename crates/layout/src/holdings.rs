//! What a store has: its objects, and those that were taken from among them since no file names
//! them. The latter stay in a folder of their own until somebody says that they may go.

use std::collections::HashSet;

use aqueduct_fs::{Attr, Errno, Handle, RenameFlags, Reply, Request};

use crate::attribute::object_name;
use crate::backing::{Backing, look_up, own, project_at};
use crate::store::Store;

/// The folder in a store of what no file names.
pub const LOST: &str = ".lost";

/// The packed bytes of one page of a listing.
const PAGE_SIZE: u32 = 64 << 10;

/// So many objects of one name may be lost.
const SAME_MAX: usize = 16;

/// What is in the folders of a store's objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    objects: HashSet<String>,
    /// What is in the folders and is no object, by its name or by where it is.
    strays: Vec<(usize, String)>,
}

impl Listing {
    pub(crate) fn count(&self) -> u64 {
        self.objects.len() as u64
    }

    pub(crate) fn has(&self, folder: usize, name: &String) -> bool {
        (folder_of(name) == Some(folder) && self.objects.contains(name))
            || self.strays.iter().any(|(at, stray)| (*at, stray) == (folder, name))
    }

    /// Objects, with the numbers of their folders.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (usize, &String)> {
        self.objects.iter().filter_map(|name| Some((folder_of(name)?, name)))
    }

    pub(crate) fn strays(&self) -> impl Iterator<Item = (usize, &String)> {
        self.strays.iter().map(|(folder, name)| (*folder, name))
    }
}

/// What an object's name says: the id of its file, and which of its objects it is.
pub(crate) fn parse(name: &str) -> Option<([u8; 16], usize)> {
    let (text, part) = name.split_once('.')?;
    let (digits, part) = (text.as_bytes().as_chunks::<2>().0, part.parse().ok()?);
    let mut id = [0; 16];
    if text.len() != 32 {
        return None;
    }
    for (byte, digits) in id.iter_mut().zip(digits) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    // There is one way to write it.
    (object_name(&id, part).1 == name).then_some((id, part))
}

/// The id in the name of what was lost.
pub(crate) fn lost_id(name: &str) -> Option<[u8; 16]> {
    parse(name.split_once('~').map_or(name, |(name, _)| name)).map(|(id, _)| id)
}

/// The folder that an object has to be in.
fn folder_of(name: &str) -> Option<usize> {
    parse(name).map(|(id, part)| object_name(&id, part).0)
}

/// What is in a folder.
async fn names_in(backing: &Backing, folder: &Handle) -> Result<Vec<String>, Errno> {
    let open = Request::OpenDirectory { handle: folder.bytes() };
    let open = backing.call(&own(), open).await?.opened()?.id;
    let (mut names, mut cookie) = (Vec::new(), 0);
    let read = loop {
        let request = Request::ReadDirectory { open, cookie, size: PAGE_SIZE, plus: false };
        let page = match backing.call(&own(), request).await.and_then(Reply::directory) {
            Ok(page) => page,
            Err(error) => break Err(error),
        };
        for entry in page.entries().filter(|entry| entry.name != b"." && entry.name != b"..") {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
        }
        let next = page.entries().last().map_or(cookie, |entry| entry.cookie);
        if page.end {
            break Ok(names);
        }
        // A server that says so would be asked without end.
        if next == cookie {
            break Err(Errno::EIO);
        }
        cookie = next;
    };
    backing.call(&own(), Request::ReleaseDirectory { open }).await?;
    read
}

async fn rename(backing: &Backing, from: (&Handle, &str), to: (&Handle, &str)) -> Result<(), Errno> {
    let (parent, name) = (from.0.bytes(), from.1.as_bytes());
    let (new_parent, new_name) = (to.0.bytes(), to.1.as_bytes());
    let flags = RenameFlags::NOREPLACE;
    backing.call(&own(), Request::Rename { parent, name, new_parent, new_name, flags }).await?.done()
}

impl Store {
    /// Lists all that is in a folder of objects.
    pub(crate) async fn list(&self, number: usize, listing: &mut Listing) -> Result<(), Errno> {
        let backing = self.backing().await;
        let folder = self.folder(&backing, number).await?;
        for name in names_in(&backing, &folder).await? {
            match folder_of(&name) == Some(number) {
                true => _ = listing.objects.insert(name),
                false => listing.strays.push((number, name)),
            }
        }
        Ok(())
    }

    /// The attributes of an object, if there is one.
    pub(crate) async fn attr(&self, id: &[u8; 16], part: usize) -> Result<Option<Attr>, Errno> {
        let (folder, name) = object_name(id, part);
        self.attr_in(folder, &name).await
    }

    /// The same of whatever is in a folder of objects.
    pub(crate) async fn attr_in(&self, folder: usize, name: &str) -> Result<Option<Attr>, Errno> {
        let backing = self.backing().await;
        let parent = self.folder(&backing, folder).await?;
        let request = Request::Lookup { parent: parent.bytes(), name: name.as_bytes() };
        match backing.call(&own(), request).await.and_then(Reply::entry) {
            Ok(entry) => Ok(Some(entry.attr)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The project of an object, if there is one; 0: it has none. EOPNOTSUPP: its file system keeps
    /// none.
    pub(crate) async fn project(&self, id: &[u8; 16], part: usize) -> Result<Option<u32>, Errno> {
        if self.keeps_no_projects() {
            return Err(Errno::EOPNOTSUPP);
        }
        let (folder, name) = object_name(id, part);
        let backing = self.backing().await;
        let parent = self.folder(&backing, folder).await?;
        match look_up(&backing, &parent, &name).await {
            Err(Errno::ENOENT) => Ok(None),
            handle => project_at(&backing, &handle?).await.map(Some),
        }
    }

    pub(crate) async fn has(&self, id: &[u8; 16], part: usize) -> Result<bool, Errno> {
        Ok(self.attr(id, part).await?.is_some())
    }

    /// The folder of what no file names; `None`: nothing was lost yet. The marker was checked.
    async fn lost(&self, backing: &Backing, make: bool) -> Result<Option<Handle>, Errno> {
        self.folder(backing, 0).await?;
        let root = backing.call(&own(), Request::Root).await?.entry()?.handle;
        match look_up(backing, &root, LOST).await {
            Err(Errno::ENOENT) if make => {
                let (parent, name) = (root.bytes(), LOST.as_bytes());
                let request = Request::MakeDirectory { parent, name, mode: 0o700, umask: 0 };
                backing.call(&own(), request).await?.entry().map(|entry| Some(entry.handle))
            }
            Err(Errno::ENOENT) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Takes what no file names from among the objects. False: it is gone already. `is_stray`: its
    /// file is there, and has never had this object, which must never come back to it.
    pub(crate) async fn lose(&self, folder: usize, name: &str, is_stray: bool) -> Result<bool, Errno> {
        let backing = self.backing().await;
        let lost = self.lost(&backing, true).await?.ok_or(Errno::EIO)?;
        let from = self.folder(&backing, folder).await?;
        for number in 0..SAME_MAX {
            let to = match (number, is_stray) {
                (0, false) => name.to_owned(),
                (0, true) => format!("{name}~stray"),
                (_, false) => format!("{name}~{number}"),
                (_, true) => format!("{name}~stray{number}"),
            };
            match rename(&backing, (&from, name), (&lost, &to)).await {
                Ok(()) => return Ok(true),
                Err(Errno::ENOENT) => return Ok(false),
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EEXIST)
    }

    /// The length of an object that was lost. `None`: none was, or several were, and nobody knows
    /// which one is the file's.
    pub(crate) async fn has_lost(&self, id: &[u8; 16], part: usize) -> Result<Option<u64>, Errno> {
        let backing = self.backing().await;
        let Some(lost) = self.lost(&backing, false).await? else { return Ok(None) };
        let (_, name) = object_name(id, part);
        let mut found = [None; 2];
        for (found, name) in found.iter_mut().zip([name.clone(), format!("{name}~1")]) {
            let request = Request::Lookup { parent: lost.bytes(), name: name.as_bytes() };
            *found = match backing.call(&own(), request).await.and_then(Reply::entry) {
                Ok(entry) => Some(entry.attr.size),
                Err(Errno::ENOENT) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(found[0].filter(|_| found[1].is_none()))
    }

    /// Brings an object back that was lost.
    pub(crate) async fn regain(&self, id: &[u8; 16], part: usize) -> Result<(), Errno> {
        let backing = self.backing().await;
        let lost = self.lost(&backing, false).await?.ok_or(Errno::ENOENT)?;
        let (folder, name) = object_name(id, part);
        let to = self.folder(&backing, folder).await?;
        rename(&backing, (&lost, &name), (&to, &name)).await
    }

    /// The names of all that was lost.
    pub(crate) async fn all_lost(&self) -> Result<Vec<String>, Errno> {
        let backing = self.backing().await;
        match self.lost(&backing, false).await? {
            Some(lost) => names_in(&backing, &lost).await,
            None => Ok(Vec::new()),
        }
    }

    /// Removes something that was lost, for good.
    pub(crate) async fn purge(&self, name: &str) -> Result<(), Errno> {
        let backing = self.backing().await;
        let Some(lost) = self.lost(&backing, false).await? else { return Ok(()) };
        let request = Request::Unlink { parent: lost.bytes(), name: name.as_bytes() };
        match backing.call(&own(), request).await {
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_object_is_read_and_nothing_else() {
        for (id, part) in [([0xab; 16], 0), ([1; 16], 63)] {
            let (folder, name) = object_name(&id, part);
            assert_eq!((parse(&name), folder_of(&name)), (Some((id, part)), Some(folder)));
            let (upper, padded) = (name.to_uppercase(), format!("{}.0{part}", &name[..32]));
            assert_eq!((parse(&padded), parse(&format!("{name}~1")), parse(&name[1..])), (None, None, None));
            assert!(parse(&upper).is_none_or(|_| upper == name), "{upper}");
        }
        for name in ["", ".", "x.0", "é.1", "0123456789abcdef0123456789abcdef"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
