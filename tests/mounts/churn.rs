//! A program that changes a directory of its own in every way and looks at each result: nothing that it does may fail, be lost or be done twice, whatever
//! happens to the server meanwhile.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::sys::{self, Hold, Request};

fn expect(holds: bool, what: &str) -> io::Result<()> {
    if holds { Ok(()) } else { Err(io::Error::other(format!("not as it should be: {what}"))) }
}

fn said<T>(result: io::Result<T>, what: &str) -> io::Result<T> {
    result.map_err(|error| io::Error::other(format!("{what}: {error}")))
}

/// Works for `time`; returns the number of rounds, about twenty changes each.
pub fn work(directory: &Path, time: Duration) -> io::Result<usize> {
    let started = Instant::now();
    let mut log = OpenOptions::new().append(true).read(true).create_new(true).open(directory.join("log"))?;
    // As git does: written through a descriptor of a file that nobody may write.
    let kept = OpenOptions::new().write(true).read(true).create_new(true).mode(0o444).open(directory.join("kept"))?;
    let mut rounds = 0;
    while started.elapsed() < time {
        round(directory, rounds, &mut log, &kept)?;
        rounds += 1;
    }
    let mut text = String::new();
    log.seek(SeekFrom::Start(0))?;
    log.read_to_string(&mut text)?;
    let lines = (0..rounds).flat_map(|round| (0..3).map(move |line| format!("{round} {line}\n")));
    expect(text == lines.collect::<String>(), "the log has every line once, in order")?;
    let mut names: Vec<_> =
        fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>()?;
    names.sort();
    expect(names == ["kept", "log"], &format!("nothing else is left: {names:?}"))?;
    Ok(rounds)
}

/// Writes and reads blocks for `time`, and looks at every byte; returns the number of rounds and the longest that one took, in milliseconds.
pub fn stream(path: &Path, time: Duration) -> io::Result<String> {
    const BLOCK: usize = 300_000;
    const BLOCKS: usize = 16;
    let (started, mut rounds, mut longest) = (Instant::now(), 0, Duration::ZERO);
    let file = OpenOptions::new().write(true).read(true).create_new(true).open(path)?;
    let content = |number: usize| (0..BLOCK).map(|at| (at / 7 + number * 31) as u8).collect::<Vec<u8>>();
    let mut read = vec![0; BLOCK];
    while started.elapsed() < time {
        let began = Instant::now();
        said(file.write_all_at(&content(rounds), (rounds % BLOCKS * BLOCK) as u64), "write a block")?;
        for number in (rounds + 1).saturating_sub(BLOCKS)..=rounds {
            said(file.read_exact_at(&mut read, (number % BLOCKS * BLOCK) as u64), "read a block")?;
            expect(read == content(number), &format!("block {number} of {rounds}"))?;
        }
        longest = longest.max(began.elapsed());
        rounds += 1;
    }
    Ok(format!("{rounds} {}", longest.as_millis()))
}

fn round(directory: &Path, number: usize, log: &mut File, kept: &File) -> io::Result<()> {
    let path = |name: &str| directory.join(format!("{name}{number}"));
    let (file, folder, link, text) = (path("file"), path("folder"), path("link"), path("text"));
    let content = format!("content of {number}").repeat(50);
    let mut new = said(OpenOptions::new().write(true).read(true).create_new(true).open(&file), "create")?;
    said(new.write_all(content.as_bytes()), "write")?;
    for line in 0..3 {
        said(log.write_all(format!("{number} {line}\n").as_bytes()), "append")?;
    }
    said(kept.write_all_at(&number.to_le_bytes(), 0), "write through a descriptor of a file of mode 0444")?;
    said(sys::lock(log.as_fd(), Request::OpenFile, Hold::Write, 0, 0, false), "lock")?;
    said(fs::create_dir(&folder), "mkdir")?;
    let moved = folder.join("moved");
    said(fs::rename(&file, &moved), "rename")?;
    said(fs::hard_link(&moved, &link), "link")?;
    said(symlink("moved", &text), "symlink")?;
    expect(said(fs::metadata(&moved), "stat")?.nlink() == 2, "two links")?;
    said(fs::set_permissions(&moved, Permissions::from_mode(0o640)), "chmod")?;
    expect(said(fs::read_to_string(&link), "read")? == content, "the content")?;
    said(fs::remove_file(&moved), "unlink")?;
    said(new.set_len(7), "truncate")?;
    expect(said(new.metadata(), "fstat")?.size() == 7, "the size")?;
    said(sys::lock(log.as_fd(), Request::OpenFile, Hold::Unlock, 0, 0, false), "unlock")?;
    said(fs::write(&moved, "over"), "write another")?;
    said(fs::rename(&link, &moved), "rename over")?;
    expect(said(fs::read_to_string(&moved), "read")?.as_bytes() == &content.as_bytes()[..7], "the shorter content")?;
    said(fs::remove_file(&text), "unlink the symlink")?;
    said(fs::remove_file(&moved), "unlink the last")?;
    said(new.write_all_at(b"nameless", 0), "write to an open file without a name")?;
    expect(said(new.metadata(), "fstat")?.nlink() == 0, "no links")?;
    let mut rest = [0; 8];
    said(new.read_exact_at(&mut rest, 0), "read it")?;
    expect(&rest == b"nameless", "the content without a name")?;
    said(fs::remove_dir(&folder), "rmdir")
}
