//! Aqueduct's client straight: no mount, no kernel between. The thread that measures turns the client itself.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use aqueduct_fs::data::ReadBuffer;
use aqueduct_fs::{
    Context, Errno, FileSystem, Handle, OpenFlags, OpenId, ReadAt, Reply, Request, Sink, Source, TRANSFER_SIZE_MAX,
    WriteAt,
};
use aqueduct_node::{AttachConfig, Attachment, Carriers, ConnectError, Place, caller};
use bytes::Bytes;

use super::api::{INVALID, Names, Space, Transfers, ended};
use super::data::{Difference, Signature, compare};
use crate::Failure;

/// A server that has not answered for so long ends the measurement.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The place of an export, with a path below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The server's addresses, as a session takes them.
    pub server: String,
    /// The export and the path below it.
    pub path: String,
    /// What stands before these, as it was written.
    written: String,
}

impl Target {
    /// Splits what was given with `-o`.
    pub fn parse(text: &str) -> Result<Target, Failure> {
        let bad = |why: &dyn std::fmt::Display| {
            let why =
                format!("with -a aqueduct the test file is HOST:PORT:/EXPORT/PATH, or HOST:PORT:NAME/PATH: {why}");
            Failure::usage(format!("-o {text}"), why, "give for example -o server:7170:/export/testfile")
        };
        let place = Place::parse(text, |_| false).map_err(|error| bad(&error))?;
        if place.volume.is_some() {
            return Err(bad(&"this names a volume"));
        }
        if !place.export.contains('/') {
            return Err(bad(&"this names no file in an export"));
        }
        let written = text[..text.len() - place.export.len()].to_owned();
        Ok(Target { server: place.server(None), path: place.export, written })
    }

    /// The longest of these exports that the path is below of.
    fn export<'a>(&self, known: &'a [String]) -> Option<&'a str> {
        let is_above = |export: &str| {
            let rest = self.path.strip_prefix(export.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        known.iter().map(String::as_str).filter(|export| is_above(export)).max_by_key(|export| export.len())
    }
}

/// A session at a server.
pub struct Session {
    attached: Attachment,
    client: Arc<dyn FileSystem>,
    context: Context,
    /// The server as it was written, and the export: what paths begin with.
    prefix: String,
}

impl Session {
    /// Connects to the server of a target, and to the export that its path is below of.
    pub fn connect(target: &Target, name: String) -> Result<Arc<Session>, Failure> {
        let what = format!("connecting to {}", target.server);
        let connect = |export: &str| {
            let config = AttachConfig {
                name: name.clone(),
                patience: Some(TIMEOUT),
                ..AttachConfig::new(&target.server, export)
            };
            Attachment::connect(&config, Carriers::Caller)
        };
        let parent = target.path.rsplit_once('/').map_or("/", |(parent, _)| parent);
        let mut export = if parent.is_empty() { "/".to_owned() } else { parent.to_owned() };
        let mut connected = connect(&export);
        if let Err(ConnectError::UnknownExport { known, .. }) = &connected
            && let Some(longest) = target.export(known)
        {
            export = longest.to_owned();
            connected = connect(&export);
        }
        let attached = connected.map_err(|error| Failure::new(&what, &error, error.hint()))?;
        let prefix = format!("{}{}", target.written, export.trim_end_matches('/'));
        Ok(Arc::new(Session { client: attached.filesystem(), attached, context: caller(), prefix }))
    }

    fn call(&self, request: Request<'_>) -> Result<Reply, Errno> {
        self.attached.call(&self.context, request)
    }

    /// The names of a path below the export.
    fn names<'a>(&self, path: &'a str) -> io::Result<Vec<&'a [u8]>> {
        let below = path.strip_prefix(self.prefix.as_str()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(below.split('/').filter(|name| !name.is_empty()).map(str::as_bytes).collect())
    }

    /// The directory that a path lies in, and its last name.
    fn parent<'a>(&self, path: &'a str) -> io::Result<(Handle, &'a [u8])> {
        let mut names = self.names(path)?;
        let last = names.pop().ok_or(io::ErrorKind::InvalidInput)?;
        let mut parent = self.call(Request::Root)?.entry()?.handle;
        for name in names {
            parent = self.call(Request::Lookup { parent: parent.bytes(), name })?.entry()?.handle;
        }
        Ok((parent, last))
    }
}

fn absent_is<T>(absent: T, result: io::Result<T>) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(absent),
        result => result,
    }
}

impl Names for Arc<Session> {
    fn size(&mut self, path: &str) -> io::Result<Option<(u64, u64)>> {
        let found = || {
            let (parent, name) = self.parent(path)?;
            let entry = self.call(Request::Lookup { parent: parent.bytes(), name })?.entry()?;
            Ok(Some((entry.attr.size, entry.attr.blocks.saturating_mul(512))))
        };
        absent_is(None, found())
    }

    fn remove(&mut self, path: &str) -> io::Result<bool> {
        let removed = || {
            let (parent, name) = self.parent(path)?;
            self.call(Request::Unlink { parent: parent.bytes(), name })?;
            Ok(true)
        };
        absent_is(false, removed())
    }

    fn make_directory(&mut self, path: &str) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let make = Request::MakeDirectory { parent: parent.bytes(), name, mode: 0o755, umask: 0 };
        match self.call(make) {
            Ok(_) | Err(Errno::EEXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn remove_directory(&mut self, path: &str) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        self.call(Request::RemoveDirectory { parent: parent.bytes(), name })?;
        Ok(())
    }

    fn space(&mut self, path: &str) -> io::Result<Space> {
        let (parent, _) = self.parent(path)?;
        let stat = self.call(Request::Statfs { handle: parent.bytes() })?.statfs()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size.into());
        let (files, files_free) = (stat.files, stat.files_free);
        Ok(Space { bytes: bytes(stat.blocks), bytes_free: bytes(stat.blocks_available), files, files_free })
    }
}

/// Where a request's data are received, and what is written.
struct Part {
    received: ReadBuffer,
    length: usize,
}

type Moving = Pin<Box<dyn Future<Output = Result<(), Errno>> + Send>>;

/// Files by Aqueduct's client. A transfer is as many requests as it needs, all at once; each is at most 1 MiB, as the kernel's are.
pub struct Projected {
    session: Arc<Session>,
    open: Option<OpenId>,
    /// What is written, of a transfer.
    data: Bytes,
    /// Of each transfer that can be under way, its parts.
    parts: Vec<Vec<Part>>,
    /// The requests of each.
    under_way: Vec<Vec<Moving>>,
}

impl Projected {
    /// With so many transfers of this length under way.
    pub fn new(session: Arc<Session>, depth: u32, length: usize) -> Projected {
        let part = |at: usize| Part { received: ReadBuffer::default(), length: TRANSFER_SIZE_MAX.min(length - at) };
        let transfer = || (0..length).step_by(TRANSFER_SIZE_MAX).map(part).collect();
        let parts: Vec<Vec<Part>> = (0..depth).map(|_| transfer()).collect();
        let under_way = parts.iter().map(|parts| Vec::with_capacity(parts.len())).collect();
        Projected { session, open: None, data: Bytes::from(vec![0; length]), parts, under_way }
    }

    fn opened(&self) -> io::Result<OpenId> {
        self.open.ok_or(io::ErrorKind::NotConnected.into())
    }
}

async fn write(session: Arc<Session>, at: WriteAt, data: Bytes) -> Result<(), Errno> {
    let length = data.len();
    let written = session.client.write(&session.context, at, Source::Memory(data)).await?;
    if written.count as usize == length { Ok(()) } else { Err(Errno::ENOSPC) }
}

/// ENODATA: the file ends there.
async fn read(session: Arc<Session>, at: ReadAt, sink: Box<dyn Sink>) -> Result<(), Errno> {
    let count = session.client.read(&session.context, at, sink).await?;
    if count == at.length as usize { Ok(()) } else { Err(Errno::ENODATA) }
}

impl Transfers for Projected {
    fn create(&mut self, path: &str) -> io::Result<()> {
        let (parent, name) = self.session.parent(path)?;
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let create = Request::Create { parent: parent.bytes(), name, mode: 0o664, umask: 0, flags };
        self.open = Some(self.session.call(create)?.created()?.1.id);
        Ok(())
    }

    fn open(&mut self, path: &str) -> io::Result<()> {
        let (parent, name) = self.session.parent(path)?;
        let entry = self.session.call(Request::Lookup { parent: parent.bytes(), name })?.entry()?;
        let open = Request::Open { handle: entry.handle.bytes(), flags: OpenFlags::READ };
        self.open = Some(self.session.call(open)?.opened()?.id);
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        // What an error has left under way is given up.
        self.under_way.iter_mut().for_each(Vec::clear);
        if let Some(open) = self.open.take() {
            self.session.call(Request::Release { open })?;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.session.call(Request::Sync { open: self.opened()?, data_only: false })?;
        Ok(())
    }

    fn depth(&self) -> usize {
        self.parts.len()
    }

    fn fill(&mut self, signature: &Signature) {
        let mut data = vec![0; self.data.len()];
        signature.fill(&mut data);
        self.data = Bytes::from(data);
    }

    fn invalidate(&mut self, slot: usize) {
        self.parts[slot].iter().for_each(|part| part.received.with(|memory| memory.fill(INVALID)));
    }

    /// The client keeps what it has sent until that is stable, so that data which differ are copied; the same data are shared.
    fn start_write(&mut self, slot: usize, offset: u64, placed: Option<&Signature>) -> io::Result<()> {
        let open = self.opened()?;
        let data = match placed {
            None => self.data.clone(),
            Some(signature) => {
                let mut data = self.data.to_vec();
                signature.place(&mut data, offset);
                Bytes::from(data)
            }
        };
        let mut at = 0;
        for part in &self.parts[slot] {
            let place = WriteAt { open, offset: offset + at as u64, append: false, stable: false };
            let data = data.slice(at..at + part.length);
            self.under_way[slot].push(Box::pin(write(self.session.clone(), place, data)));
            at += part.length;
        }
        Ok(())
    }

    fn start_read(&mut self, slot: usize, offset: u64) -> io::Result<()> {
        let open = self.opened()?;
        let mut at = 0;
        for part in &self.parts[slot] {
            let place = ReadAt { open, offset: offset + at as u64, length: part.length as u32 };
            self.under_way[slot].push(Box::pin(read(self.session.clone(), place, part.received.sink(part.length))));
            at += part.length;
        }
        Ok(())
    }

    fn wait(&mut self) -> io::Result<usize> {
        let under_way = &mut self.under_way;
        let complete = poll_fn(|task| {
            for (slot, requests) in under_way.iter_mut().enumerate().filter(|(_, requests)| !requests.is_empty()) {
                let mut failed = None;
                requests.retain_mut(|request| match request.as_mut().poll(task) {
                    Poll::Pending => true,
                    Poll::Ready(result) => {
                        failed = result.err().or(failed);
                        false
                    }
                });
                if let Some(error) = failed {
                    return Poll::Ready(Err(error));
                }
                if requests.is_empty() {
                    return Poll::Ready(Ok(slot)); // the others are polled again when this one has been looked at
                }
            }
            Poll::Pending
        });
        match self.session.attached.wait(complete) {
            Ok(slot) => Ok(slot),
            Err(Errno::ENODATA) => Err(ended()),
            Err(error) => Err(error.into()),
        }
    }

    fn compare(&mut self, slot: usize, expected: &[u8]) -> Option<Difference> {
        let mut at = 0;
        for part in &self.parts[slot] {
            let of_part = &expected[at..at + part.length];
            let different = part.received.with(|memory| compare(of_part, memory));
            if let Some(difference) = different {
                return Some(Difference { at: at + difference.at, ..difference });
            }
            at += part.length;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_server_export_and_path() {
        let target = Target::parse("[::1]:7170:/srv/data/dir/f").unwrap();
        assert_eq!((target.server.as_str(), target.path.as_str()), ("[::1]:7170", "/srv/data/dir/f"));
        let known = ["/srv", "/srv/data", "/srv/da", "/other"].map(str::to_owned);
        assert_eq!(target.export(&known), Some("/srv/data"));
        assert_eq!(target.export(&["/".to_owned()]), Some("/"));
        assert_eq!(target.export(&["/srv/data/dir/f".to_owned()]), None);
        assert_eq!(Target::parse("a,b:1:/f").unwrap().server, "a:7170,b:1");
        let named = Target::parse("host:data/dir/f").unwrap();
        assert_eq!(named.export(&["/srv", "data"].map(str::to_owned)), Some("data"));
        for wrong in ["/mnt/f", "host:f", "v@host:/f", "host:1", "f"] {
            assert!(Target::parse(wrong).unwrap_err().is_usage, "{wrong}");
        }
    }
}
