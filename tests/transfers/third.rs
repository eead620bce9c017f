//! Copies between two servers that a third host asks for: what goes where, as whom, and after what.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Process, SOON, Server, TEST_MAX, directory, directory_for_devices, run_within, test, wait_until};
use crate::lab::Lab;
use crate::resume::parts;
use crate::tree::{assert_same, body, noise, plant, text, transfer};

/// Three hosts on one switch: two with a directory each, and one that has nothing.
struct Hosts {
    lab: Lab,
    key: TempDir,
}

impl Hosts {
    fn new() -> Option<Hosts> {
        let lab = Lab::new(&[])?;
        for host in ["asks", "from", "to"] {
            lab.does("host", &[host]);
        }
        let key = directory();
        let file = key.path().join("cluster.key");
        run_within(SOON, crate::common::aqueduct().args(["keygen", text(&file)])).succeeded();
        Some(Hosts { lab, key })
    }

    fn key(&self) -> String {
        self.key.path().join("cluster.key").display().to_string()
    }

    fn address(&self, host: &str) -> String {
        self.lab.known()["hosts"][host]["address"].as_str().unwrap().to_owned()
    }

    /// A server there. It has its state in `home`, so that another can go on with it.
    fn serve(&self, host: &str, home: TempDir, more: &[&str], export: &Path) -> Server {
        let (listen, key) = (format!("{}:7170", self.address(host)), self.key());
        let arguments = [&["--listen", &listen, "--key", &key], more].concat();
        Server::start_at(home, &mut self.lab.inside(host), &arguments, &[export])
    }

    /// A copy that the third host asks for.
    fn asks(&self, arguments: &[&str]) -> Command {
        let mut command = self.lab.inside("asks");
        command.args(arguments).args(["--key", &self.key()]);
        command
    }

    fn place(&self, host: &str, path: &Path) -> String {
        format!("agent://{}{}", self.address(host), path.display())
    }

    /// Bytes that went over the interface of who asks.
    fn passed(&self) -> u64 {
        let mut command = self.lab.enter("asks");
        let told = run_within(SOON, command.args(["ip", "-j", "-s", "link", "show", "wire"])).succeeded();
        let told: Value = serde_json::from_str(&told).unwrap();
        let of = |way: &str| told[0]["stats64"][way]["bytes"].as_u64().unwrap();
        of("rx") + of("tx")
    }
}

/// What comes at the end of a text with other lines before it.
fn json(said: &str) -> Value {
    let at = said.find('{').unwrap_or_else(|| panic!("{said}"));
    serde_json::from_str(&said[at..]).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn data_go_straight_between_the_two_sides() {
    test(|| {
        let Some(hosts) = Hosts::new() else { return };
        let (source, target) = (directory_for_devices(), directory_for_devices());
        plant(source.path());
        fs::write(source.path().join("large"), noise(24 << 20, 3)).unwrap();
        let trusts = ["--squash", "none"];
        let _from = hosts.serve("from", directory(), &trusts, source.path());
        let agent = [&trusts[..], &["--agent"]].concat();
        let to = hosts.serve("to", directory(), &agent, target.path());
        let [from_place, to_place] =
            [hosts.place("from", source.path()), hosts.place("to", &target.path().join("copy"))];
        let manifest = hosts.key.path().join("manifest");
        let before = hosts.passed();
        let arguments = ["cp", "-r", "--json", "--manifest", text(&manifest), &format!("{from_place}/"), &to_place];
        let said = json(&run_within(TEST_MAX, &mut hosts.asks(&arguments)).succeeded());
        let passed = hosts.passed() - before;
        let moved = said["moved"].as_u64().unwrap();
        assert!(moved > 40 << 20 && passed < moved / 20, "{moved} bytes moved, {passed} of them by who asked");
        assert_same(source.path(), &target.path().join("copy"));
        // It is what a copy by one process would have written.
        let (other, plain) = (directory_for_devices(), hosts.key.path().join("plain"));
        let from_here = format!("{}/", source.path().display());
        let other_copy = other.path().join("copy");
        let arguments = ["cp", "-r", "--manifest", text(&plain), &from_here, text(&other_copy)];
        transfer(hosts.key.path(), &arguments).succeeded();
        assert_eq!(body(&manifest), body(&plain));
        // What would be done has no manifest, and not that of the run before.
        let none = hosts.key.path().join("none");
        let arguments = ["cp", "-r", "-n", "--manifest", text(&none), &format!("{from_place}/"), &to_place];
        run_within(TEST_MAX, &mut hosts.asks(&arguments)).succeeded();
        assert!(!none.exists());
        // Nothing to copy, and what the source lacks is removed. The agent has a limit of threads.
        fs::write(target.path().join("copy/more"), "more").unwrap();
        let arguments = ["sync", "--delete", "--json", "--streams", "200", &format!("{from_place}/"), &to_place];
        let said = json(&run_within(TEST_MAX, &mut hosts.asks(&arguments)).succeeded());
        assert_eq!((said["files"].as_u64(), said["deleted"].as_u64()), (Some(0), Some(1)), "{said}");
        assert_eq!(said["streams"].as_u64(), Some(64), "{said}");
        // The destination is no agent any more, and the source is none: who could do it is told.
        let (address, home) = to.kill();
        assert!(address.starts_with(&hosts.address("to")));
        let _to = hosts.serve("to", home, &trusts, target.path());
        let said = run_within(TEST_MAX, &mut hosts.asks(&arguments)).failed();
        assert!(said.contains("is no agent") && said.contains("--agent"), "{said}");
    });
}

/// What is compared with a server's files does not travel: sums of both sides do.
#[test]
fn sums_are_made_where_files_lie() {
    test(|| {
        let Some(hosts) = Hosts::new() else { return };
        let (source, target) = (directory(), directory());
        let size = 24 << 20;
        fs::write(source.path().join("large"), noise(size, 3)).unwrap();
        fs::write(source.path().join("small"), noise(200_000, 4)).unwrap();
        let _to = hosts.serve("to", directory(), &["--squash", "none"], target.path());
        let to = hosts.place("to", &target.path().join("copy")).replace("agent://", "").replacen('/', ":/", 1);
        let from = format!("{}/", source.path().display());
        let manifest = hosts.key.path().join("manifest");
        let passed = |arguments: &[&str]| {
            let before = hosts.passed();
            let said = run_within(TEST_MAX, &mut hosts.asks(arguments)).succeeded();
            (hosts.passed() - before, said)
        };
        let arguments = ["cp", "-r", "--json", "--verify", "stable", "--manifest", text(&manifest), &from, &to];
        let (copied, said) = passed(&arguments);
        assert!(copied < size as u64 * 5 / 4, "{copied} bytes of {size} to copy them and read them back");
        let checks = &json(&said)["checks"];
        let is_on_ext4 = rustix::fs::statfs(target.path()).unwrap().f_type == 0xef53;
        assert!(checks["stable"] == 2 || (!is_on_ext4 && checks["cached"] == 2), "{checks}");
        let (compared, _) = passed(&["verify", text(&manifest), &to]);
        assert!(compared < size as u64 / 20, "{compared} bytes of {size} to compare them");
        let before = fs::metadata(target.path().join("copy/large")).unwrap().ino();
        let (compared, said) = passed(&["sync", "--checksum", "--json", &from, &to]);
        assert!(compared < size as u64 / 20, "{compared} bytes of {size} to find nothing to do");
        assert_eq!(json(&said)["unchanged"], 2, "{said}");
        // The same size and time, and another byte.
        let large = target.path().join("copy/large");
        let (mut content, time) = (fs::read(&large).unwrap(), fs::metadata(&large).unwrap());
        content[20 << 20] ^= 1;
        fs::write(&large, &content).unwrap();
        crate::tree::set_time(&large, time.mtime(), time.mtime_nsec());
        let said = run_within(TEST_MAX, &mut hosts.asks(&["verify", text(&manifest), &to])).failed();
        assert!(said.contains("large") && said.contains("hash of its content"), "{said}");
        let (_, said) = passed(&["sync", "--checksum", "--json", &from, &to]);
        assert_eq!(json(&said)["files"], 1, "{said}");
        assert_same(source.path(), &target.path().join("copy"));
        assert_ne!(fs::metadata(&large).unwrap().ino(), before);
    });
}

#[test]
fn the_source_makes_the_copy_where_the_destination_cannot() {
    test(|| {
        let Some(hosts) = Hosts::new() else { return };
        let (source, target) = (directory(), directory());
        fs::write(source.path().join("file"), noise(3 << 20, 1)).unwrap();
        let _from = hosts.serve("from", directory(), &["--squash", "none", "--agent"], source.path());
        let _to = hosts.serve("to", directory(), &["--squash", "none"], target.path());
        let from = hosts.place("from", &source.path().join("file"));
        let to = hosts.place("to", &target.path().join("file"));
        let said = run_within(TEST_MAX, &mut hosts.asks(&["cp", &from, &to])).succeeded();
        assert!(said.contains("cannot make it"), "{said}");
        assert_eq!(fs::read(target.path().join("file")).unwrap(), noise(3 << 20, 1));
    });
}

#[test]
fn an_agent_that_is_killed_goes_on() {
    test(|| {
        let Some(hosts) = Hosts::new() else { return };
        let (source, target) = (directory_for_devices(), directory_for_devices());
        plant(source.path());
        (0..3).for_each(|at| fs::write(source.path().join(format!("large{at}")), noise(24 << 20, at)).unwrap());
        let arguments = ["--squash", "none", "--agent"];
        let _from = hosts.serve("from", directory(), &["--squash", "none"], source.path());
        let mut to = hosts.serve("to", directory(), &arguments, target.path());
        let from = format!("{}/", hosts.place("from", source.path()));
        let copy = target.path().join("copy");
        let (there, manifest) = (hosts.place("to", &copy), hosts.key.path().join("manifest"));
        let manifest_path = text(&manifest);
        let words = ["cp", "-r", "--bwlimit", "30MB/s", "--json", "--manifest", manifest_path, &from, &there];
        let mut asking = Process::start(&mut hosts.asks(&words), &hosts.key.path().join("log"));
        for round in 1..=2u64 {
            // In the midst of it: chunks of a large file are there.
            let written =
                || parts(&copy).iter().filter_map(|part| Some(fs::metadata(part).ok()?.blocks())).sum::<u64>();
            wait_until("something is written", SOON, || written() * 512 > round * (4 << 20));
            let (_, home) = to.kill();
            assert!(asking.has_ended().is_none(), "{}", asking.output());
            to = hosts.serve("to", home, &arguments, target.path());
        }
        let status = asking.ends_within(TEST_MAX);
        let said = asking.output();
        assert!(status.success() && said.contains("was started anew"), "{said}");
        assert_same(source.path(), &copy);
        assert_eq!(parts(&copy), Vec::<std::path::PathBuf>::new());
        // The same manifest as without all that.
        let (other, plain) = (directory_for_devices(), hosts.key.path().join("plain"));
        let from_here = format!("{}/", source.path().display());
        let other_copy = other.path().join("copy");
        let words = ["cp", "-r", "--manifest", text(&plain), &from_here, text(&other_copy)];
        transfer(hosts.key.path(), &words).succeeded();
        assert_eq!(body(&manifest), body(&plain));
    });
}

#[test]
fn who_asks_goes_and_comes_again() {
    test(|| {
        let Some(hosts) = Hosts::new() else { return };
        let (source, target) = (directory(), directory());
        fs::write(source.path().join("file"), noise(40 << 20, 1)).unwrap();
        let _from = hosts.serve("from", directory(), &["--squash", "none"], source.path());
        let _to = hosts.serve("to", directory(), &["--squash", "none", "--agent"], target.path());
        let from = hosts.place("from", &source.path().join("file"));
        let to = hosts.place("to", &target.path().join("file"));
        let words = ["cp", "--bwlimit", "10MB/s", "--json", &from, &to];
        let begun = || !parts(target.path()).is_empty();
        let mut asking = Process::start(&mut hosts.asks(&words), &hosts.key.path().join("log"));
        wait_until("it is begun", SOON, begun);
        asking.signal(Signal::KILL);
        asking.ends_within(SOON);
        let said = run_within(TEST_MAX, &mut hosts.asks(&words)).failed();
        assert!(said.contains("making it already") && said.contains("--resume"), "{said}");
        // Who wants something else does not wait for this.
        for other in ["-n", "--no-clobber"] {
            let words = ["cp", "--json", other, "--resume", &from, &to];
            let said = run_within(TEST_MAX, &mut hosts.asks(&words)).failed();
            assert!(said.contains("with other options"), "{said}");
        }
        let again = ["cp", "--bwlimit", "20MB/s", "--json", "--resume", &from, &to];
        let said = json(&run_within(TEST_MAX, &mut hosts.asks(&again)).succeeded());
        assert_eq!(said["files"].as_u64(), Some(1), "{said}");
        assert_eq!(fs::read(target.path().join("file")).unwrap(), noise(40 << 20, 1));
        // A signal in order ends the copy, at the agent too.
        fs::remove_file(target.path().join("file")).unwrap();
        let mut asking = Process::start(&mut hosts.asks(&words), &hosts.key.path().join("log2"));
        wait_until("it is begun", SOON, begun);
        asking.signal(Signal::INT);
        assert!(!asking.ends_within(SOON).success());
        assert!(asking.output().contains("somebody has stopped it"), "{}", asking.output());
        assert!(!target.path().join("file").exists());
    });
}

#[test]
fn an_agent_acts_as_its_submitter_and_as_root_only_for_root_that_it_trusts() {
    test(|| {
        let Some(hosts) = Hosts::new() else { return };
        let (source, target) = (directory(), directory());
        for folder in [&source, &target] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        }
        fs::write(source.path().join("open"), "open").unwrap();
        fs::write(source.path().join("closed"), "closed").unwrap();
        fs::set_permissions(source.path().join("closed"), fs::Permissions::from_mode(0o600)).unwrap();
        chown(source.path().join("open"), Some(4321), Some(4321)).unwrap();
        // The agent is root, and its export does not trust root of other machines; the source does.
        let _from = hosts.serve("from", directory(), &["--squash", "none"], source.path());
        let _to = hosts.serve("to", directory(), &["--agent"], target.path());
        let from = format!("{}/", hosts.place("from", source.path()));
        let copy = |name: &str| hosts.place("to", &target.path().join(name));
        let said = run_within(TEST_MAX, &mut hosts.asks(&["cp", "-r", "--json", &from, &copy("root")]));
        let told = json(&said.text);
        // Root there is nobody here, and so it is everywhere for this copy.
        assert!(told["troubles"].to_string().contains("closed"), "{told}");
        assert!(!target.path().join("root/closed").exists());
        let found = fs::metadata(target.path().join("root/open")).unwrap();
        assert_eq!((found.uid(), found.len()), (65_534, 4));
        // Another user is that user.
        fs::set_permissions(hosts.key.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let key = hosts.key.path().join("own.key");
        fs::copy(hosts.key(), &key).unwrap();
        chown(&key, Some(4321), Some(4321)).unwrap();
        let home = directory();
        chown(home.path(), Some(4321), Some(4321)).unwrap();
        let program = crate::common::program_for_all(home.path());
        let mut command = hosts.lab.enter("asks");
        command.args(["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups"]).arg(program);
        command.args(["cp", "-r", "--json", "--no-journal", "--key", text(&key), &from, &copy("user")]);
        let told = json(&run_within(TEST_MAX, command.env("HOME", home.path())).text);
        assert!(told["troubles"].to_string().contains("closed"), "{told}");
        let found = fs::metadata(target.path().join("user/open")).unwrap();
        assert_eq!((found.uid(), found.gid()), (4321, 4321));
        assert!(!target.path().join("user/closed").exists());
    });
}
