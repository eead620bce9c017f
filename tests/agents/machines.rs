//! Agents that are virtual machines: a kernel of their own, and of the host what they are given.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::{SOON, Server, aqueduct, directory, have, skip, wait_until, within};
use crate::group::Group;

/// A machine whose processor is a program boots in 15 s on an idle host, and in minutes on one that
/// has other things to do.
const BOOT_MAX: Duration = Duration::from_secs(300);

/// A kernel to boot, and the folder above `lib/modules` with its modules: those that
/// AQUEDUCT_TEST_KERNEL and AQUEDUCT_TEST_MODULES name, or this machine's.
fn kernel() -> Option<(PathBuf, PathBuf)> {
    let named = std::env::var_os("AQUEDUCT_TEST_KERNEL").map(PathBuf::from);
    let installed = || {
        let names = fs::read_dir("/boot").ok()?.flatten().map(|entry| entry.file_name().into_string().unwrap());
        Some(PathBuf::from("/boot").join(names.filter(|name| name.starts_with("vmlinuz-")).max()?))
    };
    let modules = std::env::var_os("AQUEDUCT_TEST_MODULES").map_or_else(|| "/".into(), PathBuf::from);
    Some((named.or_else(installed)?, modules))
}

#[test]
#[ignore = "boots a virtual machine whose processor is a program"]
fn a_virtual_machine_copies_from_its_host_to_a_server() {
    within(2 * BOOT_MAX, || {
        let Some(group) = Group::new().filter(|_| have(&["qemu-system-x86_64", "modprobe", "ldd"])) else { return };
        let Some((kernel, modules)) = kernel() else { return skip("no kernel: name one in AQUEDUCT_TEST_KERNEL") };
        let (kernel, modules) = (kernel.display(), modules.display());
        // What it copies from is a folder of this host, and what it copies to a server on it.
        let (source, target) = (directory(), directory());
        let data: Vec<u8> = (0..3u32 << 18).flat_map(u32::to_le_bytes).collect();
        fs::write(source.path().join("large"), &data).unwrap();
        (0..20).for_each(|at| fs::write(source.path().join(format!("{at}")), format!("file {at}")).unwrap());
        chown(source.path().join("7"), Some(1234), Some(1234)).unwrap();
        let host = format!("{}.1:7177", group.network);
        let (program, from) = (aqueduct(), source.path().display());
        let (program, to) = (program.get_program().to_str().unwrap(), target.path().display());
        group.configure_all(&format!(
            "kind = 'vm'\naccelerator = 'tcg'\nmemory = '1536MiB'\nkernel = '{kernel}'\nmodules = '{modules}'\n\
             bind = ['{from}']\ncommand = ['{program}', 'cp', '-r', '--no-journal', '{from}', '{host}:{to}/copy']\n"
        ));
        assert!(group.up(1).succeeded().contains(&format!("agent 1 at {}.2", group.network)));
        // It has the host's address since a moment ago, and the machine takes long to boot.
        let listens = ["--listen", &host, "--insecure", "--squash", "none"];
        let _server = Server::start_with(&mut aqueduct(), &listens, &[target.path()]);
        let log = || fs::read_to_string(group.agents()[0]["log"].as_str().unwrap()).unwrap_or_default();
        let started = Instant::now();
        while !log().contains("copied: 21 files") {
            assert!(started.elapsed() < BOOT_MAX, "{}", log());
            std::thread::sleep(Duration::from_millis(200));
        }
        let copy = target.path().join("copy");
        assert!(fs::read(copy.join("large")).unwrap() == data);
        assert_eq!(fs::read_to_string(copy.join("19")).unwrap(), "file 19");
        assert_eq!(fs::metadata(copy.join("7")).unwrap().uid(), 1234);
        let agent = &group.agents()[0];
        assert_eq!(agent["kind"].as_str(), Some("vm"), "{agent}");
        assert!(agent["sent_bytes"].as_u64().unwrap() > 3 << 20, "{agent}");
        // It ends with its command.
        wait_until("it has ended", SOON, || group.agents()[0]["alive"] == false);
        group.down().succeeded();
        group.leaves_no_trace();
    });
}
