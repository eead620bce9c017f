//! The first file system of a virtual machine: an archive as the kernel unpacks it, in cpio's
//! format "newc" (Documentation/driver-api/early-userspace/buffer-format.rst of Linux).

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A file of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// What a file of this host has.
    Of(PathBuf),
    /// This text.
    Text(String),
}

/// The type and permissions of directories, and of files, which are all programs or secret.
const DIRECTORY: u32 = 0o040_755;
const REGULAR: u32 = 0o100_700;

/// The longest file: the format has 32 bits for it.
const LENGTH_MAX: u64 = u32::MAX as u64;

/// Writes an image of these files, by their paths in it. Nobody else may read it: keys are there.
pub(crate) fn write(path: &Path, files: &[(PathBuf, Content)]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut out = Archive { out: BufWriter::new(file), written: 0, inode: 0 };
    let above = files.iter().flat_map(|(path, _)| path.ancestors().skip(1)).filter(|path| path.parent().is_some());
    for path in above.collect::<BTreeSet<_>>() {
        out.head(path, DIRECTORY, 0)?;
    }
    for (path, content) in files {
        match content {
            Content::Text(text) => {
                out.head(path, REGULAR, text.len() as u64)?;
                out.bytes(text.as_bytes())?;
            }
            Content::Of(from) => {
                let mut file = File::open(from)?;
                let length = file.metadata()?.len();
                out.head(path, REGULAR, length)?;
                let copied = io::copy(&mut io::Read::take(&mut file, length), &mut out.out)?;
                out.written += copied;
                if copied != length {
                    return Err(io::Error::other(format!("{} changed while it was read", from.display())));
                }
            }
        }
        out.pad()?;
    }
    out.head(Path::new("TRAILER!!!"), 0, 0)?;
    out.out.flush()
}

struct Archive {
    out: BufWriter<File>,
    written: u64,
    inode: u32,
}

impl Archive {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Heads and contents begin at multiples of four.
    fn pad(&mut self) -> io::Result<()> {
        let zeros = (4 - self.written % 4) % 4;
        self.bytes(&[0; 4][..zeros as usize])
    }

    fn head(&mut self, path: &Path, mode: u32, length: u64) -> io::Result<()> {
        if length > LENGTH_MAX {
            return Err(io::Error::other(format!("{} is too long for an image", path.display())));
        }
        self.inode += 1;
        let name = path.to_string_lossy();
        let name = name.trim_start_matches('/');
        // inode, mode, uid, gid, links, mtime, length, device, device of a device, name, checksum
        let fields = [self.inode, mode, 0, 0, 1, 0, length as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0]
            .map(|field| format!("{field:08x}"));
        self.bytes(format!("070701{}{name}\0", fields.concat()).as_bytes())?;
        self.pad()
    }
}

/// The files of these, each under its own path.
pub(crate) fn of_host(paths: impl IntoIterator<Item = PathBuf>) -> Vec<(PathBuf, Content)> {
    paths.into_iter().map(|path| (path.clone(), Content::Of(path))).collect()
}

/// The newest kernel in a folder, as Debian and Fedora name them.
pub(crate) fn newest_kernel(names: &[String]) -> Option<&String> {
    let numbers = |name: &String| -> Vec<u64> {
        name.split(|letter: char| !letter.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    names.iter().filter(|name| name.starts_with("vmlinuz-")).max_by_key(|name| numbers(name))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_image_is_what_the_kernel_unpacks() {
        let folder = tempfile::tempdir().unwrap();
        let (path, file) = (folder.path().join("image"), folder.path().join("file"));
        fs::write(&file, "12345").unwrap();
        let files = [("/init".into(), Content::Text("#!".into())), ("/a/b/c".into(), Content::Of(file))];
        write(&path, &files).unwrap();
        let bytes = fs::read(&path).unwrap();
        let mut at = 0;
        let mut found = Vec::new();
        loop {
            let head = std::str::from_utf8(&bytes[at..at + 110]).unwrap();
            assert!(head.starts_with("070701"), "{head}");
            let field = |number: usize| usize::from_str_radix(&head[6 + 8 * number..14 + 8 * number], 16).unwrap();
            let (mode, length, name) = (field(1), field(6), field(11));
            let path = std::str::from_utf8(&bytes[at + 110..at + 109 + name]).unwrap().to_owned();
            at = (at + 110 + name).next_multiple_of(4);
            if path == "TRAILER!!!" {
                break;
            }
            found.push((path, mode, bytes[at..at + length].to_vec()));
            at = (at + length).next_multiple_of(4);
        }
        let of = |path: &str, mode: u32, text: &str| (path.to_owned(), mode as usize, text.as_bytes().to_vec());
        let expected = [
            of("a", DIRECTORY, ""),
            of("a/b", DIRECTORY, ""),
            of("init", REGULAR, "#!"),
            of("a/b/c", REGULAR, "12345"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_newest_kernel_is_that_with_the_greatest_numbers() {
        let names =
            ["config-9.9", "vmlinuz-6.1.0-9-amd64", "vmlinuz-6.1.0-10-amd64", "vmlinuz-5.10.0"].map(str::to_owned);
        assert_eq!(newest_kernel(&names), Some(&names[2]));
        assert_eq!(newest_kernel(&names[..1]), None);
    }
}
