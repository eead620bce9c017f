//! Key files: keys as text, one a line. Who has a file of the cluster's keys is a member, and may
//! make the keys of nodes; who has a node's is that node.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use aqueduct_wire::{ClientKey, KEY_LENGTH, KEYS_MAX, Key, NODE_NAME_LENGTH_MAX, NodeName};

use crate::failure::Failure;

/// What a key begins with in its file: what it is, and which form of it.
const PREFIX: &str = "aqueduct-key-1:";

/// The same for the key of a node; its name and another colon follow.
const NODE_PREFIX: &str = "aqueduct-node-1:";

/// A file of keys and comments is not longer than this, in bytes; what is longer is something else.
const LENGTH_MAX: u64 = 64 << 10;

/// Reads the cluster's keys of a file, at least one: a server accepts each, and the keys of nodes
/// that are made of it.
pub fn load(path: &Path) -> Result<Vec<Key>, Failure> {
    let keys = load_any(path)?.into_iter();
    let of_cluster = keys.map(|key| match key.node {
        None => Ok(key.key),
        Some(node) => Err(Failure::new(
            format!("cannot use the key file {}", path.display()),
            format!("it has the key of node {node}, and a server needs the cluster's"),
            "name the file that 'aqueduct keygen' made without --node: nodes' keys are made of that one",
        )),
    });
    of_cluster.collect()
}

/// Reads the key that a client uses: the first of its file, the cluster's or a node's.
pub fn load_client(path: &Path) -> Result<ClientKey, Failure> {
    let first = load_any(path)?.into_iter().next();
    first.ok_or_else(|| {
        Failure::new(format!("cannot use the key file {}", path.display()), "it has no key", "name another")
    })
}

fn load_any(path: &Path) -> Result<Vec<ClientKey>, Failure> {
    let what = || format!("cannot use the key file {}", path.display());
    let text = read(path).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => "make one with 'aqueduct keygen', or copy the one that the others have".to_owned(),
            ErrorKind::PermissionDenied => "let this user own it, or use another".to_owned(),
            _ => "name a file that 'aqueduct keygen' made".to_owned(),
        };
        Failure::new(what(), error, hint)
    })?;
    let mode = text.mode & 0o7777;
    if mode & 0o077 != 0 {
        let why = format!("others may read it (mode {mode:04o}), and who has read it may connect");
        return Err(Failure::new(
            what(),
            why,
            format!("chmod 600 {}; if others did read it, take a new key", path.display()),
        ));
    }
    parse(&text.bytes).map_err(|why| {
        Failure::new(what(), why, format!("give it one key a line ({PREFIX}, or {NODE_PREFIX}NAME:, and {} hexadecimal digits), as 'aqueduct keygen' does; lines that begin with # are comments", 2 * KEY_LENGTH))
    })
}

struct Text {
    mode: u32,
    bytes: Vec<u8>,
}

fn read(path: &Path) -> io::Result<Text> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let mut bytes = Vec::new();
    // Somebody else's file is not read at all.
    if metadata.mode() & 0o077 == 0 {
        file.take(LENGTH_MAX + 1).read_to_end(&mut bytes)?;
    }
    Ok(Text { mode: metadata.mode(), bytes })
}

/// The keys of a text. What is wrong is told without showing any of it.
fn parse(bytes: &[u8]) -> Result<Vec<ClientKey>, String> {
    if bytes.len() as u64 > LENGTH_MAX {
        return Err(format!("it is longer than {} KiB", LENGTH_MAX >> 10));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let mut keys = Vec::new();
    for (at, line) in lines {
        let at = at + 1;
        let (node, digits, before) = match (line.strip_prefix(PREFIX), line.strip_prefix(NODE_PREFIX)) {
            (Some(digits), _) => (None, digits, PREFIX),
            (None, Some(rest)) => {
                let (name, digits) = rest.split_once(':').ok_or_else(|| format!("line {at} names no node"))?;
                let name = NodeName::new(name).ok_or_else(|| format!("line {at} has no name that a node may have"))?;
                (Some(name), digits, "the node's name")
            }
            (None, None) => return Err(format!("line {at} does not begin with {PREFIX} or {NODE_PREFIX}")),
        };
        let key = from_hex(digits)
            .ok_or_else(|| format!("line {at} has no {} hexadecimal digits behind {before}", 2 * KEY_LENGTH))?;
        keys.push(ClientKey { key: Key::new(key), node });
    }
    match keys.len() {
        0 => Err("it has no key".into()),
        count if count > KEYS_MAX => Err(format!("it has {count} keys, and {KEYS_MAX} are the most")),
        _ => Ok(keys),
    }
}

fn from_hex(digits: &str) -> Option<[u8; KEY_LENGTH]> {
    let mut key = [0; KEY_LENGTH];
    let digits: Option<Vec<u8>> = digits.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    let digits = digits.filter(|digits| digits.len() == 2 * KEY_LENGTH)?;
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(key)
}

/// Writes a new key into a new file.
pub fn generate(path: &Path) -> Result<(), Failure> {
    let mut key = [0; KEY_LENGTH];
    getrandom::fill(&mut key)
        .map_err(|error| Failure::new("cannot make a key", error, "see why the kernel gives no random bytes"))?;
    store(path, PREFIX, &key)
}

/// Writes the key of a node, made of the first of the cluster's keys, into a new file.
pub fn generate_node(node: &str, cluster: &Path, path: &Path) -> Result<(), Failure> {
    let name = NodeName::new(node).ok_or_else(|| {
        let why = format!(
            "a node's name has 1 to {NODE_NAME_LENGTH_MAX} letters, digits, dots, hyphens and underscores, and begins and ends with a letter or digit"
        );
        Failure::usage(format!("cannot make a key for node '{node}'"), why, "give it its host name, for example")
    })?;
    let keys = load(cluster)?;
    let Some(key) = keys.first() else { return Ok(()) }; // there is one at least
    store(path, &format!("{NODE_PREFIX}{name}:"), key.of_node(&name).bytes())
}

/// Writes a key into a new file.
fn store(path: &Path, before: &str, key: &[u8; KEY_LENGTH]) -> Result<(), Failure> {
    let mut line = String::from(before);
    for byte in key {
        let _ = write!(line, "{byte:02x}"); // into memory
    }
    line.push('\n');
    create(path, line.as_bytes()).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AlreadyExists => "name a file that is not there: a key that is lost cannot be made again. To change keys, make another and add its line to this file",
            _ => "name a file in a folder that this user may write",
        };
        Failure::new(format!("cannot make the key file {}", path.display()), error, hint)
    })
}

/// A file that only its owner may read, whole or not at all.
fn create(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    if written.is_err() {
        fs::remove_file(path)?;
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    /// What a file of this mode and content comes to.
    fn loaded(mode: u32, content: &[u8]) -> Result<Vec<Key>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        load(&path).map_err(|failure| failure.to_string())
    }

    fn line(digit: char) -> String {
        format!("{PREFIX}{}\n", String::from(digit).repeat(64))
    }

    #[test]
    fn a_new_key_is_ours_alone_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        let keys = paths.each_ref().map(|path| {
            generate(path).unwrap();
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o600);
            load(path).unwrap()
        });
        assert!(keys[0].len() == 1 && keys[0] != keys[1]);
        let text = fs::read_to_string(&paths[0]).unwrap();
        assert!(text.starts_with("aqueduct-key-1:") && text.len() == 15 + 64 + 1, "{}", text.len());
        assert!(generate(&paths[0]).unwrap_err().to_string().contains("exists"));
        assert_eq!(fs::read_to_string(&paths[0]).unwrap(), text);
        assert!(generate(&folder.path().join("none/k")).is_err());
    }

    #[test]
    fn a_nodes_key_is_made_of_the_clusters() {
        let folder = tempfile::tempdir().unwrap();
        let [cluster, node, again, other] = ["cluster", "node", "again", "other"].map(|name| folder.path().join(name));
        generate(&cluster).unwrap();
        generate_node("gpu-7", &cluster, &node).unwrap();
        assert_eq!(fs::metadata(&node).unwrap().mode() & 0o7777, 0o600);
        let key = load_client(&node).unwrap();
        let name = NodeName::new("gpu-7").unwrap();
        assert_eq!(key.key, load(&cluster).unwrap()[0].of_node(&name));
        assert_eq!(key.node, Some(name));
        generate_node("gpu-7", &cluster, &again).unwrap();
        generate_node("gpu-8", &cluster, &other).unwrap();
        assert!(load_client(&again).unwrap() == key && load_client(&other).unwrap().key != key.key);
        assert_eq!(load_client(&cluster).unwrap(), load(&cluster).unwrap()[0].clone().into());
        // A server cannot use it, nor is another node's made of it.
        assert!(load(&node).unwrap_err().to_string().contains("key of node gpu-7"));
        assert!(generate_node("n", &node, &folder.path().join("n")).unwrap_err().to_string().contains("gpu-7"));
        assert!(generate_node("a b", &cluster, &folder.path().join("n")).unwrap_err().to_string().contains("letters"));
        assert!(generate_node("n", &cluster, &other).unwrap_err().to_string().contains("exists"));
    }

    #[test]
    fn a_file_has_keys_and_comments() {
        let text = format!("# the new one\n{}\n  # the old one, until May\r\n  {}", line('a'), line('5'));
        let keys = loaded(0o600, text.as_bytes()).unwrap();
        assert_eq!(keys, [Key::new([0xaa; 32]), Key::new([0x55; 32])]);
        assert_eq!(loaded(0o400, line('0').repeat(KEYS_MAX).as_bytes()).unwrap().len(), KEYS_MAX);
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        for mode in [0o640, 0o604, 0o660, 0o601] {
            let message = loaded(mode, line('a').as_bytes()).unwrap_err();
            assert!(message.contains(&format!("{mode:04o}")) && message.contains("chmod 600"), "{message}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused_and_not_shown() {
        let refused = |content: &[u8], why: &str| {
            let message = loaded(0o600, content).unwrap_err();
            assert!(message.contains(why) && !message.contains("abcabc"), "{message}");
        };
        refused(b"", "no key");
        refused(b"# nothing\n\n", "no key");
        refused(format!("{}abcabc\n", line('a')).as_bytes(), "line 2");
        refused(format!("{PREFIX}abcabc\n").as_bytes(), "line 1 has no 64 hex");
        refused(line('g').as_bytes(), "line 1 has no 64 hex");
        refused(b"aqueduct-node-1:n7\n", "line 1 names no node");
        refused(b"aqueduct-node-1:n 7:abcabc\n", "no name that a node may have");
        refused(b"aqueduct-node-1:n7:abcabc\n", "line 1 has no 64 hex");
        refused(b"aqueduct-key-2:abcabc\n", "line 1 does not begin with");
        refused(line('é').as_bytes(), "line 1 has no 64 hex");
        refused(format!("{PREFIX}{}\n", "abcabc".repeat(11)).as_bytes(), "line 1 has no 64 hex");
        refused(line('a').repeat(KEYS_MAX + 1).as_bytes(), "has 9 keys");
        refused(&[0xff; 79], "no text");
        refused(&vec![b'#'; (LENGTH_MAX + 1) as usize], "longer");
        assert!(load(Path::new("/nonexistent/k")).unwrap_err().to_string().contains("keygen"));
        assert!(load(Path::new("/")).is_err());
    }

    proptest! {
        /// Whatever is in a file: keys within their limit, or a reason that shows nothing of it.
        #[test]
        fn any_text_has_keys_or_is_refused(parts in prop::collection::vec("[0-9a-fA-F]{64}|aqueduct-key-1:|aqueduct-node-1:|n7:|#|\n| |\\PC{0,3}", 0..40), noise in any::<[u8; 4]>()) {
            for bytes in [parts.concat().into_bytes(), [parts.concat().as_bytes(), &noise].concat()] {
                match parse(&bytes) {
                    Ok(keys) => prop_assert!((1..=KEYS_MAX).contains(&keys.len())),
                    Err(why) => prop_assert!(parts.iter().all(|part| part.len() < 64 || !why.contains(part.as_str()))),
                }
            }
        }
    }
}
