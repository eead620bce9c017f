//! `aqueduct trace`: each hop is made slow in turn, on real servers and mounts, and named.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::collector::{collector, spans};
use crate::common::{Mount, One, Pair, Server, aqueduct, directory, run_within, test, wait_until, within};
use crate::proxy::{FAIR, Proxy, Weather};

/// What it may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(150);

/// How long each hop is held up: longer than anything else takes, on a busy machine too.
const HELD_UP: Duration = Duration::from_millis(700);

fn trace(arguments: &[&str]) -> Value {
    let output = run_within(LIMIT, aqueduct().args(["trace", "--json"]).args(arguments)).succeeded();
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

fn point(mount: &Mount) -> &str {
    mount.path().to_str().unwrap()
}

/// The slow operations of a mount, the longest first.
fn slow(mount: &Mount) -> Vec<Value> {
    let mut operations = trace(&[point(mount)])[0]["operations"].as_array().unwrap().clone();
    operations.sort_by_key(|operation| std::cmp::Reverse(operation["took_us"].as_u64()));
    operations
}

/// The microseconds of a hop of an operation.
fn hop(operation: &Value, name: &str) -> u64 {
    let hops = operation["hops"].as_array().unwrap().iter();
    hops.filter(|hop| hop["hop"] == name).map(|hop| hop["us"].as_u64().unwrap()).sum()
}

/// A look at a name has the kernel ask for the root first.
const LOOKS: [&str; 2] = ["LOOKUP", "GETATTR"];

/// The longest operation is one of these, its hops add up, and this one has most of what held it
/// up.
fn assert_slowest(mount: &Mount, of: &[&str], in_hop: &str) -> Value {
    let operations = slow(mount);
    let first = operations.first().unwrap_or_else(|| panic!("nothing was slow"));
    assert!(of.iter().any(|operation| first["operation"] == *operation), "{first:#}");
    let sum: u64 = first["hops"].as_array().unwrap().iter().map(|hop| hop["us"].as_u64().unwrap()).sum();
    assert_eq!(first["took_us"], sum, "{first:#}");
    assert!(hop(first, in_hop) >= HELD_UP.as_micros() as u64 / 2, "{in_hop}: {first:#}");
    let longest = first["hops"].as_array().unwrap().iter().max_by_key(|hop| hop["us"].as_u64()).unwrap();
    assert_eq!(longest["hop"], in_hop, "{first:#}");
    first.clone()
}

/// Holds a process up for a while.
fn hold_up(mount: &Mount) -> JoinHandle<()> {
    let pid = mount.process.pid();
    mount.process.signal(Signal::STOP);
    thread::spawn(move || {
        thread::sleep(HELD_UP);
        crate::common::signal(pid, Signal::CONT);
    })
}

/// A server that takes root of its proxies for root.
fn open_server(export: &Path) -> Server {
    Server::start_with(&mut aqueduct(), &["--listen", "127.0.0.1:0", "--squash", "none"], &[export])
}

fn proxied(server: &Server, export: &Path, options: &str) -> (Proxy, Mount) {
    let proxy = Proxy::start(&server.address);
    let source = format!("{}:{}", proxy.address, export.display());
    let mount = Mount::start(&mut aqueduct(), &[&source], options);
    (proxy, mount)
}

#[test]
fn nothing_slow_is_said_and_what_is_slow_can_be_set() {
    test(|| {
        let one = One::with("trace=3600000");
        fs::write(one.path("f"), "x").unwrap();
        let ours = point(&one.mount);
        let said = run_within(LIMIT, aqueduct().args(["trace", ours])).succeeded();
        assert!(said.contains("no operation took 3600000 ms or more"), "{said}");
        run_within(LIMIT, aqueduct().args(["trace", "--threshold", "0", ours])).succeeded();
        fs::read_dir(one.mount.path()).unwrap().for_each(drop);
        fs::metadata(one.path("nothing")).unwrap_err();
        let operations = slow(&one.mount);
        let looked = operations.iter().find(|operation| operation["path"] == "/nothing");
        let looked = looked.unwrap_or_else(|| panic!("{operations:#?}"));
        assert!(looked["operation"] == "LOOKUP" && looked["pid"].is_number(), "{looked:#}");
        let shown = run_within(LIMIT, aqueduct().args(["trace", "--by", "op", ours])).succeeded();
        assert!(shown.contains("LOOKUP") && shown.contains("FILE SYSTEM"), "{shown}");
        run_within(LIMIT, aqueduct().args(["trace", "--threshold", "off", ours])).succeeded();
        let said = run_within(LIMIT, aqueduct().args(["trace", ours])).succeeded();
        assert!(said.contains("nothing is looked at"), "{said}");
        let failed = run_within(LIMIT, aqueduct().args(["trace", "--threshold", "soon", ours])).failed();
        assert!(failed.contains("cannot set what is slow"), "{failed}");
        // Nobody else's business.
        let mut other = aqueduct();
        other.args(["trace", ours]).uid(12_345);
        let output = run_within(LIMIT, &mut other).failed();
        assert!(output.contains("another user's"), "{output}");
    });
}

#[test]
fn a_slow_wire_is_named() {
    within(LIMIT, || {
        let folder = directory();
        let server = open_server(folder.path());
        let (proxy, mount) = proxied(&server, folder.path(), "");
        proxy.set_weather(Weather { delay: HELD_UP, ..FAIR });
        fs::metadata(mount.join("nothing")).unwrap_err();
        proxy.set_weather(FAIR);
        let found = assert_slowest(&mount, &LOOKS, "wire");
        assert!(found["hops"].to_string().contains(&proxy.address.to_string()), "which server: {found:#}");
    });
}

#[test]
fn a_slow_file_system_is_named() {
    within(LIMIT, || {
        let folder = directory();
        fs::write(folder.path().join("data"), vec![7; 1 << 20]).unwrap();
        let below = Mount::local(folder.path());
        let server = Server::start(&[below.path()]);
        let mount = server.mount(below.path());
        let held_up = hold_up(&below);
        fs::metadata(mount.join("nothing")).unwrap_err();
        held_up.join().unwrap();
        assert_slowest(&mount, &LOOKS, "file_system");
        // The mount below has it all in its own file system.
        run_within(LIMIT, aqueduct().args(["trace", "--threshold", "0", point(&below)])).succeeded();
        fs::metadata(below.join("nothing")).unwrap_err();
        let of_below = slow(&below);
        assert!(of_below.iter().all(|operation| hop(operation, "wire") == 0), "{of_below:#?}");
        assert!(of_below.iter().any(|operation| hop(operation, "file_system") > 0), "{of_below:#?}");
    });
}

#[test]
fn a_slow_read_is_the_file_systems() {
    within(LIMIT, || {
        let folder = directory();
        fs::write(folder.path().join("data"), vec![7; 64 << 10]).unwrap();
        let below = Mount::local(folder.path());
        let server = Server::start(&[below.path()]);
        let mount = server.mount_with(below.path(), "cache=none,checksum=on");
        let file = fs::File::open(mount.join("data")).unwrap();
        let held_up = hold_up(&below);
        let mut data = vec![0; 64 << 10];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut data, 0).unwrap();
        held_up.join().unwrap();
        let found = assert_slowest(&mount, &["READ"], "file_system");
        assert_eq!((&found["path"], found["bytes"].as_u64()), (&"/data".into(), Some(64 << 10)));
    });
}

#[test]
fn a_lease_that_another_mount_does_not_give_back_is_named() {
    within(LIMIT, || {
        let pair = Pair::new();
        fs::write(pair.right.join("f"), "x").unwrap();
        fs::metadata(pair.left.join("f")).unwrap();
        let held_up = hold_up(&pair.left);
        fs::set_permissions(pair.right.join("f"), Permissions::from_mode(0o600)).unwrap();
        held_up.join().unwrap();
        let found = assert_slowest(&pair.right, &["SETATTR"], "lease_wait");
        assert_eq!(found["path"], "/f");
    });
}

#[test]
fn a_queue_in_the_client_is_named() {
    within(LIMIT, || {
        let folder = directory();
        (0..6).for_each(|number| fs::write(folder.path().join(number.to_string()), "x").unwrap());
        let config = folder.path().join("config");
        fs::write(&config, "[limits]\nslots = 1\n").unwrap();
        let arguments = ["--listen", "127.0.0.1:0", "--squash", "none", "--config", config.to_str().unwrap()];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[folder.path()]);
        let (proxy, mount) = proxied(&server, folder.path(), "");
        let change = |number: u32| {
            let path = mount.join(number.to_string());
            fs::metadata(&path).unwrap();
            thread::spawn(move || fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap())
        };
        proxy.set_weather(Weather { delay: HELD_UP / 4, ..FAIR });
        let changes: Vec<_> = (0..6).map(change).collect();
        changes.into_iter().for_each(|change| change.join().unwrap());
        proxy.set_weather(FAIR);
        let found = assert_slowest(&mount, &["SETATTR"], "client_queue");
        assert!(found["hops"].to_string().contains("a slot of the session"), "{found:#}");
    });
}

#[test]
fn what_was_sent_again_after_a_cut_is_told() {
    within(LIMIT, || {
        let folder = directory();
        let server = open_server(folder.path());
        let (proxy, mount) = proxied(&server, folder.path(), "");
        proxy.set_weather(Weather { stalled: true, ..FAIR });
        let cutter = thread::spawn(move || {
            thread::sleep(HELD_UP);
            proxy.set_weather(FAIR);
            proxy.cut();
        });
        fs::create_dir(mount.join("d")).unwrap();
        cutter.join().unwrap();
        let operations = slow(&mount);
        let repeated = operations.iter().find(|operation| operation["repeats"].as_u64() > Some(0));
        let repeated = repeated.unwrap_or_else(|| panic!("{operations:#?}"));
        assert!(hop(repeated, "reconnect") >= HELD_UP.as_micros() as u64 / 2, "{repeated:#}");
    });
}

#[test]
fn writes_that_were_held_back_are_waited_for_by_hop_too() {
    within(LIMIT, || {
        let folder = directory();
        let server = open_server(folder.path());
        let (proxy, mount) = proxied(&server, folder.path(), "");
        let file = fs::File::create(mount.join("f")).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, b"held back", 0).unwrap();
        proxy.set_weather(Weather { delay: HELD_UP, ..FAIR });
        file.sync_all().unwrap();
        proxy.set_weather(FAIR);
        wait_until("the sync is told", LIMIT, || !slow(&mount).is_empty());
        let operations = slow(&mount);
        let sync = operations.iter().find(|operation| operation["operation"] == "FSYNC").unwrap();
        assert!(hop(sync, "wire") >= HELD_UP.as_micros() as u64, "{sync:#}");
        assert!(hop(sync, "client_queue") < hop(sync, "wire") / 2, "{sync:#}");
    });
}

#[test]
fn a_server_tells_its_slow_requests_to_its_administrator_and_writes_them_down() {
    within(LIMIT, || {
        let folder = directory();
        let below = Mount::local(folder.path());
        let log = directory();
        let file = log.path().join("requests");
        let arguments = ["--listen", "127.0.0.1:0", "--squash", "none", "--request-log", file.to_str().unwrap()];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[below.path()]);
        let mount = server.mount_with(below.path(), "cache=none");
        let held_up = hold_up(&below);
        fs::metadata(mount.join("nothing")).unwrap_err();
        held_up.join().unwrap();
        let least = HELD_UP.as_micros() as u64 / 2;
        let state = server.state();
        let found = trace(&["--state", state.to_str().unwrap(), &server.address]);
        let operations = found[0]["operations"].as_array().unwrap();
        let is_it = |operation: &Value| {
            ["Lookup", "GetAttr"].iter().any(|op| operation["operation"] == *op)
                && hop(operation, "file_system") >= least
        };
        let told = operations.iter().find(|operation| is_it(operation)).unwrap_or_else(|| panic!("{found:#}"));
        assert_eq!(told["export"], below.path().to_str().unwrap(), "{told:#}");
        assert!(told["client"].is_string(), "{told:#}");
        let written = || fs::read_to_string(&file).unwrap();
        let is_written = || written().lines().any(|line| serde_json::from_str(line).is_ok_and(|line| is_it(&line)));
        wait_until("it is written down", LIMIT, is_written);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        // Who has not the secret of the server's state is told nothing.
        let other = directory();
        let refused =
            run_within(LIMIT, aqueduct().args(["trace", "--state", other.path().to_str().unwrap(), &server.address]));
        assert!(refused.failed().contains("slow operations"), "only to its administrator");
    });
}

#[test]
fn slow_operations_are_sent_to_a_collector_and_the_servers_spans_are_below_the_mounts() {
    within(LIMIT, || {
        let folder = directory();
        let (endpoint, got) = collector();
        let arguments = ["--listen", "127.0.0.1:0", "--squash", "none", "--slow", "0", "--otlp", &endpoint];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[folder.path()]);
        let mount = server.mount_with(folder.path(), &format!("trace=0,otlp={endpoint}"));
        fs::metadata(mount.join("nothing")).unwrap_err();
        let of_mount = || {
            let spans = spans(&got, "aqueduct-mount");
            spans
                .into_iter()
                .find(|span| span["name"] == "LOOKUP" && span["attributes"].to_string().contains("/nothing"))
        };
        wait_until("the mount has sent it", LIMIT, || of_mount().is_some());
        let whole = of_mount().unwrap();
        let below = |service: &str| {
            let spans = spans(&got, service);
            spans
                .into_iter()
                .filter(|span| span["traceId"] == whole["traceId"] && span["parentSpanId"] == whole["spanId"])
                .collect::<Vec<_>>()
        };
        assert!(!below("aqueduct-mount").is_empty(), "its hops");
        wait_until("the server has sent its part", LIMIT, || !below("aqueduct-server").is_empty());
        assert_eq!(below("aqueduct-server")[0]["name"], "Lookup");
    });
}
