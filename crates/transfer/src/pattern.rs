//! Patterns of names as rsync has them: what its `exclude.c` and `wildmatch.c` match, and nothing
//! else.

use crate::Failure;

/// The kinds of bytes that a set may name, as in `[[:lower:]]`.
type Class = (&'static [u8], fn(u8) -> bool);

const CLASSES: [Class; 12] = [
    (b"alnum", |byte| byte.is_ascii_alphanumeric()),
    (b"alpha", |byte| byte.is_ascii_alphabetic()),
    (b"blank", |byte| byte == b' ' || byte == b'\t'),
    (b"cntrl", |byte| byte.is_ascii_control()),
    (b"digit", |byte| byte.is_ascii_digit()),
    (b"graph", |byte| byte.is_ascii_graphic()),
    (b"lower", |byte| byte.is_ascii_lowercase()),
    (b"print", |byte| byte.is_ascii_graphic() || byte == b' '),
    (b"punct", |byte| byte.is_ascii_punctuation()),
    (b"space", |byte| byte == b' ' || (b'\t'..=b'\r').contains(&byte)),
    (b"upper", |byte| byte.is_ascii_uppercase()),
    (b"xdigit", |byte| byte.is_ascii_hexdigit()),
];

/// What of a path a pattern is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// So many of the last names, which have to be there.
    Last(usize),
    /// All of it.
    Whole,
    /// What begins at the start of some name, and goes to the end.
    Anywhere,
}

/// A pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    /// The bytes that are compared, without the slashes that say where.
    bytes: Vec<u8>,
    directories_only: bool,
    part: Part,
    /// Without `*`, `?` and `[` nothing is special, a backslash neither.
    has_wildcard: bool,
    /// It begins with `**`, and `**/` is to match at the start as well.
    begins_anywhere: bool,
    /// It ends with `***`, which matches a directory with all that is in it.
    takes_directory: bool,
}

impl Pattern {
    /// Reads a pattern. A set that is not closed, or of a class that nobody knows, matches nothing
    /// with rsync: whoever writes one means something else.
    pub fn parse(text: &str) -> Result<Pattern, Failure> {
        let whole = text.as_bytes();
        let directories_only = whole.len() > 1 && whole.ends_with(b"/");
        let whole = if directories_only { &whole[..whole.len() - 1] } else { whole };
        let slashes = whole.iter().filter(|byte| **byte == b'/').count();
        let has_wildcard = whole.iter().any(|byte| b"*?[".contains(byte));
        let crosses = whole.windows(2).any(|pair| pair == b"**");
        let begins_anywhere = whole.starts_with(b"**");
        let part = match whole.starts_with(b"/") {
            true => Part::Whole,
            false if !crosses => Part::Last(slashes + 1),
            false if begins_anywhere => Part::Whole,
            false => Part::Anywhere,
        };
        let pattern = Pattern {
            text: text.to_owned(),
            bytes: whole.strip_prefix(b"/").unwrap_or(whole).to_vec(),
            directories_only,
            part,
            has_wildcard,
            begins_anywhere,
            takes_directory: crosses && whole.ends_with(b"***"),
        };
        match pattern.has_wildcard && !has_whole_sets(&pattern.bytes) {
            true => {
                let why = "it has a set that is not closed, or of a class that is none, and would match no name";
                let hint = r"write sets as [a-z] or [[:lower:]], and \[ for a bracket";
                Err(Failure::usage(format!("the pattern '{text}'"), why, hint))
            }
            false => Ok(pattern),
        }
    }

    /// The pattern as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it matches a path below the root of a copy.
    pub fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        if self.directories_only && !is_directory {
            return false;
        }
        let Some(path) = self.compared(path) else { return false };
        if !self.has_wildcard {
            return path == self.bytes;
        }
        let before: &[u8] = if self.begins_anywhere { b"/" } else { b"" };
        let after: &[u8] = if self.takes_directory && is_directory { b"/" } else { b"" };
        let path = [before, path, after].concat();
        match (self.part, compare(&self.bytes, &path)) {
            (_, Compared::Same) => true,
            (Part::Anywhere, Compared::Other | Compared::OtherBeforeSlash) => {
                let starts = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
                starts.map(|start| compare(&self.bytes, &path[start..])).any(|compared| compared == Compared::Same)
            }
            _ => false,
        }
    }

    /// What of a path is compared; `None`: it has too few names.
    fn compared<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let Part::Last(count) = self.part else { return Some(path) };
        let mut slashes = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let slashes_inside = count - 1;
        match slashes.by_ref().nth(slashes_inside) {
            Some(at) => Some(&path[at + 1..]),
            None => {
                let has = path.iter().filter(|byte| **byte == b'/').count();
                (has == slashes_inside).then_some(path)
            }
        }
    }
}

/// What came of comparing a pattern with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    Same,
    Other,
    /// A `*` came to a slash: only a `**` before it can go on.
    OtherBeforeSlash,
    /// The text is at its end: no `*` that takes more of it helps.
    TooShort,
}

/// Compares as rsync's `dowild` does.
fn compare(mut pattern: &[u8], mut text: &[u8]) -> Compared {
    while let Some((first, rest)) = pattern.split_first() {
        let letter = text.first().copied();
        match (first, letter) {
            (b'*', _) => return compare_star(rest, text),
            (_, None) => return Compared::TooShort,
            (b'?', Some(b'/')) => return Compared::Other,
            (b'?', Some(_)) => pattern = rest,
            (b'[', Some(letter)) => match Set::read(rest) {
                None => return Compared::TooShort,
                Some((set, _)) if letter == b'/' || !set.has(letter) => return Compared::Other,
                Some((_, after)) => pattern = after,
            },
            (b'\\', Some(letter)) if rest.first() == Some(&letter) => pattern = &rest[1..],
            (b'\\', Some(_)) => return Compared::Other,
            (first, Some(letter)) if *first == letter => pattern = rest,
            _ => return Compared::Other,
        }
        text = &text[1..];
    }
    if text.is_empty() { Compared::Same } else { Compared::Other }
}

/// Compares what comes after a `*`, whether that is one of several or not.
fn compare_star(after: &[u8], mut text: &[u8]) -> Compared {
    let more = after.iter().take_while(|byte| **byte == b'*').count();
    let (crosses, after) = (more > 0, &after[more..]);
    if after.is_empty() {
        return if crosses || !text.contains(&b'/') { Compared::Same } else { Compared::Other };
    }
    while let Some(letter) = text.first() {
        match compare(after, text) {
            Compared::Other if !crosses && *letter == b'/' => return Compared::OtherBeforeSlash,
            Compared::Other => {}
            Compared::OtherBeforeSlash if crosses => {}
            ended => return ended,
        }
        text = &text[1..];
    }
    Compared::TooShort
}

/// A set of bytes in brackets.
struct Set<'a> {
    /// What comes after the opening bracket, or the sign that inverts it.
    all: &'a [u8],
    /// How much of it is before the closing one.
    length: usize,
    is_inverted: bool,
}

/// A member of a set, and what is left of it.
enum Member {
    Range(u8, u8),
    Class(fn(u8) -> bool),
}

impl<'a> Set<'a> {
    /// Reads what comes after the opening bracket; what comes after the closing one is given as
    /// well. `None`: it is no set.
    fn read(text: &'a [u8]) -> Option<(Set<'a>, &'a [u8])> {
        let is_inverted = text.first().is_some_and(|byte| b"!^".contains(byte));
        let all = &text[usize::from(is_inverted)..];
        let mut members = Members { rest: all, before: None };
        // A bracket that comes first is a member.
        loop {
            members.next()??;
            if let Some(after) = members.rest.strip_prefix(b"]") {
                let length = all.len() - members.rest.len();
                return Some((Set { all, length, is_inverted }, after));
            }
        }
    }

    fn has(&self, letter: u8) -> bool {
        let mut members = Members { rest: self.all, before: None };
        let mut is_in = false;
        while self.all.len() - members.rest.len() < self.length {
            is_in |= match members.next().flatten() {
                Some(Member::Range(from, to)) => (from..=to).contains(&letter),
                Some(Member::Class(is_of)) => is_of(letter),
                None => false,
            };
        }
        is_in != self.is_inverted
    }
}

/// The members of a set, as far as they can be read: `Some(None)` is one that cannot.
struct Members<'a> {
    rest: &'a [u8],
    /// What a range may begin with.
    before: Option<u8>,
}

impl Iterator for Members<'_> {
    type Item = Option<Member>;

    fn next(&mut self) -> Option<Option<Member>> {
        let (first, rest) = self.rest.split_first()?;
        let ends_range = |rest: &[u8]| rest.first().is_some_and(|byte| *byte != b']');
        let (member, before, rest) = match (first, self.before) {
            (b'\\', _) => {
                let (byte, rest) = rest.split_first().map_or((None, rest), |(byte, rest)| (Some(*byte), rest));
                (byte.map(|byte| Member::Range(byte, byte)), byte, rest)
            }
            (b'-', Some(from)) if ends_range(rest) => {
                let to = rest.strip_prefix(b"\\").unwrap_or(rest);
                (to.first().map(|to| Member::Range(from, *to)), None, to.get(1..).unwrap_or_default())
            }
            (b'[', _) if rest.starts_with(b":") => match rest.iter().position(|byte| *byte == b']') {
                Some(end) if end > 1 && rest[end - 1] == b':' => {
                    let class = CLASSES.iter().find(|(name, _)| *name == &rest[1..end - 1]);
                    (class.map(|(_, is_of)| Member::Class(*is_of)), None, &rest[end + 1..])
                }
                Some(_) => (Some(Member::Range(b'[', b'[')), Some(b'['), rest),
                None => (None, None, rest),
            },
            (byte, _) => (Some(Member::Range(*byte, *byte)), Some(*byte), rest),
        };
        (self.before, self.rest) = (before, rest);
        Some(member)
    }
}

/// Whether each set of a pattern can be read to its end.
fn has_whole_sets(mut pattern: &[u8]) -> bool {
    while let Some((first, rest)) = pattern.split_first() {
        pattern = match first {
            b'\\' => rest.get(1..).unwrap_or_default(),
            b'[' => match Set::read(rest) {
                Some((_, after)) => after,
                None => return false,
            },
            _ => rest,
        };
    }
    true
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
