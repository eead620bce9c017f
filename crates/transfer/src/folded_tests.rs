//! A destination that ignores case, as ext4 does where `casefold` is set, and FAT.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use aqueduct_fs::SetAttr;

use super::*;
use crate::earlier::Earlier;
use crate::flush::Volumes;
use crate::job::Job;
use crate::ledger::Watch;
use crate::options::Options;
use crate::side::{Access, File, Node, Place, Xattrs};
use crate::{run, walk};

/// A directory that takes a name for the one that it lists, whatever the case of its letters.
struct Folding(Arc<dyn Directory>);

impl Folding {
    fn known(&self, name: &[u8]) -> Vec<u8> {
        let mut known = name.to_vec();
        let mut found = |listed: Listed| {
            if listed.name.eq_ignore_ascii_case(name) {
                known = listed.name.to_vec();
            }
        };
        self.0.list(&mut found).unwrap();
        known
    }
}

impl Node for Folding {
    fn seen(&self) -> Result<Seen, Errno> {
        self.0.seen()
    }

    fn set(&self, set: &SetAttr) -> Result<(), Errno> {
        self.0.set(set)
    }

    fn xattrs(&self) -> Result<Xattrs, Errno> {
        self.0.xattrs()
    }

    fn set_xattr(&self, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        self.0.set_xattr(name, value)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.0.sync()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.descriptor()
    }
}

impl Directory for Folding {
    fn list(&self, found: &mut dyn FnMut(Listed)) -> Result<(), Errno> {
        self.0.list(found)
    }

    fn look(&self, name: &[u8]) -> Result<Seen, Errno> {
        self.0.look(&self.known(name))
    }

    fn xattrs_of(&self, name: &[u8], seen: &Seen) -> Result<Xattrs, Errno> {
        self.0.xattrs_of(&self.known(name), seen)
    }

    fn directory(&self, name: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
        Ok(Arc::new(Folding(self.0.directory(&self.known(name))?)))
    }

    fn file(&self, name: &[u8], known: Option<&Seen>) -> Result<Arc<dyn File>, Errno> {
        self.0.file(&self.known(name), known)
    }

    fn part(&self, name: &[u8]) -> Result<Arc<dyn File>, Errno> {
        self.0.part(&self.known(name))
    }

    fn other(&self, name: &[u8]) -> Result<Box<dyn Node>, Errno> {
        self.0.other(&self.known(name))
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.0.read_link(&self.known(name))
    }

    fn make_directory(&self, name: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
        Ok(Arc::new(Folding(self.0.make_directory(&self.known(name))?)))
    }

    fn make_symlink(&self, name: &[u8], text: &[u8]) -> Result<(), Errno> {
        self.0.make_symlink(&self.known(name), text)
    }

    fn make_other(&self, name: &[u8], kind: u32, rdev: u64) -> Result<(), Errno> {
        self.0.make_other(&self.known(name), kind, rdev)
    }

    fn create(&self, name: &[u8]) -> Result<Arc<dyn File>, Errno> {
        self.0.create(&self.known(name))
    }

    fn create_unnamed(&self, mode: u32) -> Result<Arc<dyn File>, Errno> {
        self.0.create_unnamed(mode)
    }

    fn name_file(&self, file: &dyn File, name: &[u8]) -> Result<(), Errno> {
        self.0.name_file(file, &self.known(name))
    }

    fn link(&self, _: &dyn Directory, from_name: &[u8], name: &[u8]) -> Result<(), Errno> {
        self.0.link(&*self.0, &self.known(from_name), &self.known(name))
    }

    fn rename(&self, name: &[u8], new_name: &[u8], replaces: bool) -> Result<(), Errno> {
        self.0.rename(&self.known(name), &self.known(new_name), replaces)
    }

    fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        self.0.unlink(&self.known(name))
    }

    fn remove_directory(&self, name: &[u8]) -> Result<(), Errno> {
        self.0.remove_directory(&self.known(name))
    }

    fn sync_all(&self) -> Result<(), Errno> {
        self.0.sync_all()
    }

    fn syncs_all(&self) -> bool {
        self.0.syncs_all()
    }

    fn free(&self) -> Result<(u64, u64), Errno> {
        self.0.free()
    }

    fn is_volatile(&self) -> bool {
        self.0.is_volatile()
    }
}

fn directory(path: &Path) -> Arc<dyn Directory> {
    let access = Access::new(None, aqueduct_wire::Checksums::Auto, 1);
    Place::parse(path.as_os_str()).unwrap().find_target(&access).unwrap().directory().unwrap()
}

/// Copies all of one directory into another; what was not copied.
fn sync(from: &Path, to: Arc<dyn Directory>, is_new: bool) -> Vec<(String, String)> {
    sync_after(from, to, (is_new, Vec::new()))
}

/// The same after other sources.
fn sync_after(from: &Path, to: Arc<dyn Directory>, before: (bool, Vec<Earlier>)) -> Vec<(String, String)> {
    let options = Arc::new(Options { recursive: true, update: true, ..Options::default() });
    let volumes = Arc::new(Volumes::new(to.clone(), true));
    let job = Arc::new(Job::new(options, to.clone(), volumes, "read", Arc::new(Watch::default())));
    let mut dir = Dir::new(&job, Vec::new(), directory(from), (Some(to), job.volumes.first()));
    dir.seen = Some(dir.source.seen().unwrap());
    (dir.is_new, dir.earlier) = before;
    walk::list(&job, &mut Default::default(), &Arc::new(dir));
    run::work(&job, 0);
    let told = std::mem::take(&mut Arc::into_inner(job).unwrap().told);
    told.into_troubles().0.into_iter().map(|trouble| (trouble.path, trouble.why)).collect()
}

fn content(root: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.is_file());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut found: Vec<_> = files.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect();
    found.sort();
    found
}

#[test]
fn of_two_names_that_are_one_at_the_destination_none_goes_over_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    for side in [&from, &to] {
        fs::create_dir(side).unwrap();
    }
    for name in ["a", "A", "other"] {
        fs::write(from.join(name), name).unwrap();
    }
    for name in ["d", "D"] {
        fs::create_dir(from.join(name)).unwrap();
        fs::write(from.join(name).join("f"), name).unwrap();
    }
    for is_new in [true, false, false] {
        let told = sync(&from, Arc::new(Folding(directory(&to))), is_new);
        let [files, directories] = ["a", "d"].map(|name| {
            told.iter().filter(|(path, why)| path.eq_ignore_ascii_case(name) && why.contains("ignores case")).count()
        });
        // In a new directory the first has the name; later nobody knows whose it is.
        let wanted = if is_new { 1 } else { 2 };
        assert_eq!((files, directories, told.len()), (wanted, wanted, 2 * wanted), "{told:?}");
        let found = content(&to);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|(name, content)| name == content), "{found:?}");
    }
}

#[test]
fn a_name_that_is_one_with_that_of_a_source_before_is_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let [first, from, to] = ["first", "from", "to"].map(|name| folder.path().join(name));
    [&first, &from, &to].iter().for_each(|side| fs::create_dir(side).unwrap());
    fs::write(first.join("A"), "first").unwrap();
    fs::write(from.join("a"), "second").unwrap();
    let folding = || Arc::new(Folding(directory(&to)));
    assert_eq!(sync(&first, folding(), false), []);
    for only in [None, Some((b"there".to_vec(), b"A".to_vec()))] {
        let told = sync_after(&from, folding(), (false, vec![Earlier::new(directory(&first), only)]));
        assert!(told.len() == 1 && told[0].1.contains("ignores case"), "{told:?}");
        assert_eq!(content(&to), [("A".to_owned(), "first".to_owned())]);
    }
}

#[test]
fn names_that_are_two_are_copied() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    for side in [&from, &to] {
        fs::create_dir(side).unwrap();
        fs::write(side.join("a"), "a").unwrap();
    }
    fs::write(from.join("A"), "other").unwrap();
    // One inode with both names is not one name.
    fs::hard_link(to.join("a"), to.join("A")).unwrap();
    assert_eq!(sync(&from, directory(&to), false), []);
    assert_eq!(content(&to), [("A", "other"), ("a", "a")].map(|(name, text)| (name.to_owned(), text.to_owned())));
    // Nor is a name that has other letters by now.
    fs::remove_file(to.join("a")).unwrap();
    fs::remove_file(from.join("a")).unwrap();
    fs::write(from.join("A"), "new A").unwrap();
    assert_eq!(sync(&from, Arc::new(Folding(directory(&to))), false), []);
    assert_eq!(content(&to), [("A".to_owned(), "new A".to_owned())]);
}
