//! Agents that are containers: they see what they serve, and nothing else of the host.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use crate::common::{Mount, SOON, aqueduct, have, run, skip, wait_until, within};
use crate::group::Group;

#[test]
fn a_container_serves_and_sees_nothing_else_of_the_host() {
    within(Duration::from_secs(180), || {
        let Some(group) = Group::new().filter(|_| have(&["crun", "ldd", "unshare"])) else { return };
        group.configure("kind = 'container'\nmemory = '512MiB'");
        let up = group.up(2);
        if up.text.contains("pivot_root") || up.text.contains("unshare failed") {
            return skip(&format!("no container can be made here: {}", up.text));
        }
        up.succeeded();
        let server = format!("{}.2:{}", group.network, group.data.path().display());
        let mount = Mount::start(&mut aqueduct(), &[&server], "");
        fs::write(mount.join("file"), "through a container").unwrap();
        let owner = std::os::unix::fs::chown(mount.join("file"), Some(1234), Some(1234));
        drop(mount);
        let file = group.data.path().join("file");
        assert_eq!(fs::read_to_string(&file).unwrap(), "through a container");
        assert_eq!((owner.is_ok(), fs::metadata(&file).unwrap().uid()), (true, 1234));
        // The runtime's process is the one that is known; the server is its child.
        let runtime = group.agents()[0]["pid"].to_string();
        let children = fs::read_to_string(format!("/proc/{runtime}/task/{runtime}/children")).unwrap();
        let inside = children.trim();
        let root: Vec<_> =
            fs::read_dir(format!("/proc/{inside}/root")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!root.iter().any(|name| name == "etc" || name == "home" || name == "root"), "{root:?}");
        let own = fs::read_to_string(format!("/proc/{inside}/cgroup")).unwrap();
        assert!(own.contains(&format!("/aqueduct-{}-1", group.name)), "{own}");
        let kept = run(Command::new("nsenter").args(["-t", inside, "-p", "-n", "ip", "-o", "link"])).succeeded();
        assert!(kept.lines().count() == 2 && kept.contains("wire"), "{kept}");
        // Killed, it is seen to have ended, and the same again starts it.
        crate::common::signal(runtime.parse().unwrap(), rustix::process::Signal::KILL);
        wait_until("it is seen to have ended", SOON, || group.agents()[0]["alive"] == false);
        assert!(group.up(2).succeeded().contains("1 were up before"));
        group.down().succeeded();
        group.leaves_no_trace();
    });
}
