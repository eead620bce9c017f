//! The names of items, as mdtest gives them. Pure.

use std::fmt::Write;

use crate::meta::plan::{Kind, Plan};

/// One rank's view of the names of one iteration.
#[derive(Clone, Debug)]
pub struct Names<'a> {
    /// The run.
    pub plan: &'a Plan,
    /// The rank and how many take part.
    pub rank: usize,
    /// See `rank`.
    pub ranks: usize,
    /// Ranks from one phase's items to the next phase's.
    pub stride: usize,
    /// Which iteration.
    pub iteration: u32,
}

/// How many strides the items of a phase are away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The rank's own.
    Create = 0,
    /// And renaming.
    Stat = 1,
    /// Its neighbour's neighbour's.
    Read = 2,
    /// One more.
    Remove = 3,
}

impl<'a> Names<'a> {
    /// Whose items a rank uses in a phase.
    pub fn owner(&self, step: Step) -> usize {
        (self.rank + step as usize * self.stride) % self.ranks
    }

    /// The directory that a rank was given.
    pub fn base(&self) -> &'a str {
        &self.plan.directories[self.rank % self.plan.directories.len()]
    }

    /// The directory of one tree, or of all ranks' trees.
    pub fn test_directory(&self, test: u64) -> String {
        format!("{}/test-dir.{}-{test}", self.base().trim_end_matches('/'), self.iteration)
    }

    /// The name of a rank's tree.
    pub fn tree(&self, owner: usize) -> String {
        if self.plan.arguments.unique { format!("mdtest_tree.{owner}") } else { "mdtest_tree".to_owned() }
    }

    /// The path of a directory of a tree, with a slash at its end.
    pub fn directory(&self, test: u64, owner: usize, directory: u64) -> String {
        let tree = self.tree(owner);
        format!("{}/{tree}.0/{}", self.test_directory(test), self.plan.tree.path(&tree, directory))
    }

    /// The paths of an owner's items.
    pub fn items(&self, kind: Kind, owner: usize) -> Items<'_> {
        let name = if self.plan.arguments.shared { "shared".to_owned() } else { owner.to_string() };
        let kind = if kind == Kind::File { "file" } else { "dir" };
        Items { names: self, owner, prefix: format!("{kind}.mdtest.{name}."), at: None, path: String::new(), stem: 0 }
    }
}

/// Paths of items, cheap for those that follow each other in one directory.
#[derive(Debug)]
pub struct Items<'a> {
    names: &'a Names<'a>,
    owner: usize,
    prefix: String,
    at: Option<(u64, u64)>,
    path: String,
    /// The part of the path that all items of a directory have.
    stem: usize,
}

impl Items<'_> {
    /// The path of the item with this number, from 0 through all trees and directories, and what its data are stamped with.
    pub fn path(&mut self, item: u64) -> (&str, u64) {
        let tree = &self.names.plan.tree;
        let (test, within) = (item / tree.items(), item % tree.items());
        let (directory, number) = tree.place(within);
        if self.at != Some((test, directory)) {
            self.path = self.names.directory(test, self.owner, directory);
            self.path.push_str(&self.prefix);
            (self.at, self.stem) = (Some((test, directory)), self.path.len());
        }
        self.path.truncate(self.stem);
        let _ = write!(self.path, "{number}"); // a String takes everything
        let owner = if self.names.plan.arguments.shared { 0 } else { self.owner as u64 };
        (&self.path, item ^ owner << 40)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::meta::arguments::tests::arguments;

    fn names(plan: &Plan, rank: usize, ranks: usize) -> Names<'_> {
        Names { plan, rank, ranks, stride: plan.arguments.stride, iteration: 2 }
    }

    #[test]
    fn names_are_those_of_mdtest() {
        let plan = Plan::resolve(&arguments("-I 2 -z 1 -b 2 -d /x/")).unwrap();
        let names = names(&plan, 3, 4);
        let mut items = names.items(Kind::File, 3);
        assert_eq!(items.path(0).0, "/x/test-dir.2-0/mdtest_tree.0/file.mdtest.3.0");
        assert_eq!(items.path(5).0, "/x/test-dir.2-0/mdtest_tree.0/mdtest_tree.2/file.mdtest.3.5");
        assert_eq!(items.path(1).0, "/x/test-dir.2-0/mdtest_tree.0/file.mdtest.3.1");
        assert_eq!(
            names.items(Kind::Directory, 0).path(2).0,
            "/x/test-dir.2-0/mdtest_tree.0/mdtest_tree.1/dir.mdtest.0.2"
        );
        let plan = Plan::resolve(&arguments("-n 4 -I 2 -S -d /x")).unwrap();
        let names = self::names(&plan, 1, 2);
        assert_eq!(names.items(Kind::File, 1).path(3).0, "/x/test-dir.2-1/mdtest_tree.0/file.mdtest.shared.1");
    }

    #[test]
    fn ranks_have_trees_and_directories_in_turn() {
        let plan = Plan::resolve(&arguments("-n 2 -z 1 -u -d /x@/y")).unwrap();
        let names = names(&plan, 3, 4);
        assert_eq!(
            names.items(Kind::File, 3).path(1).0,
            "/y/test-dir.2-0/mdtest_tree.3.0/mdtest_tree.3.1/file.mdtest.3.1"
        );
    }

    #[test]
    fn a_stride_leads_to_neighbours() {
        let plan = Plan::resolve(&arguments("-n 2 -N 1")).unwrap();
        let names = names(&plan, 3, 4);
        let owners = [Step::Create, Step::Stat, Step::Read, Step::Remove].map(|step| names.owner(step));
        assert_eq!(owners, [3, 0, 1, 2]);
    }

    #[test]
    fn stamps_differ() {
        let plan = Plan::resolve(&arguments("-n 100 -z 1")).unwrap();
        let mut stamps = HashSet::new();
        for rank in 0..4 {
            let names = names(&plan, rank, 4);
            let mut items = names.items(Kind::File, rank);
            stamps.extend((0..100).map(|item| items.path(item).1));
        }
        assert_eq!(stamps.len(), 400);
    }
}
