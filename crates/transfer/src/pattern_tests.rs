use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use proptest::prelude::*;
use tempfile::TempDir;

use super::Pattern;
use crate::Filter;

/// Directories, and names that are in each of them: what patterns have in them is in names too.
const DIRECTORIES: [&str; 12] =
    ["", "a", "a/b", "a/b/a", "b", "b/a", "foo", "foo/bar", "x", "x/foo", "x/foo/bar", "x/y"];
const NAMES: [&[u8]; 23] = [
    b"f", b"ab", b"aB", b"B", b"1", b"a1", b"bar", b"a.o", b".h", b"*", b"?", b"[", b"]", b"[a]", b"a\\b", b"\\",
    b"{a,b}", b"!", b"^", b"-", b":", b"b*", b"a\xff",
];

/// What lies where patterns are tried: paths, with a slash behind those of directories.
struct Tree {
    folder: TempDir,
    paths: Vec<Vec<u8>>,
}

static TREE: LazyLock<Tree> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("to")).unwrap();
    let root = folder.path().join("from");
    let mut paths = BTreeSet::new();
    DIRECTORIES.iter().for_each(|directory| fs::create_dir_all(root.join(directory)).unwrap());
    for directory in DIRECTORIES {
        let names = NAMES.iter().map(|name| Path::new(directory).join(OsStr::from_bytes(name)));
        for path in names.filter(|path| path.to_str().is_none_or(|path| !DIRECTORIES.contains(&path))) {
            fs::write(root.join(&path), "").unwrap();
            paths.insert(path.as_os_str().as_bytes().to_vec());
        }
        if !directory.is_empty() {
            paths.insert(format!("{directory}/").into_bytes());
        }
    }
    Tree { folder, paths: paths.into_iter().collect() }
});

impl Tree {
    /// What rsync takes of it.
    fn by_rsync(&self, includes: &[String], excludes: &[String]) -> BTreeSet<Vec<u8>> {
        let mut rsync = Command::new("rsync");
        rsync.args(["-rn8", "--out-format=%n"]).env("LC_ALL", "C");
        // Of rsync's rules the first counts; here what is included is, in whatever order.
        rsync.args(includes.iter().map(|text| format!("--include={text}")));
        rsync.args(excludes.iter().map(|text| format!("--exclude={text}")));
        let side = |name: &str| format!("{}/{name}/", self.folder.path().display());
        let output = rsync.args([side("from"), side("to")]).output().expect("rsync is installed");
        assert!(output.status.success(), "{output:?}");
        let lines = output.stdout.split(|byte| *byte == b'\n');
        lines.filter(|line| !line.is_empty() && *line != b"./").map(<[u8]>::to_vec).collect()
    }

    /// What a filter takes of it.
    fn by_filter(&self, filter: &Filter) -> BTreeSet<Vec<u8>> {
        let takes = |path: &[u8]| match path.strip_suffix(b"/") {
            Some(directory) => filter.takes(directory, true),
            None => filter.takes(path, false),
        };
        let above = |path: &[u8]| -> Vec<Vec<u8>> {
            let inner = path.strip_suffix(b"/").unwrap_or(path);
            let ends = inner.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
            ends.map(|end| path[..end].to_vec()).collect()
        };
        let is_taken = |path: &&Vec<u8>| takes(path) && above(path).iter().all(|above| takes(above));
        self.paths.iter().filter(is_taken).cloned().collect()
    }

    #[track_caller]
    fn assert_same(&self, includes: &[String], excludes: &[String]) {
        let by_rsync = self.by_rsync(includes, excludes);
        let by_filter = match Filter::new(excludes, includes) {
            Ok(filter) => self.by_filter(&filter),
            // What rsync never matches is refused here: as if it were not there.
            Err(_) => {
                let kept = |texts: &[String]| -> Vec<String> {
                    texts.iter().filter(|text| Pattern::parse(text).is_ok()).cloned().collect()
                };
                self.by_filter(&Filter::new(&kept(excludes), &kept(includes)).unwrap())
            }
        };
        let shown = |paths: Vec<&Vec<u8>>| -> Vec<String> {
            paths.into_iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
        };
        let more = shown(by_filter.difference(&by_rsync).collect());
        let less = shown(by_rsync.difference(&by_filter).collect());
        assert!(more.is_empty() && less.is_empty(), "-{excludes:?} +{includes:?}: too much {more:?}, missing {less:?}");
    }
}

#[test]
fn patterns_mean_what_they_mean_to_rsync() {
    for pattern in [
        "*.o",
        "/a/",
        "a/",
        "foo/bar",
        "/foo/bar",
        "x/foo/bar/",
        "foo/*",
        "/*/bar",
        "foo/**",
        "/**/",
        "**/bar",
        "**/",
        "a/***",
        "/foo/***",
        "***",
        "**",
        "*",
        "/*",
        "foo/**/f",
        "x**f",
        "**o/b*",
        "a/**/a",
        "[[:lower:]]",
        "[[:upper:][:digit:]]",
        "[^a-z]",
        "[!a]",
        "[]]",
        "[]-a]",
        "[a-]",
        "[\\]]",
        "[[:]",
        "[[:a]",
        "{a,b}",
        "{a,b}*",
        "a\\b",
        "a\\b*",
        "\\",
        "\\*",
        "b\\*",
        "\\[a]",
        "[a]",
        "?",
        "??",
        "[/]",
        "a[/]b",
        "a?b",
        "*/a",
        "*/*/a",
        "?/?",
        "[",
        "[a",
        "[[:nothing:]]",
        "a**",
        "**a",
        "**/a/b",
        "***/f",
        "x/***/f",
        "foo*bar",
        "foo**bar",
        "a//",
        "//",
        "/",
        "a//b",
        "*/",
        "/*/",
        "***/",
        "^",
        "-",
        "a\\",
        "*\\",
    ] {
        TREE.assert_same(&[], &[pattern.to_owned()]);
        TREE.assert_same(&["foo/*".to_owned(), "b".to_owned()], &[pattern.to_owned()]);
        TREE.assert_same(&[pattern.to_owned()], &["*".to_owned()]);
    }
}

/// Text of which most is a pattern.
fn pattern() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => prop::sample::select(vec!["a", "b", "foo", "bar", "1", "B", "x", ".", "f"]),
        4 => Just("/"),
        3 => prop::sample::select(vec!["*", "**", "***", "?"]),
        2 => prop::sample::select(vec!["[a-f]", "[!a]", "[[:lower:]]", "[^[:alpha:]]", "[]*?]", "[a\\]]", "[/a]"]),
        1 => prop::sample::select(vec!["[", "]", "\\", "-", ":", "!", "^", "{a,b}", ",", "[:", ":]"]),
    ];
    prop::collection::vec(piece, 1..7).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_patterns_mean_what_they_mean_to_rsync(
        excludes in prop::collection::vec(pattern(), 1..4),
        includes in prop::collection::vec(pattern(), 0..3),
    ) {
        // To rsync '!' alone is no pattern, and empties the list.
        let is_one = |text: &String| !text.starts_with('!');
        let [excludes, includes] = [excludes, includes].map(|texts| texts.into_iter().filter(is_one).collect::<Vec<_>>());
        TREE.assert_same(&includes, &excludes);
    }
}

#[test]
fn a_set_that_matches_nothing_is_refused() {
    for wrong in ["[", "a[b", "[]", "[!]", "[[:nothing:]]", "[a\\"] {
        let failure = Pattern::parse(wrong).unwrap_err();
        assert!(failure.why.contains("set"), "{wrong}: {failure:?}");
    }
    // What is no set but looks like one.
    for right in ["\\[*", "a]*", "[]]", "[a-]"] {
        Pattern::parse(right).unwrap();
    }
}
