//! Reading from pages that no lease covers: they are dropped before each read(2).
//!
//! The kernel asks for attributes before it reads. To drop the pages for a time or a size that
//! changed it has to believe the answer, which it does not when it was told of something else
//! meanwhile, a recall or what another program asked: then it reads old pages up to the old end.
//! So it is told to drop the pages, which is certain, before it is answered. It does not believe
//! the answer then, so a size that has grown is told by the data at the end of the file. A size
//! that has become smaller cannot be told so: the kernel has to believe the answer, or learns of
//! it by the pages that it fetches.
//!
//! To drop pages waits for those that are being fetched or written. That may wait for others, who
//! may wait for the lease that is held on the attributes meanwhile: so it is held for a moment
//! only, and asked for again.

use std::cmp::Ordering;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use aqueduct_fs::data::MemorySink;
use aqueduct_fs::{Attr, Errno, OpenId, ReadAt};
use aqueduct_worker::Group;

use crate::job::Job;
use crate::kept::Kept;
use crate::pages::Tail;
use crate::sizes::Use;

/// How long a lease is held while others are waited for: far longer than they take where nobody
/// else is at the file.
const PATIENCE: Duration = Duration::from_millis(20);

/// How often attributes are asked for again. Beyond, the pages were dropped as often, and each
/// time after the read had begun.
const TRIES: usize = 8;

/// The attributes for who is about to read(2) from pages through `open`.
pub(super) async fn get_attr(job: &Job, open: OpenId) -> Result<(Attr, Kept), Errno> {
    let (shared, node) = (&job.shared, job.header.nodeid);
    let mut tries = 0;
    loop {
        tries += 1;
        let (mut attr, mut kept) = job.get_attr(Some(open)).await?;
        let is_unleased = job.reads_unleased_pages(node);
        if is_unleased {
            // Whoever looks at the time asks anew, and the next who reads.
            kept.attributes = Duration::ZERO;
        }
        match shared.nodes.marks(node).compare_size(attr.size) {
            Ordering::Less => {
                if is_unleased {
                    // For another size, or at least another time, the kernel drops the pages
                    // itself.
                    attr.mtime.nanos = shared.other_nanos(attr.mtime.nanos);
                }
                shared.nodes.mark(node, |marks| marks.stores_size(attr.size));
                return Ok((attr, kept));
            }
            Ordering::Equal if !is_unleased => return Ok((attr, kept)),
            order => {
                let fresh = refresh(job, open, (order == Ordering::Greater).then_some(attr.size));
                let mut fresh = pin!(fresh);
                match soon(fresh.as_mut()).await {
                    Some(Ok(true)) => return Ok((attr, kept)),
                    Some(Ok(false)) => {} // it was made shorter meanwhile
                    Some(Err(errno)) => return Err(errno),
                    None => {
                        drop(kept);
                        fresh.await?;
                    }
                }
                if tries >= TRIES {
                    let (attr, mut kept) = job.get_attr(Some(open)).await?;
                    kept.attributes = Duration::ZERO;
                    return Ok((attr, kept));
                }
            }
        }
    }
}

/// Has the kernel drop the pages that no lease covers and, where a file has `grown` beyond what it
/// may believe, know its size. False: it is not that long any more.
async fn refresh(job: &Job, open: OpenId, grown: Option<u64>) -> Result<bool, Errno> {
    let (shared, node) = (&job.shared, job.header.nodeid);
    let Some(size) = grown.filter(|size| *size > 0) else {
        shared.page_drops.drop_now(node).await;
        return Ok(true);
    };
    // Whoever was answered before the file grew, and has not looked yet where it ends, would take
    // the rest of his page for zeros that were read.
    drop(shared.sizes.enter(node, Use::Change, &job.context.cancel).await);
    let hold = if shared.policy.leases { shared.filesystem.hold_data(&job.handle()?) } else { None };
    let Some((offset, data)) = read_tail(job, open, size).await? else { return Ok(false) };
    shared.page_drops.refresh(node, Tail { offset, data, is_leased: hold.is_some() }).await;
    Ok(true)
}

/// The last page of a file, if it ends there still.
async fn read_tail(job: &Job, open: OpenId, size: u64) -> Result<Option<(u64, Vec<u8>)>, Errno> {
    let page = rustix::param::page_size() as u64;
    let last = size.saturating_sub(1);
    let (offset, sink) = (last - last % page, MemorySink::default());
    let length = (size - offset) as u32;
    job.shared.filesystem.read(&job.context, ReadAt { open, offset, length }, Box::new(sink.clone())).await?;
    let data = sink.take().filter(|data| data.len() == length as usize);
    Ok(data.map(|data| (offset, data)))
}

/// What comes within [`PATIENCE`].
async fn soon<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    let patience = Group::current().map(|group| group.sleep(PATIENCE));
    let mut patience = pin!(patience);
    poll_fn(|task| {
        if let Poll::Ready(output) = future.as_mut().poll(task) {
            return Poll::Ready(Some(output));
        }
        let is_over = patience.as_mut().as_pin_mut().is_none_or(|sleep| sleep.poll(task).is_ready());
        if is_over { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}
