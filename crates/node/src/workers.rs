//! The threads of servers, mounts and tools.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_worker::{Group, Settings};

use crate::processors::Processors;

/// The longest that a thread looks again after small requests before it sleeps: a round trip on a
/// fast network, several times. The kernel's `haltpoll` has the same bound.
const SPIN_MAX: Duration = Duration::from_micros(200);

/// Threads of a worker of a local mount when others are held up by the disk; a worker of a remote
/// one never is.
const LOCAL_THREADS_MAX: usize = 16;

/// The one group of a server: a thread for each core that it may use, and up to `threads_max`
/// while they wait for disks. `None`: it may use all.
pub fn of_server(threads_max: usize, processors: Option<&Processors>) -> io::Result<Arc<Group>> {
    held_to(processors, || {
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
        let (threads_min, threads_max) = (cores, threads_max.max(cores));
        Group::new(Settings { name: "aqueduct-serve".into(), threads_min, threads_max, spin_max: SPIN_MAX })
    })
}

/// The groups of a router: one of one thread for each core, none of which ever waits for anything
/// else than its connections.
pub fn of_router() -> io::Result<Vec<Arc<Group>>> {
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    groups("aqueduct-route", cores, (1, 1))
}

/// The groups of a mount, one for each worker. Those of a local directory may wait for its disk.
pub fn of_mount(count: usize, is_local: bool, processors: Option<&Processors>) -> io::Result<Vec<Arc<Group>>> {
    let threads_max = if is_local { LOCAL_THREADS_MAX } else { 1 };
    held_to(processors, || groups("aqueduct-mount", count, (1, threads_max)))
}

/// Makes something whose threads run on these processors alone: a thread has those of the thread
/// that starts it.
fn held_to<T: Send>(processors: Option<&Processors>, make: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let Some(processors) = processors else { return make() };
    std::thread::scope(|scope| {
        let held = || processors.hold_thread().and_then(|()| make());
        let thread = std::thread::Builder::new().name("aqueduct-start".into()).spawn_scoped(scope, held)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Groups of one thread each, as the workers of a mount are, for a tool with attachments.
pub fn of_tool(count: usize) -> io::Result<Vec<Arc<Group>>> {
    groups("aqueduct-tool", count, (1, 1))
}

/// A group without a thread: whoever waits turns it (`aqueduct_worker::wait`), and nothing runs
/// when nobody waits.
pub fn of_caller() -> io::Result<Arc<Group>> {
    let settings = Settings { name: "aqueduct-tool".into(), threads_min: 0, threads_max: 0, spin_max: SPIN_MAX };
    Group::new(settings)
}

fn groups(name: &str, count: usize, (threads_min, threads_max): (usize, usize)) -> io::Result<Vec<Arc<Group>>> {
    let mut groups = Vec::new();
    for index in 0..count {
        let settings = Settings { name: format!("{name}{index}"), threads_min, threads_max, spin_max: SPIN_MAX };
        match Group::new(settings) {
            Ok(group) => groups.push(group),
            Err(error) => {
                end(&groups);
                return Err(error);
            }
        }
    }
    Ok(groups)
}

/// Ends the threads. Never call it on one of them.
pub fn end(groups: &[Arc<Group>]) {
    groups.iter().for_each(|group| group.stop());
    groups.iter().for_each(|group| group.join());
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::processors::CpuChoice;

    #[test]
    fn threads_stay_on_their_processors() {
        let allowed = Processors::allowed().unwrap();
        let first = allowed.to_string().split(['-', ',']).next().unwrap().to_owned();
        let Ok(CpuChoice::These(one)) = first.parse() else { panic!("{allowed}") };
        let mut groups = of_mount(2, true, Some(&one)).unwrap();
        groups.push(of_server(4, Some(&one)).unwrap());
        for group in &groups {
            let (sender, seen) = mpsc::channel();
            group.spawn(async move { sender.send(Processors::allowed().unwrap()).unwrap() });
            assert_eq!(seen.recv(), Ok(one.clone()));
        }
        end(&groups);
        assert_eq!(Processors::allowed().unwrap(), allowed, "who made them is held to nothing");
    }
}
