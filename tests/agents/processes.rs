//! Agents that are processes: what each has to itself, and what they serve.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{Mount, SOON, aqueduct, run, skip, test, wait_until};
use crate::group::Group;
use crate::lab::Lab;

/// What the kernel tells of an agent's process.
fn told(agent: &Value, file: &str) -> String {
    fs::read_to_string(format!("/proc/{}/{file}", agent["pid"])).unwrap()
}

#[test]
fn each_agent_has_a_network_processors_and_limits_of_its_own() {
    test(|| {
        let Some(group) = Group::new() else { return };
        group.configure("memory = '256MiB'\nprocessor_time = 0.75\nrate = '800mbit'\ncongestion = 'cubic'");
        group.up(2).succeeded();
        let agents = group.agents();
        let namespaces: BTreeSet<_> =
            agents.iter().map(|agent| fs::read_link(format!("/proc/{}/ns/net", agent["pid"])).unwrap()).collect();
        assert_eq!(namespaces.len(), 2);
        assert!(!namespaces.contains(&fs::read_link("/proc/self/ns/net").unwrap()));
        for agent in &agents {
            assert_eq!(agent["alive"], true, "{agent}");
            let status = told(agent, "status");
            let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
            assert_eq!(allowed, agent["processors"], "{agent}");
            let own = format!("/aqueduct-{}", agent["namespace"].as_str().unwrap());
            assert!(told(agent, "cgroup").contains(&own), "{}", told(agent, "cgroup"));
            // Of whichever version the host has them.
            let roots = [
                "/sys/fs/cgroup",
                "/sys/fs/cgroup/unified",
                "/sys/fs/cgroup/memory",
                "/sys/fs/cgroup/cpu",
                "/sys/fs/cgroup/cpu,cpuacct",
            ];
            let read =
                |file: &str| roots.iter().find_map(|root| fs::read_to_string(format!("{root}{own}/{file}")).ok());
            let memory = read("memory.max").or_else(|| read("memory.limit_in_bytes")).unwrap();
            assert_eq!(memory.trim(), "268435456");
            let quota = read("cpu.max").or_else(|| read("cpu.cfs_quota_us")).unwrap();
            assert_eq!(quota.split_whitespace().next(), Some("75000"));
        }
        // What is written to one is there, and counted.
        let server = format!("{}.3:{}", group.network, group.data.path().display());
        let mount = Mount::start(&mut aqueduct(), &[&server], "");
        fs::write(mount.join("file"), vec![7; 3 << 20]).unwrap();
        drop(mount);
        assert_eq!(fs::read(group.data.path().join("file")).unwrap().len(), 3 << 20);
        let agents = group.agents();
        let received: Vec<_> = agents.iter().map(|agent| agent["received_bytes"].as_u64().unwrap()).collect();
        assert!(received[0] < 1 << 20 && received[1] > 3 << 20, "{received:?}");
        group.down().succeeded();
        group.leaves_no_trace();
    });
}

/// On a host of a lab, whose wire is the card: agents are in its network, and reached from others.
#[test]
fn agents_share_a_card_by_addresses_of_their_own() {
    test(|| {
        let Some(lab) = Lab::new(&[]) else { return };
        for host in ["fta", "other"] {
            lab.does("host", &[host]);
        }
        let Some(group) = Group::new() else { return };
        let group = group.on(&lab.enter("fta"));
        group.configure("uplink = 'wire'\naddress = '10.99.7.1/16'\nprocessors = 0");
        let up = group.up(2);
        if up.text.contains("Unknown device type") || up.text.contains("not supported") {
            return skip("this kernel has no macvlan");
        }
        assert!(up.succeeded().contains("agent 2 at 10.99.7.2, macvlan of wire"));
        for agent in group.agents() {
            let address = format!("{}:7170", agent["address"].as_str().unwrap());
            let told = run(lab.inside("other").args(["status", "--json", &address])).succeeded();
            assert!(told.contains(&group.data.path().display().to_string()), "{told}");
        }
        group.down().succeeded();
        group.leaves_no_trace();
    });
}

#[test]
fn agents_run_any_command_and_a_dry_run_does_nothing() {
    test(|| {
        let Some(group) = Group::new() else { return };
        group.configure_all("command = ['sh', '-c', 'echo agent {agent} at {address}; exec sleep 1000']\n");
        let config = group.config();
        let shown =
            run(&mut group.command(&["up", "2", "--dry-run", "--config", config.to_str().unwrap()])).succeeded();
        for part in ["ip netns add", "type veth peer name wire", "mkdir -p /sys/fs/cgroup", "echo agent 2 at"] {
            assert!(shown.contains(part), "{part} is missing:\n{shown}");
        }
        group.leaves_no_trace();
        group.up(2).succeeded();
        let log = Path::new("/run/aqueduct/agents").join(&group.name).join("2/log");
        let told = format!("agent 2 at {}.3\n", group.network);
        wait_until("it has told who it is", SOON, || fs::read_to_string(&log).unwrap() == told);
        let agents = group.agents();
        // It sees its own interface, and no other.
        let pid = agents[0]["pid"].to_string();
        let links = run(Command::new("nsenter").args(["-t", &pid, "-n", "ip", "-o", "link"])).succeeded();
        assert!(links.lines().count() == 2 && links.contains("wire"), "{links}");
        group.down().succeeded();
        group.leaves_no_trace();
        let told = group.down().failed();
        assert!(told.contains("agents status"), "{told}");
    });
}
