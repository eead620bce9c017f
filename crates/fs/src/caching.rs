//! A layer that says of parts of a tree, by their paths, how much of them may be kept: [`Keep`] as the file system below says it, never, or for long.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use globset::{GlobBuilder, GlobMatcher};

use crate::layer::Layer;
use crate::{Answer, Call, Context, Errno, FileSystem, Handle, Hold, Keep, OpenId, Reply, Request};

/// How much of a part of a tree may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Nothing.
    None,
    /// What the file system below says.
    Lease,
    /// All, for [`IMMUTABLE`]: whoever says so promises that nothing there changes.
    Immutable,
}

/// For how long what does not change is kept. It is asked for again all the same, so that a promise that was broken is noticed some day.
pub const IMMUTABLE: Duration = Duration::from_secs(3600);

/// Inodes whose places are known. When there are more, all but the root are forgotten and found again; meanwhile they are as the file system below says.
const PLACES_MAX: usize = 65_536;

/// Rules for paths; the last that fits counts.
pub struct Rules {
    default: Caching,
    rules: Vec<(GlobMatcher, Caching)>,
}

/// A pattern that is none.
#[derive(Debug, thiserror::Error)]
#[error("'{pattern}' is no pattern for paths: {reason}")]
pub struct PatternError {
    pattern: String,
    reason: String,
}

impl Rules {
    /// What no rule fits is as `default` says.
    pub fn new(default: Caching) -> Rules {
        Rules { default, rules: Vec::new() }
    }

    /// Adds a rule for the paths that fit a glob and for all below them. Paths begin with `/`, the root of the tree; `*` and `?` stand for no `/`, `**` for any
    /// directories, `[...]` and `{...,...}` as shells have them.
    pub fn add(&mut self, pattern: &str, caching: Caching) -> Result<(), PatternError> {
        let error = |reason: String| PatternError { pattern: pattern.to_owned(), reason };
        if !pattern.starts_with('/') {
            return Err(error("it does not begin with '/'".into()));
        }
        let trimmed = pattern.trim_end_matches('/');
        let trimmed = if trimmed.is_empty() { "/" } else { trimmed };
        let glob = GlobBuilder::new(trimmed).literal_separator(true).backslash_escape(true).build();
        let glob = glob.map_err(|reason| error(reason.kind().to_string()))?;
        self.rules.push((glob.compile_matcher(), caching));
        Ok(())
    }

    /// Whether they say anything.
    pub fn is_trivial(&self) -> bool {
        self.rules.is_empty() && self.default == Caching::Lease
    }

    fn caching(&self, rule: Option<usize>) -> Caching {
        rule.map_or(self.default, |rule| self.rules[rule].1)
    }

    /// The rule for a path in a directory that has this one.
    fn of(&self, path: &[u8], parent: Option<usize>) -> Option<usize> {
        let path = Path::new(OsStr::from_bytes(path));
        let own = self.rules.iter().rposition(|(glob, _)| glob.is_match(path));
        own.max(parent)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.iter().map(|(glob, caching)| (glob.glob().glob(), caching));
        f.debug_struct("Rules").field("default", &self.default).field("rules", &rules.collect::<Vec<_>>()).finish()
    }
}

/// Where an inode was found last.
#[derive(Clone)]
struct Place {
    path: Arc<[u8]>,
    rule: Option<usize>,
}

#[derive(Default)]
struct Places {
    inodes: HashMap<Handle, Place>,
    /// Asked for once only, so it is not forgotten.
    root: Option<Handle>,
    /// The directories that are open.
    open: HashMap<OpenId, Handle>,
}

/// See the module. An inode has the rule of the name by which it was found last.
pub struct Ruled<F> {
    below: F,
    rules: Rules,
    places: Mutex<Places>,
}

impl<F: FileSystem> Ruled<F> {
    /// The layer.
    pub fn new(below: F, rules: Rules) -> Ruled<F> {
        Ruled { below, rules, places: Mutex::default() }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn place(&self, handle: &[u8]) -> Option<Place> {
        Handle::new(handle).and_then(|handle| self.places().inodes.get(&handle).cloned())
    }

    /// What is not known any more is as the file system below says.
    fn caching_of(&self, handle: &[u8]) -> Caching {
        self.place(handle).map_or(Caching::Lease, |place| self.rules.caching(place.rule))
    }

    fn note(&self, handle: &Handle, place: Place) {
        let mut places = self.places();
        if places.inodes.len() >= PLACES_MAX {
            let Places { inodes, root, .. } = &mut *places;
            inodes.retain(|handle, _| root.as_ref() == Some(handle));
        }
        places.inodes.insert(handle.clone(), place);
    }

    /// How a name in a directory is treated, and what it leads to from now on.
    fn child(&self, parent: &[u8], name: &[u8], found: Option<(&[u8], bool)>) -> Caching {
        let Some(parent) = self.place(parent) else { return Caching::Lease };
        let path = [&parent.path[..], b"/", name].concat();
        let rule = self.rules.of(&path, parent.rule);
        // Files are noted where they differ from what is believed of whom nobody knows.
        if let Some((handle, is_directory)) = found
            && let Some(handle) = Handle::new(handle)
            && (is_directory
                || self.rules.caching(rule) != Caching::Lease
                || self.places().inodes.contains_key(&handle))
        {
            self.note(&handle, Place { path: if is_directory { path.into() } else { Arc::new([]) }, rule });
        }
        self.rules.caching(rule)
    }

    /// How the answer to a request is treated.
    fn caching(&self, request: &Request<'_>, result: &Result<Reply, Errno>) -> Caching {
        use Request::*;
        match (request, result) {
            (Root, Ok(Reply::Entry(entry))) => {
                let place = Place { path: Arc::new([]), rule: self.rules.of(b"/", None) };
                let caching = self.rules.caching(place.rule);
                self.places().root = Some(entry.handle.clone());
                self.note(&entry.handle, place);
                caching
            }
            (OpenDirectory { handle }, Ok(Reply::Opened(opened))) => {
                if let Some(handle) = Handle::new(handle) {
                    self.places().open.insert(opened.id, handle);
                }
                self.caching_of(handle)
            }
            (ReleaseDirectory { open }, _) => {
                self.places().open.remove(open);
                Caching::Lease
            }
            (ReadDirectory { open, .. }, Ok(Reply::Directory(page))) => {
                let Some(parent) = self.places().open.get(open).cloned() else { return Caching::None };
                let entries = page.entries().filter(|entry| !matches!(entry.name, b"." | b".."));
                let found = entries.map(|entry| {
                    let inode = entry.inode.map(|(handle, attr)| (handle, attr.is_directory()));
                    self.child(parent.bytes(), entry.name, inode)
                });
                // What holds for all.
                found.fold(self.caching_of(parent.bytes()), strictest)
            }
            (Lookup { parent, name }, Err(_)) => self.child(parent, name, None),
            (
                Lookup { parent, name }
                | Symlink { parent, name, .. }
                | MakeNode { parent, name, .. }
                | MakeDirectory { parent, name, .. }
                | Link { parent, name, .. }
                | Create { parent, name, .. },
                Ok(Reply::Entry(entry) | Reply::Created(entry, _)),
            ) => self.child(parent, name, Some((entry.handle.bytes(), entry.attr.is_directory()))),
            (
                GetAttr { handle, .. }
                | SetAttr { handle, .. }
                | ReadLink { handle }
                | Open { handle, .. }
                | GetXattr { handle, .. }
                | ListXattr { handle, .. },
                _,
            ) => self.caching_of(handle),
            _ => Caching::Lease,
        }
    }
}

/// The one that lets less be kept.
fn strictest(one: Caching, other: Caching) -> Caching {
    match (one, other) {
        (Caching::None, _) | (_, Caching::None) => Caching::None,
        (Caching::Lease, _) | (_, Caching::Lease) => Caching::Lease,
        _ => Caching::Immutable,
    }
}

/// Of changes nothing is kept, whoever promised that there are none: an answer of which something is may be asked for twice.
fn keep(caching: Caching, request: &Request<'_>, answer: Answer) -> Answer {
    match (caching, &answer.result) {
        (Caching::Lease, _) => answer,
        (Caching::Immutable, Ok(_) | Err(Errno::ENOENT)) if !request.writes() => {
            let data = matches!(request, Request::Open { .. });
            let keep =
                Keep { attributes: IMMUTABLE, names: IMMUTABLE, data, is_written: false, hold: answer.keep.hold };
            Answer { keep, ..answer }
        }
        (Caching::None | Caching::Immutable, _) => answer.result.into(),
    }
}

impl<F: FileSystem> Layer for Ruled<F> {
    type Below = F;

    fn below(&self) -> &F {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        match self.below.ask(context, request.clone()) {
            Call::Ready(answer) => Call::Ready(
                answer
                    .map(|answer| answer.map(|answer| keep(self.caching(&request, &answer.result), &request, answer))),
            ),
            Call::Waiting(answer) => Call::waiting(async move {
                let answer = answer.await?;
                Ok(keep(self.caching(&request, &answer.result), &request, answer))
            }),
        }
    }

    fn hold_data(&self, handle: &[u8]) -> Option<Hold> {
        match self.caching_of(handle) {
            Caching::None => None,
            Caching::Lease => self.below.hold_data(handle),
            Caching::Immutable => Some(Hold::new(())),
        }
    }
}
