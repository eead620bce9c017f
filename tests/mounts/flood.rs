//! Peers that want more than there is.

use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::common::{SOON, Server, directory, test, wait_until};

/// Processor time that a process has used, in hundredths of a second.
fn processor_time(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_server_without_descriptors_rests_and_goes_on() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let pid = server.process.pid();
        // It has more than that, and gets no other.
        let limit = |current| Rlimit { current: Some(current), maximum: Some(4096) };
        let set = |limit| prlimit(Pid::from_raw(pid as i32), Resource::Nofile, limit).unwrap();
        set(limit(3));
        let many: Vec<TcpStream> = (0..10).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
        wait_until("it has told", SOON, || server.process.output().contains("connections cannot be accepted"));
        let began = processor_time(pid);
        std::thread::sleep(Duration::from_secs(2));
        let used = processor_time(pid) - began;
        assert!(used < 50, "waiting for descriptors takes {used} hundredths of a second of 200");
        assert_eq!(server.process.output().matches("connections cannot be accepted").count(), 1);
        set(limit(1024));
        drop(many);
        wait_until("it serves again", SOON, || {
            crate::common::run(crate::common::aqueduct().args(["status", &server.address])).status.success()
        });
        drop(server);
    });
}
