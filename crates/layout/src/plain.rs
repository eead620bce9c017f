//! The file system of a volume of plain directories.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use aqueduct_fs::{AccessMask, Attr, Errno, FileSystem, Handle, Reply, Request, SetAttr, XATTR_SIZE_MAX, XattrMode};
use aqueduct_worker::Group;

use crate::attribute::{self, Attribute, BLOCK, LayoutKey, SERVERS_MAX, State, UNKNOWN, stub_of};
use crate::backing::{Backing, PROJECT, own, project_at};
use crate::gate::Pass;
use crate::ledger::Notes;
use crate::moves::Moves;
use crate::pinned::{File, Kind, Table};
use crate::rooms::Rooms;
use crate::spread::Spread;
use crate::store::{Owner, Store};
use crate::stripe::{ServerKey, order};
use crate::told::Told;
use crate::wanted::Wanted;

/// The folder in the root of the tree that no client sees: with the links of files that are to
/// go, and mostly the namespace server's own store.
pub const FOLDER: &str = ".aqueduct-volume";

/// The folder in [`FOLDER`] with a link to each stub whose last name is about to go, until its
/// objects are gone.
pub(crate) const GONE: &str = "gone";

/// What a volume is.
#[derive(Clone)]
pub struct Config {
    /// The volume's key.
    pub key: [u8; 32],
    /// Bytes of a stripe's block.
    pub block: u32,
    /// Over how many servers a file is spread; 0: over all.
    pub width: usize,
    /// The longest that a file is ordinary, in bytes.
    pub inline_max: u64,
    /// Clients bring what they write to the stores' servers themselves.
    pub brings: bool,
}

/// Why a volume cannot be served.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot use the folder {FOLDER} of the volume: {step} failed with {error}; see whether the file system is mounted, writable and in order"
)]
pub struct OpenError {
    /// What was tried.
    pub step: &'static str,
    /// What the file system said.
    pub error: Errno,
}

/// See the crate.
pub struct Plain {
    /// The tree. Changes of names and attributes are stable when they are answered.
    pub(crate) tree: Backing,
    /// The same tree, where they are not.
    pub(crate) quiet: Backing,
    pub(crate) stores: Vec<Arc<Store>>,
    pub(crate) config: Config,
    pub(crate) layouts: LayoutKey,
    pub(crate) table: Table,
    pub(crate) root: Handle,
    pub(crate) folder_ino: u64,
    /// What is remembered of the servers.
    pub(crate) notes: Arc<Notes>,
    pub(crate) gone: Handle,
    /// What is moved while somebody looks through the tree.
    pub(crate) moves: Moves,
    /// Somebody came for a file that had just gone.
    pub(crate) wanted: Wanted,
    /// Memory for what is read and not delivered yet.
    pub(crate) rooms: Rooms,
    /// The clients of the process before have come back, and what it has left undone is being done.
    /// Until then no file goes.
    pub(crate) is_swept: AtomicBool,
    /// Runs what nobody waits for; `None`: whoever closes a file does.
    pub(crate) background: Option<Arc<Group>>,
    told: Told,
    pub(crate) this: Weak<Plain>,
}

impl Plain {
    /// The file system over a tree, which is given twice: with changes of names and attributes
    /// that are stable when they are answered, and without. Its handles have to outlive the
    /// process. Call [`sweep`](Plain::sweep) when clients have reopened what they had.
    pub async fn open(
        (tree, quiet): (Backing, Backing),
        stores: Vec<Arc<Store>>,
        config: Config,
        background: Option<Arc<Group>>,
    ) -> Result<Arc<Plain>, OpenError> {
        let at = |step| move |error| OpenError { step, error };
        let root = tree.call(&own(), Request::Root).await.and_then(Reply::entry).map_err(at("looking at the root"))?;
        let folder = make_folder(&tree, &root.handle, FOLDER).await.map_err(at("making it"))?;
        let gone = make_folder(&tree, &folder.0, GONE).await.map_err(at("making a folder in it"))?;
        inherit_nothing(&quiet, &gone.0).await.map_err(at("having a folder in it give nothing a project"))?;
        let layouts = LayoutKey::of_volume(&config.key);
        let notes = Notes::read(&tree, &folder.0, &layouts).await.map_err(at("reading its record of the servers"))?;
        for store in &stores {
            store.is_noted_by(&notes);
        }
        if let Some(group) = &background {
            // Tokens are good when their stores have been looked at.
            for store in &stores {
                let (store, asks) = (store.clone(), group.clone());
                group.spawn(async move {
                    if store.vouch().await.is_ok() {
                        store.known_space(Some(&asks)).await; // else the log says why
                    }
                });
            }
        }
        Ok(Arc::new_cyclic(|this| Plain {
            tree,
            quiet,
            stores,
            layouts,
            config,
            table: Table::default(),
            root: root.handle,
            folder_ino: folder.1,
            notes,
            gone: gone.0,
            moves: Moves::default(),
            rooms: Rooms::default(),
            wanted: Wanted::default(),
            is_swept: AtomicBool::new(false),
            background,
            told: Told::default(),
            this: this.clone(),
        }))
    }

    /// The servers that may hold new objects: all that are not to be emptied, or else all.
    pub(crate) fn eligible(&self) -> Vec<ServerKey> {
        let ledger = self.notes.now();
        let all = self.stores.iter().map(|store| store.key());
        let stay: Vec<_> = all.clone().filter(|key| !ledger.drains(*key)).collect();
        if stay.is_empty() { all.collect() } else { stay }
    }

    /// Looks at stores that have not been looked at lately; a new file does not wait for that.
    pub(crate) async fn look_at_stores(&self) {
        for store in self.stores.iter().filter(|store| store.is_reached() && store.is_space_due()) {
            match self.background.clone() {
                Some(group) => {
                    let (store, asks) = (store.clone(), group.clone());
                    group.spawn(async move { store.look(Some(&asks)).await });
                }
                None => store.look(None).await,
            }
        }
    }

    /// Whether a store that a layout names is one that new files avoid, while there is another.
    pub(crate) fn avoids(&self, attribute: &Attribute) -> bool {
        let is_avoided = |key: &ServerKey| self.is_any(key, Store::is_avoided);
        attribute.servers.iter().any(is_avoided) && !self.eligible().iter().all(is_avoided)
    }

    /// Whether the store of a server is so.
    fn is_any(&self, key: &ServerKey, is_so: impl Fn(&Store) -> bool) -> bool {
        self.stores.iter().any(|store| store.key() == *key && is_so(store))
    }

    /// The servers of a new file, in order: those that were reached, unless too few were. Those
    /// that refuse what is asked of them are avoided, and those that are nearly full, unless all
    /// are. `own`: so many, if the file says so and the volume's files have several.
    pub(crate) fn choose(&self, id: &[u8; 16], own: usize) -> Vec<ServerKey> {
        let mut all = self.eligible();
        for is_unfit in [Store::is_avoided, Store::is_nearly_full] {
            let is_unfit = |key: &ServerKey| self.is_any(key, is_unfit);
            if !all.iter().all(is_unfit) {
                all.retain(|key| !is_unfit(key));
            }
        }
        let width = match (self.config.width, own) {
            (1, _) => 1,
            (usual, 0) => usual,
            (_, own) => own,
        };
        let width = if width == 0 { all.len() } else { width.min(all.len()) }.min(SERVERS_MAX);
        let is_reached = |key: &ServerKey| self.is_any(key, Store::is_reached);
        let (mut there, away): (Vec<_>, Vec<_>) = order(id, all).into_iter().partition(is_reached);
        there.extend(away);
        there.truncate(width);
        there
    }

    pub(crate) fn stores_of(&self, attribute: &Attribute) -> Result<Vec<Arc<Store>>, Errno> {
        let of = |key: &ServerKey| self.stores.iter().find(|store| store.key() == *key).cloned();
        let found: Option<Vec<_>> = attribute.servers.iter().map(of).collect();
        found.ok_or(Errno::EIO)
    }

    /// Says once what is wrong with a file: EIO.
    async fn damaged(&self, handle: &Handle, why: &str) -> Errno {
        let inode = self.attr_of(handle).await.map_or(0, |attr| attr.ino);
        if self.told.is_first(inode.into()) {
            tracing::error!(
                "inode {inode} of the volume's tree gives EIO: {why}; 'aqueduct volume check' names the file"
            );
        }
        Errno::EIO
    }

    pub(crate) async fn attr_of(&self, handle: &Handle) -> Result<Attr, Errno> {
        self.quiet.call(&own(), Request::GetAttr { handle: handle.bytes(), open: None }).await?.attr()
    }

    /// Whose a file is, for quotas.
    pub(crate) async fn owner_of(&self, handle: &Handle) -> Result<Owner, Errno> {
        let Attr { uid, gid, .. } = self.attr_of(handle).await?;
        Ok(Owner { uid, gid, project: self.project(handle).await? })
    }

    /// The project of an inode of the tree; 0: it has none.
    pub(crate) async fn project(&self, handle: &Handle) -> Result<u32, Errno> {
        none_is_0(project_at(&self.quiet, handle).await)
    }

    /// The attribute of a stub; `None`: it has none. EIO: one that is not its own.
    pub(crate) async fn attribute_of(&self, handle: &Handle) -> Result<Option<Attribute>, Errno> {
        let (name, size) = (attribute::NAME, XATTR_SIZE_MAX as u32);
        let request = Request::GetXattr { handle: handle.bytes(), name, size };
        let bytes = match self.quiet.call(&own(), request).await {
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => return Ok(None),
            found => found?.bytes()?,
        };
        match Attribute::decode(&self.layouts, &bytes) {
            None => Err(self.damaged(handle, "it has a layout that this volume has not made").await),
            Some(attribute) if attribute.stub != stub_of(handle.bytes()) => {
                Err(self.damaged(handle, "it has the layout of another file, as a copy with attributes has").await)
            }
            found => Ok(found),
        }
    }

    /// Stores an attribute. `durable`: it is stable when this returns.
    pub(crate) async fn store(&self, handle: &Handle, attribute: &Attribute, durable: bool) -> Result<(), Errno> {
        let value = attribute.encode(&self.layouts);
        let request =
            Request::SetXattr { handle: handle.bytes(), name: attribute::NAME, value: &value, mode: XattrMode::Any };
        let tree = if durable { &self.tree } else { &self.quiet };
        tree.call(&own(), request).await?.done()
    }

    /// Sets the length of a stub, without waiting for the disk.
    pub(crate) async fn set_length(&self, handle: &Handle, length: u64) -> Result<(), Errno> {
        let set = SetAttr { size: Some(length), ..SetAttr::default() };
        let request = Request::SetAttr { handle: handle.bytes(), open: None, set };
        self.quiet.call(&own(), request).await.map(drop)
    }

    /// Sees what a file is, sharing it with others.
    pub(crate) async fn shared<'a>(&self, file: &'a File) -> Result<(Pass<'a>, Kind), Errno> {
        let pass = file.gate.shared().await;
        Ok((pass, self.known(file).await?))
    }

    /// The same, with nobody else.
    pub(crate) async fn alone<'a>(&self, file: &'a File) -> Result<(Pass<'a>, Kind), Errno> {
        let pass = file.gate.alone().await;
        Ok((pass, self.known(file).await?))
    }

    /// What a file is, also while a server of data that does not answer holds up who uses it.
    pub(crate) async fn known(&self, file: &File) -> Result<Kind, Errno> {
        match file.kind() {
            Kind::Unknown => {
                let names = file.names.alone().await;
                self.known_by(file, &names).await
            }
            kind => Ok(kind),
        }
    }

    /// The same, for who has its names alone.
    pub(crate) async fn known_by(&self, file: &File, _names: &Pass<'_>) -> Result<Kind, Errno> {
        if matches!(file.kind(), Kind::Unknown) {
            let kind = self.look(file).await?;
            file.becomes(kind);
        }
        Ok(file.kind())
    }

    /// Finds out what a file is, and brings to an end what was begun.
    async fn look(&self, file: &File) -> Result<Kind, Errno> {
        let attr = self.attr_of(&file.handle).await?;
        if !attr.is_regular() {
            return Ok(Kind::Inline(None));
        }
        // A promotion that was begun leaves the file as it was, however short.
        match self.attribute_of(&file.handle).await? {
            None => Ok(Kind::Inline(None)),
            Some(attribute) if attribute.state == State::Making => Ok(Kind::Inline(Some(attribute))),
            // Its objects have gone before its last link: what is left of it is no file.
            Some(_) if attr.nlink == 0 => Err(Errno::ESTALE),
            Some(attribute) => {
                let attribute = match attribute.state {
                    State::Moved => self.make_stub(&file.handle, attribute).await?,
                    _ => attribute,
                };
                self.spread(&file.handle, attribute).await.map(Kind::Spread)
            }
        }
    }

    /// What is known of a file whose stub is one.
    async fn spread(&self, handle: &Handle, attribute: Attribute) -> Result<Arc<Spread>, Errno> {
        let attr = self.attr_of(handle).await?;
        let Some(size) = size_of(&attribute, attr.size) else {
            return Err(self.damaged(handle, "its stub was made shorter past the volume").await);
        };
        let Ok(stores) = self.stores_of(&attribute) else {
            return Err(self.damaged(handle, "it has data on a server that the volume's file no longer names").await);
        };
        let spread = Spread::new(attribute, size, stores);
        spread.now().has_link = self.has_gone_link(&spread.id).await?;
        Ok(Arc::new(spread))
    }

    /// Whether the stub of these objects has a link in the folder of those whose objects are
    /// removed with them.
    pub(crate) async fn has_gone_link(&self, id: &[u8; 16]) -> Result<bool, Errno> {
        let name = gone_name(id);
        let request = Request::Lookup { parent: self.gone.bytes(), name: name.as_bytes() };
        match self.tree.call(&own(), request).await {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Refuses an ordinary file that begins as a stub does: to be asked before it is opened.
    pub(crate) async fn refuse_copy(&self, file: &File) -> Result<(), Errno> {
        if self.attr_of(&file.handle).await?.size < BLOCK {
            return Ok(());
        }
        if self.is_copy(&file.handle).await? {
            return Err(self.damaged(&file.handle, "it is the stub of a file, and lacks its attribute").await);
        }
        Ok(())
    }

    /// Whether a file begins as a stub does.
    pub(crate) async fn is_copy(&self, handle: &Handle) -> Result<bool, Errno> {
        Ok(self.first_block(handle).await?.is_some())
    }

    /// Whether all stores have been reached.
    pub fn has_reached_all(&self) -> bool {
        self.stores.iter().all(|store| store.is_reached())
    }

    /// Whether a caller may do something with an inode.
    pub(crate) async fn may(
        &self,
        context: &aqueduct_fs::Context,
        handle: &Handle,
        mask: AccessMask,
    ) -> Result<(), Errno> {
        self.tree.call(context, Request::Access { handle: handle.bytes(), mask }).await?.done()
    }
}

/// The size of a file of which the stub has this length; `None`: no stub is so short.
pub(crate) fn size_of(attribute: &Attribute, length: u64) -> Option<u64> {
    match length {
        ..BLOCK => None,
        BLOCK if attribute.size != UNKNOWN => Some(attribute.size),
        length => Some(length),
    }
}

/// The name of a link to a stub that is to go.
pub(crate) fn gone_name(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn none_is_0(project: Result<u32, Errno>) -> Result<u32, Errno> {
    if project == Err(Errno::EOPNOTSUPP) { Ok(0) } else { project }
}

/// Has a folder give nothing a project: what has another one could not be linked into it.
async fn inherit_nothing(tree: &Backing, folder: &Handle) -> Result<(), Errno> {
    if none_is_0(project_at(tree, folder).await)? == 0 {
        return Ok(());
    }
    let request = Request::SetXattr { handle: folder.bytes(), name: PROJECT, value: b"0", mode: XattrMode::Any };
    match tree.call(&own(), request).await {
        Ok(_) | Err(Errno::EROFS) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A folder that only the superuser enters; its handle and number.
async fn make_folder(tree: &Arc<dyn FileSystem>, parent: &Handle, name: &str) -> Result<(Handle, u64), Errno> {
    let (parent, name) = (parent.bytes(), name.as_bytes());
    let made = tree.call(&own(), Request::MakeDirectory { parent, name, mode: 0o700, umask: 0 }).await;
    // What is only looked at has it already.
    if let Err(error) = made
        && !matches!(error, Errno::EEXIST | Errno::EROFS)
    {
        return Err(error);
    }
    let entry = tree.call(&own(), Request::Lookup { parent, name }).await?.entry()?;
    if !entry.attr.is_directory() || entry.attr.mode & 0o077 != 0 {
        return Err(Errno::EACCES);
    }
    Ok((entry.handle, entry.attr.ino))
}
