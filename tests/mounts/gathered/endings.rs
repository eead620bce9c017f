//! Servers and clients that are killed or stopped amid small writes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Content, create, records};
use crate::agent::Agent;
use crate::common::{Mount, One, Pair, Server, aqueduct, directory, test, wait_until, within};
use crate::sys;

/// A client that does not answer holds up others for its lease of 1 s and 3 s more; on a busy machine a little longer.
const HELD_UP_MAX: Duration = Duration::from_secs(8);

#[test]
fn a_killed_server_loses_nothing_of_small_writes() {
    within(Duration::from_secs(90), || {
        let (Pair { left, right, mut server, export }, home) = (Pair::new(), directory());
        let (mut agent, progress) = (Agent::start(), home.path().join("progress"));
        agent.tell(&format!("records {} {} 4000", left.join("file").display(), progress.display()));
        wait_until("it writes", Duration::from_secs(5), || records::written(&progress) > 0);
        for pause in [300, 700, 100, 500] {
            thread::sleep(Duration::from_millis(pause));
            server = server.restart(&[export.path()]);
            let before = records::written(&progress);
            let seen = records::check(&File::open(right.join("file")).unwrap(), before, false);
            assert!(seen.is_ok(), "the other mount: {seen:?}");
        }
        let count = agent.answer_within(Duration::from_secs(30)).expect("it ends").expect("without an error");
        let count = count.parse().unwrap();
        assert!(count > 100, "{count}");
        assert_eq!(records::check(&File::open(export.path().join("file")).unwrap(), count, true), Ok(count));
        drop((agent, left, right, server));
    });
}

#[test]
fn what_was_synced_or_closed_outlives_a_killed_client() {
    test(|| {
        for pause in [200, 450] {
            let (mut one, home) = (One::new(), directory());
            let (mut agent, progress) = (Agent::start(), home.path().join("progress"));
            agent.tell(&format!("records {} {} 60000", one.path("file").display(), progress.display()));
            wait_until("it syncs", Duration::from_secs(5), || records::synced(&progress) > 0);
            thread::sleep(Duration::from_millis(pause));
            let mut content = Content::new(pause);
            let file = create(&one.path("closed"));
            content.write(&file, 50);
            sys::close(file).unwrap();
            one.mount.process.signal(Signal::KILL);
            let synced = records::synced(&progress);
            one.mount.process.ends_within(Duration::from_secs(5));
            let found = File::open(one.export.path().join("file")).unwrap();
            records::check_synced(&found, synced).unwrap();
            assert!(fs::read(one.export.path().join("closed")).unwrap() == content.bytes);
            drop((agent, one));
        }
    });
}

/// What another client does to a file whose writer does not answer.
const USES: [fn(&Path) -> io::Result<()>; 6] = [
    |path| fs::metadata(path).map(drop),
    |path| fs::read(path).map(drop),
    |path| OpenOptions::new().append(true).open(path)?.write_all(b"appended"),
    |path| File::create(path).map(drop),
    |path| OpenOptions::new().write(true).open(path)?.write_all_at(b"others", 3),
    |path| fs::rename(path, path.with_extension("other")).and_then(|()| fs::rename(path.with_extension("other"), path)),
];

/// What it had written and not synced is there before others look, or it is told that it is lost; and it does not come later.
#[test]
fn a_stopped_client_loses_nothing_without_being_told() {
    within(Duration::from_secs(60), || {
        let (export, home) = (directory(), directory());
        let config = home.path().join("aqueduct.toml");
        fs::write(&config, "[limits]\nlease_seconds = 1\n").unwrap();
        let arguments = ["--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[export.path()]);
        let [left, right] = [(); 2].map(|()| server.mount(export.path()));
        // This process starts servers for other tests, and must not hold what is stopped.
        let mut agents = [(); 3].map(|()| Agent::start());
        let files = 0..agents.len() * USES.len();
        let written: Vec<_> = files.clone().map(|file| begin(&left, &mut agents, file)).collect();
        left.process.stop();
        // All at once.
        let began = Instant::now();
        let use_it = &|number: usize| {
            let path = right.join(format!("{number}"));
            USES[number % USES.len()](&path).unwrap();
            let seen = fs::read(path).unwrap();
            assert!(began.elapsed() < HELD_UP_MAX, "file {number}: {:?}", began.elapsed());
            seen
        };
        let seen: Vec<_> = thread::scope(|scope| {
            let uses = files.clone().map(|number| scope.spawn(move || use_it(number))).collect::<Vec<_>>();
            uses.into_iter().map(|used| used.join().unwrap()).collect()
        });
        left.process.signal(Signal::CONT);
        for (number, (written, seen)) in written.into_iter().zip(seen).enumerate() {
            let (way, slot) = (number / USES.len(), number % USES.len());
            let late = [format!("sync {slot}"), format!("writeat {slot} 9000 late"), format!("size {slot}")];
            let results = [late[way].clone(), format!("end {slot}")].map(|order| agents[way].ask(&order));
            let told = results.iter().any(Result::is_err);
            assert!(told || seen == as_after_all(slot, written), "file {number}: what was lost nobody is told");
            let mut found = fs::read(export.path().join(format!("{number}"))).unwrap();
            found.truncate(if way == 1 { seen.len() } else { usize::MAX });
            assert!(found == seen, "file {number}: it is no longer as others saw it: {results:?}");
        }
        // It is as before.
        let (file, mut content) = (create(&left.join("after")), Content::new(100));
        content.write(&file, 20);
        assert!(fs::read(right.join("after")).unwrap() == content.bytes);
        sys::close(file).unwrap();
        drop((agents, left, right, server));
    });
}

/// Small writes of one of the agents to a file of its own.
fn begin(mount: &Mount, agents: &mut [Agent], number: usize) -> Vec<u8> {
    let (agent, slot) = (&mut agents[number / USES.len()], number % USES.len());
    agent.ask(&format!("open {slot} {} rwc", mount.join(format!("{number}")).display())).unwrap();
    let mut content = Content::new(number as u64);
    for piece in 0..20 {
        let (at, text) = (piece * 11, format!("{piece:013}"));
        agent.ask(&format!("writeat {slot} {at} {text}")).unwrap();
        content.put(at, text.as_bytes());
    }
    content.bytes
}

/// What is in the file when nothing was lost before that use.
fn as_after_all(which: usize, mut bytes: Vec<u8>) -> Vec<u8> {
    match which {
        2 => bytes.extend_from_slice(b"appended"),
        3 => bytes.clear(),
        4 => bytes[3..9].copy_from_slice(b"others"),
        _ => {}
    }
    bytes
}
