//! Looks: what a reply says of an inode that another client writes to alone is said when that client has written what it held back.

use std::sync::atomic::{AtomicUsize, Ordering};

use aqueduct_fs::{Context, Errno, OpenId, Reply, Request};
use aqueduct_wire::Op;

use super::Job;
use crate::attached::Attached;
use crate::fetch::{self, Fetched};
use crate::lease::Verdict;
use crate::lease::touch;
use crate::lease::touched::Touched;

/// A look that waits, one of few.
struct Looking<'a>(&'a AtomicUsize);

impl Looking<'_> {
    fn begin(count: &AtomicUsize, count_max: usize) -> Result<Looking<'_>, Errno> {
        let looking = Looking(count);
        if count.fetch_add(1, Ordering::SeqCst) < count_max { Ok(looking) } else { Err(Errno::EAGAIN) }
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Job {
    /// Waits until nobody else holds back anything of what is looked at. `None`: the session or the server has ended before.
    async fn look(&self, touched: &Touched) -> Result<Option<()>, Errno> {
        let mut look = self.change();
        if look.try_begin(touched) == Verdict::Go {
            return Ok(Some(()));
        }
        let limits = &self.server.config.limits;
        let _of_client = Looking::begin(&self.session.looking, limits.looks_of_client_max)?;
        let _of_all = Looking::begin(&self.server.looking, limits.looks_max)?;
        Ok(self.begin(look, touched).await.transpose()?.map(drop))
    }

    /// The same, of what is read.
    pub(super) async fn look_at_open(&self, attached: &Attached, open: OpenId) -> Result<Option<()>, Errno> {
        if !self.server.leases.may_hold_back() {
            return Ok(Some(()));
        }
        let touched = self.toucher(attached).read(open).await?;
        self.look(&touched).await
    }

    /// Executes what changes nothing. Returns a stamp of before as well; `None`: it is not executed, and not answered.
    pub(super) async fn call_looking(
        &self,
        attached: &Attached,
        context: &Context,
        request: &Request<'_>,
    ) -> Result<Option<(Result<Reply, Errno>, u64)>, Errno> {
        let (leases, filesystem) = (&self.server.leases, &*attached.filesystem);
        if !leases.may_hold_back() {
            let stamp = leases.stamp();
            return Ok(Some((filesystem.call(context, request.clone()).await, stamp)));
        }
        let mut touched = self.toucher(attached).looked_at(request).await?;
        loop {
            if self.look(&touched).await?.is_none() {
                return Ok(None);
            }
            let stamp = leases.stamp();
            let mut result = filesystem.call(context, request.clone()).await;
            let Some(hidden) = touch::hide(&mut result, &|handle| self.hides(attached, handle, (stamp, &touched)))
            else {
                return Ok(Some((result, stamp)));
            };
            touched = Touched::look(leases.key(filesystem, hidden.bytes()));
        }
    }

    /// What many files or directories have. Files that others hold back writes to are left out.
    pub(super) async fn fetch_looking(
        &self,
        attached: &Attached,
        body: &[u8],
    ) -> Result<Option<(Fetched, u64)>, Errno> {
        let (leases, filesystem) = (&self.server.leases, &*attached.filesystem);
        let may_hide = leases.may_hold_back();
        let touched = Touched::by_name();
        if may_hide && self.look(&touched).await?.is_none() {
            return Ok(None);
        }
        let stamp = leases.stamp();
        let hides = |handle: &[u8]| may_hide && self.hides(attached, handle, (stamp, &touched));
        let context = |caller| self.context(attached, caller);
        let fetched = match self.op {
            Op::List => fetch::listings(filesystem, context, body, &hides).await?,
            _ => fetch::files(filesystem, context, body, &hides).await?,
        };
        Ok(Some((fetched, stamp)))
    }

    /// Whether what was looked at after the stamp was taken may lack what another client held back. What was `touched` was waited for.
    fn hides(&self, attached: &Attached, handle: &[u8], (stamp, touched): (u64, &Touched)) -> bool {
        let leases = &self.server.leases;
        let key = leases.key(&*attached.filesystem, handle);
        *touched != Touched::look(key) && leases.hides(self.session.client(), key, stamp)
    }
}
