//! Which writes of programs that are not held back go straight to servers of data: under an
//! exclusive lease, or one to write beside other clients, which is asked for when the file cannot
//! be had alone.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::{Aspects, Context, Errno, WriteAt, Written};
use aqueduct_session::{Brought, Nanos};
use bytes::Bytes;

use super::leases::Leases;
use super::parts::Cache;
use crate::volume::{Direct, Open, Piece, Went, of_pieces};

/// A lease to write beside others goes back when nothing was written under it for so long, so that
/// what is not written any more can be kept again.
const UNUSED_MAX: Nanos = 1_000_000_000;

/// How often is looked for that.
const LOOK: Duration = Duration::from_millis(250);

impl Cache {
    /// Writes straight to servers of data, if that is allowed. `None`: the write goes the usual
    /// way. A write of which nothing was done goes the usual way by itself, since nobody repeats
    /// what others may have overwritten.
    pub(super) async fn write_straight(
        &self,
        context: &Context,
        leases: &Arc<Leases>,
        (open, write): (&Arc<Open>, WriteAt),
        data: &Bytes,
    ) -> Option<Result<Written, Errno>> {
        if self.volume.has_objects() {
            // As long as this client has the file alone nobody sees a part of it without the rest.
            let (_hold, under, epoch) = leases.hold_writing(&open.handle)?;
            let alone = (!under.contains(Aspects::CONCURRENT)).then_some((data, epoch))?;
            return self.volume.write_objects_alone(context, (open, write), alone).await;
        }
        // Of nobody are pages that the kernel writes back: they are whole, and would undo what
        // others write beside.
        let is_whole = context.pid == 0 || write.append;
        if is_whole || data.is_empty() || !open.is_moved_here() {
            return None;
        }
        let is_large = self.volume.goes_straight(data.len());
        let mut held = leases.hold_writing(&open.handle);
        // Also the rest of a large one: as any other write it would end what the others have.
        let may_ask = is_large || open.asks_beside_others() && self.volume.goes_straight(usize::MAX);
        if held.is_none() && may_ask && (open.is_contended() || !open.gathers()) {
            open.set_asks_beside_others();
            self.ask_beside_others(context, leases, open).await;
            held = leases.hold_writing(&open.handle);
        }
        let (hold, under, epoch) = held?;
        let is_shared = under.contains(Aspects::CONCURRENT);
        if !is_large && !is_shared {
            return None;
        }
        let (credential, data, handle) = (context.credential.clone(), data.clone(), open.handle.clone());
        let direct = Direct { open: open.clone(), credential, write, data, epoch, is_shared };
        let went = self.volume.write_direct(context, (direct, hold)).await;
        if is_shared && !matches!(went, Some(Went::Done(_))) {
            leases.is_gone(&handle); // its rights are over: those of the next lease are others
        }
        let pieces = match went? {
            Went::Done(done) => return Some(done),
            Went::InPart(pieces) => pieces,
        };
        let mut done = Vec::new();
        for Piece { write, data, done: of_piece } in pieces {
            let length = data.len();
            let of_piece = match of_piece {
                Some(done) => done,
                None => self.volume.write(context, (write, data), &mut Brought::default()).await,
            };
            done.push((length, of_piece));
        }
        Some(of_pieces(done))
    }

    async fn ask_beside_others(&self, context: &Context, leases: &Arc<Leases>, open: &Arc<Open>) {
        let (asked, mut brought) = (leases.asks(), Brought::default());
        let done = self.volume.ask_beside_others(context, open, leases.epoch(), &mut brought).await;
        let Some(lease) = brought.of_inode() else { return };
        // Also when what came before could not be made stable: the server knows of the lease.
        leases.keep(&open.handle, lease, (asked, &brought), |_, _, _| ());
        if let Err(error) = done {
            tracing::debug!(%error, "what was written before is not stable: a file is not written beside others");
            return leases.is_gone(&open.handle);
        }
        if leases.is_unwatched(&open.handle) {
            let (of_task, opens, handle) = (Arc::downgrade(leases), self.volume.opens.clone(), open.handle.clone());
            let group = self.volume.sessions[open.session].groups()[0].clone();
            let clock = group.clone();
            group.spawn(async move {
                loop {
                    clock.sleep(LOOK).await;
                    let Some(leases) = of_task.upgrade() else { return };
                    // Nobody who has closed it writes any more, and others may wait to read it.
                    let unused = if opens.may_be_written(&handle) { UNUSED_MAX } else { 0 };
                    if !leases.look_after(&handle, unused) {
                        return;
                    }
                }
            });
        }
    }
}
