//! Changes of attributes that were held back under an exclusive lease, as writes are: sent in their order with these.

use aqueduct_fs::{Aspects, Context, Errno, FileSystem, Request};
use aqueduct_wire::{Granted, Kind};

use super::{Job, Try};
use crate::attached::Attached;
use crate::lease::touched::{EXCLUSIVE, Touched};
use crate::repeat::{self, Repeat};

impl Job {
    /// Of a file, and not of its size: who holds writes back knows what is cut off by it.
    pub(super) async fn set_held(
        &self,
        attached: &Attached,
        context: &Context,
        request: &Request<'_>,
    ) -> Result<(), Errno> {
        let Request::SetAttr { handle, open, set } = request else { return Err(Errno::EINVAL) };
        let of_open = match *open {
            Some(open) => attached.filesystem.inode(context.client, open).await.ok(),
            None => None,
        };
        if set.size.is_some() || of_open.is_some_and(|inode| inode.bytes() != *handle) {
            return Err(Errno::EINVAL);
        }
        if self.header.sequence == 0 {
            return self.set_again(attached, context, request, handle).await;
        }
        match self.admit().await? {
            None => return Ok(()),
            Some(Try::First { .. }) => {}
            Some(Try::AfterRestart(record)) => {
                if let Repeat::Answer(result) = repeat::repeat(&*attached.filesystem, context, request, record).await {
                    self.finish(Kind::Reply, result, true, &Granted::default());
                    return Ok(());
                }
            }
        }
        let result = match self.touched_by_set(attached, (handle, EXCLUSIVE)) {
            Err(late) => Err(late),
            // Who holds something back is waited for by the others.
            Ok(touched) => match self.begin(self.server.leases.change(self.session.client(), true), &touched).await {
                None => return Ok(()),
                Some(Err(late)) => Err(late),
                Some(Ok(_change)) => attached.filesystem.call(context, request.clone()).await,
            },
        };
        self.count(0, 0);
        self.finish(Kind::Reply, result, true, &Granted::default());
        Ok(())
    }

    /// What was held back before a restart. Once more does no harm, so that it has no slot.
    async fn set_again(
        &self,
        attached: &Attached,
        context: &Context,
        request: &Request<'_>,
        handle: &[u8],
    ) -> Result<(), Errno> {
        let leases = &self.server.leases;
        let _flush = leases.flush(self.session.id)?;
        let touched = self.touched_by_set(attached, (handle, Aspects::ATTRIBUTES))?;
        let Some(change) = self.begin(leases.change(self.session.client(), true), &touched).await.transpose()? else {
            return Ok(());
        };
        let result = attached.filesystem.call(context, request.clone()).await;
        drop(change);
        self.count(0, 0);
        self.finish(Kind::Reply, result, false, &Granted::default());
        Ok(())
    }

    fn touched_by_set(&self, attached: &Attached, (handle, aspects): (&[u8], Aspects)) -> Result<Touched, Errno> {
        if aspects == EXCLUSIVE && !self.server.leases.watches() {
            return Err(Errno::ESTALE); // nobody was granted a lease for that
        }
        let mut touched = Touched::default();
        if self.tells_changes(attached) {
            touched.add(self.toucher(attached).key(handle), aspects);
        }
        Ok(touched)
    }
}
