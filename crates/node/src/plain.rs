//! Volumes of plain directories: what each server of one is, and how the server of the names
//! reaches the stores of the others.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aqueduct_fs::FileSystem;
use aqueduct_fs::readonly::ReadOnly;
use aqueduct_layout::attribute::LayoutKey;
use aqueduct_layout::stripe::server_key;
use aqueduct_layout::{Backing, Config, FOLDER, PROJECT, Plain, Served, Store, marker};
use aqueduct_net::Initiator;
use aqueduct_posix::{Options, Posix};
use aqueduct_server::{Access, Export, External, Squash, export_id};
use aqueduct_wire::{ClientKey, DATA_EXPORT, Key};
use aqueduct_worker::{Group, wait};

use crate::attach::{AttachConfig, Attachment, Carriers};
use crate::exports::ExportConfig;
use crate::failure::{Failure, Kind};
use crate::routes;
use crate::throttle::throttled;

/// What the server of the names calls the store of another.
const STORE_EXPORT: &str = "(store)";

/// The folder of the server of the names' own store, in the volume's.
const OWN_STORE: &str = "store";

/// The file in the volume's folder that whoever changes the volume has locked.
const LOCK: &str = "lock";

/// So long it is waited for who has it: a server that was killed may take a moment to end.
const HELD_MAX: Duration = Duration::from_secs(10);

/// Between two tries to reach a store.
const RETRY: Duration = Duration::from_millis(500);

/// So long who only looks at a volume waits for a server that has died meanwhile.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// The threads that carry what goes to a store.
const THREADS: usize = 1;

/// A server of data, as the volume's file names it.
#[derive(Clone, Debug)]
pub struct PlainStore {
    /// Its id.
    pub id: String,
    /// Where it is reached, with commas.
    pub addresses: String,
    /// It is the server of the names.
    pub is_here: bool,
}

/// What a server is in a volume of plain directories.
#[derive(Clone, Debug)]
pub struct PlainPart {
    /// Its id.
    pub id: String,
    /// All servers of data.
    pub stores: Vec<PlainStore>,
    /// It serves the names.
    pub has_names: bool,
    /// Bytes of a stripe's block.
    pub block: u32,
    /// Over how many servers a file is spread; 0: over all.
    pub width: usize,
    /// The longest of an ordinary file, in bytes.
    pub inline_max: u64,
    /// Clients bring what they write to the servers of data themselves.
    pub brings: bool,
}

impl PlainPart {
    /// Whether objects lie at this server.
    pub fn holds_data(&self) -> bool {
        self.stores.iter().any(|store| store.id == self.id)
    }

    /// Where its store is, if this is its directory.
    fn store_in(&self, directory: &Path) -> PathBuf {
        if self.has_names { directory.join(FOLDER).join(OWN_STORE) } else { directory.to_owned() }
    }

    /// Makes its store.
    pub(crate) fn initialise(&self, directory: &Path, key: &[u8; 32]) -> Result<PathBuf, Failure> {
        let store = self.store_in(directory);
        let made = match self.has_names {
            true => private(&directory.join(FOLDER)),
            false => Ok(()),
        };
        made.and_then(|()| marker::initialise(&store, &LayoutKey::of_volume(key), server_key(&self.id))).map_err(
            |error| {
                let hint = "a store that is there stays, since files have their data in it; else see whether the directory exists and may be written";
                Failure::new(format!("cannot make the store {}", store.display()), error, hint)
            },
        )?;
        Ok(store)
    }
}

/// Makes a folder that only its owner enters. In a tree to which others may write it could be
/// theirs, to put other data in the place of the volume's.
fn private(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let found = folder.symlink_metadata()?;
            let is_own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
            let why = || format!("{} belongs to others, or others may write to it", folder.display());
            if found.is_dir() && is_own { Ok(()) } else { Err(std::io::Error::other(why())) }
        }
        made => made,
    }
}

/// Keeps others from serving the names of a tree, or repairing it without its server, for as long
/// as what is returned lives. `None`: nothing can be changed there.
fn hold(tree: &Path) -> Result<Option<File>, Failure> {
    let path = tree.join(FOLDER).join(LOCK);
    let what = format!("cannot have the volume of {} alone", tree.display());
    let failed = |error: std::io::Error| {
        Failure::new(&what, error, "see whether its file system is mounted, writable and in order").of(Kind::Export)
    };
    private(&tree.join(FOLDER)).or_else(unless_read_only).map_err(failed)?;
    let file = match File::options().create(true).truncate(false).write(true).open(&path) {
        Err(error) => return unless_read_only(error).map(|()| None).map_err(failed),
        Ok(file) => file,
    };
    let end = Instant::now() + HELD_MAX;
    while let Err(error) = file.try_lock() {
        if let TryLockError::Error(error) = error {
            return Err(failed(error));
        }
        if Instant::now() >= end {
            let why = "another process serves its names, or repairs it";
            return Err(Failure::usage(
                what,
                why,
                "let that end: a server with 'aqueduct serve --volume', or a repair",
            ));
        }
        std::thread::sleep(HELD_MAX / 200);
    }
    Ok(Some(file))
}

fn unless_read_only(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem { Ok(()) } else { Err(error) }
}

/// The key by which the volume's servers know each other.
pub(crate) fn members(key: &[u8; 32]) -> Key {
    Key::of_members(key)
}

/// What a server has that serves a store and no names: all of it to the volume's other servers,
/// and to clients the objects for which the server of the names has given them tokens.
pub(crate) fn open_store(
    export: &ExportConfig,
    (part, key): (&PlainPart, &[u8; 32]),
    (options, group): (&Options, &Arc<Group>),
) -> Result<([Export; 2], u64), Failure> {
    let id = export_id(STORE_EXPORT);
    let options = Options { export: id, keep_unlinked: false, sync: true, projects: PROJECT, ..options.clone() };
    let posix = open(&export.path, options)?;
    let verifier = posix.verifier();
    if !export.path.join(marker::NAME).exists() {
        tracing::error!(
            "{} has no marker: it is no store, and files with data there give EIO; see whether its file system is mounted, \
             or make it one with 'aqueduct volume init' if it is new",
            export.path.display()
        );
    }
    let filesystem = throttled(Arc::new(posix), export, group);
    let layouts = LayoutKey::of_volume(key);
    let start = marker::read(&export.path, &layouts).map(|marker| marker.generation);
    let store = Store::new(&part.id, layouts.clone(), true);
    store.reached(filesystem.clone(), None);
    let path = export.path.to_string_lossy().into_owned();
    let of = |name: &str, filesystem: Arc<dyn FileSystem>, (access, read_only)| Export {
        name: name.to_owned(),
        id: export_id(name),
        filesystem,
        read_only,
        path: path.clone(),
        access,
        durable: true,
        external: External::None,
    };
    let members = Access { squash: Some(Squash::None), members_only: true, ..Access::default() };
    let of_members = of(STORE_EXPORT, filesystem, (members, false));
    let of_clients = of(DATA_EXPORT, Arc::new(Served::new(store, layouts, start)), (export.access.clone(), true));
    Ok(([of_members, of_clients], verifier))
}

fn open(path: &Path, options: Options) -> Result<Posix, Failure> {
    Posix::open(path, options)
        .map_err(|error| Failure::from_line(error, "see whether the directory is in order").of(Kind::Export))
}

/// The file system of a volume over the tree of the server of the names, and its links to the
/// stores of the others.
pub(crate) fn open_tree(
    (path, posix): (&Path, &Arc<Posix>),
    (part, key): (&PlainPart, &[u8; 32]),
    options: &Options,
    (group, routes): (&Arc<Group>, Option<&Arc<Initiator>>),
) -> Result<(Arc<Plain>, Links), Failure> {
    let what = format!("cannot serve {} as the names of a volume", path.display());
    if !posix.statistics().kernel_handles {
        let why = "its file system gives no handles that outlive this process";
        return Err(Failure::usage(what, why, "use one that does, and run the server as root").of(Kind::Export));
    }
    let quiet = open(path, Options { sync: false, keep_unlinked: false, projects: PROJECT, ..options.clone() })?;
    let layouts = LayoutKey::of_volume(key);
    let (mut stores, mut away) = (Vec::new(), Vec::new());
    for PlainStore { id, addresses, is_here } in &part.stores {
        let store = Store::new(id, layouts.clone(), *is_here);
        match is_here {
            true => store.reached(own_store(&part.store_in(path), options)?, None),
            false => away.push((store.clone(), addresses.clone())),
        }
        stores.push(store);
    }
    let config =
        Config { key: *key, block: part.block, width: part.width, inline_max: part.inline_max, brings: part.brings };
    let held = hold(path)?;
    let trees: (Backing, Backing) = (posix.clone(), Arc::new(quiet));
    let opened = wait(group, Plain::open(trees, stores, config, Some(group.clone())));
    let plain = opened.map_err(|error| Failure::from_line(error, "then start it again").of(Kind::Export))?;
    let mut links = Links::start(away, (&members(key), routes), false)
        .map_err(|error| Failure::new(what, error, "see whether the limits on processes allow more threads"))?;
    links.held = held;
    Ok((plain, links))
}

/// A volume that is looked at without its servers: see [`Looked`](crate::Looked). It is told of
/// nothing, and its servers may run meanwhile, unless it `mends`: then nothing is read-only.
pub(crate) fn look(
    (part, key, directory): (&PlainPart, [u8; 32], &Path),
    (export, mends): (u32, bool),
    stores: &[(String, PathBuf)],
    group: &Arc<Group>,
) -> Result<(Arc<Plain>, Links), Failure> {
    let what = if mends { "cannot repair the volume" } else { "cannot look at the volume" };
    if let Some((id, _)) = stores.iter().find(|(id, _)| part.stores.iter().all(|store| store.id != *id)) {
        return Err(Failure::usage(
            what,
            format!("it has no server of data '{id}'"),
            "give ids of its file to --store",
        ));
    }
    let options = Options { key, export, ..Options::default() };
    let back = |path: &Path, sync: bool, options: Options| -> Result<Backing, Failure> {
        let posix = open(path, Options { sync, keep_unlinked: false, projects: PROJECT, ..options })?;
        Ok(if mends { Arc::new(posix) } else { Arc::new(ReadOnly(posix)) })
    };
    // Nothing is made where nothing is: the tree may not be mounted.
    if !directory.join(FOLDER).is_dir() {
        let why = format!("{} has no folder {FOLDER}", directory.display());
        let hint =
            "see whether the tree's file system is mounted; else the server of the names makes it at its first start";
        return Err(Failure::usage(what, why, hint).of(Kind::Export));
    }
    // Before anything else is looked at.
    let held = if mends { hold(directory)? } else { None };
    let (layouts, mut all, mut away) = (LayoutKey::of_volume(&key), Vec::new(), Vec::new());
    for PlainStore { id, addresses, is_here } in &part.stores {
        let store = Store::new(id, layouts.clone(), *is_here);
        let given = stores.iter().find(|(of, _)| of == id).map(|(_, path)| path.clone());
        match given.or_else(|| is_here.then(|| part.store_in(directory))) {
            Some(path) => {
                let export = export_id(STORE_EXPORT);
                store.reached(back(&path, mends, Options { export, ..options.clone() })?, None);
            }
            None if mends => {
                let why = format!("its server of the names does not run, and the store of server '{id}' is not given");
                let hint = "start the servers, or mount all stores here and name them: --store ID=DIR";
                return Err(Failure::usage(what, why, hint));
            }
            None => away.push((store.clone(), addresses.clone())),
        }
        all.push(store);
    }
    let config = Config { key, block: part.block, width: part.width, inline_max: part.inline_max, brings: part.brings };
    let trees = (back(directory, mends, options.clone())?, back(directory, false, options)?);
    let opened = wait(group, Plain::open(trees, all, config, None));
    let plain = opened.map_err(|error| {
        Failure::from_line(error, "run it on the machine of the server of the names").of(Kind::Export)
    })?;
    let mut links = Links::start(away, (&members(&key), routes::Routing::default().resolve()?.as_ref()), true)
        .map_err(|error| Failure::new(what, error, "see whether the limits on processes allow more threads"))?;
    links.held = held;
    Ok((plain, links))
}

fn own_store(path: &Path, options: &Options) -> Result<Backing, Failure> {
    if !path.join(marker::NAME).exists() {
        let what = format!("cannot use the store {}", path.display());
        let hint = "make it once with 'aqueduct volume init FILE --server ID', or say data = false for this server";
        return Err(Failure::usage(what, "it has no marker", hint).of(Kind::Export));
    }
    let export = export_id(STORE_EXPORT);
    let options = Options { export, keep_unlinked: false, sync: true, projects: PROJECT, ..options.clone() };
    Ok(Arc::new(open(path, options)?))
}

/// The sessions to the stores of other servers, made as soon as these can be reached, until this is
/// dropped.
pub(crate) struct Links {
    closing: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Nobody else changes the tree's volume.
    held: Option<File>,
}

impl Links {
    /// `looks`: nothing is changed there.
    fn start(
        stores: Vec<(Arc<Store>, String)>,
        (key, routes): (&Key, Option<&Arc<Initiator>>),
        looks: bool,
    ) -> std::io::Result<Links> {
        let mut links = Links { closing: Arc::default(), threads: Vec::new(), held: None };
        for (store, addresses) in stores {
            let (closing, key) = (links.closing.clone(), ClientKey::from(key.clone()));
            let (routes, patience) = (routes.cloned(), looks.then_some(LOOK_MAX));
            let config =
                AttachConfig { key: Some(key), routes, patience, ..AttachConfig::new(addresses, STORE_EXPORT) };
            let link = move || keep(&store, (&config, looks), &closing);
            links.threads.push(std::thread::Builder::new().name("store".into()).spawn(link)?);
        }
        Ok(links)
    }
}

/// Reaches a store, and keeps the session until the end.
fn keep(store: &Store, (config, looks): (&AttachConfig, bool), closing: &AtomicBool) {
    let mut is_told = false;
    let mut attachment = None;
    while !closing.load(Ordering::SeqCst) {
        if attachment.is_none() {
            match Attachment::connect(config, Carriers::Threads(THREADS)) {
                Ok(attached) => {
                    let backing: Arc<dyn FileSystem> = attached.filesystem();
                    let backing = if looks { Arc::new(ReadOnly(backing)) } else { backing };
                    store.reached(backing, Some(attached.epochs()));
                    attachment = Some(attached);
                    tracing::info!("the store at {} is reached", config.server);
                }
                Err(error) if !is_told => {
                    is_told = true;
                    tracing::warn!("the store at {} is not reached yet: {error}", config.server);
                }
                Err(_) => {}
            }
        }
        std::thread::park_timeout(RETRY);
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        for thread in std::mem::take(&mut self.threads) {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("what kept the session to a store has failed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_folder_of_a_volume_is_nobody_elses() {
        let tree = tempfile::tempdir().unwrap();
        let (folder, elsewhere) = (tree.path().join(FOLDER), tree.path().join("elsewhere"));
        drop(hold(tree.path()).unwrap().expect("it can be changed"));
        let mode = || std::fs::metadata(&folder).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(), 0o700);
        drop(hold(tree.path()).unwrap());
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = hold(tree.path()).unwrap_err().to_string();
        assert!(refused.contains("others may write to it"), "{refused}");
        std::fs::rename(&folder, &elsewhere).unwrap();
        std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&elsewhere, &folder).unwrap();
        assert!(hold(tree.path()).is_err(), "another may change where it leads");
    }
}
