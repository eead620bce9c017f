//! Groups of agents on a host that is made up.

use std::path::Path;

use aqueduct_node::Failure;
use serde_json::json;

use crate::group::{Done, down, dry_run, names, up};
use crate::made_up::{CARD, MadeUp};
use crate::settings::{AgentKind, InterfaceChoice, Settings};
use crate::status::status;

fn settings(interface: InterfaceChoice) -> Settings {
    let export = "path = '/srv'".parse().unwrap();
    Settings { uplink: Some(CARD.into()), interface, insecure: true, export: vec![export], ..Settings::default() }
}

fn set_up(host: &MadeUp, settings: &Settings, agents: u32) -> Result<Done, Failure> {
    up(host, settings, agents, Path::new("/usr/bin/aqueduct"))
}

#[test]
fn agents_get_virtual_functions_and_give_them_back() {
    let host = MadeUp::new(4);
    let settings = Settings {
        vlan: Some(12),
        rate: Some("400mbit".into()),
        memory: Some("1GiB".into()),
        host_processors: 1,
        ..settings(InterfaceChoice::Auto)
    };
    let done = set_up(&host, &settings, 2).unwrap();
    let [first, second] = &done.started[..] else { panic!("{done:?}") };
    assert_eq!((first.interface.as_str(), second.namespace.as_str()), ("function 0 of ens1", "aq-2"));
    // Near the card are 4 to 7, and the first is the host's.
    assert_eq!((first.processors.as_str(), second.processors.as_str()), ("5", "6"));
    let ran = host.ran.borrow().join("\n");
    for part in [
        "2 > /sys/class/net/ens1/device/sriov_numvfs",
        "ip link set ens1 vf 1 mac 02:71:0a:60:00:03\nip link set ens1 vf 1 vlan 12\nip link set ens1 vf 1 max_tx_rate 400\n\
         ip link set ens1v1 down\nip link set ens1v1 netns aq-2\nip -n aq-2 link set ens1v1 name wire\n\
         ip -n aq-2 addr add 10.96.0.3/24 dev wire",
        "+memory > /sys/fs/cgroup/cgroup.subtree_control",
        "1073741824 > /sys/fs/cgroup/aqueduct-aq-2/memory.max",
        "6 > /sys/fs/cgroup/aqueduct-aq-2/cpuset.cpus",
        "agents enter --group /sys/fs/cgroup/aqueduct-aq-2 --processors 6 --namespace aq-2 -- /usr/bin/aqueduct serve --config",
    ] {
        assert!(ran.contains(part), "{part} is missing:\n{ran}");
    }
    let shown = status(&host, "aq").unwrap().unwrap();
    assert!(shown.iter().all(|agent| agent.alive && (agent.received_bytes, agent.sent_bytes) == (5, 6)), "{shown:?}");
    host.ran.borrow_mut().clear();
    assert!(down(&host, "aq").unwrap());
    let ran = host.ran.borrow().join("\n");
    let own = std::process::id();
    for part in [
        format!("ip -n aq-2 link set wire down\nip -n aq-2 link set wire name ens1v1\nip -n aq-2 link set ens1v1 netns {own}\n"),
        "ip link set ens1 vf 1 mac 00:00:00:00:00:00\nip link set ens1 vf 1 vlan 0\nip link set ens1 vf 1 max_tx_rate 0\n".into(),
    ] {
        assert!(ran.contains(&part), "{part} is missing:\n{ran}");
    }
    assert_eq!(host.left(), Vec::<String>::new());
    assert!(!down(&host, "aq").unwrap(), "there is none");
}

#[test]
fn functions_that_a_card_has_are_used_and_left() {
    let host = MadeUp::new(8);
    let path = format!("/sys/class/net/{CARD}/device/sriov_numvfs");
    crate::host::Host::write(&host, Path::new(&path), "4").unwrap();
    set_up(&host, &settings(InterfaceChoice::Sriov), 3).unwrap();
    down(&host, "aq").unwrap();
    assert_eq!(host.left().len(), 5, "four functions and their number: {:?}", host.left());
    let told = set_up(&host, &settings(InterfaceChoice::Sriov), 5).unwrap_err().to_string();
    assert!(told.contains("only by way of 0") && told.contains("echo 0"), "{told}");
}

#[test]
fn functions_that_the_host_uses_are_left_to_it() {
    let host = MadeUp::new(8);
    let path = format!("/sys/class/net/{CARD}/device/sriov_numvfs");
    crate::host::Host::write(&host, Path::new(&path), "6").unwrap();
    for (name, told) in [
        ("ens1v0", json!({"flags": ["UP"], "addr_info": []})),
        ("ens1v1", json!({"flags": [], "addr_info": [{"local": "10.0.0.1"}]})),
        ("ens1v3", json!({"flags": [], "master": "bond0", "addr_info": []})),
    ] {
        host.uses.borrow_mut().insert(name.into(), told);
    }
    host.file("/sys/class/net/ens1v4/upper_ens1v4.12", "");
    let settings = settings(InterfaceChoice::Sriov);
    let interfaces = |done: Done| done.started.iter().map(|agent| agent.interface.clone()).collect::<Vec<_>>();
    assert_eq!(interfaces(set_up(&host, &settings, 2).unwrap()), ["function 2 of ens1", "function 5 of ens1"]);
    // The same function again for one that has ended, and no more of them for others.
    let first = status(&host, "aq").unwrap().unwrap()[0].pid.unwrap();
    crate::host::Host::signal(&host, first, rustix::process::Signal::KILL);
    assert_eq!(dry_run(&host, &settings, 2, Path::new("/a")).unwrap().agents[0].agent.interface, "function 2 of ens1");
    assert_eq!(interfaces(set_up(&host, &settings, 2).unwrap()), ["function 2 of ens1"]);
    let told = set_up(&host, &settings, 3).unwrap_err().to_string();
    for part in
        ["0 (ens1v0 is up)", "1 (ens1v1 has the address 10.0.0.1)", "3 (ens1v3 belongs to bond0)", "ens1v4.12 lies on"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    down(&host, "aq").unwrap();
    let ran = host.ran.borrow().join("\n");
    for name in ["ens1v0", "ens1v1", "ens1v3", "ens1v4"] {
        assert!(!ran.contains(&format!("ip link set {name} ")), "{name}: {ran}");
    }
}

#[test]
fn what_a_card_cannot_do_is_told_or_done_otherwise() {
    let told = |functions, agents| {
        let host = MadeUp::new(functions);
        let failure = set_up(&host, &settings(InterfaceChoice::Sriov), agents).unwrap_err().to_string();
        assert_eq!(host.left(), Vec::<String>::new());
        failure
    };
    assert!(told(0, 1).contains("firmware"), "{}", told(0, 1));
    assert!(told(2, 3).contains("2 at most"), "{}", told(2, 3));
    let host = MadeUp::new(2);
    let done = set_up(&host, &settings(InterfaceChoice::Auto), 3).unwrap();
    assert_eq!(done.started[2].interface, "macvlan of ens1");
}

#[test]
fn a_failure_takes_back_what_was_done() {
    for (interface, fails) in [
        (InterfaceChoice::Auto, "netns aq-2"),
        (InterfaceChoice::Auto, "ens1v1 name wire"),
        (InterfaceChoice::Auto, "route add"),
        (InterfaceChoice::Macvlan, "type macvlan"),
        (InterfaceChoice::Veth, "type bridge"),
        (InterfaceChoice::Veth, "aq-2 master"),
    ] {
        let host = MadeUp::new(4);
        *host.fails.borrow_mut() = Some(fails.into());
        let told = set_up(&host, &settings(interface), 2).unwrap_err().to_string();
        assert!(told.contains(fails) && told.contains("not supported") && told.contains("--dry-run"), "{told}");
        assert_eq!(host.left(), Vec::<String>::new(), "{fails}");
    }
}

/// The process that sets agents up dies after each of its changes in turn; another takes it back.
#[test]
fn down_leaves_nothing_wherever_up_has_died() {
    for interface in [InterfaceChoice::Auto, InterfaceChoice::Macvlan, InterfaceChoice::Veth] {
        let settings = Settings { memory: Some("1GiB".into()), ..settings(interface) };
        let mut deaths = 0;
        for lives in 0.. {
            let host = MadeUp::new(4);
            host.lives.set(lives);
            let result = set_up(&host, &settings, 2);
            if host.lives.replace(u64::MAX) > 0 && result.is_ok() {
                break;
            }
            deaths += 1;
            down(&host, "aq").unwrap();
            assert_eq!(host.left(), Vec::<String>::new(), "{interface:?}, died after {lives} changes");
            set_up(&host, &settings, 2).unwrap();
        }
        assert!(deaths > 30, "{deaths}");
    }
}

/// As above; and down dies too, and what is left of up is met by another up.
#[test]
fn up_begins_anew_where_one_has_died() {
    let settings = settings(InterfaceChoice::Auto);
    for lives in 1.. {
        let host = MadeUp::new(4);
        host.lives.set(lives);
        let result = set_up(&host, &settings, 2);
        if host.lives.get() > 0 && result.is_ok() {
            break;
        }
        host.lives.set(lives / 2);
        let _ = down(&host, "aq");
        host.lives.set(u64::MAX);
        assert_eq!(set_up(&host, &settings, 2).unwrap().started.len(), 2, "died after {lives} changes");
        down(&host, "aq").unwrap();
        assert_eq!(host.left(), Vec::<String>::new(), "died after {lives} changes");
    }
}

#[test]
fn what_is_missing_is_added_and_nothing_else_changed() {
    let host = MadeUp::new(0);
    let settings = settings(InterfaceChoice::Macvlan);
    set_up(&host, &settings, 2).unwrap();
    let pids =
        |host: &MadeUp| -> Vec<_> { status(host, "aq").unwrap().unwrap().iter().map(|agent| agent.pid).collect() };
    let before = pids(&host);
    let shown = dry_run(&host, &settings, 3, Path::new("/a")).unwrap();
    assert_eq!(shown.agents.len(), 1);
    let done = set_up(&host, &settings, 3).unwrap();
    assert_eq!((done.started.len(), done.kept), (1, 2));
    crate::host::Host::signal(&host, before[0].unwrap(), rustix::process::Signal::KILL);
    let done = set_up(&host, &settings, 3).unwrap();
    assert_eq!((done.started[0].number, done.kept), (1, 2));
    let after = pids(&host);
    assert!(after[0] != before[0] && after[1] == before[1] && after.len() == 3, "{before:?} {after:?}");
    assert!(set_up(&host, &settings, 2).unwrap_err().to_string().contains("3 are up"));
    let others = Settings { processors: 2, ..settings.clone() };
    assert!(set_up(&host, &others, 3).unwrap_err().to_string().contains("other settings"));
    // A failure to add leaves those that were there.
    *host.fails.borrow_mut() = Some("aq-4".into());
    assert!(set_up(&host, &settings, 4).is_err());
    assert_eq!(pids(&host), after);
    assert_eq!(names(&host), ["aq"]);
}

/// Of two agents that are up one is started again, and one more is added, by a process that dies
/// after each of its changes in turn.
#[test]
fn who_is_up_stays_up_wherever_another_up_has_died() {
    let settings = Settings { memory: Some("1GiB".into()), ..settings(InterfaceChoice::Auto) };
    let pid_of = |host: &MadeUp, at: usize| status(host, "aq").unwrap().unwrap()[at].pid.unwrap();
    let mut deaths = 0;
    for lives in 0.. {
        let host = MadeUp::new(4);
        let path = format!("/sys/class/net/{CARD}/device/sriov_numvfs");
        crate::host::Host::write(&host, Path::new(&path), "4").unwrap();
        set_up(&host, &settings, 2).unwrap();
        let healthy = pid_of(&host, 1);
        crate::host::Host::signal(&host, pid_of(&host, 0), rustix::process::Signal::KILL);
        host.lives.set(lives);
        let result = set_up(&host, &settings, 3);
        if host.lives.replace(u64::MAX) > 0 && result.is_ok() {
            break;
        }
        deaths += 1;
        // As many as there were before, or as many as were wanted; those may all be up.
        let agents = if lives % 2 == 0 && result.is_err() { 2 } else { 3 };
        let after = set_up(&host, &settings, agents).or_else(|_| set_up(&host, &settings, 3)).unwrap();
        assert!(after.kept >= 1, "died after {lives} changes: {after:?}");
        let now = status(&host, "aq").unwrap().unwrap();
        assert!(now.iter().all(|agent| agent.alive), "died after {lives} changes: {now:?}");
        let same = now.iter().find(|agent| agent.agent.number == 2).and_then(|agent| agent.pid);
        assert_eq!(same, Some(healthy), "died after {lives} changes");
        down(&host, "aq").unwrap();
        crate::host::Host::write(&host, Path::new(&path), "0").unwrap();
        assert_eq!(host.left(), Vec::<String>::new(), "died after {lives} changes");
    }
    assert!(deaths > 30, "{deaths}");
}

#[test]
fn a_controller_is_taken_back_by_the_last_who_uses_it() {
    let control = Path::new("/sys/fs/cgroup/cgroup.subtree_control");
    let lends = |host: &MadeUp, name: &str| {
        crate::host::Host::read(host, control).unwrap().split_whitespace().any(|lent| lent == name)
    };
    let first = Settings { memory: Some("1GiB".into()), processors: 0, ..settings(InterfaceChoice::Macvlan) };
    let second = Settings { name: "bq".into(), address: "10.97.0.2/24".parse().unwrap(), ..first.clone() };
    for order in [["aq", "bq"], ["bq", "aq"]] {
        let host = MadeUp::new(0);
        set_up(&host, &first, 1).unwrap();
        set_up(&host, &second, 1).unwrap();
        down(&host, order[0]).unwrap();
        assert!(lends(&host, "memory"), "the other group is held to it: {order:?}");
        down(&host, order[1]).unwrap();
        assert_eq!(host.left(), Vec::<String>::new(), "{order:?}");
    }
    // Others who came later: who is limited by it, and who hands it on.
    for (file, text) in [("memory.max", "1048576"), ("memory.low", "4096"), ("cgroup.subtree_control", "cpu memory")] {
        let host = MadeUp::new(0);
        set_up(&host, &first, 1).unwrap();
        host.file("/sys/fs/cgroup/idle.slice/memory.max", "max\n");
        host.file(&format!("/sys/fs/cgroup/other.slice/{file}"), text);
        down(&host, "aq").unwrap();
        assert!(lends(&host, "memory"), "{file}");
    }
    let host = MadeUp::new(0);
    set_up(&host, &first, 1).unwrap();
    host.file("/sys/fs/cgroup/idle.slice/memory.max", "max\n");
    host.file("/sys/fs/cgroup/idle.slice/memory.low", "0\n");
    down(&host, "aq").unwrap();
    assert!(!lends(&host, "memory"), "nobody is held to it");
}

#[test]
fn a_container_has_our_program_and_what_it_serves() {
    let host = MadeUp::new(0);
    let settings =
        Settings { kind: AgentKind::Container, key: Some("/etc/key".into()), ..settings(InterfaceChoice::Macvlan) };
    set_up(&host, &settings, 1).unwrap();
    let text = crate::host::Host::read(&host, Path::new("/run/aqueduct/agents/aq/1/bundle/config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mounts = config["mounts"].as_array().unwrap();
    let binds: Vec<_> = mounts.iter().filter(|mount| mount["type"] == "bind").collect();
    let seen =
        |path: &str| binds.iter().find(|mount| mount["destination"] == path).map(|mount| mount["options"][2].clone());
    for path in ["/usr/bin/aqueduct", "/lib/libc.so.6", "/etc/key"] {
        assert_eq!(seen(path), Some("ro".into()), "{path}");
    }
    for path in ["/srv", "/run/aqueduct/agents/aq/1"] {
        assert_eq!(seen(path), Some("rw".into()), "{path}");
    }
    assert_eq!(binds.len(), 5);
    assert_eq!(config["process"]["args"][1], "serve");
    down(&host, "aq").unwrap();
    assert_eq!(host.left(), Vec::<String>::new());
}

#[test]
fn an_agent_of_a_store_has_the_key_of_the_servers() {
    let host = MadeUp::new(0);
    let settings = Settings {
        export: Vec::new(),
        store: Some("postgres://db1/transfers".into()),
        key: Some("/etc/key".into()),
        ..settings(InterfaceChoice::Macvlan)
    };
    let plan = dry_run(&host, &settings, 1, Path::new("/usr/bin/aqueduct")).unwrap();
    let shown = plan.agents[0].steps.last().unwrap().shown().concat();
    assert!(shown.contains("agents run --store postgres://db1/transfers --key /etc/key"), "{shown}");
    // Nothing is done as root unless somebody says so.
    assert!(!shown.contains("--allow-root"), "{shown}");
    let trusting = Settings { allow_root: true, ..settings.clone() };
    let plan = dry_run(&host, &trusting, 1, Path::new("/usr/bin/aqueduct")).unwrap();
    assert!(plan.agents[0].steps.last().unwrap().shown().concat().contains("--key /etc/key --allow-root"));
    assert!(trusting.check().is_ok() && Settings { store: None, ..trusting }.check().is_err());
}

/// What has the name of something that we would make is somebody else's.
#[test]
fn what_others_have_made_is_left_alone() {
    let host = MadeUp::new(0);
    let settings = settings(InterfaceChoice::Macvlan);
    let add = "ip netns add aq-2".split(' ').map(str::to_owned).collect::<Vec<_>>();
    crate::host::Host::run(&host, &add).unwrap();
    let told = set_up(&host, &settings, 2).unwrap_err().to_string();
    assert!(told.contains("namespace aq-2") && told.contains("there already"), "{told}");
    assert_eq!(host.left(), ["aq-2"]);
}

#[test]
fn a_virtual_machine_has_a_card_of_a_bridge_and_what_it_serves() {
    let host = MadeUp::new(0);
    for (path, text) in [("/boot/vmlinuz-6.1.0-9-amd64", ""), ("/usr/lib/qemu/virtiofsd", "")] {
        crate::host::Host::make_folder(&host, Path::new(path).parent().unwrap()).unwrap();
        crate::host::Host::write(&host, Path::new(path), &format!("{text}x")).unwrap();
    }
    let settings = Settings {
        kind: AgentKind::Vm,
        memory: Some("2GiB".into()),
        gateway: Some("10.96.0.1".parse().unwrap()),
        export: Vec::new(),
        command: vec!["/usr/bin/aqueduct".into(), "cp".into(), "it's".into()],
        bind: vec!["/srv".into()],
        uplink: None,
        ..settings(InterfaceChoice::Veth)
    };
    let plan = dry_run(&host, &settings, 1, Path::new("/usr/bin/aqueduct")).unwrap();
    let mut shown: Vec<String> = plan.agents[0].steps.iter().flat_map(|step| step.shown()).collect();
    shown.extend(plan.agents[0].steps.iter().filter_map(|step| match step {
        crate::step::Step::Image { files, .. } => match &files.last()?.1 {
            crate::image::Content::Text(init) => Some(init.clone()),
            crate::image::Content::Of(_) => None,
        },
        _ => None,
    }));
    let shown = shown.join("\n");
    for part in [
        "ip -n aq-1 tuntap add dev card mode tap",
        "ip -n aq-1 link set wire master inner up",
        "accel=kvm:tcg",
        "-m 1792M",
        "mac=02:71:0a:60:00:02",
        "-kernel '/boot/vmlinuz-6.1.0-9-amd64'",
        "-o source='/srv'",
        "exec '/usr/bin/aqueduct' 'cp' 'it'\\''s'",
        "/lib/modules/6.1.0/y.ko",
    ] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    assert!(!shown.contains("ip -n aq-1 addr add"), "the address is the machine's: {shown}");
    *host.fails.borrow_mut() = Some("qemu-system".into());
    let told = dry_run(&host, &settings, 1, Path::new("/usr/bin/aqueduct")).unwrap_err().to_string();
    assert!(told.contains("without QEMU") && told.contains("package qemu-system-x86"), "{told}");
    *host.fails.borrow_mut() = None;
    let serves = Settings { export: vec!["path = '/srv'".parse().unwrap()], command: Vec::new(), ..settings.clone() };
    assert!(serves.check().unwrap_err().to_string().contains("handles"));
    let card = Settings { uplink: Some(CARD.into()), interface: InterfaceChoice::Macvlan, ..settings };
    assert!(dry_run(&host, &card, 1, Path::new("/usr/bin/aqueduct")).unwrap_err().to_string().contains("bridge"));
}
