//! What goes through routers is what would go without.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::common::{SOON, Server, aqueduct, directory, mount_point, run, test, wait_until};
use crate::load::Load;
use crate::networks::{NET1, NET2, NET3, Networks, address};

/// Squash and lists of hosts mean the same: a router lends nobody its address, and a node's key
/// says who comes, by whatever way.
#[test]
fn a_client_behind_a_router_is_known_by_its_key_alone() {
    test(|| {
        let Some(networks) = Networks::new() else { return };
        let (export, home) = (directory(), directory());
        let [key, node] = ["cluster", "cpu1"].map(|name| home.path().join(name));
        run(aqueduct().arg("keygen").arg(&key)).succeeded();
        run(aqueduct().args(["keygen", "--node", "cpu1", "--key"]).args([&key, &node])).succeeded();
        let path = export.path().display();
        let config = home.path().join("aqueduct.toml");
        let hosts = |name: &str, hosts: &str| format!("[[export]]\npath = '{path}'\nname = '{name}'\n{hosts}\n");
        let text = [
            hosts("all", ""),
            hosts("net2", &format!("hosts = ['10.{NET2}.0.0/24']")),
            hosts("nodes", "hosts = ['node:cpu*']\nsquash = 'none'"),
        ];
        fs::write(&config, text.concat()).unwrap();
        let arguments = ["--config", config.to_str().unwrap(), "--key", key.to_str().unwrap()];
        let server = networks.serve(("near", NET2), &arguments, &[]);
        let _router = networks.route("a", [NET1, NET2], "");
        let (at, route) = (address("near", NET2), format!("net{NET2}@{}", address("a", NET1)));
        let source = |name: &str| format!("{at}@net{NET2}:{name}");
        let [of_cluster, of_node] = [&key, &node].map(|key| format!("key={}", key.display()));

        let mount = networks.mount(&source("all"), &[&route], &of_cluster);
        let refused = fs::write(mount.join("squashed"), "x").map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::PermissionDenied), "root of another machine is nobody here");
        fs::set_permissions(export.path(), Permissions::from_mode(0o777)).unwrap();
        fs::write(mount.join("squashed"), "x").unwrap();
        assert_eq!(fs::metadata(export.path().join("squashed")).unwrap().uid(), 65_534);
        drop(mount);
        let refused = |name: &str, options: &str, expected: &str| {
            let (point, options) = (mount_point(), format!("{options},route={route}"));
            let told =
                run(networks.inside("client").args(["mount", "-o", &options, &source(name)]).arg(&point)).failed();
            fs::remove_dir(&point).unwrap();
            assert!(told.contains(expected), "{told}");
        };
        refused("net2", &of_cluster, "does not let this machine mount");
        refused("nodes", &of_cluster, "does not let this machine mount");
        refused("nodes", "rw", "key");
        let mount = networks.mount(&source("nodes"), &[&route], &of_node);
        fs::write(mount.join("own"), "x").unwrap();
        assert_eq!(fs::metadata(export.path().join("own")).unwrap().uid(), 0);
        drop((mount, server));
    });
}

/// What is written comes through two routers, is counted by each, and nobody blames the routers
/// where the server is dead.
#[test]
fn a_mount_leads_through_two_hops() {
    test(|| {
        let Some(networks) = Networks::new() else { return };
        let export = directory();
        let server = networks.serve(("far", NET3), &["--insecure", "--squash", "none"], &[export.path()]);
        let inner = networks.route("c", [NET2, NET3], "");
        let outer = networks.route("a", [NET1, NET2], "");
        let route = format!("net{NET3}@{}:hops=2", address("a", NET1));
        let source = |host: &str| format!("{host}@net{NET3}:{}", export.path().display());
        let refused = |source: &str| {
            let point = mount_point();
            let options = format!("route={route}");
            let told = run(networks.inside("client").args(["mount", "-o", &options, source]).arg(&point)).failed();
            fs::remove_dir(&point).unwrap();
            told
        };
        let there = source(&address("far", NET3).to_string());
        let told = refused(&there);
        assert!(
            told.contains(&format!("there is no route to network net{NET3}")) && told.contains("router a"),
            "{told}"
        );
        outer.does(&["add", &format!("net{NET3}@{}", address("c", NET2))]);
        let told = refused(&source(&format!("10.{NET3}.0.77")));
        assert!(told.contains("hop 1 behind it") && told.contains("router c"), "{told}");
        assert!(outer.status()["routes"][0]["up"].as_bool().unwrap(), "a dead server is not the router's fault");

        // Each router is asked through those before it.
        let server_there = format!("{}@net{NET3}", address("far", NET3));
        let hops = || -> Vec<String> {
            let asked =
                run(networks.inside("client").args(["net", "path", "--json", "--route", &route, &server_there]));
            let document: serde_json::Value = serde_json::from_str(&asked.text).unwrap_or_else(|_| panic!("{asked:?}"));
            let hops = document["ways"][0]["hops"].as_array().unwrap().iter();
            let answering = hops.filter(|hop| hop["round_trip_us"].is_object());
            answering
                .map(|hop| format!("{} {} {}", hop["number"], hop["is"], hop["address"].as_str().unwrap()))
                .collect()
        };
        let asked = hops();
        let [first, second, last] = &asked[..] else { panic!("{asked:?}") };
        assert!(first.starts_with(&format!("1 \"router\" {}", address("a", NET1))), "{asked:?}");
        assert!(second.starts_with(&format!("2 \"router\" c at {}", address("c", NET2))), "{asked:?}");
        assert!(last.starts_with(&format!("3 \"server\" {}", address("far", NET3))), "{asked:?}");

        let mount = networks.mount(&there, &[&route], "");
        let load = Load::start(mount.path());
        load.goes_on();
        load.ends_well(mount.path(), export.path());
        let name = format!("net{NET3}");
        assert!(inner.bytes("network", &name) > 1 << 20 && outer.bytes("network", &name) > 1 << 20);
        assert!(outer.bytes("client", &address("client", NET1).to_string()) > 1 << 20);
        assert_eq!(mount.status()["routes"][0]["up"], true, "{}", mount.status());
        drop(mount);
        wait_until("the flows have ended", SOON, || inner.flows() + outer.flows() == 0);
        outer.does(&["del", &format!("net{NET3}@{}", address("c", NET2))]);
        assert!(refused(&there).contains("there is no route"));
        drop(server);
    });
}

/// Servers reach each other by the routes of their configuration: the server of a volume's names
/// its store, in a network behind a router. Tools do by theirs, and agents by their server's.
#[test]
fn servers_and_tools_reach_servers_by_routes() {
    test(|| {
        let Some(networks) = Networks::new() else { return };
        let home = directory();
        let inner = networks.route("c", [NET2, NET3], "");
        let onward = format!("[[route]]\nnetwork = 'net{NET3}'\ngateways = ['{}']\n", address("c", NET2));
        let _outer = networks.route("a", [NET1, NET2], &onward);
        let [near, far] =
            [("near", NET2), ("far", NET3)].map(|(host, net)| format!("{}:7170@net{net}", address(host, net)));
        let [names, store] = ["names", "store"].map(|name| home.path().join(name));
        fs::create_dir(&names).unwrap();
        fs::set_permissions(&names, Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(&store).unwrap();
        let file = home.path().join("volume.toml");
        let text = format!(
            "name = 'spread'\nmode = 'whole-file'\ninline_max = '16KiB'\n\
             [[server]]\nid = 's0'\ndata = false\nlisten = ['{near}']\ndir = {names:?}\n\
             [[server]]\nid = 's1'\nlisten = ['{far}']\ndir = {store:?}\n"
        );
        fs::write(&file, text).unwrap();
        run(aqueduct().args(["volume", "create"]).arg(&file)).succeeded();
        run(aqueduct().args(["volume", "init", "--server", "s1"]).arg(&file)).succeeded();
        let config = home.path().join("serve.toml");
        fs::write(&config, format!("[[network]]\nname = 'net{NET2}'\n{onward}")).unwrap();
        let [volume, config] = [&file, &config].map(|path| path.to_str().unwrap());
        let serve = |host: &str, arguments: &[&str]| {
            Server::start_with(
                &mut networks.inside(host),
                &[&["--insecure", "--volume", volume], arguments].concat(),
                &[],
            )
        };
        let of_store = serve("far", &["--server", "s1"]);
        let of_names = serve("near", &["--server", "s0", "--config", config]);

        let [route, further] = [NET2, NET3].map(|net| format!("net{net}@{}", address("a", NET1)));
        let mount = networks.mount(&format!("spread@{near}:/"), &[&route], "");
        let data: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 7) as u8).collect();
        wait_until("the store is reached", SOON, || fs::write(mount.join("large"), &data).is_ok());
        assert_eq!(fs::read(mount.join("large")).unwrap(), data);
        assert!(inner.bytes("network", &format!("net{NET3}")) > 3 << 20, "by the router between the servers");
        let tool = |arguments: &[&str]| run(networks.inside("client").args(arguments)).succeeded();
        assert!(tool(&["volume", "show", &format!("spread@{near}"), "--route", &route]).contains(&far));
        drop((mount, of_names, of_store));

        let (source, target) = (directory(), directory());
        fs::write(source.path().join("file"), &data).unwrap();
        let arguments = ["--insecure", "--squash", "none", "--agent", "--config", config];
        let _agent = networks.serve(("near", NET2), &arguments, &[source.path()]);
        let _far = networks.serve(("far", NET3), &["--insecure", "--squash", "none"], &[target.path()]);
        assert!(tool(&["status", &near, "--route", &route]).contains(source.path().to_str().unwrap()));
        let place = |server: &str, path: &std::path::Path| format!("{server}:{}", path.display());
        let there = place(&near, &source.path().join("file"));
        let copied = home.path().join("copied");
        tool(&["cp", "--route", &route, &there, copied.to_str().unwrap()]);
        assert_eq!(fs::read(copied).unwrap(), data);
        // What holds back a server, and a copy from one.
        for subject in [vec![near.as_str()], vec![&there, home.path().to_str().unwrap()]] {
            let arguments = [&["diagnose", "--json", "--seconds", "10", "--route", &route], &subject[..]].concat();
            let told = run(networks.inside("client").args(arguments));
            let report: serde_json::Value = serde_json::from_str(&told.text).unwrap_or_else(|_| panic!("{told:?}"));
            assert!(report["verdict"]["verdict"].is_string() || report["verdict"].is_string(), "{report}");
            assert!(!told.text.contains("does not answer"), "{report}");
        }
        let agent = format!("agent://{near}{}", source.path().join("file").display());
        tool(&["cp", "--route", &route, "--route", &further, &agent, &place(&far, &target.path().join("by-agent"))]);
        assert_eq!(fs::read(target.path().join("by-agent")).unwrap(), data);
    });
}
