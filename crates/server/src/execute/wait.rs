//! Locks that wait.

use std::sync::atomic::Ordering;

use aqueduct_fs::{Call, Context, Errno, FileSystem, Request};
use aqueduct_wire::{Granted, Header, Kind};

use super::{Job, reply_header};

impl Job {
    /// A lock that may have to wait: answered at once if it can be had; else PENDING, which frees
    /// slot and credit, and COMPLETION when it ends.
    pub(super) async fn wait_for_lock(
        &self,
        filesystem: &dyn FileSystem,
        context: &Context,
        request: Request<'_>,
        in_grace: bool,
    ) {
        if let (false, Request::SetLock { open, owner, space, lock, .. }) = (in_grace, &request) {
            // Whether it can be had, a file system that asks others for that tells no sooner than
            // they do: what is pending there need not be a wait for the lock.
            let (open, owner, space, lock) = (*open, *owner, *space, *lock);
            let at_once = Request::SetLock { open, owner, space, lock, wait: false };
            let result = filesystem.call(context, at_once).await;
            if result != Err(Errno::EAGAIN) {
                return self.finish(Kind::Reply, result, true, &Granted::default());
            }
        }
        let mut call = if in_grace {
            Call::waiting(async {
                self.server.recovery.over(&context.cancel).await?;
                filesystem.call(context, request).await
            })
        } else {
            filesystem.call(context, request)
        };
        if let Some(result) = poll_once(&mut call).await {
            return self.finish(Kind::Reply, result, true, &Granted::default());
        }
        // What a client does not acknowledge takes the room of what it would wait for next.
        let unacknowledged = aqueduct_worker::lock(&self.session.outbox).outliving();
        let most = self.server.config.limits.pending_max.saturating_sub(unacknowledged);
        let waits = &self.session.waits;
        let Some(number) = waits.add(&self.header, &context.cancel, self.asker(), most) else {
            drop(call);
            return self.finish(Kind::Reply, Err(Errno::ENOLCK), true, &Granted::default());
        };
        let pending = reply_header(&self.header, Kind::Pending, Ok(()));
        let Some(others) = self.remember(&pending, &[]) else { return };
        // Before they hear that it waits. Where nobody is left, because the link was given up, it
        // stops at once, and who asks anew waits anew.
        waits.tell_too(number, &others);
        self.send(pending, &[]);
        others.iter().for_each(|asker| asker.answer(pending, &[]));
        // What waits is not under way: a server that ends does not wait for it, nor who retires
        // its link.
        let waiting = self.running.wait();
        self.server.executing.fetch_sub(1, Ordering::SeqCst);
        let result = call.await;
        self.server.executing.fetch_add(1, Ordering::SeqCst);
        drop(waiting);
        let completion = reply_header(&self.header, Kind::Completion, result.map(drop));
        let completion = Header { flags: self.renewal(), ..completion };
        // Where their connections have gone, the client asks anew.
        for (connection, request) in self.session.waits.remove(number) {
            self.server.tell(&self.session, connection.as_ref(), Header { request, ..completion }, &[]);
        }
    }
}

async fn poll_once<T: Unpin>(call: &mut Call<'_, T>) -> Option<Result<T, Errno>> {
    std::future::poll_fn(|task| match std::pin::Pin::new(&mut *call).poll(task) {
        std::task::Poll::Ready(result) => std::task::Poll::Ready(Some(result)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
