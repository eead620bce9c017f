//! The window between executing and remembering: what is written down before an operation that cannot be repeated, so that the next process can tell
//! whether it was executed, and what the answer was.
//!
//! The next process decides at its start, before anybody is let in: what it finds is what the dead one left. Only who changes the exported
//! directory on the server itself, past this server and in that moment, can be taken for us: whoever makes or removes the same name as the same user
//! gives us a success that was his, and whoever makes the same file longer has our data appended twice.
//!
//! An intent is a list of fields, each with its length (u16): the caller's uid and gid, then those that the operation's functions here agree on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aqueduct_fs::idmap::IdMaps;
use aqueduct_fs::*;
use aqueduct_wire::Op;

use crate::lease::touch::Found;

/// How long after what was written down of it an append is executed, at most: many times what a
/// busy machine takes. What was added to the file later may be others'.
const APPENDED_WITHIN: Duration = Duration::from_millis(250);

/// The coarsest times that file systems keep, those of FAT.
const COARSEST: Duration = Duration::from_secs(2);

/// How much older than its making a timestamp may be: the kernel's clock for them ticks every 1 to 10 ms.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// File types, as stat(2) has them.
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

/// Whoever looks at the start is no client: sessions have other numbers than 0.
const NOBODY: ClientId = ClientId(0);

/// What to write down before a request is executed; `None`: executing it again does no harm, or nothing can tell. Until it is executed, nobody else may
/// do anything with its names.
pub(crate) async fn of(
    filesystem: &dyn FileSystem,
    context: &Context,
    request: &Request<'_>,
    found: &Found,
) -> Option<Vec<u8>> {
    let has_xattr = async |handle, name| {
        let look = Request::GetXattr { handle, name, size: 0 };
        match filesystem.call(context, look).await {
            Ok(_) => Some(true),
            Err(Errno::ENODATA) => Some(false),
            Err(_) => None,
        }
    };
    let since = since().to_le_bytes();
    let made = |parent, name, mode: u32, rest: u32| {
        let parts: [&[u8]; 5] = [parent, name, &since, &mode.to_le_bytes(), &rest.to_le_bytes()];
        found.is_absent().then(|| fields(context, &parts))
    };
    match *request {
        // Also one that takes what is there: what it made itself may have a mode that lets nobody open it.
        Request::Create { parent, name, flags, .. } => made(parent, name, REGULAR, flags.bits()),
        Request::MakeDirectory { parent, name, .. } => made(parent, name, DIRECTORY, 0),
        Request::MakeNode { parent, name, mode, .. } => made(parent, name, mode, 0),
        Request::Symlink { parent, name, text } => made(parent, name, LINK, crc32c::crc32c(text)),
        Request::Link { handle, parent, name } => {
            found.is_absent().then(|| fields(context, &[parent, name, &since, handle]))
        }
        Request::Unlink { parent, name } | Request::RemoveDirectory { parent, name } => {
            Some(fields(context, &[parent, name, found.handle()?.bytes()]))
        }
        Request::Rename { parent, name, new_parent, new_name, .. } => {
            let new = found.new_handle().map_or(&[][..], Handle::bytes);
            Some(fields(context, &[parent, name, found.handle()?.bytes(), new_parent, new_name, new]))
        }
        Request::SetXattr { handle, name, value, mode: XattrMode::Create } => {
            let is_absent = !has_xattr(handle, name).await?;
            is_absent.then(|| fields(context, &[handle, name, &crc32c::crc32c(value).to_le_bytes()]))
        }
        Request::RemoveXattr { handle, name } => {
            let is_there = has_xattr(handle, name).await?;
            is_there.then(|| fields(context, &[handle, name]))
        }
        _ => None,
    }
}

/// What to write down before data are appended. Until they are, nobody else may append to the file.
pub(crate) async fn of_append(
    filesystem: &dyn FileSystem,
    context: &Context,
    (handle, open): (&Handle, OpenId),
    data: &[u8],
) -> Option<Vec<u8>> {
    let ask = Request::GetAttr { handle: handle.bytes(), open: Some(open) };
    let size = filesystem.call(context, ask).await.ok()?.attr().ok()?.size;
    let (length, checksum) = (data.len() as u32, crc32c::crc32c(data));
    let now = now().as_nanos() as u64;
    let numbers = (size.to_le_bytes(), length.to_le_bytes(), checksum.to_le_bytes(), now.to_le_bytes());
    Some(fields(context, &[handle.bytes(), &numbers.0, &numbers.1, &numbers.2, &numbers.3]))
}

/// What to write down before a compound: nothing can tell how far it came.
pub(crate) fn of_compound(context: &Context) -> Vec<u8> {
    fields(context, &[])
}

/// The answer that an operation would have had, if it was executed; `None`: it was not. What cannot be looked at is taken for not executed: then
/// the second try hears of it. `has_lost`: what was written may be lost although the file has become longer.
pub(crate) async fn settle(
    filesystem: &dyn FileSystem,
    (maps, has_lost): (Option<&IdMaps>, bool),
    (client, op): (ClientId, Op),
    intent: &[u8],
) -> Option<Result<Reply, Errno>> {
    let (caller, parts) = parse(intent)?;
    let owner = maps.map_or(caller.uid, |maps| maps.users.to_client(caller.uid));
    let look = Look { filesystem, caller, owner };
    match (op, &parts[..]) {
        (Op::Compound, []) => Some(Err(Errno::EIO)),
        (Op::Create, [parent, name, since, mode, flags]) => {
            let entry = look.made(parent, name, time(since)?, number(mode)?).await?;
            let flags = OpenFlags::from_bits(number(flags)?)?.difference(OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE);
            let opened = look.ask(client, &Request::Open { handle: entry.handle.bytes(), flags }).await;
            Some(opened.and_then(Reply::opened).map(|opened| Reply::Created(entry, opened)))
        }
        (Op::MakeDirectory | Op::MakeNode, [parent, name, since, mode, _]) => {
            look.made(parent, name, time(since)?, number(mode)?).await.map(|entry| Ok(Reply::Entry(entry)))
        }
        (Op::Symlink, [parent, name, since, mode, checksum]) => {
            let entry = look.made(parent, name, time(since)?, number(mode)?).await?;
            let ask = Request::ReadLink { handle: entry.handle.bytes() };
            let text = look.ask(NOBODY, &ask).await.and_then(Reply::bytes).ok()?;
            (crc32c::crc32c(&text) == number(checksum)?).then_some(Ok(Reply::Entry(entry)))
        }
        (Op::Link, [parent, name, since, handle]) => {
            let entry = look.up(parent, name).await.ok()?;
            let is_ours = entry.handle.bytes() == *handle && nanoseconds(entry.attr.ctime) >= time(since)?;
            is_ours.then_some(Ok(Reply::Entry(entry)))
        }
        (Op::Unlink | Op::RemoveDirectory, [parent, name, before]) => {
            (!look.leads_to(parent, name, before).await?).then_some(Ok(Reply::Done))
        }
        (Op::Rename, [parent, name, before, new_parent, new_name, new_before]) => {
            let left = !look.leads_to(parent, name, before).await?;
            // Where nothing has come to the new name, somebody else has taken the old one away.
            let came = before == new_before || !look.leads_to(new_parent, new_name, new_before).await?;
            (left && came).then_some(Ok(Reply::Done))
        }
        (Op::SetXattr, [handle, name, checksum]) => {
            let ask = Request::GetXattr { handle, name, size: XATTR_SIZE_MAX as u32 };
            let value = look.ask(NOBODY, &ask).await.and_then(Reply::bytes).ok()?;
            (crc32c::crc32c(&value) == number(checksum)?).then_some(Ok(Reply::Done))
        }
        (Op::RemoveXattr, [handle, name]) => {
            let found = look.ask(NOBODY, &Request::GetXattr { handle, name, size: 0 }).await;
            (found == Err(Errno::ENODATA)).then_some(Ok(Reply::Done))
        }
        // An earlier release wrote no time down.
        (Op::Write, [handle, size, length, checksum, since @ ..]) => {
            let size = u64::from_le_bytes((*size).try_into().ok()?);
            let length = number(length)?;
            let (count, attr) = look.appended(handle, size, (length, number(checksum)?)).await?;
            if has_lost && count < length {
                return None; // whether a part is there can be told when it is sent again: see `find_append`
            }
            let since = since.first().and_then(|since| time(since));
            if since.is_some_and(|since| !is_of_then(&attr, since)) {
                return Some(Err(Errno::EIO)); // the same bytes may be others': nobody knows
            }
            Some(Ok(Reply::Written(Written { count, verifier: look.verifier(handle).await?, offset: size })))
        }
        _ => None,
    }
}

/// The most of a file that is searched for an append: the appends of all clients that were lost with the machine end up before it.
const SEARCH_MAX: u64 = 16 << 20;

/// An append that may have been executed although nothing tells: where its data stand in the file, from where they were meant to go (the end of the file as
/// the client knew it) on, or the part of them that got there. Another client's append of the same data, lost in the same moment, would be taken for it.
pub(crate) async fn find_append(
    filesystem: &dyn FileSystem,
    context: &Context,
    write: WriteAt,
    data: &[u8],
) -> Option<Written> {
    let look = Look { filesystem, caller: context.credential.clone(), owner: context.credential.uid };
    let handle = filesystem.inode(context.client, write.open).await.ok()?;
    let ask = Request::GetAttr { handle: handle.bytes(), open: None };
    let size = look.ask(NOBODY, &ask).await.and_then(Reply::attr).ok()?.size;
    let length = size.checked_sub(write.offset).filter(|length| (1..=SEARCH_MAX).contains(length))?;
    let mut tail = Vec::new();
    while (tail.len() as u64) < length {
        let part = (length as usize - tail.len()).min(TRANSFER_SIZE_MAX) as u32;
        let read = look.read(handle.bytes(), write.offset + tail.len() as u64, part).await?;
        if read.is_empty() {
            break;
        }
        tail.extend(read);
    }
    let (at, count) = match memchr::memmem::find(&tail, data) {
        Some(at) => (at, data.len()),
        None if !tail.is_empty() && data.starts_with(&tail) => (0, tail.len()),
        None => return None,
    };
    let verifier = look.verifier(handle.bytes()).await?;
    Some(Written { count: count as u32, verifier, offset: write.offset + at as u64 })
}

/// Whether others' data stand where these went before they were lost: neither these, nor nothing.
pub(crate) async fn is_taken(
    filesystem: &dyn FileSystem,
    context: &Context,
    (handle, offset): (&Handle, u64),
    data: &[u8],
) -> bool {
    let look = Look { filesystem, caller: context.credential.clone(), owner: context.credential.uid };
    let found = look.read(handle.bytes(), offset, data.len() as u32).await.unwrap_or_default();
    !data.starts_with(&found) && found.iter().any(|byte| *byte != 0)
}

/// Looks at what is there, on nobody's behalf.
struct Look<'a> {
    filesystem: &'a dyn FileSystem,
    caller: Credential,
    /// The caller's uid as the file system shows it.
    owner: u32,
}

impl Look<'_> {
    /// As root, or where root may not, as the caller: a server that is not root's acts for one user only.
    async fn ask(&self, client: ClientId, request: &Request<'_>) -> Result<Reply, Errno> {
        let [root, caller] = self.contexts(client);
        match self.filesystem.call(&root, request.clone()).await {
            Err(Errno::EPERM | Errno::EACCES) => self.filesystem.call(&caller, request.clone()).await,
            result => result,
        }
    }

    fn contexts(&self, client: ClientId) -> [Context; 2] {
        [Context::new(client, Credential::root()), Context::new(client, self.caller.clone())]
    }

    async fn up(&self, parent: &[u8], name: &[u8]) -> Result<Entry, Errno> {
        self.ask(NOBODY, &Request::Lookup { parent, name }).await?.entry()
    }

    /// Whether a name leads to this inode; no handle: to none. `None`: nobody can tell.
    async fn leads_to(&self, parent: &[u8], name: &[u8], handle: &[u8]) -> Option<bool> {
        match self.up(parent, name).await {
            Ok(entry) => Some(entry.handle.bytes() == handle),
            Err(Errno::ENOENT) => Some(handle.is_empty()),
            Err(_) => None,
        }
    }

    /// What a name leads to that led nowhere before, if the caller can have made it: it is of that type, his, and not older, as far as the file system
    /// keeps births.
    async fn made(&self, parent: &[u8], name: &[u8], since: i128, mode: u32) -> Option<Entry> {
        let entry = self.up(parent, name).await.ok()?;
        let mut wanted = Attr { mode, ..Attr::default() }.kind();
        if wanted == 0 {
            wanted = REGULAR; // mknod(2)
        }
        let Attr { btime, uid, .. } = entry.attr;
        let is_new = btime == Time::default() || nanoseconds(btime) >= since;
        (is_new && entry.attr.kind() == wanted && uid == self.owner).then_some(entry)
    }

    /// How much of an append stands in a file behind the size that it had: all, or as much as was written when the process died.
    async fn appended(&self, handle: &[u8], size: u64, (length, checksum): (u32, u32)) -> Option<(u32, Attr)> {
        let attr = self.ask(NOBODY, &Request::GetAttr { handle, open: None }).await.and_then(Reply::attr).ok()?;
        let count = attr.size.saturating_sub(size).min(u64::from(length)) as u32;
        if count == length && crc32c::crc32c(&self.read(handle, size, length).await?) != checksum {
            return None;
        }
        (count > 0).then_some((count, attr))
    }

    /// What writes into a file say at present.
    async fn verifier(&self, handle: &[u8]) -> Option<u64> {
        let open = self.open(handle).await?;
        let commit = self.ask(NOBODY, &Request::Commit { open, offset: 0, length: 0 }).await.and_then(Reply::written);
        let released = self.ask(NOBODY, &Request::Release { open }).await;
        commit.and_then(|written| released.map(|_| written.verifier)).ok()
    }

    async fn read(&self, handle: &[u8], offset: u64, length: u32) -> Option<Vec<u8>> {
        let open = self.open(handle).await?;
        let (sink, read) = (MemorySink::default(), ReadAt { open, offset, length });
        let [root, caller] = self.contexts(NOBODY);
        let read = match self.filesystem.read(&root, read, Box::new(sink.clone())).await {
            Err(Errno::EPERM | Errno::EACCES) => self.filesystem.read(&caller, read, Box::new(sink.clone())).await,
            result => result,
        };
        let released = self.ask(NOBODY, &Request::Release { open }).await;
        read.and(released).ok().and_then(|_| sink.take())
    }

    async fn open(&self, handle: &[u8]) -> Option<OpenId> {
        let opened = self.ask(NOBODY, &Request::Open { handle, flags: OpenFlags::READ }).await;
        Some(opened.and_then(Reply::opened).ok()?.id)
    }
}

/// From when on an inode can have been made by what comes next, in nanoseconds since 1970.
fn since() -> u64 {
    now().saturating_sub(CLOCK_TICK).as_nanos() as u64
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whether a file was last changed, or written, when an append was executed that had been written
/// down then. If later, others may have added the same bytes after the server's death, and the
/// append was not executed at all.
fn is_of_then(attr: &Attr, since: i128) -> bool {
    let until = since + APPENDED_WITHIN.as_nanos() as i128;
    let from = since - COARSEST.as_nanos() as i128;
    // Nobody sets the time of change, and anybody that of writing.
    nanoseconds(attr.ctime) <= until || (from..=until).contains(&nanoseconds(attr.mtime))
}

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)
}

fn fields(context: &Context, parts: &[&[u8]]) -> Vec<u8> {
    let (uid, gid) = (context.credential.uid.to_le_bytes(), context.credential.gid.to_le_bytes());
    let mut intent = Vec::new();
    for part in [&uid[..], &gid[..]].iter().chain(parts) {
        intent.extend_from_slice(&(part.len() as u16).to_le_bytes()); // handles, names and numbers
        intent.extend_from_slice(part);
    }
    intent
}

/// The caller and the fields of an intent.
fn parse(mut intent: &[u8]) -> Option<(Credential, Vec<&[u8]>)> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = intent.split_first_chunk::<2>() {
        let (part, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        parts.push(part);
        intent = rest;
    }
    let (uid, gid) = (number(parts.first()?)?, number(parts.get(1)?)?);
    let caller = Credential { uid, gid, groups: Groups::Known([].into()) };
    Some((caller, parts.split_off(2)))
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn time(bytes: &[u8]) -> Option<i128> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// File systems keep times of a second or finer. Names and modes may have changed since, and
    /// whoever wrote may have set the time back.
    #[test]
    fn what_was_written_later_is_not_taken_for_an_append() {
        let at = |nanos: i64| Time {
            seconds: nanos.div_euclid(1_000_000_000),
            nanos: nanos.rem_euclid(1_000_000_000) as u32,
        };
        let (since, then) = (1_000_000_700_000_000i64, 1_000_000_700_004_000);
        let is_of_then =
            |ctime, mtime| is_of_then(&Attr { ctime: at(ctime), mtime: at(mtime), ..Attr::default() }, since.into());
        let (second, later, long_ago) = (1_000_000_000_000_000, since + 2_000_000_000, since - 9_000_000_000);
        assert!(is_of_then(then, then) && is_of_then(second, second) && is_of_then(then, long_ago));
        assert!(is_of_then(later, then), "only its name or mode is of later");
        assert!(!is_of_then(later, later) && !is_of_then(later, long_ago));
    }

    #[test]
    fn intents_are_parsed_as_they_were_written_or_not_at_all() {
        let caller = Credential { uid: 7, gid: 8, groups: Groups::Known([].into()) };
        let context = Context::new(NOBODY, caller.clone());
        let intent = fields(&context, &[b"name", b"", &[255; 160]]);
        assert_eq!(parse(&intent), Some((caller, vec![&b"name"[..], b"", &[255; 160]])));
        let whole = (0..intent.len()).filter_map(|end| parse(&intent[..end])).filter(|(_, parts)| parts.len() == 3);
        assert_eq!(whole.count(), 0);
        assert_eq!(parse(&[255; 40]), None);
    }
}
