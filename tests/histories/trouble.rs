//! The troubles of a plan, done to a cluster.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::plan::Trouble;
use crate::proxy::{Cut, FAIR, Weather};
use crate::worker::now;

/// When a step that cannot be taken yet is tried again.
const AGAIN: Duration = Duration::from_millis(20);

/// What is to be done to whom, when.
struct Step {
    at: Duration,
    trouble: Trouble,
    begins: bool,
}

/// Lets troubles begin and end at their times; gives what was done when.
pub fn play(cluster: &mut Cluster, troubles: &[(Duration, Trouble)]) -> Vec<(u64, String)> {
    let begins = |(at, trouble): &(Duration, Trouble)| Step { at: *at, trouble: *trouble, begins: true };
    let mut steps: Vec<Step> = troubles.iter().map(begins).collect();
    let mut done = Vec::new();
    let started = Instant::now();
    while let Some(number) = (0..steps.len()).min_by_key(|number| steps[*number].at) {
        let Step { at, trouble, begins } = steps.swap_remove(number);
        thread::sleep(at.saturating_sub(started.elapsed()));
        // The one before it, of the same thing, may not have ended.
        let busy = begins && steps.iter().any(|step| !step.begins && collides(&step.trouble, &trouble));
        if busy || !step(cluster, &trouble, begins) {
            steps.push(Step { at: started.elapsed() + AGAIN, trouble, begins });
            continue;
        }
        let verb = if begins { "begins" } else { "is over" };
        done.push((now(), format!("{trouble:?} {verb}")));
        if begins {
            steps.push(Step { at: started.elapsed() + trouble.time(), trouble, begins: false });
        }
    }
    done
}

/// Whether two troubles need the same process or proxy.
fn collides(one: &Trouble, two: &Trouble) -> bool {
    resource(one) == resource(two)
}

fn resource(trouble: &Trouble) -> (usize, usize) {
    match *trouble {
        Trouble::StopServer(_) | Trouble::KillServer(_) => (0, 0),
        Trouble::StopMount(mount, _) | Trouble::KillMount(mount) => (1, mount),
        Trouble::Cut(mount) | Trouble::Partition(mount, _) | Trouble::Refuse(mount, _) | Trouble::Delay(mount, ..) => {
            (2, mount)
        }
        Trouble::DropCaches => (3, 0),
    }
}

/// Which server of data something happens to for so long, if it is one of those.
fn data(cluster: &Cluster, time: Duration) -> Option<usize> {
    (time.as_millis() as usize % (cluster.data().len() + 1)).checked_sub(1)
}

/// How many servers of data are killed.
pub fn deaths(cluster: &Cluster, troubles: &[(Duration, Trouble)]) -> usize {
    let is_one = |trouble: &Trouble| matches!(trouble, Trouble::KillServer(time) if data(cluster, *time).is_some());
    troubles.iter().filter(|(_, trouble)| is_one(trouble)).count()
}

/// False when it has to be tried again.
fn step(cluster: &mut Cluster, trouble: &Trouble, begins: bool) -> bool {
    let signal = if begins { Signal::STOP } else { Signal::CONT };
    let weather = |cluster: &Cluster, mount: usize, weather| {
        cluster.mounts[mount].proxy.set_weather(if begins { weather } else { FAIR });
    };
    match *trouble {
        Trouble::StopMount(mount, _) => cluster.mount_process(mount).expect("it runs").signal(signal),
        Trouble::StopServer(time) => match data(cluster, time) {
            Some(number) => cluster.data()[number].as_ref().expect("it runs").signal(signal),
            None => cluster.server().expect("it runs").signal(signal),
        },
        Trouble::KillServer(time) => match (data(cluster, time), begins) {
            (Some(number), true) => cluster.kill_data(number),
            (Some(number), false) => cluster.start_data(number),
            (None, true) => drop(cluster.end_server(Signal::KILL)),
            (None, false) => cluster.start_server(),
        },
        Trouble::KillMount(mount) if begins => cluster.kill_mount(mount),
        Trouble::KillMount(mount) => return cluster.is_mounted_again(mount),
        Trouble::Cut(mount) if begins => drop(cluster.mounts[mount].proxy.cut_where(Cut::Reset, |_| true)),
        Trouble::Cut(_) => {}
        Trouble::Partition(mount, _) => weather(cluster, mount, Weather { stalled: true, ..FAIR }),
        Trouble::Refuse(mount, _) => {
            weather(cluster, mount, Weather { refuses: true, ..FAIR });
            if begins {
                cluster.mounts[mount].proxy.cut_where(Cut::Reset, |_| true);
            }
        }
        Trouble::Delay(mount, delay, _) => weather(cluster, mount, Weather { delay, ..FAIR }),
        // As long as the machine lets us.
        Trouble::DropCaches if begins => drop(fs::write("/proc/sys/vm/drop_caches", "3")),
        Trouble::DropCaches => {}
    }
    true
}
