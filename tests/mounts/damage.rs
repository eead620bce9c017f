//! Bits that change on the way between client and server: with checksums, programs notice nothing.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::thread;

use crate::common::{Mount, Server, aqueduct, directory, test};
use crate::keys::Keys;
use crate::proxy::{FAIR, Proxy, Weather};

/// A bit is flipped in one of so many pieces, whatever they carry: some ten for each file below.
const PIECES_APART: usize = 41;

/// What a file of this number has in it.
fn content(number: usize) -> Vec<u8> {
    let length = [10, 5000, 70_000, 1_500_000][number % 4];
    (0..length).map(|at: usize| (at * 7 + at / 251 + number) as u8).collect()
}

/// Writes, appends to, renames and reads files, and looks at every byte and every result.
fn work(mount: &Path, worker: usize, files: usize) {
    let folder = mount.join(format!("worker-{worker}"));
    fs::create_dir(&folder).unwrap();
    for number in 0..files {
        let (path, data) = (folder.join(format!("file-{number}")), content(worker + number));
        let mut file = fs::File::create_new(&path).unwrap();
        file.write_all(&data).unwrap();
        drop(file);
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        for line in 0..20 {
            file.write_all(format!("line {line}\n").as_bytes()).unwrap();
        }
        fs::rename(&path, folder.join(format!("renamed-{number}"))).unwrap();
        let mut seen = Vec::new();
        fs::File::open(folder.join(format!("renamed-{number}"))).unwrap().read_to_end(&mut seen).unwrap();
        assert!(seen == whole(worker + number), "file {number} of {worker} is not what was written");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), files);
}

fn whole(number: usize) -> Vec<u8> {
    let lines: String = (0..20).map(|line| format!("line {line}\n")).collect();
    [content(number), lines.into_bytes()].concat()
}

/// Works on a mount whose traffic is damaged: `serve` and `options` are more arguments.
fn mends(serve: &[&str], options: &str) {
    const WORKERS: usize = 2;
    const FILES: usize = 24;
    let export = directory();
    let server = Server::start_with(
        &mut aqueduct(),
        &[&["--listen", "127.0.0.1:0", "--squash", "none"], serve].concat(),
        &[export.path()],
    );
    let proxy = Proxy::start(&server.address);
    let mount = Mount::start(&mut aqueduct(), &[&format!("{}:{}", proxy.address, export.path().display())], options);
    proxy.set_weather(Weather { flips_every: PIECES_APART, ..FAIR });
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let path = mount.path();
            scope.spawn(move || work(path, worker, FILES));
        }
    });
    proxy.set_weather(FAIR);
    for worker in 0..WORKERS {
        for number in 0..FILES {
            let path = export.path().join(format!("worker-{worker}/renamed-{number}"));
            assert!(fs::read(path).unwrap() == whole(worker + number), "file {number} of {worker} on the server");
        }
    }
    let reconnects = mount.status()["reconnects"].as_u64().unwrap();
    let told = mount.process.output();
    let noticed = [&told, &server.process.output()].map(|log| log.matches("damaged").count());
    assert!(reconnects >= 10 && noticed[0] >= 5, "{reconnects} connections lost, damage noticed {noticed:?} times");
    drop((mount, server));
}

#[test]
fn damage_on_the_way_is_mended() {
    test(|| mends(&[], "checksum=on"));
}

#[test]
fn damage_on_the_way_is_mended_where_a_key_is_used() {
    test(|| {
        let keys = Keys::new(&["ours"]);
        mends(&["--checksum", "on", "--key", &keys.text("ours")], &keys.option("ours"));
    });
}

/// The options that do not go together are told.
#[test]
fn two_sides_that_cannot_agree_are_told() {
    test(|| {
        let export = directory();
        for (serve, mount) in [("on", "checksum=off"), ("off", "checksum=on")] {
            let arguments = ["--listen", "127.0.0.1:0", "--checksum", serve];
            let server = Server::start_with(&mut aqueduct(), &arguments, &[export.path()]);
            let text = crate::keys::try_mount(&server.source(export.path()), mount).failed();
            crate::errors::complains(&text, &["insist", "set one of the two to auto"], &[]);
        }
    });
}
