//! What the generator believes to be there. It sees no results, so it may be wrong; it only makes success more likely than chance would.

use std::collections::BTreeMap;

use crate::op::Path;
use crate::random::Random;

/// Directories deeper than this are not built upon.
const DEPTH_MAX: usize = 3;

/// Believed names, each with whether it is a directory.
#[derive(Default)]
pub struct Belief(BTreeMap<Vec<u8>, bool>);

fn below(path: &[u8], directory: &[u8]) -> bool {
    path.len() > directory.len() && path.starts_with(directory) && path[directory.len()] == b'/'
}

impl Belief {
    /// A directory to work in; the empty path is the root.
    pub fn directory(&self, random: &mut Random) -> Path {
        let mut directories: Vec<&[u8]> = vec![b""];
        directories.extend(self.0.iter().filter(|(_, is_directory)| **is_directory).map(|(path, _)| path.as_slice()));
        Path(if random.chance(45) { Vec::new() } else { random.pick(&directories).to_vec() })
    }

    /// Anything.
    pub fn any(&self, random: &mut Random) -> Option<Path> {
        let paths: Vec<_> = self.0.keys().collect();
        (!paths.is_empty()).then(|| Path(random.pick(&paths).to_vec()))
    }

    /// Anything but a directory.
    pub fn file(&self, random: &mut Random) -> Option<Path> {
        let paths: Vec<_> = self.0.iter().filter(|(_, is_directory)| !**is_directory).map(|(path, _)| path).collect();
        (!paths.is_empty()).then(|| Path(random.pick(&paths).to_vec()))
    }

    /// Is something believed to be at `path`?
    pub fn is_there(&self, path: &Path) -> bool {
        self.0.contains_key(&path.0)
    }

    /// Something was asked to come into being.
    pub fn born(&mut self, path: &Path, directory: bool) {
        let depth = path.0.iter().filter(|&&b| b == b'/').count();
        let plain = path.0.split(|&b| b == b'/').all(|name| !matches!(name, b"" | b"." | b".."));
        if depth < DEPTH_MAX && plain {
            self.0.entry(path.0.clone()).or_insert(directory);
        }
    }

    /// A name was asked to go.
    pub fn gone(&mut self, path: &Path) {
        if self.0.get(&path.0) == Some(&false) {
            self.0.remove(&path.0);
        }
    }

    /// A rename without exchange was asked for.
    pub fn moved(&mut self, path: &Path, to: &Path) {
        let Some(directory) = self.0.remove(&path.0) else { return };
        self.born(to, directory);
        let inside: Vec<_> = self.0.keys().filter(|name| below(name, &path.0)).cloned().collect();
        for name in inside {
            if let Some(directory) = self.0.remove(&name) {
                let moved = [to.0.as_slice(), &name[path.0.len()..]].concat();
                self.born(&Path(moved), directory);
            }
        }
    }
}
