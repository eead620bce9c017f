//! What a run does: how many items, where, in which phases. Pure.

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::meta::arguments::Arguments;

/// Deeper trees have paths that no system call takes (4,096 bytes).
const DEPTH_MAX: u32 = 250;

/// The most directories of a tree, items of a rank and bytes of a file: more is a slip of the keyboard.
const DIRECTORIES_MAX: u64 = 1 << 32;
const ITEMS_MAX: u64 = 1 << 40;
const BYTES_MAX: u64 = 1 << 30;

/// What is measured, in the order of mdtest's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// mkdir.
    DirectoryCreation,
    /// stat of directories.
    DirectoryStat,
    /// rename of directories.
    DirectoryRename,
    /// rmdir.
    DirectoryRemoval,
    /// open with O_CREAT, write, close.
    FileCreation,
    /// stat of files.
    FileStat,
    /// open, read, close.
    FileRead,
    /// unlink.
    FileRemoval,
    /// mkdir of the tree.
    TreeCreation,
    /// rmdir of the tree.
    TreeRemoval,
}

impl Phase {
    /// All of them.
    pub const ALL: [Phase; 10] = [
        Phase::DirectoryCreation,
        Phase::DirectoryStat,
        Phase::DirectoryRename,
        Phase::DirectoryRemoval,
        Phase::FileCreation,
        Phase::FileStat,
        Phase::FileRead,
        Phase::FileRemoval,
        Phase::TreeCreation,
        Phase::TreeRemoval,
    ];

    /// As mdtest calls it.
    pub fn title(self) -> &'static str {
        match self {
            Phase::DirectoryCreation => "Directory creation",
            Phase::DirectoryStat => "Directory stat",
            Phase::DirectoryRename => "Directory rename",
            Phase::DirectoryRemoval => "Directory removal",
            Phase::FileCreation => "File creation",
            Phase::FileStat => "File stat",
            Phase::FileRead => "File read",
            Phase::FileRemoval => "File removal",
            Phase::TreeCreation => "Tree creation",
            Phase::TreeRemoval => "Tree removal",
        }
    }

    /// As records call it; files, of which most is spoken, without a prefix.
    pub fn op(self) -> &'static str {
        match self {
            Phase::DirectoryCreation => "dir-create",
            Phase::DirectoryStat => "dir-stat",
            Phase::DirectoryRename => "dir-rename",
            Phase::DirectoryRemoval => "dir-remove",
            Phase::FileCreation => "create",
            Phase::FileStat => "stat",
            Phase::FileRead => "read",
            Phase::FileRemoval => "remove",
            Phase::TreeCreation => "tree-create",
            Phase::TreeRemoval => "tree-remove",
        }
    }
}

/// A file or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
}

/// The directories of one tree and what is in them. Directory 0 is the root, and `branch * k + 1` the first subdirectory of directory `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    branch: u64,
    /// How many there are.
    pub directories: u64,
    /// The first that has items.
    first: u64,
    /// Items of each directory that has any.
    pub per_directory: u64,
}

impl Tree {
    /// Items of one rank.
    pub fn items(&self) -> u64 {
        (self.directories - self.first) * self.per_directory
    }

    /// The directory of an item and its number in names, which counts through all directories.
    pub fn place(&self, item: u64) -> (u64, u64) {
        let directory = self.first + item / self.per_directory.max(1);
        (directory, directory * self.per_directory + item % self.per_directory.max(1))
    }

    /// The path of a directory below the tree's root, each part with a slash behind it: `NAME.1/NAME.4/`.
    pub fn path(&self, name: &str, directory: u64) -> String {
        let mut parts = Vec::new();
        let mut at = directory;
        while at > 0 {
            parts.push(at);
            at = (at - 1) / self.branch;
        }
        parts.iter().rev().map(|part| format!("{name}.{part}/")).collect()
    }
}

/// A run, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// One tree.
    pub tree: Tree,
    /// How many of them: test directories.
    pub loops: u64,
    /// The directories given, for ranks in turn.
    pub directories: Vec<String>,
    /// Directories are measured.
    pub measures_directories: bool,
    /// Files are measured.
    pub measures_files: bool,
    /// The phases asked for.
    pub create: bool,
    /// See `create`.
    pub stat: bool,
    /// See `create`.
    pub read: bool,
    /// See `create`.
    pub rename: bool,
    /// See `create`.
    pub remove: bool,
    /// As it was written.
    pub arguments: Arguments,
}

const WHAT: &str = "cannot measure names";

fn usage(why: impl std::fmt::Display, hint: &str) -> Failure {
    Failure::usage(WHAT, why, hint)
}

impl Plan {
    /// Puts options together and refuses what means nothing.
    pub fn resolve(arguments: &Arguments) -> Result<Plan, Failure> {
        let any = arguments.create || arguments.stat || arguments.read || arguments.rename || arguments.remove;
        let phase = |wanted: bool| wanted || !any;
        let both = arguments.files_only == arguments.directories_only;
        let tree = tree(arguments)?;
        let loops = if arguments.items > 0 && arguments.items_per_directory > 0 {
            arguments.items / arguments.items_per_directory
        } else {
            1
        };
        let plan = Plan {
            tree,
            loops,
            directories: arguments.directory.split('@').filter(|part| !part.is_empty()).map(str::to_owned).collect(),
            measures_directories: (both || arguments.directories_only) && !arguments.shared,
            measures_files: both || arguments.files_only || arguments.shared,
            create: phase(arguments.create),
            stat: phase(arguments.stat),
            read: phase(arguments.read),
            rename: phase(arguments.rename),
            remove: phase(arguments.remove),
            arguments: arguments.clone(),
        };
        plan.check_items()?;
        plan.check_together()?;
        plan.check_data()?;
        Ok(plan)
    }

    fn check_items(&self) -> Result<(), Failure> {
        let arguments = &self.arguments;
        if arguments.items > 0 && arguments.items_per_directory > 0 {
            if arguments.unique {
                return Err(usage(
                    "-n and -I are both given, with -u",
                    "give -n (items of each rank) or -I (items of each directory of the tree)",
                ));
            }
            if !arguments.items.is_multiple_of(arguments.items_per_directory) {
                return Err(usage(
                    format!("-n {} is no multiple of -I {}", arguments.items, arguments.items_per_directory),
                    "there are n/I trees: take a multiple",
                ));
            }
            if arguments.stonewall > 0 {
                return Err(usage("-W is given with -n and -I", "stonewall one tree: give -n or -I alone"));
            }
        }
        let items = self.tree.items().checked_mul(self.loops).filter(|items| *items <= ITEMS_MAX);
        match items {
            None => Err(usage("a rank would make more than 2^40 items", "take fewer, or a smaller tree")),
            Some(0) if arguments.items > 0 => Err(usage(
                format!("-n {} is less than one for each of the tree's directories", arguments.items),
                "give a larger -n, a smaller tree (-z, -b), or -I",
            )),
            Some(0) if arguments.depth == 0 => {
                Err(usage("there is nothing to make", "say how many with -n (each rank) or -I (each directory)"))
            }
            Some(_) => Ok(()),
        }
    }

    fn check_together(&self) -> Result<(), Failure> {
        let arguments = &self.arguments;
        let several = self.directories.len() > 1;
        let refused = [
            (!arguments.api.eq_ignore_ascii_case("posix"), "-a names an API that is not here", "use -a POSIX"),
            (self.directories.is_empty(), "-d is empty", "name a directory"),
            (
                arguments.shared && arguments.directories_only,
                "-S and -D: shared files are no directories",
                "leave one of them out",
            ),
            (arguments.shared && arguments.collective, "-S and -c do not go together", "leave one of them out"),
            (arguments.shared && arguments.unique, "-S and -u do not go together", "leave one of them out"),
            (
                arguments.collective && arguments.no_barriers,
                "-c and -B: nobody would wait for what rank 0 makes",
                "leave one of them out",
            ),
            (
                arguments.no_barriers && arguments.stride > 0,
                "-B and -N: ranks would look for what is not made yet",
                "leave one of them out",
            ),
            (
                arguments.no_barriers && arguments.stonewall > 0,
                "-B and -W: a stonewall ends at a barrier",
                "leave one of them out",
            ),
            (several && arguments.collective, "-c with several directories in -d", "give one directory"),
            (several && arguments.stride > 0, "-N with several directories in -d", "give one directory"),
            (several && !arguments.unique, "several directories in -d without -u", "add -u, or give one directory"),
            (arguments.branch == 0 && arguments.depth > 0, "-b 0 with -z", "give a tree at least one branch"),
            (
                arguments.time_unique && !arguments.unique,
                "-t without -u: ranks have no directories of their own",
                "add -u",
            ),
            (
                arguments.random_seed.is_some() && !arguments.random,
                "--random-seed without -R: nothing is random",
                "add -R",
            ),
            (
                arguments.stonewall > 0 && !(self.create && self.measures_files),
                "-W without making files: that is what it stops",
                "add -C, or leave out -D",
            ),
        ];
        match refused.iter().find(|(is, ..)| *is) {
            Some((_, why, hint)) => Err(usage(why, hint)),
            None => Ok(()),
        }
    }

    fn check_data(&self) -> Result<(), Failure> {
        let arguments = &self.arguments;
        let (written, read) = (arguments.write_bytes, arguments.read_bytes);
        let refused = [
            (written.max(read) > BYTES_MAX, "-w or -e is more than 1 GiB", "measure data with 'aqueduct bench io'"),
            (written > 0 && arguments.mknod, "-k and -w: mknod opens nothing to write to", "leave one of them out"),
            (arguments.sync_file && written == 0, "-y without -w: nothing is written", "add -w BYTES"),
            (arguments.verify_write && written == 0, "--verify-write without -w: nothing is written", "add -w BYTES"),
            (arguments.verify_read && read == 0, "-X without -e: nothing is read", "add -e BYTES"),
            (arguments.verify_read && !self.read, "-X without the phase that reads", "add -E"),
            (
                self.create && self.read && self.measures_files && read > written,
                "-e is more than -w: files would be too short",
                "read at most as many bytes as are written",
            ),
        ];
        match refused.iter().find(|(is, ..)| *is) {
            Some((_, why, hint)) => Err(usage(why, hint)),
            None => Ok(()),
        }
    }

    /// Refuses what does not fit so many ranks, and says with how many each test runs.
    pub fn tests(&self, size: usize) -> Result<Vec<usize>, Failure> {
        if self.directories.len() > size {
            let (count, why) = (self.directories.len(), "each rank uses one");
            return Err(usage(
                format!("-d names {count} directories for {size} ranks, and {why}"),
                "give fewer directories",
            ));
        }
        let last = self.arguments.last.unwrap_or(size);
        let first = self.arguments.first.unwrap_or(if self.arguments.last.is_some() { 1 } else { size });
        if first == 0 || first > last || last > size {
            return Err(usage(
                format!("tests with {first} to {last} ranks (-f, -l), of which there are {size}"),
                "give numbers from 1 up to that of the ranks",
            ));
        }
        Ok((first..=last).step_by(self.arguments.task_stride as usize).collect())
    }

    /// Items of each kind that one rank makes in an iteration.
    pub fn items(&self) -> u64 {
        self.tree.items() * self.loops
    }

    /// What one iteration has at most at a time with so many ranks: directories of trees, directories, files, bytes.
    pub fn needs(&self, ranks: usize) -> Needs {
        let ranks = ranks as u64;
        let trees = if self.arguments.unique { ranks } else { 1 };
        let all = self.items().saturating_mul(ranks);
        let files = match (self.measures_files, self.arguments.shared) {
            (false, _) => 0,
            (true, true) => self.items(),
            (true, false) => all,
        };
        Needs {
            tree: self.tree.directories.saturating_mul(trees).saturating_mul(self.loops).saturating_add(self.loops),
            directories: if self.measures_directories { all } else { 0 },
            files,
            bytes: files.saturating_mul(self.arguments.write_bytes),
        }
    }
}

/// See [`Plan::needs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Directories of trees and tests.
    pub tree: u64,
    /// Directories that are items.
    pub directories: u64,
    /// Files.
    pub files: u64,
    /// Bytes in files.
    pub bytes: u64,
}

impl Needs {
    /// Inodes that must be free: directories are gone before files are made, where they are removed.
    pub fn inodes(&self, removes: bool) -> u64 {
        let items =
            if removes { self.directories.max(self.files) } else { self.directories.saturating_add(self.files) };
        self.tree.saturating_add(items)
    }
}

fn tree(arguments: &Arguments) -> Result<Tree, Failure> {
    let branch = arguments.branch.max(1);
    if arguments.depth > DEPTH_MAX {
        return Err(usage(format!("-z is more than {DEPTH_MAX}: paths would be too long"), "take a smaller -z"));
    }
    let too_many = || usage("the tree would have more than 2^32 directories", "take a smaller -z or -b");
    let (mut directories, mut level) = (1u64, 1u64);
    for _ in 0..arguments.depth {
        level = level.checked_mul(branch).filter(|level| *level <= DIRECTORIES_MAX).ok_or_else(too_many)?;
        directories += level;
        if directories > DIRECTORIES_MAX {
            return Err(too_many());
        }
    }
    let first = if arguments.leaf_only { directories - level } else { 0 };
    let per_directory = match arguments.items_per_directory {
        0 => arguments.items / (directories - first),
        given => given,
    };
    let items = (directories - first).checked_mul(per_directory);
    if items.is_none_or(|items| items > ITEMS_MAX) {
        return Err(usage("a rank would make more than 2^40 items", "take fewer, or a smaller tree"));
    }
    Ok(Tree { branch, directories, first, per_directory })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::meta::arguments::tests::arguments;

    fn plan(line: &str) -> Result<Plan, String> {
        Plan::resolve(&arguments(line)).map_err(|failure| failure.why)
    }

    #[test]
    fn a_tree_is_numbered_as_mdtest_does() {
        let tree = plan("-z 2 -b 3 -I 10").unwrap().tree;
        assert_eq!((tree.directories, tree.items()), (13, 130));
        assert_eq!(tree.path("mdtest_tree", 0), "");
        assert_eq!(tree.path("mdtest_tree", 2), "mdtest_tree.2/");
        assert_eq!(tree.path("mdtest_tree", 4), "mdtest_tree.1/mdtest_tree.4/");
        assert_eq!(tree.path("mdtest_tree", 12), "mdtest_tree.3/mdtest_tree.12/");
        assert_eq!((tree.place(0), tree.place(29)), ((0, 0), (2, 29)));
        let leaves = plan("-z 2 -b 3 -n 95 -L").unwrap().tree;
        assert_eq!((leaves.items(), leaves.per_directory, leaves.place(0)), (90, 10, (4, 40)));
        assert_eq!(plan("-z 3 -n 8").unwrap().tree.path("t", 3), "t.1/t.2/t.3/");
    }

    #[test]
    fn items_are_rounded_to_directories() {
        assert_eq!(plan("-n 100 -z 1 -b 2").unwrap().items(), 99);
        let loops = plan("-n 100 -I 25 -z 1 -b 2").unwrap();
        assert_eq!((loops.loops, loops.items()), (4, 300));
        assert_eq!(plan("-I 5 -z 1 -b 2").unwrap().items(), 15);
    }

    #[test]
    fn phases_and_kinds() {
        let all = plan("-n 1").unwrap();
        assert!(all.create && all.stat && all.read && all.rename && all.remove);
        assert!(all.measures_directories && all.measures_files);
        let some = plan("-n 1 -C -T -F").unwrap();
        assert!(some.create && some.stat && !some.read && !some.rename && !some.remove);
        assert!(!some.measures_directories && some.measures_files);
        let both = plan("-n 1 -D -F").unwrap();
        assert!(both.measures_directories && both.measures_files);
        let shared = plan("-n 1 -S").unwrap();
        assert!(!shared.measures_directories && shared.measures_files);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (line, part) in [
            ("", "nothing to make"),
            ("-n 5 -z 2 -b 4", "less than one"),
            ("-n 10 -I 3", "no multiple"),
            ("-n 10 -I 5 -u", "with -u"),
            ("-n 10 -I 5 -W 1", "-W is given"),
            ("-n 1 -a MPIIO", "API"),
            ("-n 1 -S -c", "-S and -c"),
            ("-n 1 -S -u", "-S and -u"),
            ("-n 1 -S -D", "-S and -D"),
            ("-n 1 -c -B", "-c and -B"),
            ("-n 1 -B -N 1", "-B and -N"),
            ("-n 1 -B -W 1", "-B and -W"),
            ("-n 1 -d /a@/b", "without -u"),
            ("-n 1 -d /a@/b -u -N 1", "-N with several"),
            ("-n 1 -t", "-t without -u"),
            ("-n 2 -b 0 -z 1", "-b 0"),
            ("-n 1 --random-seed 4", "nothing is random"),
            ("-n 1 -D -W 4", "-W without"),
            ("-n 1 -k -w 1", "-k and -w"),
            ("-n 1 -y", "-y without"),
            ("-n 1 -X", "-X without -e"),
            ("-n 1 -C -w 4 -X -e 4", "phase that reads"),
            ("-n 1 -w 4 -e 5", "too short"),
            ("-n 1 -z 40 -b 2", "2^32"),
            ("-n 1 -z 64 -b 99999999999", "2^32"),
            ("-I 1t -z 3 -b 999", "2^40"),
            ("-n 1 -w 2g", "1 GiB"),
        ] {
            let why = plan(line).expect_err(line);
            assert!(why.contains(part), "{line}: {why}");
        }
        assert!(plan("-n 1 -D -e 5").is_ok() && plan("-n 1 -E -e 5 -F").is_ok());
    }

    #[test]
    fn tests_have_as_many_ranks_as_there_are() {
        let tests = |line: &str, size| plan(line).unwrap().tests(size).map_err(|failure| failure.why);
        assert_eq!(tests("-n 1", 6).unwrap(), [6]);
        assert_eq!(tests("-n 1 -f 2 -l 6 -s 2", 6).unwrap(), [2, 4, 6]);
        assert_eq!(tests("-n 1 -l 3", 6).unwrap(), [1, 2, 3]);
        for (line, size) in [("-n 1 -f 3 -l 2", 6), ("-n 1 -l 7", 6), ("-n 1 -f 0 -l 2", 6), ("-n 1 -u -d /a@/b", 1)] {
            assert!(tests(line, size).is_err(), "{line}");
        }
    }

    #[test]
    fn needs_are_counted() {
        let needs = plan("-n 100 -z 1 -b 3 -w 10 -u").unwrap().needs(4);
        assert_eq!(needs, Needs { tree: 17, directories: 400, files: 400, bytes: 4000 });
        assert_eq!((needs.inodes(true), needs.inodes(false)), (417, 817));
        assert_eq!(plan("-n 100 -S -w 10").unwrap().needs(4).files, 100);
    }

    proptest! {
        #[test]
        fn every_item_has_a_place_of_its_own(depth in 0u32..4, branch in 1u64..4, per in 1u64..5, leaf: bool) {
            let line = format!("-z {depth} -b {branch} -I {per} {}", if leaf { "-L" } else { "" });
            let tree = plan(&line).unwrap().tree;
            let places: HashSet<_> = (0..tree.items()).map(|item| tree.place(item)).collect();
            prop_assert_eq!(places.len() as u64, tree.items());
            prop_assert!(places.iter().all(|(directory, _)| *directory < tree.directories));
            let paths: HashSet<_> = (0..tree.directories).map(|directory| tree.path("t", directory)).collect();
            prop_assert_eq!(paths.len() as u64, tree.directories);
            let deepest = paths.iter().map(|path| path.matches('/').count()).max();
            prop_assert_eq!(deepest, Some(depth as usize));
        }

        #[test]
        fn any_numbers_are_planned_or_refused(n: u64, per: u64, z in 0u32..200, b: u64, ranks in 1usize..9999) {
            let line = format!("-n {n} -I {per} -z {z} -b {b}");
            if let Ok(plan) = plan(&line) {
                prop_assert!(plan.items() <= ITEMS_MAX && plan.tree.directories <= DIRECTORIES_MAX);
                plan.needs(ranks).inodes(true);
            }
        }
    }
}
