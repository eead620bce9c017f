//! Writes: new ones, repeats, what was held back under an exclusive lease, and what a machine has lost.

use aqueduct_fs::{Aspects, Context, Errno, FileSystem, OpenFlags, OpenId, Reply, Request, Source, WriteAt, Written};
use aqueduct_net::Payload;
use aqueduct_wire::{Flags, Granted, Kind, Subject};
use bytes::Bytes;

use super::{Job, Try};
use crate::attached::Attached;
use crate::config::Role;
use crate::exclusion::Excluded;
use crate::intent;
use crate::lease::keeper::{Change, Flush};
use crate::lease::touch::Found;
use crate::lease::touched::{EXCLUSIVE, TOGETHER, Touched};
use crate::repeat;

const DATA: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES);

impl Job {
    pub(super) async fn write(&self, attached: &Attached, body: &[u8], payload: Payload) -> Result<(), Errno> {
        let (caller, mut write) = aqueduct_wire::decode_write(body).map_err(|error| error.errno())?;
        let data = self.source(payload, write.append)?;
        let context = self.context(attached, caller);
        let is_held = self.header.flags.contains(Flags::HELD);
        if self.header.sequence == 0 {
            if matches!(self.server.config.role, Role::Data(_)) {
                return Err(Errno::EREMOTE); // what is to be written again goes to who has the names
            }
            return Box::pin(self.write_again(attached, &context, write, data.memory()?)).await;
        }
        // In a slot, what was held back before a restart is an append: once more would do harm.
        let leases = &self.server.leases;
        let flush = self.flush(is_held && self.session.is_recovering())?;
        let Some(which) = self.admit().await? else { return Ok(()) };
        let aspects = if is_held && flush.is_none() { EXCLUSIVE } else { DATA };
        // Until it is remembered: what stands where an append went tells whether it was executed.
        let mut excluded = None;
        let (result, grants) = match self.touched_by_write(attached, (write.open, aspects), data.length()).await {
            Err(error) if is_held || matches!(which, Try::First { .. }) => (Err(error), Granted::default()),
            touched => {
                // Nobody repeats what one of several writers was told is written.
                let of_several = |touched: &Touched| touched.iter().any(|(_, aspects)| aspects == TOGETHER);
                write.stable |= touched.as_ref().is_ok_and(of_several);
                // Who holds something back is waited for by the others.
                let change = leases.change(self.session.client(), is_held);
                let Some(begun) = self.begin(change, &touched.unwrap_or_default()).await else { return Ok(()) };
                let written = match begun {
                    Ok(change) => {
                        let which = (which, change, &mut excluded);
                        self.write_begun(attached, &context, which, (write, data)).await
                    }
                    Err(late) => Some((Err(late), Granted::default())),
                };
                let Some(written) = written else { return Ok(()) };
                written
            }
        };
        // What was brought to another server counts there.
        let came = result.as_ref().ok().filter(|_| self.asked.staged.is_none());
        self.count(0, came.map_or(0, |written| written.count as usize));
        self.finish(Kind::Reply, result.map(Reply::Written), true, &grants);
        drop(excluded);
        Ok(())
    }

    /// Writes, and grants what the client asks for to write under from now on: others who used the file may be done.
    async fn write_begun<'a>(
        &'a self,
        attached: &Attached,
        context: &Context,
        (which, change, excluded): (Try, Change<'_>, &mut Option<Excluded<'a>>),
        (write, data): (WriteAt, Source),
    ) -> Option<(Result<Written, Errno>, Granted)> {
        if let Err(error) = self.may_repeat(attached, (&write, data.length())).await {
            return Some((Err(error), Granted::default()));
        }
        let stamp = self.server.leases.stamp();
        let _executing = match self.enter_right(attached, (&write, data.length())).await {
            Ok(executing) => executing,
            Err(error) => return Some((Err(error), Granted::default())),
        };
        let written = self.write_as((which, excluded), attached, context, (write, data)).await?;
        let asks = written.is_ok() && self.asks_leases() && self.asks_exclusive();
        let file = match asks {
            true => attached.filesystem.inode(context.client, write.open).await.ok(),
            false => None,
        };
        let grants = self.granted((stamp, Some(&change)), |grant| {
            file.into_iter().for_each(|file| _ = grant(Subject::Inode, file.bytes(), EXCLUSIVE));
        });
        Some((written, grants))
    }

    /// Writes, or finds out what came of the first try.
    async fn write_as<'a>(
        &'a self,
        (which, excluded): (Try, &mut Option<Excluded<'a>>),
        attached: &Attached,
        context: &Context,
        (write, data): (WriteAt, Source),
    ) -> Option<Result<Written, Errno>> {
        let filesystem = &*attached.filesystem;
        match which {
            Try::AfterRestart(record) => {
                let file = (filesystem, &*self.server);
                Some(Box::pin(repeat::repeat_write(file, context, write, data, record)).await)
            }
            Try::First { may_be_old } => {
                let data = match self.brought(attached, data) {
                    Ok(data) => data,
                    Err(error) => return Some(Err(error)),
                };
                let found = match may_be_old {
                    true => Box::pin(self.find_append(filesystem, context, write, &data)).await,
                    false => None,
                };
                match found {
                    Some(written) => Some(Ok(written)),
                    None => self.write_once((filesystem, excluded), context, write, data).await,
                }
            }
        }
    }

    /// An append that is sent again after the machine died may have been executed without a trace but in the file.
    async fn find_append(
        &self,
        filesystem: &dyn FileSystem,
        context: &Context,
        write: WriteAt,
        data: &Source,
    ) -> Option<Written> {
        let may_be_there = write.append && self.header.flags.contains(Flags::RETRY);
        match data {
            Source::Memory(data) if may_be_there => intent::find_append(filesystem, context, write, data).await,
            _ => None,
        }
    }

    /// What was held back before a restart is about to be written, if it is that.
    fn flush(&self, is_of_before: bool) -> Result<Option<Flush<'_>>, Errno> {
        match is_of_before {
            true => self.server.leases.flush(self.session.id).map(Some),
            false => Ok(None),
        }
    }

    /// What was written before, and may be lost, is written again where it was; without data it only says whether that is so. Once more does no harm, so
    /// that it has no slot. The same for what was held back before a restart.
    async fn write_again(
        &self,
        attached: &Attached,
        context: &Context,
        write: WriteAt,
        data: Bytes,
    ) -> Result<(), Errno> {
        if write.append {
            return Err(Errno::EINVAL);
        }
        let leases = &self.server.leases;
        let flush = self.flush(self.header.flags.contains(Flags::HELD))?;
        let touched = self.touched_by_write(attached, (write.open, DATA), data.len()).await?;
        // Who recovers is waited for by the others.
        let change = leases.change(self.session.client(), flush.is_some() || self.session.is_recovering());
        let Some(change) = self.begin(change, &touched).await.transpose()? else { return Ok(()) };
        self.may_repeat(attached, (&write, data.len())).await?;
        let filesystem = &*attached.filesystem;
        let open = (!data.is_empty()).then_some(write.open);
        let no_append = self.no_append_meanwhile(filesystem, context, open).await;
        let written = filesystem.write(context, write, Source::Memory(data)).await;
        drop((no_append, change));
        let written = written?;
        self.count(0, written.count as usize);
        self.finish(Kind::Reply, Ok(Reply::Written(written)), false, &Granted::default());
        Ok(())
    }

    /// Writes. An append is written down before, with the place where it will end up: nobody else
    /// appends meanwhile, or makes the file longer or shorter.
    async fn write_once<'a>(
        &'a self,
        (filesystem, excluded): (&dyn FileSystem, &mut Option<Excluded<'a>>),
        context: &Context,
        write: WriteAt,
        data: Source,
    ) -> Option<Result<Written, Errno>> {
        let handle = match self.keeps_appends_whole() && data.length() > 0 {
            true => filesystem.inode(context.client, write.open).await.ok(),
            false => None,
        };
        let (exclusion, leases) = (&self.server.exclusion, &self.server.leases);
        *excluded = match &handle {
            Some(handle) if write.append => Some(exclusion.appends(leases, filesystem, handle).await),
            Some(handle) => Some(exclusion.resizes(leases, filesystem, handle.bytes()).await),
            None => None,
        };
        let intent = match (&handle, &data) {
            (Some(handle), Source::Memory(data)) if write.append && self.session.survives() => {
                intent::of_append(filesystem, context, (handle, write.open), data).await
            }
            _ => None,
        };
        if !self.intend(intent) {
            return None;
        }
        Some(filesystem.write(context, write, data).await)
    }

    /// Whether it is written down of appends where they will stand. At a server of data nobody
    /// appends.
    fn keeps_appends_whole(&self) -> bool {
        self.server.keeps_sessions() && !matches!(self.server.config.role, Role::Data(_))
    }

    /// While what this gives is there, nobody appends to the file of an open.
    async fn no_append_meanwhile(
        &self,
        filesystem: &dyn FileSystem,
        context: &Context,
        open: Option<OpenId>,
    ) -> Option<Excluded<'_>> {
        let open = open.filter(|_| self.keeps_appends_whole())?;
        let handle = filesystem.inode(context.client, open).await.ok()?;
        Some(self.server.exclusion.resizes(&self.server.leases, filesystem, handle.bytes()).await)
    }

    /// The same, before a request is executed that may make a file longer or shorter.
    pub(super) async fn resizes(
        &self,
        filesystem: &dyn FileSystem,
        context: &Context,
        request: &Request<'_>,
        found: &Found,
    ) -> Option<Excluded<'_>> {
        let handle = match *request {
            Request::Fallocate { open, .. } | Request::CopyRange { to: open, .. } => {
                return self.no_append_meanwhile(filesystem, context, Some(open)).await;
            }
            Request::SetAttr { handle, set, .. } if set.size.is_some() => handle,
            Request::Open { handle, flags } if flags.contains(OpenFlags::TRUNCATE) => handle,
            Request::Create { flags, .. } if flags.contains(OpenFlags::TRUNCATE) => found.handle()?.bytes(),
            _ => return None,
        };
        let (exclusion, leases) = (&self.server.exclusion, &self.server.leases);
        match self.keeps_appends_whole() {
            true => Some(exclusion.resizes(leases, filesystem, handle).await),
            false => None,
        }
    }

    async fn touched_by_write(
        &self,
        attached: &Attached,
        (open, aspects): (OpenId, Aspects),
        length: usize,
    ) -> Result<Touched, Errno> {
        if aspects == EXCLUSIVE && !self.server.leases.watches() {
            return Err(Errno::ESTALE); // nobody was granted a lease for that
        }
        match self.tells_changes(attached) && length > 0 {
            true => {
                let touched = self.toucher(attached).written(open, aspects).await?;
                let is_shared = |(key, _)| self.server.leases.shares(self.session.client(), key);
                match aspects == EXCLUSIVE && touched.iter().any(is_shared) {
                    true => self.toucher(attached).written(open, TOGETHER).await,
                    false => Ok(touched),
                }
            }
            false => Ok(Touched::default()),
        }
    }
}
