//! FETCH and LIST: what many small files have in their first bytes, and what some directories have, for one round trip each. Each is opened as its caller, read
//! and closed again.

use aqueduct_fs::dirpage::ATTR_SIZE;
use aqueduct_fs::{
    Aspects, Attr, Context, DirPage, Errno, FileSystem, Handle, MemorySink, OpenFlags, OpenId, ReadAt, Reply, Request,
};
use aqueduct_wire::{Caller, DIRECTORY_PAGE_MAX, FETCH_LENGTH_MAX, GRANTS_MAX, Subject, fetch_room};

use crate::lease::touch;

/// With less room than the attributes of one entry take, or fewer grants than a directory and an entry have, no directory more is opened.
const ROOM_MIN: u32 = ATTR_SIZE as u32;
const NUMBERS_MIN: usize = 2;

/// Whether what was read of a file may lack what another client holds back.
type Hides<'a> = &'a (dyn Fn(&[u8]) -> bool + Sync);

/// What came of each file.
type File = Result<(Attr, Vec<u8>), Errno>;

/// A reply, and what leases go with it.
pub(crate) struct Fetched {
    pub(crate) body: Vec<u8>,
    /// Bytes of files in it.
    pub(crate) read: usize,
    looked: Looked,
}

enum Looked {
    Files(Vec<(u16, Handle)>),
    Directories(Vec<(Option<Handle>, Result<DirPage, Errno>)>),
}

impl Fetched {
    /// Calls `grant` with each inode of which the reply says something that a lease may cover.
    pub(crate) fn grantable(&self, grant: &mut dyn FnMut(Subject, &[u8], Aspects)) {
        match &self.looked {
            Looked::Files(files) => files
                .iter()
                .for_each(|(at, file)| grant(Subject::Entry(*at), file.bytes(), Aspects::DATA | Aspects::ATTRIBUTES)),
            Looked::Directories(directories) => {
                let mut at = 0;
                for (directory, page) in directories {
                    grant_listed((directory.as_ref(), page.as_ref().ok()), at, grant);
                    at += numbers(page);
                }
            }
        }
    }
}

/// How many numbers a directory and its entries take among those that grants name.
fn numbers(page: &Result<DirPage, Errno>) -> usize {
    1 + page.as_ref().map_or(0, |page| page.entries().count())
}

fn grant_listed(
    (directory, page): (Option<&Handle>, Option<&DirPage>),
    at: usize,
    grant: &mut dyn FnMut(Subject, &[u8], Aspects),
) {
    let (Some(directory), Some(page)) = (directory, page) else { return };
    let subject = |at: usize| u16::try_from(at).ok().filter(|_| at < GRANTS_MAX).map(Subject::Entry);
    let inodes = page.entries().zip(at + 1..).filter_map(|(entry, at)| Some((at, entry.inode?.0, Aspects::ATTRIBUTES)));
    let own = (at, directory.bytes(), Aspects::NAMES | Aspects::ATTRIBUTES);
    for (at, handle, aspects) in std::iter::once(own).chain(inodes) {
        subject(at).into_iter().for_each(|subject| grant(subject, handle, aspects));
    }
}

/// The first bytes of files: of the first of them, as many as a reply has room for, and of one at least.
pub(crate) async fn files(
    filesystem: &dyn FileSystem,
    context: impl FnOnce(Caller) -> Context,
    request: &[u8],
    hides: Hides<'_>,
) -> Result<Fetched, Errno> {
    let (caller, handles, length) = aqueduct_wire::decode_fetch(request).map_err(|error| error.errno())?;
    let context = context(caller);
    let mut room = fetch_room(handles.len());
    let mut files: Vec<File> = Vec::with_capacity(handles.len());
    for handle in &handles {
        let file = one(filesystem, (&context, !files.is_empty()), handle, length.min(FETCH_LENGTH_MAX)).await;
        let file = if file.is_ok() && hides(handle) { Err(Errno::EAGAIN) } else { file };
        let taken = file.as_ref().map_or(0, |(_, data)| data.len());
        if taken > room && !files.is_empty() {
            break;
        }
        room = room.saturating_sub(taken);
        files.push(file);
    }
    let mut body = Vec::new();
    let told = files.iter().map(|file| file.as_ref().map(|(attr, data)| (*attr, &data[..])).map_err(|error| *error));
    aqueduct_wire::encode_fetched(told, &mut body);
    let read = files.iter().zip(&handles).zip(0..).filter(|((file, _), _)| file.is_ok());
    let looked = Looked::Files(read.filter_map(|((_, handle), at)| Some((at, Handle::new(handle)?))).collect());
    Ok(Fetched { body, read: files.iter().flatten().map(|(_, data)| data.len()).sum(), looked })
}

/// The first pages of directories: all that there is of the first, and of those behind it as many as there is room for, whole.
pub(crate) async fn listings(
    filesystem: &dyn FileSystem,
    context: impl FnOnce(Caller) -> Context,
    request: &[u8],
    hides: Hides<'_>,
) -> Result<Fetched, Errno> {
    let (caller, handles) = aqueduct_wire::decode_list(request).map_err(|error| error.errno())?;
    let context = context(caller);
    let (mut room, mut grants) = (DIRECTORY_PAGE_MAX, GRANTS_MAX);
    let mut listings: Vec<Result<DirPage, Errno>> = Vec::with_capacity(handles.len());
    for handle in &handles {
        if room < ROOM_MIN || grants < NUMBERS_MIN {
            break; // another would be read only to be thrown away
        }
        let mut listing = page(filesystem, &context, handle, room).await.map(Reply::Directory);
        touch::hide(&mut listing, hides);
        let listing = listing.and_then(Reply::directory);
        let taken = listing.as_ref().map_or(0, |page| page.packed().len() as u32);
        let is_whole = listing.as_ref().map_or(true, |page| page.end);
        if !listings.is_empty() && (!is_whole || taken > room || numbers(&listing) > grants) {
            break;
        }
        room = room.saturating_sub(taken);
        grants = grants.saturating_sub(numbers(&listing));
        listings.push(listing);
    }
    let mut body = Vec::new();
    aqueduct_wire::encode_listed(&listings, &mut body);
    let directories = handles.iter().map(|handle| Handle::new(handle)).zip(listings).collect();
    Ok(Fetched { body, read: 0, looked: Looked::Directories(directories) })
}

/// The first page of a directory.
async fn page(filesystem: &dyn FileSystem, context: &Context, handle: &[u8], size: u32) -> Result<DirPage, Errno> {
    let open = filesystem.call(context, Request::OpenDirectory { handle }).await?.opened()?.id;
    let request = Request::ReadDirectory { open, cookie: 0, size, plus: true };
    let page = filesystem.call(context, request).await.and_then(Reply::directory);
    filesystem.call(context, Request::ReleaseDirectory { open }).await?;
    page
}

/// The attributes are from before the data: where they are kept, under leases, nothing came in between. `is_ahead`: nobody has asked for this file yet.
async fn one(filesystem: &dyn FileSystem, (context, is_ahead): (&Context, bool), handle: &[u8], length: u32) -> File {
    let attr = filesystem.call(context, Request::GetAttr { handle, open: None }).await?.attr()?;
    if !attr.is_regular() {
        return Err(Errno::EINVAL);
    }
    let open = match is_ahead {
        true => open_ahead(filesystem, context, (handle, &attr)).await?,
        false => filesystem.call(context, Request::Open { handle, flags: OpenFlags::READ }).await?.opened()?.id,
    };
    let data = read(filesystem, context, open, length).await;
    filesystem.call(context, Request::Release { open }).await?;
    Ok((attr, data?))
}

/// What is fetched with another may not be read after all: the time of access stays, where the caller may say so.
async fn open_ahead(
    filesystem: &dyn FileSystem,
    context: &Context,
    (handle, attr): (&[u8], &Attr),
) -> Result<OpenId, Errno> {
    let open = |flags| filesystem.call(context, Request::Open { handle, flags });
    // Others are refused it; with ids that are mapped the owner may look like another, and another like the owner.
    let is_owner = context.credential.uid == 0 || context.credential.uid == attr.uid;
    let opened = match is_owner {
        true => match open(OpenFlags::READ | OpenFlags::NOATIME).await {
            Err(Errno::EPERM) => open(OpenFlags::READ).await?,
            opened => opened?,
        },
        false => open(OpenFlags::READ).await?,
    };
    Ok(opened.opened()?.id)
}

async fn read(filesystem: &dyn FileSystem, context: &Context, open: OpenId, length: u32) -> Result<Vec<u8>, Errno> {
    let sink = MemorySink::default();
    if length > 0 {
        filesystem.read(context, ReadAt { open, offset: 0, length }, Box::new(sink.clone())).await?;
    }
    Ok(sink.take().unwrap_or_default())
}
