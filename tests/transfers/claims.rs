//! What agents claim of jobs, and what becomes of it: steps in turn, leases that ran out, claims
//! that nobody has any more, and what the store's numbers and indices do not hold.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::agents::{Agent, Cluster, LEASE, copied, lines_of_one, test};
use crate::common::{Process, TEST_MAX, aqueduct, directory, run_within, wait_until};
use crate::resume::parts;
use crate::tree::{assert_same, body, noise, text, transfer};

/// Has the tables made.
fn prepared(cluster: &Cluster) {
    run_within(TEST_MAX, aqueduct().args(["transfers", "list", "--store", &cluster.url()])).succeeded();
}

/// Submits a copy, and gives its number.
fn submitted(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command = aqueduct();
    command.args(arguments).args(["--detach", "--store", &cluster.url()]);
    run_within(TEST_MAX, &mut command).succeeded().trim().to_owned()
}

fn wait_for(cluster: &Cluster, job: &str) {
    wait_until("the job is done", TEST_MAX, || {
        cluster.asks(&format!("SELECT state FROM aqueduct.job WHERE id = {job}")) == "done"
    });
}

/// Waits for the end of a job, which has to have made a copy of all of it.
fn is_copied(cluster: &Cluster, job: &str, source: &Path, copy: &Path) {
    wait_for(cluster, job);
    assert_same(source, copy);
}

/// A source with a file, and where it is copied to.
fn sides() -> (TempDir, TempDir) {
    let (source, target) = (directory(), directory());
    fs::write(source.path().join("f"), "f").unwrap();
    (source, target)
}

fn from(source: &Path) -> String {
    format!("{}/", source.display())
}

#[test]
fn steps_of_a_job_are_taken_one_after_the_other_however_many_agents_ask() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (source, target) = (directory(), directory());
        fs::create_dir(source.path().join("d")).unwrap();
        for number in 0..20 {
            let [one, other] = ["", "d/"].map(|above| source.path().join(format!("{above}{number}")));
            fs::write(&one, noise(100, number)).unwrap();
            fs::hard_link(&one, &other).unwrap();
        }
        prepared(&cluster);
        // Between what an agent sees of a job and what it does others find time.
        cluster.asks(
            "ALTER TABLE aqueduct.job FORCE ROW LEVEL SECURITY;
            CREATE POLICY slow ON aqueduct.job AS RESTRICTIVE USING ((SELECT count(*) FROM pg_sleep(0.1)) = 1)",
        );
        let _agents: Vec<Agent> = (0..4).map(|number| cluster.agent(number)).collect();
        for copy in ["1", "2", "3"] {
            let copy = target.path().join(copy);
            let job = submitted(&cluster, &["cp", "-r", &from(source.path()), text(&copy)]);
            is_copied(&cluster, &job, source.path(), &copy);
            assert_eq!(fs::metadata(copy.join("d/7")).unwrap().nlink(), 2);
        }
        assert_eq!(cluster.asks("SELECT count(*) FROM aqueduct.unit"), "0");
    });
}

#[test]
fn an_agent_that_was_stopped_for_longer_than_its_lease_begins_anew_and_ends_the_job() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (source, target) = (directory(), directory());
        (0..8).for_each(|number| fs::write(source.path().join(number.to_string()), noise(2 << 20, number)).unwrap());
        let agent = cluster.agent(1);
        let copy = target.path().join("copy");
        let job = submitted(&cluster, &["cp", "-r", "--bwlimit", "4MB/s", &from(source.path()), text(&copy)]);
        wait_until("it is at the files", TEST_MAX, || {
            cluster.asks("SELECT count(*) FROM aqueduct.unit WHERE agent IS NOT NULL AND body LIKE '%\"files\"%'")
                != "0"
        });
        agent.process.stop();
        thread::sleep(Duration::from_secs(LEASE.parse::<u64>().unwrap() + 1));
        // Nobody has noticed: it is the only one.
        assert_eq!(cluster.asks("SELECT count(*) FROM aqueduct.agent WHERE gone"), "0");
        agent.process.signal(Signal::CONT);
        is_copied(&cluster, &job, source.path(), &copy);
        assert_eq!(parts(&copy), Vec::<std::path::PathBuf>::new());
        assert_eq!(cluster.asks("SELECT string_agg(gone::text, ' ' ORDER BY id) FROM aqueduct.agent"), "true false");
    });
}

#[test]
fn what_an_agent_that_is_gone_was_given_is_done_by_others() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (source, target) = sides();
        prepared(&cluster);
        let copy = target.path().join("copy");
        let job = submitted(&cluster, &["cp", "-r", &from(source.path()), text(&copy)]);
        // It was taken for dead while it claimed.
        cluster.asks(&format!(
            "INSERT INTO aqueduct.agent (name, host, pid, until, gone) VALUES ('late', 'h', 1, now(), true);
            UPDATE aqueduct.job SET state = 'running', begun = true;
            INSERT INTO aqueduct.unit (job, body, agent, fence)
            SELECT {job}, '{{\"do\":\"directory\",\"base\":0,\"path\":\"\"}}', max(id), 1 FROM aqueduct.agent"
        ));
        let _agent = cluster.agent(1);
        is_copied(&cluster, &job, source.path(), &copy);
    });
}

#[test]
fn what_an_agent_was_given_and_has_not_heard_of_is_not_its_own_for_ever() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (source, target) = sides();
        let _agent = cluster.agent(1);
        let copy = target.path().join("copy");
        let arguments = ["cp", "-r", "--queue", "other", &from(source.path()), text(&copy)];
        let job = submitted(&cluster, &arguments);
        cluster.asks(&format!(
            "UPDATE aqueduct.job SET state = 'running', begun = true, queue = 'default';
            INSERT INTO aqueduct.unit (job, body, agent, fence)
            SELECT {job}, '{{\"do\":\"directory\",\"base\":0,\"path\":\"\"}}', max(id), 1 FROM aqueduct.agent"
        ));
        // As if the connection had broken before the answer came.
        cluster
            .asks("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'aqueduct'");
        is_copied(&cluster, &job, source.path(), &copy);
    });
}

#[test]
fn a_large_file_of_which_nobody_does_the_rest_is_told() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (source, target) = sides();
        prepared(&cluster);
        let job = submitted(&cluster, &["cp", "-r", &from(source.path()), text(&target.path().join("copy"))]);
        cluster.asks(&format!("INSERT INTO aqueduct.part (job, key, body, missing) VALUES ({job}, 'large', '', 1)"));
        let _agent = cluster.agent(1);
        let mut wait = aqueduct();
        wait.args(["transfers", "wait", &job, "--store", &cluster.url()]);
        let said = run_within(TEST_MAX, &mut wait).failed();
        assert!(said.contains("large: putting it together: not all of its chunks are there"), "{said}");
    });
}

#[test]
fn sums_that_no_number_holds_end_at_the_greatest() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (source, target) = sides();
        prepared(&cluster);
        let copy = target.path().join("copy");
        let job = submitted(&cluster, &["cp", "-r", &from(source.path()), text(&copy)]);
        // As two files of 7 EiB have it, all of which is a hole: at this agent, and at two.
        cluster.asks(&format!(
            "INSERT INTO aqueduct.tally (job, agent, what, count) SELECT {job}, agent, what, 9223372036854775807
            FROM unnest(ARRAY[1, 2]) AS agent, unnest(ARRAY['found:bytes', 'count:bytes']) AS what"
        ));
        let _agent = cluster.agent(1);
        wait_for(&cluster, &job);
        let said =
            run_within(TEST_MAX, aqueduct().args(["transfers", "wait", "--json", &job, "--store", &cluster.url()]));
        assert!(said.succeeded().contains("9223372036854775807"));
        assert_same(source.path(), &copy);
    });
}

#[test]
fn chunks_of_an_earlier_try_of_a_file_are_no_part_of_it() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (home, source, target) = (directory(), directory(), directory());
        fs::write(source.path().join("large"), noise(100 << 20, 9)).unwrap();
        let _agents: Vec<Agent> = (0..2).map(|number| cluster.agent(number)).collect();
        let (copy, manifest) = (target.path().join("copy"), home.path().join("manifest"));
        let mut copying = aqueduct();
        copying.args(["cp", "-r", "--bwlimit", "30MB/s", "--manifest", text(&manifest), "--store", &cluster.url()]);
        copying.args([&from(source.path()), text(&copy)]);
        let mut copying = Process::start(&mut copying, &home.path().join("log"));
        wait_until("it is under way", TEST_MAX, || !parts(&copy).is_empty());
        cluster.asks(
            "INSERT INTO aqueduct.unit (job, body)
            SELECT id, '{\"do\":\"chunks\",\"path\":\"large\",\"first\":0,\"count\":1,\"tries\":7}' FROM aqueduct.job",
        );
        assert!(copying.ends_within(TEST_MAX).success(), "{}", copying.output());
        assert_same(source.path(), &copy);
        transfer(home.path(), &["verify", text(&manifest), text(&copy)]).succeeded();
        assert_eq!(cluster.asks("SELECT count(*) FROM aqueduct.unit"), "0");
    });
}

/// Moves into directories below, one by one: no call takes so long a path. Names are noise, which
/// the database cannot make shorter.
const LONG: &str = r#"
for depth in $(seq 19); do
    name=$(head -c 100 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
    mkdir $name
    cd $name
done
echo file > f
echo linked > l
ln l m
truncate -s 70M large
echo end >> large
touch -d @1000000 ../$name f l large
"#;

#[test]
fn paths_that_no_index_holds_are_copied() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (home, source, target) = (directory(), directory(), directory());
        crate::common::shell(source.path(), LONG).succeeded();
        let _agent = cluster.agent(1);
        let (copy, manifest) = (target.path().join("copy"), home.path().join("manifest"));
        let from = from(source.path());
        let (code, said) = copied(&cluster, &["cp", "-r", "--manifest", text(&manifest), &from, text(&copy)]);
        assert_eq!((code, &said["files"], &said["links"]), (0, &3.into(), &1.into()), "{said}");
        assert_eq!(body(&manifest), lines_of_one(&from));
        transfer(home.path(), &["verify", text(&manifest), text(&copy)]).succeeded();
    });
}

#[test]
fn listed_paths_that_no_source_has_are_told_by_agents() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (home, one, other, target) = (directory(), directory(), directory(), directory());
        fs::create_dir(other.path().join("d")).unwrap();
        for file in [one.path().join("a"), one.path().join("unlisted"), other.path().join("d/b")] {
            File::create(file).unwrap();
        }
        let list = home.path().join("list");
        fs::write(&list, "a\nd/b\nd/missing\na/below\n").unwrap();
        let _agent = cluster.agent(1);
        let arguments =
            ["cp", "-r", "--files-from", text(&list), text(one.path()), text(other.path()), text(target.path())];
        let (code, said) = copied(&cluster, &arguments);
        let told: Vec<&str> =
            said["troubles"].as_array().unwrap().iter().filter_map(|one| one["path"].as_str()).collect();
        assert_eq!((code, told), (1, vec!["a/below", "d/missing"]), "{said}");
        assert!(target.path().join("a").exists() && target.path().join("d/b").exists());
        assert!(!target.path().join("unlisted").exists());
    });
}

/// A pair of minisign's for this test alone.
const SECRET: &str = "untrusted comment: rsign encrypted secret key
RWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA+gRn8orzX0KPkASdnYMC4o9gSMJDP/zrOK/8qTeT1\
iniNdZRZQc3eQTutVPL44XKu6Eb0AXjYoxtiB1+1R2wexeLmWmCCZhweqRUEp6Wq2fbR4QQXPSJzAmAnvW794St9UFXM75GXI=
";
const PUBLIC: &str = "untrusted comment: minisign public key: 7DCD2BCA9F11E803
RWQD6BGfyivNfeQTutVPL44XKu6Eb0AXjYoxtiB1+1R2wexeLmWmCCZh
";

#[test]
fn only_a_manifest_that_this_run_wrote_is_signed() {
    test(|| {
        let (home, source, target) = (directory(), directory(), directory());
        let at = |name: &str| home.path().join(name);
        fs::write(source.path().join("f"), "f").unwrap();
        let (key, public) = (at("key"), at("pub"));
        fs::write(&key, SECRET).unwrap();
        fs::write(&public, PUBLIC).unwrap();
        let (from, copy) = (from(source.path()), target.path().join("copy"));
        let (manifest, signature) = (at("manifest"), at("manifest.minisig"));
        let signs = ["cp", "-r", "--manifest", text(&manifest), "--sign", text(&key), &from, text(&copy)];
        let verify = ["verify", "--signer", text(&public), text(&manifest), text(&copy)];
        // What another wrote there is none of a run that writes none.
        fs::write(&manifest, "another's").unwrap();
        transfer(home.path(), &[&signs[..], &["-n"]].concat()).succeeded();
        assert!(!signature.exists());
        transfer(home.path(), &signs).succeeded();
        transfer(home.path(), &verify).succeeded();
        fs::remove_file(&signature).unwrap();
        let Some(cluster) = Cluster::start() else { return };
        prepared(&cluster);
        let mut waiting = aqueduct();
        waiting.args(signs).args(["--store", &cluster.url()]);
        let mut waiting = Process::start(&mut waiting, &at("log"));
        let jobs = || cluster.asks("SELECT count(*) FROM aqueduct.job");
        wait_until("the job is there", TEST_MAX, || jobs() == "1");
        run_within(TEST_MAX, aqueduct().args(["transfers", "cancel", "1", "--store", &cluster.url()])).succeeded();
        assert!(!waiting.ends_within(TEST_MAX).success());
        assert!(!signature.exists());
        let _agent = cluster.agent(1);
        copied(&cluster, &signs);
        transfer(home.path(), &verify).succeeded();
    });
}
