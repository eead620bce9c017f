//! Changes that processes on the server make in an export, past the server.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Server, aqueduct, directory, have, run, test};
use crate::errors::complains;

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// How changes from outside come to light in a server's only export.
fn external(server: &Server) -> String {
    server.status()["exports"][0]["external"].as_str().unwrap().to_owned()
}

fn serve(arguments: &[&str], export: &Path) -> Server {
    Server::start_with(&mut aqueduct(), &[&LISTEN, arguments].concat(), &[export])
}

/// A server that is told what it cannot have does not start; told nothing, it takes what there is, and says so.
#[test]
fn what_cannot_be_watched_is_polled() {
    test(|| {
        if !have(&["setpriv"]) {
            return;
        }
        let export = directory();
        let usual = serve(&[], export.path());
        assert_eq!(external(&usual), "watch");
        for how in ["watch", "poll", "none"] {
            assert_eq!(external(&serve(&["--external", how], export.path())), how);
        }
        let without_right = || {
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set", "-sys_admin"]).arg(aqueduct().get_program());
            command
        };
        let polled = Server::start_with(&mut without_right(), &LISTEN, &[export.path()]);
        assert_eq!(external(&polled), "poll");
        let log = polled.process.output();
        let warnings: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains("CAP_SYS_ADMIN"), "{log}");
        assert!(warnings[0].contains("3 s") && warnings[0].contains("run the server as root"), "{log}");
        let state = directory();
        let refused = |command: &mut Command, export: &Path| {
            let command = command.arg("serve").arg("--state").arg(state.path()).args(LISTEN);
            run(command.args(["--external", "watch"]).arg(export)).failed()
        };
        let text = refused(&mut without_right(), export.path());
        complains(&text, &["root's rights"], &["as root", "external = \"poll\""]);
        // What another server serves is changed by others.
        fs::create_dir(export.path().join("inner")).unwrap();
        let mount = usual.mount(export.path());
        let stacked = Server::start_with(&mut aqueduct(), &LISTEN, &[&mount.join("inner")]);
        assert_eq!(external(&stacked), "poll");
        let log = stacked.process.output();
        assert!(log.contains("its file system is FUSE") && !log.contains("WARN"), "{log}");
        complains(&refused(&mut aqueduct(), &mount.join("inner")), &["FUSE"], &["external = \"poll\""]);
        drop(stacked);
    });
}
