//! What a server does with less than it is used to.

use std::fs::{self, File};
use std::process::Command;

use crate::common::{Server, aqueduct, directory, errno, test};

/// A server that may have so many descriptors, and files open in its one export.
fn limited(descriptors: &str, arguments: &[&str]) -> (tempfile::TempDir, Server) {
    let export = directory();
    let mut command = Command::new("sh");
    let program = aqueduct().get_program().to_owned();
    command.args(["-c", &format!("{descriptors} && exec \"$0\" \"$@\"")]).arg(program);
    let arguments: Vec<&str> = [&["--listen", "127.0.0.1:0"], arguments].concat();
    let server = Server::start_with(&mut command, &arguments, &[export.path()]);
    (export, server)
}

#[test]
fn few_descriptors_are_told_at_the_start_and_when_there_are_no_more() {
    test(|| {
        let (export, server) = limited("ulimit -n 300", &[]);
        let log = server.process.output();
        let warning = log.lines().find(|line| line.contains("WARN") && line.contains("descriptors")).unwrap_or(&log);
        assert!(warning.contains("only 150 files") && warning.contains("have 300 descriptors"), "{log}");
        assert!(warning.contains("Raise the hard limit to 131072") && warning.contains("LimitNOFILE="), "{log}");
        fs::write(export.path().join("f"), "x").unwrap();
        let mount = server.mount_with(export.path(), "cache=none");
        let mut open = Vec::new();
        let refused = loop {
            match File::open(mount.join("f")) {
                Ok(file) if open.len() < 300 => open.push(file),
                result => break errno(result),
            }
        };
        assert_eq!((refused, open.len()), (libc::ENFILE, 150));
        let log = server.process.output();
        let told: Vec<_> = log.lines().filter(|line| line.contains("ENFILE")).collect();
        assert!(matches!(told[..], [line] if line.contains("150 are open") && line.contains("LimitNOFILE=")), "{log}");
        open.clear();
        File::open(mount.join("f")).unwrap();
    });
}

#[test]
fn the_soft_limit_on_descriptors_is_raised() {
    test(|| {
        let (_export, server) = limited("ulimit -Sn 300", &[]);
        let limits = fs::read_to_string(format!("/proc/{}/limits", server.process.pid())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let fields: Vec<_> = line.split_whitespace().collect();
        assert_eq!(fields[3], fields[4], "{line}");
    });
}
