//! What programs see of a server that ends and comes back: nothing but a pause. Who holds descriptors is a process of its own: this one starts the
//! server, and a child closes what it inherits, which on a mount waits for the server.

use std::fs;

use crate::agent::Agent;
use crate::common::{One, test};

#[test]
fn descriptors_are_as_they_were_after_a_kill_of_the_server() {
    test(|| {
        let One { mount, server, export } = One::new();
        for number in 0..3000 {
            fs::write(export.path().join(format!("name-{number:05}-that-fills-the-pages-of-a-listing")), "").unwrap();
        }
        let mut agent = Agent::start();
        let path = |name: &str| mount.join(name).display().to_string();
        agent.ask(&format!("open 0 {} rwc", path("forbidden"))).unwrap();
        agent.ask(&format!("open 1 {} rwc", path("old-name"))).unwrap();
        agent.ask("writeat 0 0 before,").unwrap();
        fs::set_permissions(mount.join("forbidden"), std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        fs::rename(mount.join("old-name"), mount.join("new-name")).unwrap();
        assert_eq!(agent.ask(&format!("list {} 10", mount.path().display())).unwrap(), "10 10");
        let server = server.restart(&[export.path()]);
        assert_eq!(agent.ask("writeat 0 7 after"), Ok("5".into()));
        assert_eq!(agent.ask("writeat 1 0 new"), Ok("3".into()));
        assert_eq!(agent.ask(&format!("list {}", mount.path().display())).unwrap(), "3002 3002", "each name once");
        assert_eq!(fs::read_to_string(export.path().join("forbidden")).unwrap(), "before,after");
        assert_eq!(fs::read_to_string(export.path().join("new-name")).unwrap(), "new");
        drop((agent, mount, server));
    });
}
