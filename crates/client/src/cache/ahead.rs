//! What is fetched before it is asked for: small files with the one that somebody opens, and whole directories at their opening, or when somebody looks up
//! names in them, with others near by.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use aqueduct_fs::{Answer, Context, Errno, OpenFlags, OpenId, ReadAt, Request, Sink};
use aqueduct_session::Brought;
use aqueduct_wire::{DIRECTORY_PAGE_MAX, Subject};
use aqueduct_worker::lock;
use bytes::Bytes;

use super::leases::{Leases, has_known_groups};
use super::memory::Keeper;
use super::parts::Cache;
use super::scan::Look;
use crate::volume::Volume;

/// So much of a large directory is listed for who asks for names in it: some 3,000 of them.
const PAGES_MAX: usize = 8;

impl Cache {
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
        if let Request::Lookup { parent: directory, .. } | Request::OpenDirectory { handle: directory } = request
            && wait_for_listing(context, directory, leases).await
            && let Ok(answer) = self.remembered(context, request.clone(), leases)
        {
            return Ok(answer);
        }
        let fetched = match request {
            Request::Open { handle, flags: OpenFlags::READ } => {
                let wanted = lock(&leases.scans).opens(handle);
                let handles: Vec<&[u8]> = wanted.iter().map(|handle| &**handle).collect();
                if handles.is_empty() {
                    return Err(request);
                }
                Box::pin(self.fetch_files(context, &handles, leases)).await
            }
            Request::OpenDirectory { handle } => Box::pin(self.list(context, handle, leases)).await,
            Request::Lookup { parent, .. } => {
                let look = lock(&leases.scans).looks_up(parent);
                match look {
                    Look::Page => Box::pin(self.list(context, parent, leases)).await,
                    Look::Pages => {
                        self.list_meanwhile(context, parent, leases);
                        return Err(request);
                    }
                    Look::Name => return Err(request),
                }
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
        let listings = self.volume.list(context, (leases.session(), &handles), &mut brought).await?;
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

    /// Has a directory of more than a page listed by a task of its own: whoever asks for a name in it now is answered as soon.
    fn list_meanwhile(&self, context: &Context, handle: &[u8], leases: &Arc<Leases>) {
        let (volume, wanted) = (self.volume.clone(), Wanted::alone(leases, handle));
        let context = Context::new(context.client, context.credential.clone());
        self.volume.sessions[leases.session()].groups()[0].spawn(async move {
            if let Err(error) = list_pages(&volume, &context, &wanted).await {
                tracing::debug!(%error, "a directory could not be listed ahead");
            }
        });
    }

    async fn fetch_files(&self, context: &Context, handles: &[&[u8]], leases: &Arc<Leases>) -> Result<(), Errno> {
        let asked = leases.asks();
        let mut brought = Brought::default();
        let body = self.volume.fetch_files(context, (leases.session(), handles), &mut brought).await?;
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

async fn list_pages(volume: &Volume, context: &Context, wanted: &Wanted) -> Result<(), Errno> {
    for handle in &wanted.handles {
        let open =
            volume.call(context, &Request::OpenDirectory { handle }, &mut Brought::default()).await?.opened()?.id;
        let listed = read_pages(volume, context, (handle, open), &wanted.leases).await;
        volume.call(context, &Request::ReleaseDirectory { open }, &mut Brought::default()).await?;
        listed?;
    }
    Ok(())
}

async fn read_pages(
    volume: &Volume,
    context: &Context,
    (handle, open): (&[u8], OpenId),
    leases: &Arc<Leases>,
) -> Result<(), Errno> {
    let mut cookie = 0;
    for _ in 0..PAGES_MAX {
        let asked = leases.asks();
        let mut brought = Brought::default();
        let request = Request::ReadDirectory { open, cookie, size: DIRECTORY_PAGE_MAX, plus: true };
        let page = volume.call(context, &request, &mut brought).await?.directory()?;
        let mut keeper = Keeper::ahead(leases, asked, &brought);
        let (lease, of_entries) = (keeper.lease(Subject::Inode), keeper.numbered());
        keeper.page(handle, (Some(open), cookie, &page), lease, &of_entries);
        match page.entries().last() {
            Some(last) if !page.end => cookie = last.cookie,
            _ => break,
        }
        let waiting = lock(&leases.scans).coming.page(handle);
        wake(waiting);
    }
    Ok(())
}

/// If the server is being asked for a directory, waits until it has answered, with a page if there are many: then what is wanted of it may be here. False: it is
/// not being asked.
async fn wait_for_listing(context: &Context, directory: &[u8], leases: &Leases) -> bool {
    let next = lock(&leases.scans).coming.next(directory);
    let Some(number) = next else { return false };
    poll_fn(|task| match context.cancel.poll(task) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => lock(&leases.scans).coming.poll(directory, number, task),
    })
    .await;
    true
}

fn wake(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

/// Directories that the server is asked for together: nobody else asks ahead for them meanwhile.
struct Wanted {
    leases: Arc<Leases>,
    handles: Vec<Arc<[u8]>>,
}

impl Wanted {
    /// This one alone.
    fn alone(leases: &Arc<Leases>, handle: &[u8]) -> Wanted {
        let handles = vec![leases.key(handle)];
        lock(&leases.scans).coming.begin(&handles);
        Wanted { leases: leases.clone(), handles }
    }

    /// This one, and others whose listings are not here. `None`: that would be in vain.
    fn new(leases: &Arc<Leases>, handle: &[u8], user: u32) -> Option<Wanted> {
        let (others, near) = lock(&leases.scans).lists(handle, user)?;
        let view = leases.view()?;
        let is_wanted =
            |handle: &Arc<[u8]>| !leases.shard(leases.hash(handle), |shard| shard.has_listing(handle, &view));
        let mut handles = vec![leases.key(handle)];
        handles.extend(near.into_iter().filter(is_wanted).take(others));
        lock(&leases.scans).coming.begin(&handles);
        Some(Wanted { leases: leases.clone(), handles })
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        let waiting = lock(&self.leases.scans).coming.end(&self.handles);
        wake(waiting);
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
