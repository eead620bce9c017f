//! The file in which a server that has died left a session, read by the next one, over a synthetic file system.
//!
//! Input: 1, and the file as it is; or 0, the head with its length (u16) before it, and the records, each with its place (u8) and length (u16), which get
//! their checksums. In a head, `BOOT` stands for the number of the machine's boot, which no fuzzer guesses.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

use aqueduct_server::{Server, ServerConfig, StartError};
use aqueduct_wire::{Header, Kind, Op, encode_reply};
use tempfile::TempDir;

use crate::samples;
use crate::server::config;
use crate::turner::Turner;

/// The layout of the file: see the server's module `journal`.
const HEAD_SIZE: usize = 16 << 10;
const RECORD_SIZE: usize = 2048;
const INTENT: u8 = 1;
const REPLY: u8 = 2;
const FORGOTTEN: u8 = 3;

/// The rooms of four slots in two classes: for a reply and an intent each.
const RECORDS: usize = 16;
const HEAD: &[u8] = br#"{"format":3,"boot":"BOOT","server":"00000000000000000000000000000000","session":1,"secret":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"client":"client","origin":{"node":null,"peer":{"Network":"127.0.0.1:1"}},"export":"zero","slots":4,"durable":false,"verifier":8}"#;

/// What all inputs share.
struct World {
    folder: TempDir,
    file: PathBuf,
    boot: Vec<u8>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Puts content with its checksum and length at a place of the file.
fn seal(file: &mut Vec<u8>, at: usize, room: usize, content: &[u8]) {
    let content = &content[..content.len().min(room - 8)];
    let sealed = [&(content.len() as u32).to_le_bytes(), content].concat();
    file.resize(file.len().max(at + 8 + content.len()), 0);
    file[at..at + 4].copy_from_slice(&crc32c::crc32c(&sealed).to_le_bytes());
    file[at + 4..at + 4 + sealed.len()].copy_from_slice(&sealed);
}

/// Takes something with its length before it.
fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (taken, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    *bytes = rest;
    Some(taken)
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let file = folder.path().join(format!("{:016x}", 1));
        let boot = fs::read("/proc/sys/kernel/random/boot_id").expect("it is Linux").trim_ascii().to_vec();
        World { folder, file, boot }
    }

    fn sealed(&self, mut parts: &[u8]) -> Option<Vec<u8>> {
        let mut head = take(&mut parts)?.to_vec();
        if let Some(at) = head.windows(4).position(|window| window == b"BOOT") {
            head.splice(at..at + 4, self.boot.iter().copied());
        }
        let mut file = Vec::new();
        seal(&mut file, 0, HEAD_SIZE, &head);
        while let Some((place, rest)) = parts.split_first() {
            parts = rest;
            let content = take(&mut parts)?;
            seal(&mut file, HEAD_SIZE + usize::from(*place) % RECORDS * RECORD_SIZE, RECORD_SIZE, content);
        }
        Some(file)
    }

    /// Whether a server finds the session again that an input describes.
    fn restores(&self, data: &[u8]) -> Option<bool> {
        let (how, parts) = data.split_first()?;
        let file = if how & 1 == 0 { self.sealed(parts)? } else { parts.to_vec() };
        fs::write(&self.file, file).expect("there is room for a file");
        let config = ServerConfig { sessions: Some(self.folder.path().to_path_buf()), ..config() };
        match Server::start(config, Turner::new().group) {
            Ok(server) => Some(server.is_recovering()),
            // What another release has written is kept for it, and a server that cannot read it
            // does not start.
            Err(StartError::Sessions { .. }) => Some(false),
            Err(error) => panic!("the folder is ours: {error}"),
        }
    }
}

/// See the module.
pub fn run(data: &[u8]) {
    WORLD.with_borrow_mut(|world| world.get_or_insert_with(World::new).restores(data));
}

/// What precedes the content of a record.
fn prefix(op: Op, kind: u8) -> Vec<u8> {
    [&9u32.to_le_bytes()[..], &(op as u16).to_le_bytes(), &[kind, 0]].concat()
}

fn reply_records() -> Vec<Vec<u8>> {
    let record = |(op, reply): &(Op, _)| {
        let mut body = Vec::new();
        encode_reply(reply, &mut body);
        let header = Header { op: *op as u16, sequence: 9, body_length: body.len() as u32, ..Header::new(Kind::Reply) };
        [prefix(*op, REPLY), header.encode().to_vec(), body].concat()
    };
    samples::replies().iter().map(record).collect()
}

/// Intents with the fields that their operations have: the caller's uid and gid, names, handles, times, numbers.
fn intent_records() -> Vec<Vec<u8>> {
    let (id, root, file, name, since) = (&[0; 4][..], &b"root"[..], &b"zero"[..], &b"name"[..], &[0; 8][..]);
    let intents: [(Op, &[&[u8]]); 10] = [
        (Op::Create, &[root, file, since, &[0, 0x80, 0, 0], &[1, 0, 0, 0]]),
        (Op::MakeDirectory, &[root, name, since, &[0, 0x40, 0, 0], id]),
        (Op::Symlink, &[root, name, since, &[0, 0xa0, 0, 0], id]),
        (Op::Link, &[root, file, since, file]),
        (Op::Unlink, &[root, file, file]),
        (Op::Rename, &[root, name, file, root, file, file]),
        (Op::SetXattr, &[file, b"user.a", id]),
        (Op::RemoveXattr, &[file, b"user.a"]),
        (Op::Write, &[file, since, &[100, 0, 0, 0], id]),
        (Op::Compound, &[]),
    ];
    let record = |(op, parts): (Op, &[&[u8]])| {
        let mut record = prefix(op, INTENT);
        for part in [id, id].iter().chain(parts) {
            record.extend_from_slice(&(part.len() as u16).to_le_bytes());
            record.extend_from_slice(part);
        }
        record
    };
    intents.into_iter().map(record).collect()
}

/// Sessions with records of every kind, by fours.
pub fn seeds() -> Vec<Vec<u8>> {
    let records = [reply_records(), intent_records(), vec![prefix(Op::Open, FORGOTTEN)]].concat();
    let session = |records: &[Vec<u8>]| {
        let mut seed = vec![0];
        seed.extend_from_slice(&(HEAD.len() as u16).to_le_bytes());
        seed.extend_from_slice(HEAD);
        for (place, record) in records.iter().enumerate() {
            seed.push(place as u8);
            seed.extend_from_slice(&(record.len() as u16).to_le_bytes());
            seed.extend_from_slice(record);
        }
        seed
    };
    records.chunks(4).map(session).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_restored() {
        let world = World::new();
        assert!(seeds().iter().all(|seed| world.restores(seed) == Some(true)));
        assert_eq!(world.restores(&[1, 0, 0]), Some(false));
    }
}
