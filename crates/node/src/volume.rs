//! Volumes of several servers before one file system: the file that says which they are, the key
//! that they share, and what follows from it for each of them.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use aqueduct_metrics::status::VolumeStatus;
use aqueduct_posix::Origin;
use aqueduct_server::right::Fence;
use aqueduct_wire::{DATA_SERVERS_MAX, DataServer, Map, ServerId, VolumeMode, place_of, volume_id};
use serde::Deserialize;

use crate::exports::ExportSettings;
use crate::failure::{Failure, Kind};
use crate::key::{self, Key};
use crate::plain::{PlainPart, PlainStore};
use crate::{options, place};

/// What clients call the root of a volume.
pub const VOLUME_EXPORT: &str = "/";

/// The longest name of a volume in bytes, and of a server in it.
const NAME_LENGTH_MAX: usize = 64;

/// How the data of a volume are shared out, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeModeSetting {
    /// One server has all.
    Serial,
    /// Each file's bytes go through one of the servers.
    Cluster,
    /// The blocks of each file go through several servers in turn.
    Stripe,
    /// Nobody changes anything, and each client spreads its files over the servers by itself.
    LoadBalance,
    /// Directories that share nothing: each file's bytes lie on one of the servers.
    #[serde(rename = "whole-file")]
    WholeFile,
    /// The same, and the blocks of each file lie on several servers in turn.
    Striped,
}

/// Through whom files are written, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WritesSetting {
    /// Through the server of the names alone.
    Namespace,
    /// Through the servers that read them for others.
    Data,
}

/// The text of [`Fence`]: when a silent server of data is known to write nothing any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FenceSetting {
    /// When it answers, its process has ended, or it was started anew.
    #[default]
    Answer,
    /// Also when its time is over, whatever its machine does.
    Timed,
}

/// A volume, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSettings {
    /// What mounts call it.
    pub name: String,
    /// How its data are shared out.
    pub mode: VolumeModeSetting,
    /// Which edition of the file this is, from 1 on: it grows whenever servers come, go or move.
    #[serde(default = "first")]
    pub epoch: u32,
    /// With stripes: bytes of a block, as `1MiB`; 1 MiB unless given.
    pub stripe_size: Option<String>,
    /// With stripes: over how many servers the blocks of one file are spread; 0: over all.
    #[serde(default)]
    pub width: u16,
    /// What one server has written, all others read at once, though the file system is none of
    /// which that is known: they are processes of one machine, or somebody knows better.
    #[serde(default)]
    pub coherent: bool,
    /// What programs read or write at once is whole, whatever its size: they take turns.
    #[serde(default)]
    pub atomic: bool,
    /// Through whom is written; `None`: where directories share nothing through all servers, else
    /// through that of the names.
    pub writes: Option<WritesSetting>,
    /// With `writes = "data"`: several clients that write one file at the same time do that
    /// straight, too. It is an experiment: docs/volumes.md says what it may lose.
    #[serde(default)]
    pub concurrent: bool,
    /// When a server of data that does not answer is known to write nothing any more: `answer`
    /// unless it is `timed`.
    #[serde(default)]
    pub fence: FenceSetting,
    /// Where directories share nothing: the longest that a file is an ordinary one of the server of
    /// the names, as `64KiB`, which it is unless given.
    pub inline_max: Option<String>,
    /// Its servers.
    #[serde(default)]
    pub server: Vec<VolumeServerSettings>,
}

/// A server of a volume, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeServerSettings {
    /// What the command line calls it.
    pub id: String,
    /// Where it listens, and clients and the other servers reach it: behind routers as
    /// `HOST:PORT@NET`.
    pub listen: Vec<String>,
    /// The shared directory, where this server has it.
    pub dir: PathBuf,
    /// It serves the names; unless one says so, the first does.
    #[serde(default)]
    pub namespace: bool,
    /// Where directories share nothing: bytes of files lie there; all servers' do unless they say
    /// otherwise, and only the server of the names may.
    #[serde(default = "yes")]
    pub data: bool,
}

fn yes() -> bool {
    true
}

fn first() -> u32 {
    1
}

/// A volume, read and checked.
#[derive(Clone, Debug)]
pub struct Volume {
    settings: VolumeSettings,
    file: PathBuf,
    /// The place of the server of the names.
    namespace: usize,
    /// Bytes.
    stripe_size: u32,
    /// Bytes.
    inline_max: u64,
}

/// What a server is in a volume.
#[derive(Clone, Debug)]
pub struct VolumePart {
    /// What mounts call the volume.
    pub name: String,
    /// What the volume's file calls this server.
    pub id: String,
    /// The key of handles and tokens, which all of them share.
    pub key: Key,
    /// What clients are told.
    pub map: Map,
    /// It serves the names; else only bytes, to those whom the server of the names has let in.
    pub has_names: bool,
    /// The file says that the file system is coherent.
    pub coherent: bool,
    /// Its place in maps.
    pub place: u16,
    /// What is written may go through all of them.
    pub writes: bool,
    /// And by several clients into one file at the same time.
    pub concurrent: bool,
    /// When one of them is known to write nothing any more.
    pub fence: Fence,
    /// Their directories share nothing.
    pub plain: Option<PlainPart>,
}

/// File systems that several hosts have mounted, and of which each reads at once what another has
/// written.
pub(crate) const COHERENT: [&str; 5] = ["GPFS", "Lustre", "CephFS", "GFS2", "OCFS2"];

/// By which a volume's key is told from others: a hash of which nothing follows.
pub(crate) fn key_name(key: &Key) -> String {
    ServerId::of_secret(key).to_string()
}

impl VolumePart {
    /// Whether the server has a store, and no names.
    pub(crate) fn is_store(&self) -> bool {
        self.plain.is_some() && !self.has_names
    }

    /// What the server's status tells of it. `directory` is what it serves.
    pub(crate) fn status(&self, directory: &Path) -> VolumeStatus {
        VolumeStatus {
            name: self.name.clone(),
            server: self.id.clone(),
            has_names: self.has_names,
            key: key_name(&self.key),
            filesystem: aqueduct_posix::file_system(directory).unwrap_or_else(|error| error.to_string()),
            coherent: self.coherent,
            writes: self.writes,
        }
    }

    /// Refuses a directory through which the servers of the volume would not see the same.
    pub(crate) fn check_backing(&self, path: &Path, origin: Origin) -> Result<(), Failure> {
        let why = match origin {
            // What nobody changes is the same everywhere.
            _ if self.map.data.len() < 2
                || self.plain.is_some()
                || self.coherent
                || self.map.mode == VolumeMode::LoadBalance =>
            {
                return Ok(());
            }
            Origin::Shared(name) if COHERENT.contains(&name) => return Ok(()),
            Origin::Shared(name) => format!(
                "its file system is {name}, where one host may read old data after another has written, and its servers would not know"
            ),
            Origin::Local => "its file system is this machine's alone, and several servers are to serve it".to_owned(),
            Origin::Unknown => {
                "nobody knows whether all hosts read at once what one has written to its file system".to_owned()
            }
        };
        Err(Failure::usage(
            format!("cannot serve {} in a volume of {} servers", path.display(), self.map.data.len()),
            why,
            format!(
                "use one of {}, or say coherent = true in the volume's file if all its servers run on one machine or you know that it is",
                COHERENT.join(", ")
            ),
        )
        .of(Kind::Export))
    }
}

impl Volume {
    /// Reads the file of a volume (TOML), and checks it.
    pub fn read(file: &Path) -> Result<Volume, Failure> {
        let what = format!("cannot use the volume's file {}", file.display());
        let text = std::fs::read_to_string(file)
            .map_err(|error| Failure::new(&what, error, "give the path of a readable file to --volume"))?;
        let hint = "correct it; 'aqueduct volume --help' shows an example";
        let settings: VolumeSettings =
            toml::from_str(&text).map_err(|error| Failure::usage(&what, error.to_string().trim_end(), hint))?;
        let namespace = check(&settings).map_err(|why| Failure::usage(&what, why, hint))?;
        let stripe_size = stripe_size(&settings).map_err(|why| Failure::usage(&what, why, hint))?;
        let inline_max = inline_max(&settings).map_err(|why| Failure::usage(&what, why, hint))?;
        Ok(Volume { settings, file: file.to_owned(), namespace, stripe_size, inline_max })
    }

    /// Where the key of the volume lies: beside its file.
    pub fn key_path(&self) -> PathBuf {
        self.file.with_extension("key")
    }

    /// Makes the volume's key. It has to be copied to all servers, with the file.
    pub fn create(&self) -> Result<PathBuf, Failure> {
        let path = self.key_path();
        key::create_at(&path).map_err(|error| {
            let hint =
                "a key that is there stays, since handles are made with it: remove it only if nobody uses the volume";
            Failure::new(format!("cannot make the volume's key {}", path.display()), error, hint)
        })?;
        Ok(path)
    }

    /// What clients are told of the volume.
    pub fn map(&self) -> Map {
        let VolumeSettings { name, mode, width, server, .. } = &self.settings;
        let addresses =
            |server: &VolumeServerSettings| server.listen.iter().map(|text| place::server_address(text)).collect();
        let mode = match mode {
            VolumeModeSetting::Serial => VolumeMode::Serial,
            VolumeModeSetting::Cluster => VolumeMode::Cluster,
            VolumeModeSetting::Stripe => VolumeMode::Stripe,
            VolumeModeSetting::LoadBalance => VolumeMode::LoadBalance,
            VolumeModeSetting::WholeFile => VolumeMode::WholeFile,
            VolumeModeSetting::Striped => VolumeMode::Striped,
        };
        let is_striped = matches!(mode, VolumeMode::Stripe | VolumeMode::Striped);
        let data = |server: &VolumeServerSettings| {
            let (place, addresses) = (place_of(&server.id), addresses(server));
            DataServer { place, share_epoch: 1, share: 1, addresses }
        };
        Map {
            volume: volume_id(name),
            epoch: self.settings.epoch.into(),
            mode,
            stripe_size: if is_striped { self.stripe_size } else { 0 },
            width: if is_striped { *width } else { 1 },
            is_atomic: self.settings.atomic,
            names: addresses(&server[self.namespace]),
            data: match mode {
                VolumeMode::Serial => Vec::new(),
                _ => server.iter().filter(|server| server.data).map(data).collect(),
            },
        }
    }

    /// Each server's id, where it is reached, and whether it has the names.
    pub(crate) fn members(&self) -> impl Iterator<Item = (String, String, bool)> + '_ {
        self.settings.server.iter().enumerate().map(|(at, server)| {
            let addresses: Vec<_> = server.listen.iter().map(|text| place::server_address(text)).collect();
            (server.id.clone(), addresses.join(","), at == self.namespace)
        })
    }

    /// What the file says that a server tells as well: the name, `coherent`, whether writes go
    /// through servers of data, and the key beside it, if it can be read.
    pub(crate) fn claims(&self) -> (String, bool, bool, Option<String>) {
        let VolumeSettings { name, coherent, .. } = &self.settings;
        let key = key::load_from(&self.key_path()).ok();
        (name.clone(), *coherent, self.writes_straight(), key.as_ref().map(key_name))
    }

    /// Whether what is written may go through all servers.
    fn writes_straight(&self) -> bool {
        let map = self.map();
        let spreads = matches!(map.mode, VolumeMode::Cluster | VolumeMode::Stripe) && map.data.len() > 1;
        spreads && self.settings.writes == Some(WritesSetting::Data)
    }

    fn place_of(&self, id: &str) -> Result<usize, Failure> {
        let servers = &self.settings.server;
        servers.iter().position(|server| server.id == id).ok_or_else(|| {
            let known: Vec<_> = servers.iter().map(|server| server.id.as_str()).collect();
            let why = format!("{} has none of that id", self.file.display());
            Failure::usage(
                format!("cannot serve as the volume's server '{id}'"),
                why,
                format!("give one of these to --server: {}", known.join(", ")),
            )
        })
    }

    fn key(&self) -> Result<Key, Failure> {
        let path = self.key_path();
        key::load_from(&path).map_err(|error| {
            let hint = "make it once with 'aqueduct volume create FILE', and give all servers of the volume the same, readable by their user alone";
            Failure::new(format!("cannot use the volume's key {}", path.display()), error, hint).of(Kind::State)
        })
    }

    /// Makes the store of a server, on its machine. Returns where.
    pub fn initialise(&self, id: &str) -> Result<PathBuf, Failure> {
        let (at, key) = (self.place_of(id)?, self.key()?);
        let plain = self.plain(at).filter(|plain| plain.holds_data());
        let Some(plain) = plain else {
            let what = format!("cannot make a store for the volume's server '{id}'");
            let why = "it holds no objects: the mode is none of whole-file and striped, or it has data = false";
            return Err(Failure::usage(what, why, "only servers of data of such volumes have a store"));
        };
        plain.initialise(&self.settings.server[at].dir, &key)
    }

    /// The server of the names of plain directories: what it is, the key, and its directory.
    pub(crate) fn tree(&self) -> Result<(PlainPart, Key, PathBuf), Failure> {
        let plain = self.plain(self.namespace).ok_or_else(|| {
            let why = "its servers share one file system, which is looked at by itself";
            let hint = "this is for mode = \"whole-file\" and \"striped\"";
            Failure::usage(format!("cannot look at the volume of {}", self.file.display()), why, hint)
        })?;
        Ok((plain, self.key()?, self.settings.server[self.namespace].dir.clone()))
    }

    /// What the server at a place is where directories share nothing.
    fn plain(&self, at: usize) -> Option<PlainPart> {
        let VolumeSettings { mode, width, server, .. } = &self.settings;
        let is_striped = *mode == VolumeModeSetting::Striped;
        if !is_striped && *mode != VolumeModeSetting::WholeFile {
            return None;
        }
        let store = |(place, server): (usize, &VolumeServerSettings)| PlainStore {
            id: server.id.clone(),
            addresses: server.listen.iter().map(|text| place::server_address(text)).collect::<Vec<_>>().join(","),
            is_here: place == self.namespace,
        };
        let stores = server.iter().enumerate().filter(|(_, server)| server.data).map(store);
        Some(PlainPart {
            id: server[at].id.clone(),
            stores: stores.collect(),
            has_names: at == self.namespace,
            block: self.stripe_size,
            width: if is_striped { (*width).into() } else { 1 },
            inline_max: self.inline_max,
            brings: self.settings.writes != Some(WritesSetting::Namespace),
        })
    }

    /// What a server of the volume listens on, serves and is.
    pub fn part(&self, id: &str) -> Result<(Vec<String>, ExportSettings, VolumePart), Failure> {
        let (at, key) = (self.place_of(id)?, self.key()?);
        let servers = &self.settings.server;
        let export = ExportSettings {
            name: Some(VOLUME_EXPORT.to_owned()),
            read_only: self.settings.mode == VolumeModeSetting::LoadBalance,
            ..ExportSettings::of(&servers[at].dir)
        };
        let part = VolumePart {
            name: self.settings.name.clone(),
            id: id.to_owned(),
            key,
            map: self.map(),
            has_names: at == self.namespace,
            coherent: self.settings.coherent,
            place: place_of(id),
            writes: self.writes_straight(),
            concurrent: self.settings.concurrent,
            fence: match self.settings.fence {
                FenceSetting::Answer => Fence::Answer,
                FenceSetting::Timed => Fence::Timed,
            },
            plain: self.plain(at),
        };
        Ok((servers[at].listen.iter().map(|text| place::listen_address(text)).collect(), export, part))
    }
}

/// The shortest and the longest block of a stripe, in bytes: what is read at once is at most the
/// shortest one.
const STRIPE_MIN: usize = 64 << 10;
const STRIPE_MAX: usize = 1 << 30;

fn stripe_size(settings: &VolumeSettings) -> Result<u32, String> {
    let Some(text) = &settings.stripe_size else { return Ok(1 << 20) };
    if !matches!(settings.mode, VolumeModeSetting::Stripe | VolumeModeSetting::Striped) {
        return Err("stripe_size is for mode = \"stripe\" and \"striped\"".to_owned());
    }
    let size = options::size(text.trim_end_matches("iB"))
        .filter(|size| (STRIPE_MIN..=STRIPE_MAX).contains(size) && size.is_power_of_two());
    let size = size.and_then(|size| u32::try_from(size).ok());
    size.ok_or_else(|| format!("'{text}' is no size of stripes: give a power of two from 64KiB to 1GiB"))
}

/// The longest of an ordinary file, unless it is given, and the longest that may be given: it is
/// moved at once. Bytes.
const INLINE_MAX: u64 = 64 << 10;
const INLINE_LIMIT: u64 = 1 << 20;

fn inline_max(settings: &VolumeSettings) -> Result<u64, String> {
    let is_plain = matches!(settings.mode, VolumeModeSetting::WholeFile | VolumeModeSetting::Striped);
    if !is_plain && (settings.inline_max.is_some() || settings.server.iter().any(|server| !server.data)) {
        return Err("inline_max and data = false are for mode = \"whole-file\" and \"striped\"".to_owned());
    }
    let Some(text) = &settings.inline_max else { return Ok(INLINE_MAX) };
    let size = options::size(text.trim_end_matches("iB")).and_then(|size| u64::try_from(size).ok());
    size.filter(|size| (1..=INLINE_LIMIT).contains(size))
        .ok_or_else(|| format!("'{text}' is no inline_max: give a size from 1 byte to 1MiB"))
}

/// Why a volume of plain directories cannot be.
fn check_plain(settings: &VolumeSettings, namespace: usize) -> Result<(), String> {
    if settings.coherent {
        return Err("coherent is for servers that share a file system".to_owned());
    }
    let mut servers = settings.server.iter().enumerate();
    if let Some((_, without)) = servers.find(|(place, server)| !server.data && *place != namespace) {
        return Err(format!("server {}: it has neither names nor data", without.id));
    }
    match settings.server.iter().any(|server| server.data) {
        true => Ok(()),
        false => Err("no server holds data".to_owned()),
    }
}

/// Why a volume cannot be; else the place of the server of the names.
fn check(settings: &VolumeSettings) -> Result<usize, String> {
    let is_name = |text: &str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !text.is_empty() && text.len() <= NAME_LENGTH_MAX && text.bytes().all(is_letter)
    };
    let VolumeSettings { name, mode, server, .. } = settings;
    if !is_name(name) {
        return Err(format!(
            "'{name}' is no name: it may have 1 to {NAME_LENGTH_MAX} letters, digits, dots, hyphens and underscores"
        ));
    }
    let most = if *mode == VolumeModeSetting::Serial { 1 } else { DATA_SERVERS_MAX };
    if server.is_empty() || server.len() > most {
        return Err(format!("it has {} [[server]] instead of 1 to {most}", server.len()));
    }
    if settings.epoch == 0 {
        return Err("epoch is 1 or more".to_owned());
    }
    let (mut ids, mut places, mut addresses) = (HashSet::new(), HashMap::new(), HashSet::new());
    for VolumeServerSettings { id, listen, .. } in server {
        if !is_name(id) || !ids.insert(id) {
            return Err(format!("'{id}' is no id of a server, or that of two"));
        }
        if let Some(other) = places.insert(place_of(id), id) {
            return Err(format!(
                "the ids '{other}' and '{id}' give the same place in maps: take another for the newer"
            ));
        }
        let is_reached = |text: &String| {
            // Its port may be left out.
            let address = place::server_address(text).parse::<std::net::SocketAddr>();
            let is_any = address.is_ok_and(|address| address.ip().is_unspecified());
            let port = text.parse::<std::net::SocketAddr>().map(|address| address.port());
            !text.contains(',') && !is_any && port != Ok(0)
        };
        if listen.is_empty() || !listen.iter().all(is_reached) {
            return Err(format!(
                "server {id}: clients need addresses by which they reach it, and ports: listen = [\"10.0.0.1:7170\"]"
            ));
        }
        if let Some(double) = listen.iter().find(|text| !addresses.insert(place::server_address(text))) {
            return Err(format!("server {id}: {double} is listened on twice"));
        }
    }
    let namespaces: Vec<usize> = (0..server.len()).filter(|at| server[*at].namespace).collect();
    let namespace = match namespaces[..] {
        [] => 0,
        [one] => one,
        _ => return Err("more than one server has namespace = true".to_owned()),
    };
    if matches!(mode, VolumeModeSetting::WholeFile | VolumeModeSetting::Striped) {
        check_plain(settings, namespace)?;
    }
    check_meaning(settings)?;
    Ok(namespace)
}

/// What would be passed over is no setting of this volume.
fn check_meaning(settings: &VolumeSettings) -> Result<(), String> {
    use VolumeModeSetting::{Cluster, Stripe, Striped, WholeFile};
    let VolumeSettings { mode, width, writes, concurrent, fence, .. } = settings;
    if *width != 0 && !matches!(mode, Stripe | Striped) {
        return Err("width is for mode = \"stripe\" and \"striped\"".to_owned());
    }
    match (writes, mode) {
        (Some(WritesSetting::Data), Cluster | Stripe) => Ok(()),
        (Some(WritesSetting::Data), Striped | WholeFile) if !concurrent && *fence == FenceSetting::Answer => Ok(()),
        (Some(WritesSetting::Data), Striped | WholeFile) => {
            Err("concurrent and fence are for mode = \"cluster\" and \"stripe\"".to_owned())
        }
        (Some(WritesSetting::Data), _) => {
            let modes = "cluster, stripe, whole-file and striped";
            Err(format!("writes = \"data\" is for modes with several servers that write: {modes}"))
        }
        _ if *concurrent => Err("concurrent is for writes = \"data\"".to_owned()),
        _ if *fence != FenceSetting::Answer => Err("fence is for writes = \"data\"".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Volume, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("volume.toml");
        std::fs::write(&file, text).unwrap();
        Volume::read(&file).map_err(|failure| failure.to_string())
    }

    fn server(id: &str, rest: &str) -> String {
        format!("[[server]]\nid = '{id}'\ndir = '/tmp'\n{rest}\n")
    }

    #[test]
    fn a_volume_is_read_and_told() {
        let text = format!(
            "name = 'scratch'\nmode = 'cluster'\n{}{}",
            server("s1", "listen = ['10.0.0.1']"),
            server("s2", "listen = ['10.0.0.2:1', '10.1.0.2:1']\nnamespace = true")
        );
        let map = read(&text).unwrap().map();
        assert_eq!(map.names, ["10.0.0.2:1", "10.1.0.2:1"]);
        let data: Vec<_> = map.data.iter().map(|server| server.addresses.concat()).collect();
        assert_eq!(data, ["10.0.0.1:7170", "10.0.0.2:110.1.0.2:1"]);
        assert_eq!((map.volume, map.mode, map.epoch), (volume_id("scratch"), VolumeMode::Cluster, 1));
        let later = text.replace("mode =", "epoch = 7\nmode =").replace("10.0.0.1", "10.9.0.1");
        let later = read(&later).unwrap().map();
        assert_eq!(later.epoch, 7);
        assert_eq!(later.data[0].place, map.data[0].place, "it has only moved");
        assert_ne!(map.volume, volume_id("scratch2"));
    }

    #[test]
    fn what_cannot_be_a_volume_is_refused_with_the_reason() {
        let of = |name: &str, mode: &str, servers: &[String]| {
            read(&format!("name = '{name}'\nmode = '{mode}'\n{}", servers.concat())).unwrap_err()
        };
        let one = server("a", "listen = ['10.0.0.1:1']");
        for (told, servers) in [
            ("instead of 1", vec![]),
            ("that of two", vec![one.clone(), server("a", "listen = ['10.0.0.2:1']")]),
            ("listened on twice", vec![one.clone(), server("b", "listen = ['10.0.0.1:1']")]),
            ("reach it", vec![server("a", "listen = []")]),
            ("reach it", vec![server("a", "listen = ['0.0.0.0:7170']")]),
            ("reach it", vec![server("a", "listen = ['127.0.0.1:0']")]),
            ("reach it", vec![server("a", "listen = ['0.0.0.0']")]),
            (
                "more than one",
                vec![
                    server("a", "listen = ['10.0.0.1:1']\nnamespace = true"),
                    server("b", "listen = ['10.0.0.2:1']\nnamespace = true"),
                ],
            ),
            ("unknown field", vec![server("a", "listen = ['10.0.0.1:1']\nshare = 3")]),
        ] {
            let message = of("scratch", "cluster", &servers);
            assert!(message.contains(told), "{told}: {message}");
        }
        assert!(of("a/b", "cluster", std::slice::from_ref(&one)).contains("is no name"));
        for wrong in ["3MiB", "32KiB", "2GiB", "much"] {
            let text = format!("name = 'a'\nmode = 'stripe'\nstripe_size = '{wrong}'\n{one}");
            assert!(read(&text).unwrap_err().contains("no size of stripes"), "{wrong}");
        }
        let map = read(&format!("name = 'a'\nmode = 'stripe'\nstripe_size = '4MiB'\nwidth = 2\n{one}")).unwrap().map();
        assert_eq!((map.mode, map.stripe_size, map.width), (VolumeMode::Stripe, 4 << 20, 2));
        assert!(of("a", "strips", std::slice::from_ref(&one)).contains("cluster"), "the modes are named");
        for (mode, rest, told) in [
            ("cluster", "width = 2", "width is for"),
            ("serial", "writes = 'data'", "is for modes with several servers that write"),
            ("loadbalance", "writes = 'data'", "is for modes with several servers that write"),
            ("striped", "writes = 'data'\nconcurrent = true", "are for mode = \"cluster\""),
            ("striped", "writes = 'data'\nfence = 'timed'", "are for mode = \"cluster\""),
            ("stripe", "concurrent = true", "concurrent is for"),
            ("whole-file", "fence = 'timed'", "fence is for"),
        ] {
            let message = read(&format!("name = 'a'\nmode = '{mode}'\n{rest}\n{one}")).unwrap_err();
            assert!(message.contains(told), "{mode}, {rest}: {message}");
        }
        let two = [one, server("b", "listen = ['10.0.0.2:1']")];
        assert!(of("a", "serial", &two).contains("instead of 1 to 1"));
    }

    #[test]
    fn a_file_system_that_is_not_coherent_is_refused_unless_the_file_says_otherwise() {
        let check = |servers: usize, coherent, origin| {
            let map = Map { data: vec![DataServer::default(); servers], ..Map::default() };
            let (has_names, place, writes, fence) = (true, 0, false, Fence::Answer);
            let key = Key::default();
            let (name, id) = ("v".to_owned(), "a".to_owned());
            let part = VolumePart {
                name,
                id,
                key,
                map,
                has_names,
                coherent,
                place,
                writes,
                concurrent: false,
                fence,
                plain: None,
            };
            part.check_backing(Path::new("/srv"), origin).map_err(|failure| failure.to_string())
        };
        for origin in [Origin::Shared("NFS"), Origin::Shared("FUSE"), Origin::Local, Origin::Unknown] {
            let refused = check(2, false, origin).unwrap_err();
            assert!(refused.contains("/srv") && refused.contains("coherent = true"), "{refused}");
            assert_eq!(check(2, true, origin), Ok(()));
            assert_eq!(check(1, false, origin), Ok(()));
        }
        assert_eq!(check(3, false, Origin::Shared("Lustre")), Ok(()));
    }

    #[test]
    fn the_servers_of_a_volume_share_a_key_that_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("volume.toml");
        let servers = server("a", "listen = ['10.0.0.1:1']") + &server("b", "listen = ['10.0.0.2:1']");
        std::fs::write(&file, format!("name = 'v'\nmode = 'cluster'\n{servers}")).unwrap();
        let volume = Volume::read(&file).unwrap();
        assert!(volume.part("a").unwrap_err().to_string().contains("volume create"));
        assert_eq!(volume.create().unwrap(), folder.path().join("volume.key"));
        assert!(volume.create().unwrap_err().to_string().contains("volume.key"));
        let [(_, _, first), (listen, export, second)] = ["a", "b"].map(|id| volume.part(id).unwrap());
        assert_eq!(first.key, second.key);
        assert_eq!((first.has_names, second.has_names), (true, false));
        assert_eq!((listen, export.name), (vec!["10.0.0.2:1".to_owned()], Some("/".to_owned())));
        let refused = volume.part("c").unwrap_err().to_string();
        assert!(refused.contains("'c'") && refused.contains("a, b"), "{refused}");
    }
}
