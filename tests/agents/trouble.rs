//! What becomes of agents and their host when something fails or is killed.

use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{TEST_MAX, run_within, signal, test, wait_until, within};
use crate::group::Group;

/// What setting agents up twenty times takes at most, on a machine that does much else.
const MANY_MAX: Duration = Duration::from_secs(240);

#[test]
fn a_failure_takes_all_back_and_says_what_the_agent_told() {
    test(|| {
        let Some(group) = Group::new() else { return };
        group.configure_all("insecure = true\n[[export]]\npath = '/no/such/folder'\n");
        let told = group.up(3).failed();
        for part in ["cannot start agent 1", "why:", "/no/such/folder", "do:"] {
            assert!(told.contains(part), "{part} is missing: {told}");
        }
        group.leaves_no_trace();
    });
}

/// `up` is killed at many moments; `down`, another process, leaves nothing.
#[test]
fn down_leaves_no_trace_of_an_up_that_was_killed() {
    within(MANY_MAX, || {
        let Some(group) = Group::new() else { return };
        group.configure("memory = '256MiB'");
        let config = group.config();
        let arguments = ["up", "3", "--config", config.to_str().unwrap()];
        let began = Instant::now();
        group.up(3).succeeded();
        let whole = began.elapsed();
        group.down().succeeded();
        let mut met = 0;
        for part in 1..8 {
            let mut up = group
                .command(&arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            sleep(whole * part / 9);
            signal(up.id(), Signal::KILL);
            up.wait().unwrap();
            met += u32::from(!group.traces().is_empty());
            // An even part is met by another up, which begins anew.
            if part % 2 == 0 {
                group.up(3).succeeded();
                assert_eq!(group.agents().len(), 3);
            }
            let _ = run_within(TEST_MAX, &mut group.command(&["down", "--name", &group.name]));
            group.leaves_no_trace();
        }
        assert!(met > 2, "{met} of 7 had begun");
    });
}

#[test]
fn the_same_again_starts_what_has_ended_and_more() {
    test(|| {
        let Some(group) = Group::new() else { return };
        group.configure("");
        group.up(2).succeeded();
        let before = group.agents();
        signal(before[0]["pid"].as_u64().unwrap() as u32, Signal::KILL);
        wait_until("it is seen to have ended", Duration::from_secs(10), || group.agents()[0]["alive"] == false);
        assert!(group.up(3).succeeded().contains("1 were up before"));
        let after = group.agents();
        assert_eq!((after.len(), &after[1]["pid"]), (3, &before[1]["pid"]));
        assert!(after.iter().all(|agent| agent["alive"] == true) && after[0]["pid"] != before[0]["pid"]);
        let told = group.up(1).failed();
        assert!(told.contains("3 are up") && told.contains("agents down"), "{told}");
        group.down().succeeded();
        group.leaves_no_trace();
    });
}
