//! Generations of stores. The server of the names raises that of a store, in its marker, whenever
//! it begins to use it: at its own start, and at each of the store's server. It remembers it. So a
//! store that was restored from an older copy is behind what is remembered, and is not used.
//!
//! First the marker is raised, then that is remembered, each durably: a marker that is one ahead
//! is one that was raised, and not remembered any more. An older copy that was taken since the
//! last raise cannot be told from the present store.

use aqueduct_fs::{Errno, Handle, OpenFlags, RenameFlags, Request, Source, WriteAt};

use crate::backing::{Backing, own};
use crate::ledger::{Notes, Seen};
use crate::marker::{self, Marker};
use crate::stripe::ServerKey;

/// A store that was used, beside a tree that has never used it.
const UNSEEN: &str = "it was used, and this tree knows nothing of it: see whether the tree is mounted, and the right one; if so, \
                      say 'aqueduct volume check FILE --accept ID'";

/// Looks whether a store is what it was when it was used last, and raises its generation. Returns
/// that; where nothing can be changed, the present one. Else why it is not.
pub(crate) async fn confirm(
    (backing, root): (&Backing, &Handle),
    (server, mut marker): (ServerKey, Marker),
    notes: &Notes,
) -> Result<u64, String> {
    let failed = |error: Errno| format!("its generation cannot be remembered ({error})");
    let mut seen = notes.now().seen(server);
    if seen.is_some_and(|seen| marker.generation > seen.generation + 1) {
        // Who only looks may have looked before that was written.
        notes.look_again().await.map_err(failed)?;
        seen = notes.now().seen(server);
    }
    match seen {
        Some(seen) => judge(&marker, &seen)?,
        // One was raised once, and then somebody ended.
        None if marker.generation > 1 => return Err(UNSEEN.to_owned()),
        None => {}
    }
    let of = |marker: &Marker| Seen { identity: marker.identity, generation: marker.generation };
    if marker.generation > 0 && seen != Some(of(&marker)) {
        // It was raised, and then somebody ended.
        match notes.change(|ledger| ledger.with_seen(server, Some(of(&marker)))).await {
            Err(Errno::EROFS) => return Ok(marker.generation),
            noted => noted.map_err(failed)?,
        }
    }
    if marker.identity == [0; 16] {
        getrandom::fill(&mut marker.identity).map_err(|error| format!("the kernel gives no random bytes ({error})"))?;
    }
    marker.generation += 1;
    match write(backing, root, &marker.encode(&notes.layouts)).await {
        Err(Errno::EROFS) => return Ok(marker.generation - 1),
        written => written.map_err(|error| format!("its marker cannot be written ({error})"))?,
    }
    notes.change(|ledger| ledger.with_seen(server, Some(of(&marker)))).await.map_err(failed)?;
    Ok(marker.generation)
}

fn judge(marker: &Marker, seen: &Seen) -> Result<(), String> {
    let (now, then) = (marker.generation, seen.generation);
    if marker.identity != seen.identity {
        return Err("it is another store than the one that this server had".into());
    }
    if now < then {
        return Err(format!("it is an older copy of the store (generation {now}, and {then} was used)"));
    }
    if now > then + 1 {
        return Err(format!(
            "the tree is an older copy than the store (generation {now}, and the tree knows of {then})"
        ));
    }
    Ok(())
}

/// Puts another marker in the place of the one that is there, durably, in one step.
async fn write(backing: &Backing, root: &Handle, bytes: &[u8]) -> Result<(), Errno> {
    let new = format!("{}.new", marker::NAME);
    let (parent, name) = (root.bytes(), new.as_bytes());
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE;
    let create = Request::Create { parent, name, mode: 0o600, umask: 0, flags };
    let open = backing.call(&own(), create).await?.created()?.1.id;
    let write = WriteAt { open, offset: 0, append: false, stable: true };
    let written = backing.write(&own(), write, Source::Memory(bytes.to_vec().into())).await;
    let synced = backing.call(&own(), Request::Sync { open, data_only: false }).await;
    backing.call(&own(), Request::Release { open }).await?;
    if written?.count as usize != bytes.len() {
        return Err(Errno::ENOSPC);
    }
    synced?;
    let (new_parent, new_name, flags) = (root.bytes(), marker::NAME.as_bytes(), RenameFlags::empty());
    backing.call(&own(), Request::Rename { parent, name, new_parent, new_name, flags }).await?.done()?;
    // The name is stable where the store's server makes it so; elsewhere, too.
    let open = backing.call(&own(), Request::OpenDirectory { handle: root.bytes() }).await?.opened()?.id;
    let synced = backing.call(&own(), Request::SyncDirectory { open, data_only: false }).await;
    backing.call(&own(), Request::ReleaseDirectory { open }).await?;
    synced.map(drop)
}
