//! Servers of data that come, go and move while a volume is mounted and worked on: nobody mounts
//! it anew, nothing is lost or done twice, and only what has to move moves.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::beside::{STRIPE, write_beside};
use crate::common::{Enough, Mount, SOON, free_addresses, wait_until, within};
use crate::lanes::{keep_names, names_of, work};
use crate::volumes::Volume;

/// A server takes part within this time, on a loaded machine.
const USED_MAX: Duration = Duration::from_secs(60);

/// With which the server of the names reads the file again.
fn reload(volume: &Volume) {
    volume.servers[0].as_ref().unwrap().signal(Signal::HUP);
}

/// Adds a server to the volume, and starts it. Its number.
fn add(volume: &mut Volume, epoch: u32) -> usize {
    let number = volume.servers.len();
    volume.addresses.extend(free_addresses(1));
    volume.servers.push(None);
    let all: Vec<usize> = (0..=number).filter(|at| *at == number || volume.servers[*at].is_some()).collect();
    volume.write_file(epoch, &all);
    volume.start_server(number);
    number
}

/// Takes a server out of the file, has the server of the names read it, and ends that one when
/// nobody is there any more.
fn drain(volume: &mut Volume, number: usize, epoch: u32) {
    let rest = (0..volume.servers.len()).filter(|at| *at != number && volume.servers[*at].is_some());
    volume.write_file(epoch, &rest.collect::<Vec<_>>());
    reload(volume);
    wait_until("all mounts have left the server", USED_MAX, || {
        start_ended(volume, number);
        volume.sessions(number) == 0
    });
    let mut process = volume.servers[number].take().unwrap();
    process.signal(Signal::TERM);
    assert_eq!(process.ends_within(SOON).code(), Some(0));
}

/// Moves a server of data to another address.
fn moves(volume: &mut Volume, number: usize, epoch: u32) {
    volume.kill(number);
    volume.addresses[number] = free_addresses(1).remove(0);
    let all = (0..volume.servers.len()).filter(|at| *at == number || volume.servers[*at].is_some());
    volume.write_file(epoch, &all.collect::<Vec<_>>());
    volume.start_server(number);
    reload(volume);
}

/// Starts a server again that has ended. One that stands still for longer than its lease, as it may
/// on a loaded machine, is ended by its watcher.
fn start_ended(volume: &mut Volume, number: usize) {
    if volume.servers[number].as_mut().is_some_and(|server| server.has_ended().is_some()) {
        println!("server {number} has ended, and is started again");
        volume.start_server(number);
    }
}

fn is_used(volume: &mut Volume, number: usize, mounts: &[Mount]) {
    wait_until("all mounts know the server", USED_MAX, || {
        start_ended(volume, number);
        volume.sessions(number) == mounts.len()
    });
    let mut files = 0;
    wait_until("something goes there", USED_MAX, || {
        start_ended(volume, number);
        // Where a file lies is chance: of the few that are worked on there may be none.
        files += 1;
        fs::write(mounts[0].join(format!("new-{number}-{files}")), vec![1; 300 << 10]).unwrap();
        volume.written_to(number) > 0
    });
}

/// Works on files through two mounts while something happens to the volume.
fn at_work(volume: &mut Volume, seed: u64, happens: impl FnOnce(&mut Volume, &[Mount])) {
    let mounts = [volume.mount(0), volume.mount(1)];
    let (done, of_workers): (_, Vec<&Mount>) = (AtomicBool::new(false), mounts.iter().collect());
    let told: Vec<(u32, Duration)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|number| {
                let (mounts, done) = (&of_workers, &done);
                scope.spawn(move || work(mounts, &format!("file-{number}"), seed * 100 + number, done))
            })
            .collect();
        let enough = Enough(&done);
        happens(volume, &mounts);
        drop(enough);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    println!("versions, and the longest step: {told:?}");
    assert!(told.iter().all(|(versions, _)| *versions > 20), "{told:?}");
}

#[test]
fn servers_come_go_and_move_under_writers() {
    within(Duration::from_secs(400), || {
        for (seed, lines) in [(21, "mode = 'cluster'"), (22, "mode = 'stripe'\nstripe_size = '128KiB'")] {
            let mut volume = Volume::with(&format!("{lines}\nwrites = 'data'"), 2);
            at_work(&mut volume, seed, |volume, mounts| {
                sleep(Duration::from_secs(2));
                let new = add(volume, 2);
                reload(volume);
                is_used(volume, new, mounts);
                drain(volume, 1, 3);
                sleep(Duration::from_secs(2));
                moves(volume, new, 4);
                is_used(volume, new, mounts);
                drain(volume, new, 5);
                sleep(Duration::from_secs(1));
                let last = add(volume, 6);
                reload(volume);
                is_used(volume, last, mounts);
            });
            let said = volume.servers[0].as_ref().unwrap().output();
            assert!(!said.contains("cannot take"), "{said}");
        }
    });
}

/// A block has one server for all who write it, also while some of them know of a new one and
/// others do not.
#[test]
fn servers_come_and_go_under_several_writers_of_one_file() {
    within(Duration::from_secs(400), || {
        let mut volume = Volume::with(STRIPE, 2);
        let mounts = [0, 1, 0].map(|told| volume.mount(told));
        write_beside(&mut volume, &mounts, 0, |volume| {
            sleep(Duration::from_secs(2));
            let new = add(volume, 2);
            reload(volume);
            is_used(volume, new, &mounts);
            drain(volume, 1, 3);
            let last = add(volume, 4);
            reload(volume);
            is_used(volume, last, &mounts);
        });
    });
}

/// Whoever was away, or whose server of the names has died meanwhile, learns of the map when it
/// comes back.
#[test]
fn another_start_of_the_server_of_the_names_tells_of_its_map() {
    within(Duration::from_secs(400), || {
        let mut volume = Volume::with("mode = 'stripe'\nstripe_size = '128KiB'\nwrites = 'data'", 2);
        let keeper = keep_names(&mut volume);
        at_work(&mut volume, 23, |volume, mounts| {
            sleep(Duration::from_secs(1));
            let new = volume.servers.len();
            volume.addresses.extend(free_addresses(1));
            volume.servers.push(None);
            volume.write_file(2, &(0..=new).collect::<Vec<_>>());
            volume.start_server(new);
            crate::common::signal(names_of(volume), Signal::KILL);
            is_used(volume, new, mounts);
        });
        keeper.signal(Signal::KILL);
        crate::common::signal(names_of(&volume), Signal::KILL);
    });
}

/// A mount that cannot use what the volume has become says so once, and goes on by the server of
/// the names.
#[test]
fn a_map_that_a_mount_cannot_use_is_told_once_and_the_mount_goes_on() {
    within(Duration::from_secs(120), || {
        let mut volume = Volume::with("mode = 'cluster'\nwrites = 'data'", 2);
        let mount = volume.mount(0);
        // The server of the names listens at one more address.
        let (first, more) = (volume.addresses[0].clone(), free_addresses(1).remove(0));
        volume.write_file(2, &[0, 1]);
        let text = fs::read_to_string(&volume.file).unwrap();
        fs::write(&volume.file, text.replacen(&format!("'{first}'"), &format!("'{first}', '{more}'"), 1)).unwrap();
        volume.kill(0);
        volume.start_server(0);
        let said = || mount.process.output().matches("mount it anew").count();
        wait_until("the mount says so", USED_MAX, || said() > 0);
        for number in 0..20 {
            let data = vec![number; 300 << 10];
            fs::write(mount.join(format!("file-{number}")), &data).unwrap();
            assert!(fs::read(volume.export.path().join(format!("file-{number}"))).unwrap() == data);
        }
        assert_eq!(said(), 1, "{}", mount.process.output());
    });
}

/// Reads are spread over a server that has come, of new files and of old ones; only its share has
/// moved there.
#[test]
fn a_server_that_comes_takes_its_share_of_what_is_read_and_no_more() {
    within(Duration::from_secs(200), || {
        const FILES: usize = 60;
        const LENGTH: usize = 100_000;
        for options in ["", "cache=none"] {
            let lines = if options.is_empty() { "mode = 'cluster'" } else { "mode = 'loadbalance'" };
            let mut volume = Volume::with(lines, 3);
            for number in 0..FILES {
                fs::write(volume.export.path().join(format!("file-{number}")), vec![number as u8; LENGTH]).unwrap();
            }
            let mount = volume.mount_with(0, options);
            let all = |volume: &Volume| (0..volume.servers.len()).map(|at| volume.read_from(at)).collect::<Vec<_>>();
            let read = || {
                for number in 0..FILES {
                    let (file, mut data) = (File::open(mount.join(format!("file-{number}"))).unwrap(), vec![0; LENGTH]);
                    file.read_exact_at(&mut data, 0).unwrap();
                    assert!(data.iter().all(|byte| *byte == number as u8));
                    drop(file);
                }
            };
            read();
            let before = all(&volume);
            let new = add(&mut volume, 2);
            reload(&volume);
            wait_until("the mount knows it", USED_MAX, || volume.sessions(new) == 1);
            forget(&mount, &volume);
            let at_start = all(&volume);
            read();
            let shares: Vec<u64> = all(&volume).iter().zip(&at_start).map(|(now, before)| now - before).collect();
            println!("{before:?}, then {shares:?}");
            assert!(shares[new] > 0, "nothing is read there: {shares:?}");
            let moved = |at: usize| shares[at] <= before[at] + LENGTH as u64;
            assert!((0..new).all(moved), "{before:?}, then {shares:?}");
        }
    });
}

/// Has a mount keep nothing of what it has read.
fn forget(mount: &Mount, volume: &Volume) {
    if volume.sessions(0) == 0 {
        return;
    }
    for entry in fs::read_dir(volume.export.path()).unwrap().flatten() {
        let Ok(file) = fs::OpenOptions::new().write(true).open(mount.join(entry.file_name())) else { continue };
        let length = file.metadata().unwrap().len();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(file.metadata().unwrap().len(), length);
    }
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

#[test]
fn a_file_that_nobody_may_be_told_is_refused_and_the_volume_goes_on() {
    within(Duration::from_secs(120), || {
        let mut volume = Volume::with("mode = 'cluster'", 2);
        let mount = volume.mount(0);
        let says = |volume: &Volume, what: &str| {
            wait_until(what, SOON, || volume.servers[0].as_ref().unwrap().output().contains(what));
        };
        let began = Instant::now();
        add(&mut volume, 1);
        reload(&volume);
        says(&volume, "clients were told other servers with the same epoch, 1");
        fs::write(&volume.file, fs::read_to_string(&volume.file).unwrap().replace("'cluster'", "'stripe'")).unwrap();
        reload(&volume);
        says(&volume, "start the server anew");
        fs::write(&volume.file, "name = ").unwrap();
        reload(&volume);
        says(&volume, "cannot use the volume's file");
        fs::write(mount.join("file"), "text").unwrap();
        assert_eq!(fs::read(mount.join("file")).unwrap(), b"text");
        // Nor does it start by one.
        volume.write_file(1, &[0]);
        volume.kill(0);
        let refused = crate::common::run(&mut volume.command_of(0)).failed();
        assert!(refused.contains("raise 'epoch'"), "{refused}");
        volume.write_file(2, &[0, 1]);
        volume.start_server(0);
        assert_eq!(fs::read(mount.join("file")).unwrap(), b"text");
        println!("{:?}", began.elapsed());
    });
}
