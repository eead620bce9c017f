//! What of a tree is meant: patterns as rsync's, and lists of paths.

use std::collections::BTreeSet;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::manifest::Text;
use crate::pattern::Pattern;

/// Chooses by paths below the root of a copy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Filter {
    excludes: Vec<Pattern>,
    includes: Vec<Pattern>,
    /// Only these, what is below them, and the directories above.
    only: Option<BTreeSet<Vec<u8>>>,
}

/// A filter as it is kept.
#[derive(Serialize, Deserialize)]
struct Written {
    excludes: Vec<String>,
    includes: Vec<String>,
    only: Option<Vec<Text>>,
}

impl From<Filter> for Written {
    fn from(filter: Filter) -> Written {
        let texts = |patterns: Vec<Pattern>| patterns.iter().map(|pattern| pattern.text().to_owned()).collect();
        let only = filter.only.map(|paths| paths.iter().map(|path| Text::new(path)).collect());
        Written { excludes: texts(filter.excludes), includes: texts(filter.includes), only }
    }
}

impl TryFrom<Written> for Filter {
    type Error = Failure;

    fn try_from(written: Written) -> Result<Filter, Failure> {
        let only = written.only.map(|paths| paths.iter().filter_map(Text::bytes).collect());
        Ok(Filter { only, ..Filter::new(&written.excludes, &written.includes)? })
    }
}

impl Filter {
    /// Everything but what matches one of `excludes` and none of `includes`. A pattern without a
    /// name, as '' or '/', matches nothing, as rsync has it.
    pub fn new(excludes: &[String], includes: &[String]) -> Result<Filter, Failure> {
        let parse = |texts: &[String]| {
            let named = texts.iter().filter(|text| !text.trim_matches('/').is_empty());
            named.map(|text| Pattern::parse(text)).collect::<Result<_, _>>()
        };
        Ok(Filter { excludes: parse(excludes)?, includes: parse(includes)?, only: None })
    }

    /// Only the paths of a list, one in each line, or each ended by NUL. As rsync has it, `.` and
    /// `/` are all of the source, and an empty line is nothing.
    pub fn with_list(mut self, list: &[u8]) -> Result<Filter, Failure> {
        let separator = if list.contains(&0) { 0 } else { b'\n' };
        let mut paths = BTreeSet::new();
        for line in list.split(|byte| *byte == separator) {
            let names: Vec<&[u8]> =
                line.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
            if names.contains(&b"..".as_slice()) {
                let path = String::from_utf8_lossy(line).into_owned();
                return Err(Failure::usage(
                    format!("the path '{path}' of the list"),
                    "it has '..' in it",
                    "name paths below the source",
                ));
            }
            if !line.is_empty() {
                paths.insert(names.join(&b'/'));
            }
        }
        self.only = Some(paths);
        Ok(self)
    }

    /// Whether a path is meant. What is below a directory that is not is not asked for.
    pub fn takes(&self, path: &[u8], is_directory: bool) -> bool {
        let matches = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(path, is_directory));
        (!matches(&self.excludes) || matches(&self.includes)) && self.is_listed(path, is_directory)
    }

    /// The paths of the list, if there is one, but for the source itself.
    pub fn list(&self) -> Option<impl Iterator<Item = &Vec<u8>>> {
        self.only.as_ref().map(|paths| paths.iter().filter(|path| !path.is_empty()))
    }

    /// Whether everything is meant.
    pub fn takes_all(&self) -> bool {
        self.excludes.is_empty() && self.only.is_none()
    }

    fn is_listed(&self, path: &[u8], is_directory: bool) -> bool {
        let Some(only) = &self.only else { return true };
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        if ends.chain([0, path.len()]).any(|end| only.contains(&path[..end])) {
            return true;
        }
        let above = [path, b"/"].concat();
        let range = (Bound::Excluded(above.clone()), Bound::Unbounded);
        is_directory && only.range(range).next().is_some_and(|next| next.starts_with(&above))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(excludes: &[&str], includes: &[&str]) -> Filter {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Filter::new(&owned(excludes), &owned(includes)).unwrap()
    }

    #[test]
    fn a_pattern_without_a_name_matches_nothing() {
        for text in ["", "/", "//"] {
            assert!(filter(&[text], &[]).takes_all(), "'{text}'");
            assert!(!filter(&["a"], &[text]).takes(b"a", false), "'{text}'");
            assert!(!filter(&["a"], &[text]).takes(b"a", true), "'{text}'");
        }
    }

    #[test]
    fn a_list_takes_what_is_above_and_below() {
        let of = filter(&["*.o"], &[]).with_list(b"a/b\n./c//d/\n").unwrap();
        for (path, is_directory, takes) in [
            ("a", true, true),
            ("a", false, false),
            ("a/b", false, true),
            ("a/b/c", false, true),
            ("a/b/c.o", false, false),
            ("a/bc", false, false),
            ("a/c", false, false),
            ("c/d", true, true),
            ("e", true, false),
        ] {
            assert_eq!(of.takes(path.as_bytes(), is_directory), takes, "{path}");
        }
        assert!(filter(&[], &[]).with_list(b"a\0../b").is_err());
    }

    #[test]
    fn a_list_with_the_source_itself_takes_all() {
        for list in [".", "./", "/", "./.", "a\n.\n"] {
            let of = filter(&["*.o"], &[]).with_list(list.as_bytes()).unwrap();
            assert!(of.takes(b"b/c", false) && of.takes(b"b", true) && !of.takes(b"b/c.o", false), "{list}");
        }
        assert!(!filter(&[], &[]).with_list(b"\n\n").unwrap().takes(b"a", false));
    }
}
