//! Mounts behind several routers that use all of them at once.

use std::time::Duration;

use crate::common::{wait_until, within};
use crate::networks::{NET1, NET2, address};
use crate::trouble::Case;

const MIB: u64 = 1 << 20;

/// Longer than any of it takes on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(180);

impl Case {
    /// Bytes that went by each router.
    fn carried(&self) -> [u64; 2] {
        [&self.a, &self.b].map(|router| router.bytes("network", &format!("net{NET2}")))
    }

    fn rails(&self) -> Vec<(String, String)> {
        let status = self.mount.status();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let rails = status["rails"].as_array().unwrap();
        rails.iter().map(|rail| (text(&rail["path"]), text(&rail["state"]))).collect()
    }

    fn are_all_up(&self) -> bool {
        let rails = self.rails();
        rails.len() == 2 && rails.iter().all(|(_, state)| state == "up")
    }
}

/// One that is killed is gone around, and has its share again when it is back, though nothing else
/// fails.
#[test]
fn a_mount_uses_all_routers_and_those_that_return() {
    within(LIMIT, || {
        let Some(mut case) = Case::mounted("rails=auto,suspect=2,rail_suspect=0.5") else { return };
        wait_until("both rails are up", LIMIT, || case.are_all_up());
        for (host, (path, _)) in ["a", "b"].iter().zip(case.rails()) {
            assert!(path.contains(&format!("@net{NET2} by {}:", address(host, NET1))), "{path}");
        }
        let load = case.start_load();
        wait_until("both carry", LIMIT, || case.carried().iter().all(|bytes| *bytes > MIB));
        case.a.kill();
        load.goes_on();
        wait_until("its rail leads by the other", LIMIT, || case.are_all_up());
        case.a.start(&mut case.networks.inside("a"));
        wait_until("it has its share again", LIMIT, || case.carried()[0] > MIB);
        case.ends_well(load);
    });
}

#[test]
fn routers_of_rails_are_drained_and_return_under_load() {
    within(LIMIT, || {
        let Some(case) = Case::mounted("rails=auto,suspect=2") else { return };
        wait_until("both rails are up", LIMIT, || case.are_all_up());
        let load = case.start_load();
        for _ in 0..2 {
            case.a.does(&["drain", "--seconds", "60"]);
            wait_until("it carries nothing", LIMIT, || case.a.flows() == 0);
            load.goes_on();
            assert!(case.are_all_up());
            let before = case.carried()[0];
            case.a.does(&["resume"]);
            wait_until("it carries again", LIMIT, || case.carried()[0] > before + MIB);
        }
        case.ends_well(load);
        assert_eq!(case.mount.status()["reconnects"], 0, "nothing was lost");
    });
}
