//! Leases on what is changed past the server, by another process on its machine.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use aqueduct_fs::*;
use aqueduct_posix::Watcher;
use aqueduct_wire::Subject;

use super::client::*;
use super::common::*;

/// A shell that changes things: it is there before, so that what is measured is the change.
struct Other {
    shell: Child,
    said: BufReader<ChildStdout>,
}

impl Other {
    fn new(directory: &Path) -> Other {
        let mut command = Command::new("sh");
        command.arg("-e").current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let said = BufReader::new(shell.stdout.take().unwrap());
        Other { shell, said }
    }

    /// Begins with a change.
    fn begin(&mut self, script: &str) {
        writeln!(self.shell.stdin.as_ref().unwrap(), "{script}; echo done").unwrap();
    }

    fn end(&mut self) {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// A server that is told what others change; nothing where the kernel tells nobody.
fn watched() -> Option<(Fixture, Watcher)> {
    let watched = Fixture::watched(quick());
    if watched.is_none() {
        eprintln!("skipped: changes cannot be watched here");
    }
    watched
}

#[test]
fn a_change_from_outside_recalls_what_it_touches() {
    let Some((fixture, _watcher)) = watched() else { return };
    let mut other = Other::new(fixture.directory.path());
    // By the server's own process: that is told to nobody.
    std::fs::write(fixture.directory.path().join("file"), "content").unwrap();
    std::fs::create_dir(fixture.directory.path().join("directory")).unwrap();
    let mut client = Client::new(&fixture);
    let root = client.root.clone();
    let mut look = |name| client.ask(&look_up(&root, name)).unwrap().entry().unwrap().handle;
    let (file, directory) = (look("file"), look("directory"));
    let names = |client: &mut Client| {
        client.ask(&look_up(&directory, "absent")).unwrap_err();
        client.granted(Subject::Parent).expect("a lease").1
    };
    let attributes = Request::ListXattr { handle: file.bytes(), size: 100 };
    let mut times = Vec::new();
    for _ in 0..20 {
        for script in
            ["echo content >> file", "chmod 600 file", "truncate -s 5 file", "echo > directory/new", "rm directory/new"]
        {
            let (data, kept) = if script.contains("file") {
                (client.lease(&get_attr(&file)), client.lease(&attributes))
            } else {
                let kept = names(&mut client);
                (kept, kept)
            };
            // The later name of one lease stands for both.
            assert!(kept >= data);
            let began = Instant::now();
            other.begin(script);
            assert_eq!(client.recalled(), [kept], "{script}");
            // The shell does that itself; for the others it starts a program, which takes longer than the recall.
            if script.starts_with("echo") {
                times.push(began.elapsed());
            }
            other.end();
            client.give_back(&[kept]);
        }
    }
    times.sort();
    eprintln!("from a change to its recall: median {:?}, longest {:?}", times[times.len() / 2], times[times.len() - 1]);
}

/// What clients change, those who hold leases on it are told of before it is done, and nobody afterwards.
#[test]
fn a_change_of_a_client_is_not_told_as_one_from_outside() {
    let Some((fixture, _watcher)) = watched() else { return };
    let mut changer = Client::plain(&fixture);
    let root = changer.root.clone();
    // Not a file that is opened: the shell of the other test may be just being started, and be the last to close it.
    let directory = changer.ask(&make_directory(&root, "directory")).unwrap().entry().unwrap().handle;
    for mode in [0o700, 0o750, 0o755] {
        changer.ask(&chmod(&directory, mode)).unwrap();
        let mut holder = Client::new(&fixture);
        holder.lease(&get_attr(&directory));
        assert!(holder.is_left_alone(), "what was granted after the change is not called back for it");
        holder.leave();
    }
}
