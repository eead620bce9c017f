//! How a source or destination is written: a path, `HOST:/EXPORT/path`, `HOST:NAME/path` where the
//! export has a name, or `agent://HOST/EXPORT/path`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use aqueduct_fs::{ClientId, Context, Credential, Errno};
use aqueduct_node::{self as node, AttachConfig, Attachment, Carriers, ConnectError, Initiator};
use aqueduct_wire::{Checksums, ClientKey};
use aqueduct_worker::lock;

use super::Directory;
use super::local::LocalDirectory;
use super::projected::Export;
use crate::Failure;
use crate::polite::Said;
use crate::running::SessionRecord;

/// What the place of an agent begins with.
const AGENT: &[u8] = b"agent://";

/// One side as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    written: OsString,
    kind: Kind,
    /// It ends with a slash: its content is meant.
    pub is_content: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Here(PathBuf),
    There { server: String, path: String, is_agent: bool },
}

/// Exports that one copy attaches, at most: each has threads and connections, and a copy may be
/// another machine's wish.
const EXPORTS_MAX: usize = 64;

/// So many links lead from one to the next, as the kernel has it.
const LINKS_MAX: usize = 40;

/// How exports are attached.
pub struct Access {
    /// The cluster's key, or this node's.
    pub key: Option<ClientKey>,
    /// Who connects to servers in networks that have a name.
    pub routes: Option<Arc<Initiator>>,
    /// Whether what travels is checked.
    pub checksums: Checksums,
    /// Threads that carry the requests of each.
    pub threads: usize,
    /// As whom.
    context: Context,
    /// What servers call this client; `None`: as this machine is called.
    pub name: Option<String>,
    attached: Mutex<Vec<(String, String, Arc<Export>)>>,
}

impl Access {
    /// Attaches nothing yet.
    pub fn new(key: Option<ClientKey>, checksums: Checksums, threads: usize) -> Access {
        let (context, attached) = (node::caller(), Mutex::default());
        Access { key, routes: None, checksums, threads, context, name: None, attached }
    }

    /// By these routes.
    pub fn by(self, routes: Option<Arc<Initiator>>) -> Access {
        Access { routes, ..self }
    }

    /// What the sessions with servers have counted so far.
    pub(crate) fn sessions(&self) -> Vec<SessionRecord> {
        let attached = lock(&self.attached).clone();
        attached.iter().map(|(server, export, attached)| attached.record(server, export)).collect()
    }

    /// How long requests waited at each server before it began with them, as they say.
    pub(crate) fn queue_times(&self) -> Vec<Said> {
        let attached = lock(&self.attached).clone();
        let said = |(server, export, attached): &(String, String, Arc<Export>)| {
            (format!("{server}:{export}"), attached.queue_times())
        };
        attached.iter().map(said).collect()
    }

    /// As somebody else than this process.
    pub fn acting_as(self, credential: Credential) -> Access {
        Access { context: Context::new(ClientId(0), credential), ..self }
    }

    fn connect(&self, server: &str, export: &str) -> Result<Attachment, ConnectError> {
        let usual = AttachConfig::new(server, export);
        let config = AttachConfig {
            key: self.key.clone(),
            routes: self.routes.clone(),
            checksums: self.checksums,
            asks_queue_time: true,
            name: self.name.clone().unwrap_or_else(|| usual.name.clone()),
            ..usual
        };
        Attachment::connect(&config, Carriers::Threads(self.threads))
    }

    /// Attaches an export of the agent that this process is.
    pub(crate) fn attach_own(&self, server: &str, export: &str, token: &str) -> Result<(), Failure> {
        if lock(&self.attached).iter().any(|(at, known, _)| at == server && known == export) {
            return Ok(()); // several sources are in it
        }
        let connected = self.connect(server, &format!("{token}{export}"));
        let own = connected.map_err(|error| failed(format!("cannot reach the agent's own export {export}"), &error))?;
        lock(&self.attached).push((server.to_owned(), export.to_owned(), Export::new(own, self.context.clone())));
        Ok(())
    }
}

fn failed(what: String, error: &ConnectError) -> Failure {
    Failure::new(what, error, error.hint()).of(aqueduct_node::Kind::Connect)
}

/// A place that was found: the directory that it is, or the one that it is a name of.
pub struct Root {
    /// The directory in which its name is; that itself where there is no name.
    pub parent: Arc<dyn Directory>,
    /// The name; `None`: the place is a root, which has none.
    pub name: Option<Vec<u8>>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written.to_string_lossy())
    }
}

impl Place {
    /// Takes a text apart. As rsync and scp have it, a colon before the first slash means a host.
    pub fn parse(written: &OsStr) -> Result<Place, Failure> {
        let bytes = written.as_bytes();
        let is_content = bytes.ends_with(b"/") || bytes.ends_with(b"/.") || bytes == b".";
        let slash = bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len());
        let bad = |why: &dyn fmt::Display| {
            let hint = "name a path, HOST[:PORT]:/EXPORT/path, HOST[:PORT]:NAME/path of an export that has a name, or agent://HOST[:PORT]/EXPORT/path; a path with a colon as ./PATH";
            Failure::usage(format!("'{}'", written.to_string_lossy()), why, hint)
        };
        if bytes.is_empty() {
            return Err(bad(&"it is empty"));
        }
        if let Some(text) = bytes.strip_prefix(AGENT) {
            let at = text.iter().position(|byte| *byte == b'/').ok_or_else(|| bad(&"it names no path of the agent"))?;
            let place = [&text[..at], b":", &text[at..]].concat();
            let Place { kind: Kind::There { server, path, .. }, .. } = Place::parse(OsStr::from_bytes(&place))? else {
                return Err(bad(&"it names no host"));
            };
            let kind = Kind::There { server, path, is_agent: true };
            return Ok(Place { written: written.to_owned(), kind, is_content });
        }
        let is_there = bytes[..slash].contains(&b':') || bytes.starts_with(node::place::UNIX.as_bytes());
        let kind = if is_there {
            let text = written.to_str().ok_or_else(|| bad(&"a server's exports have names in UTF-8"))?;
            // Volumes are not copied from: what stands behind an @ is a network.
            let place = node::Place::parse(text, node::place::may_be_network).map_err(|error| bad(&error))?;
            if place.volume.is_some() {
                return Err(bad(&"it names a volume"));
            }
            if place.export.split('/').any(|name| name == "..") {
                return Err(bad(&"it has '..' in it"));
            }
            Kind::There { server: place.server(None), path: place.export, is_agent: false }
        } else {
            Kind::Here(PathBuf::from(written))
        };
        Ok(Place { written: written.to_owned(), kind, is_content })
    }

    /// Whether it is at a server.
    pub fn is_projected(&self) -> bool {
        matches!(self.kind, Kind::There { .. })
    }

    /// As it was written, with a path that does not depend on where this process is.
    pub fn absolute(&self) -> OsString {
        match &self.kind {
            Kind::Here(path) => std::path::absolute(path).map_or_else(|_| self.written.clone(), OsString::from),
            Kind::There { .. } => self.written.clone(),
        }
    }

    /// The server's addresses, of a place at one.
    pub fn server(&self) -> Option<&str> {
        match &self.kind {
            Kind::Here(_) => None,
            Kind::There { server, .. } => Some(server),
        }
    }

    /// The path there, of a place at a server.
    pub(crate) fn path_there(&self) -> Option<&str> {
        match &self.kind {
            Kind::Here(_) => None,
            Kind::There { path, .. } => Some(path),
        }
    }

    /// Whether it is written as an agent's.
    pub fn is_agent(&self) -> bool {
        matches!(self.kind, Kind::There { is_agent: true, .. })
    }

    /// The same place, shown in another way.
    pub(crate) fn shown_as(self, written: &str) -> Place {
        Place { written: written.into(), ..self }
    }

    /// The path, of a place on this machine.
    pub fn local(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Here(path) => Some(path),
            Kind::There { .. } => None,
        }
    }

    /// What names it whatever way it was written, as far as that can be told.
    pub fn canonical(&self) -> Vec<u8> {
        match &self.kind {
            Kind::Here(path) => {
                let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let parent = absolute.parent().map(|parent| parent.canonicalize().unwrap_or_else(|_| parent.into()));
                let whole = match (parent, absolute.file_name()) {
                    (Some(parent), Some(name)) => parent.join(name),
                    _ => absolute,
                };
                whole.into_os_string().into_vec()
            }
            Kind::There { server, path, .. } => format!("{server}:{}", path.trim_end_matches('/')).into_bytes(),
        }
    }

    /// The path from another place to this one, if it lies there as far as their names say.
    pub(crate) fn below(&self, other: &Place) -> Option<Vec<u8>> {
        let names = |path: &str| -> Vec<String> {
            path.split('/').filter(|name| !["", "."].contains(name)).map(str::to_owned).collect()
        };
        match (&self.kind, &other.kind) {
            (Kind::There { server, path, .. }, Kind::There { server: at, path: above, .. }) if server == at => {
                let (path, above) = (names(path), names(above));
                path.strip_prefix(&*above).map(|rest| rest.join("/").into_bytes())
            }
            (Kind::Here(path), Kind::Here(above)) => {
                let whole = path.canonicalize().unwrap_or_else(|_| OsString::from_vec(self.canonical()).into());
                let rest = whole.strip_prefix(above.canonicalize().ok()?).ok()?;
                Some(rest.as_os_str().as_bytes().to_vec())
            }
            _ => None,
        }
    }

    /// Finds it. What it names need not be there, the directory above has to.
    pub fn find(&self, access: &Access) -> Result<Root, Failure> {
        match &self.kind {
            Kind::Here(path) => self.find_here(path),
            Kind::There { server, path, .. } => self.find_there(access, server, path, self.is_content),
        }
    }

    /// As [`find`](Place::find), for a destination: a link to a directory is that directory.
    pub fn find_target(&self, access: &Access) -> Result<Root, Failure> {
        match &self.kind {
            Kind::Here(path) if path.is_dir() => {
                let parent = LocalDirectory::open(path).map_err(|error| self.failed(error))?;
                Ok(Root { parent, name: None })
            }
            Kind::Here(path) => self.find_here(path),
            Kind::There { server, path, .. } => self.find_there(access, server, path, false),
        }
    }

    fn failed(&self, error: Errno) -> Failure {
        let hint = "check the path, and that the directory above it is there and may be entered";
        Failure::new(format!("cannot open {self}"), error, hint)
    }

    fn find_here(&self, path: &Path) -> Result<Root, Failure> {
        let failed = |error| self.failed(error);
        let ends_in_dots = [b".".as_slice(), b".."].contains(&self.written.as_bytes())
            || self.written.as_bytes().ends_with(b"/.")
            || self.written.as_bytes().ends_with(b"/..");
        let name = path.file_name().filter(|_| !ends_in_dots);
        let Some(name) = name else {
            return Ok(Root { parent: LocalDirectory::open(path).map_err(failed)?, name: None });
        };
        // Of what is in a directory its name says nothing: if that is a link it is followed.
        if self.is_content && path.is_dir() {
            return Ok(Root { parent: LocalDirectory::open(path).map_err(failed)?, name: None });
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = LocalDirectory::open(parent).map_err(failed)?;
        Ok(Root { parent, name: Some(name.as_bytes().to_vec()) })
    }

    /// `follows`: if the last name is a link, the directory to which it leads is meant.
    fn find_there(&self, access: &Access, server: &str, path: &str, follows: bool) -> Result<Root, Failure> {
        let (export, attached) = self.attach(access, server, path)?;
        let below = path.strip_prefix(export.trim_end_matches('/')).unwrap_or_default();
        let mut names = below.split('/').filter(|name| !name.is_empty() && *name != ".").map(str::as_bytes);
        let mut above = vec![attached.root().map_err(|error| self.failed(error))?];
        let last = names.next_back();
        for name in names {
            above.push(above[above.len() - 1].directory(name).map_err(|error| self.failed(error))?);
        }
        let parent = above[above.len() - 1].clone();
        let Some(name) = last else { return Ok(Root { parent, name: None }) };
        if follows && parent.look(name).is_ok_and(|seen| seen.attr.kind() == libc::S_IFLNK) {
            let parent = follow(above, name, export.as_bytes()).map_err(|error| {
                let hint = "name the directory to which the link leads, in an export of the server";
                Failure::new(format!("cannot follow the link {self}"), error, hint)
            })?;
            return Ok(Root { parent, name: None });
        }
        Ok(Root { parent, name: Some(name.to_vec()) })
    }

    /// The longest export that the path is, or is below of.
    fn attach(&self, access: &Access, server: &str, path: &str) -> Result<(String, Arc<Export>), Failure> {
        let is_above = |export: &str| {
            path.strip_prefix(export.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mut attached = lock(&access.attached);
        let known = attached.iter().filter(|(at, export, _)| at == server && is_above(export));
        if let Some((_, export, found)) = known.max_by_key(|(_, export, _)| export.len()) {
            return Ok((export.clone(), found.clone()));
        }
        if attached.len() >= EXPORTS_MAX {
            let (why, hint) = (format!("a copy has {EXPORTS_MAX} exports at most"), "copy from fewer at once");
            return Err(Failure::usage(format!("cannot attach {self}"), why, hint));
        }
        let connect = |export: &str| access.connect(server, export);
        let trimmed = path.trim_end_matches('/');
        let mut export = if trimmed.is_empty() { "/".to_owned() } else { trimmed.to_owned() };
        let mut connected = connect(&export);
        if let Err(ConnectError::UnknownExport { known, .. }) = &connected
            && let Some(longest) = known.iter().filter(|known| is_above(known)).max_by_key(|known| known.len())
        {
            export = longest.clone();
            connected = connect(&export);
        }
        let what = format!("cannot attach {self}");
        let found = Export::new(connected.map_err(|error| failed(what, &error))?, access.context.clone());
        attached.push((server.to_owned(), export.clone(), found.clone()));
        Ok((export, found))
    }
}

/// Finds the directory to which a name leads through links, none of which leads out of the export.
/// `above`: the directories from the export's root to the one that has the name.
fn follow(mut above: Vec<Arc<dyn Directory>>, name: &[u8], export: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
    let mut names = vec![name.to_vec()]; // those that are left, the next last
    let mut links = 0;
    while let Some(name) = names.pop() {
        let here = above[above.len() - 1].clone();
        match &*name {
            b"" | b"." => {}
            b".." if above.len() > 1 => drop(above.pop()),
            b".." => return Err(Errno::EXDEV),
            name if here.look(name)?.attr.kind() != libc::S_IFLNK => above.push(here.directory(name)?),
            name => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                let text = here.read_link(name)?;
                let mut rest = &*text;
                if text.starts_with(b"/") {
                    let export = export.strip_suffix(b"/").unwrap_or(export);
                    let below = text.strip_prefix(export).filter(|below| below.is_empty() || below.starts_with(b"/"));
                    rest = below.ok_or(Errno::EXDEV)?;
                    above.truncate(1);
                }
                names.extend(rest.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
            }
        }
    }
    Ok(above[above.len() - 1].clone())
}

impl Root {
    /// Looks at it; `None`: it is not there.
    pub fn seen(&self) -> Result<Option<super::Seen>, Errno> {
        let seen = match &self.name {
            Some(name) => self.parent.look(name),
            None => self.parent.seen(),
        };
        match seen {
            Err(Errno::ENOENT) => Ok(None),
            seen => seen.map(Some),
        }
    }

    /// Opens it as a directory.
    pub fn directory(&self) -> Result<Arc<dyn Directory>, Errno> {
        match &self.name {
            Some(name) => self.parent.directory(name),
            None => Ok(self.parent.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Place {
        Place::parse(OsStr::new(text)).unwrap()
    }

    #[test]
    fn a_colon_before_the_first_slash_means_a_host() {
        for (text, is_projected, is_content) in [
            ("a/b", false, false),
            ("./a:b", false, false),
            ("/a:/b/", false, true),
            ("host:/x", true, false),
            ("host:data/x", true, false),
            ("host:data/", true, true),
            ("host@net2:/x", true, false),
            ("host:7171:/x/", true, true),
            ("unix:/run/a:/x", true, false),
            (".", false, true),
            ("agent://host/x", true, false),
            ("agent://[::1]:7171/x/", true, true),
            ("a/.", false, true),
        ] {
            let place = parsed(text);
            assert_eq!((place.is_projected(), place.is_content), (is_projected, is_content), "{text}");
        }
        for wrong in [
            "",
            "host:",
            "host:x/../b",
            "v@10.0.0.1:/x",
            "host:/a/../b",
            "agent://host",
            "agent:///x",
            "agent://h/../x",
        ] {
            assert!(Place::parse(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_place_is_known_however_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("d")).unwrap();
        let of = |text: &str| parsed(&format!("{}/{text}", folder.path().display())).canonical();
        assert_eq!(of("d/../d/x"), of("d/x"));
        assert_eq!(parsed("agent://h/x").canonical(), parsed("h:7170:/x").canonical());
        assert_eq!(parsed("h:/x/").canonical(), parsed("h:7170:/x").canonical());
    }
}
