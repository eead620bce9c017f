//! What is fetched before it is asked for: small files with the one that somebody opens, and whole directories at their opening, or when somebody looks up
//! names in them, with others near by.

use std::sync::Arc;

use aqueduct_fs::{Answer, Context, Errno, OpenFlags, ReadAt, Request, Sink};
use aqueduct_wire::Subject;
use bytes::Bytes;

use super::Cached;
use super::leases::{Brought, Leases, has_known_groups};
use super::memory::Keeper;
use crate::lane::lock;

impl Cached {
    /// Answers what only the server can, by asking it for more at once; else gives the request back.
    pub(super) async fn fetch_ahead<'a>(
        &self,
        context: &Context,
        request: Request<'a>,
        leases: &Arc<Leases>,
    ) -> Result<Answer, Request<'a>> {
        if leases.view().is_none() || !has_known_groups(&context.credential) {
            return Err(request);
        }
        let fetched = match request {
            Request::Open { handle, flags: OpenFlags::READ } => {
                let wanted = lock(&leases.scans).opens(handle);
                let handles: Vec<&[u8]> = wanted.iter().map(|handle| &**handle).collect();
                if handles.is_empty() {
                    return Err(request);
                }
                self.fetch_files(context, &handles, leases).await
            }
            Request::OpenDirectory { handle } => self.list(context, handle, leases).await,
            Request::Lookup { parent, .. } if lock(&leases.scans).looks_up(parent) => {
                self.list(context, parent, leases).await
            }
            _ => return Err(request),
        };
        if let Err(error) = fetched {
            if error == Errno::ENOSYS {
                lock(&leases.scans).fails();
            }
            tracing::debug!(%error, ?request, "this could not be fetched ahead");
            return Err(request);
        }
        let answer = self.remembered(context, request, leases);
        if let Err(Request::Open { handle, .. }) = answer {
            lock(&leases.scans).fetched_in_vain(leases.key(handle));
        }
        answer
    }

    /// Has a directory listed, and those with it that whoever goes through a tree is likely to list next.
    async fn list(&self, context: &Context, handle: &[u8], leases: &Arc<Leases>) -> Result<(), Errno> {
        let user = context.credential.uid;
        let Some(wanted) = Wanted::new(leases, handle, user) else { return Ok(()) };
        let asked = leases.asks();
        let mut brought = Brought::default();
        let handles: Vec<&[u8]> = wanted.handles.iter().map(|handle| &**handle).collect();
        let listings = self.client.list(context, &handles, &mut brought).await?;
        let mut keeper = Keeper::ahead(leases, asked, &brought);
        let numbered = keeper.numbered();
        let uses = lock(&leases.scans).came_ahead(listings.len().saturating_sub(1));
        let (mut rest, mut is_first) = (&numbered[..], true);
        for (handle, listing) in wanted.handles.iter().zip(&listings) {
            let behind = 1 + listing.as_ref().map_or(0, |page| page.entries().count());
            match listing {
                Ok(page) => keeper.directory(handle, page, rest, context),
                Err(error) => tracing::debug!(%error, "a directory could not be listed ahead"),
            }
            if !listing.as_ref().is_ok_and(|page| page.end) {
                lock(&leases.scans).lists_in_vain(handle, listing.is_err().then_some(user));
            } else if !is_first {
                leases.shard(leases.hash(handle), |shard| shard.set_ahead(handle, &uses));
            }
            rest = rest.get(behind..).unwrap_or_default();
            is_first = false;
        }
        Ok(())
    }

    async fn fetch_files(&self, context: &Context, handles: &[&[u8]], leases: &Arc<Leases>) -> Result<(), Errno> {
        let asked = leases.asks();
        let mut brought = Brought::default();
        let body = self.client.fetch_files(context, handles, &mut brought).await?;
        let files = aqueduct_wire::decode_fetched(&body).map_err(|_| Errno::EPROTO)?;
        let mut keeper = Keeper::ahead(leases, asked, &brought);
        for ((handle, file), at) in handles.iter().zip(files).zip(0..) {
            let lease = keeper.lease(Subject::Entry(at));
            if let Ok((attr, data)) = file {
                keeper.file(handle, lease, (&attr, data), context);
            }
        }
        Ok(())
    }
}

/// Directories that the server is asked for together, so that nobody else asks ahead for them meanwhile.
struct Wanted<'a> {
    leases: &'a Leases,
    handles: Vec<Arc<[u8]>>,
}

impl<'a> Wanted<'a> {
    /// This one, and others whose listings are not here. `None`: that would be in vain.
    fn new(leases: &'a Leases, handle: &[u8], user: u32) -> Option<Wanted<'a>> {
        let (others, near) = lock(&leases.scans).lists(handle, user)?;
        let view = leases.view()?;
        let is_wanted =
            |handle: &Arc<[u8]>| !leases.shard(leases.hash(handle), |shard| shard.has_listing(handle, &view));
        let mut handles = vec![leases.key(handle)];
        handles.extend(near.into_iter().filter(is_wanted).take(others));
        lock(&leases.scans).asks(&handles);
        Some(Wanted { leases, handles })
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        lock(&self.leases.scans).asked(&self.handles);
    }
}

impl Leases {
    /// What a read gives, if the file was fetched ahead, or ends before. When it has been read to its end it is the kernel's, and nothing is kept here any more.
    pub(super) fn fetched(&self, handle: &[u8], read: ReadAt) -> Option<Bytes> {
        let view = self.view()?;
        let hash = self.hash(handle);
        let Some(content) = self.shard(hash, |shard| shard.content(handle, hash, &view)) else {
            let size = self.shard(hash, |shard| shard.size(handle, hash, &view))?;
            return (read.offset >= size).then(Bytes::new);
        };
        let start = content.len().min(usize::try_from(read.offset).unwrap_or(usize::MAX));
        let end = content.len().min(start.saturating_add(read.length as usize));
        if end == content.len() {
            self.shard(hash, |shard| shard.drop_content(handle));
        }
        lock(&self.scans).reads(handle);
        Some(content.slice(start..end))
    }
}

/// Gives data to whoever reads.
pub(super) fn deliver(data: &[u8], mut sink: Box<dyn Sink>) -> Result<usize, Errno> {
    sink.bytes(data)?;
    sink.finish(data.len())?;
    Ok(data.len())
}
