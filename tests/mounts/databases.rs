//! Databases, repositories and logs that several processes and clients write at once. Each test runs with and without what clients cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{Mount, Pair, Process, Server, directory, have, run_within, shell, skip, wait_until, within};
use crate::exports::{Shared, WAYS};

/// A test may take so long, in both modes; all but those that wait for a grace time take seconds.
const TEST_MAX: Duration = Duration::from_secs(180);

/// One program of a test may take so long: SQLite tries for 10 s where another client has the shared memory, and the server keeps what a killed client
/// had locked for 5.
const PROGRAM_MAX: Duration = Duration::from_secs(60);

const MODES: [&str; 2] = ["cache=none", "cache=lease"];

/// Debian's, for which there are Debian's modules.
const PYTHON: &str = "/usr/bin/python3";

fn python(mount: &Mount, script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(PYTHON);
    command.args(["-u", "-c", script]).args(arguments).current_dir(mount.path());
    command
}

/// Whether the modules are there.
fn have_modules(modules: &str) -> bool {
    let import = Command::new(PYTHON).args(["-c", &format!("import {modules}")]).output();
    let found = import.is_ok_and(|output| output.status.success());
    if !found {
        skip(&format!("needs {PYTHON} with {modules}"));
    }
    found
}

/// Whether or not clients cache, with these modules.
fn in_each_mode(modules: &'static str, body: fn(&str)) {
    within(TEST_MAX, move || {
        if have_modules(modules) {
            MODES.iter().for_each(|mode| body(mode));
        }
    });
}

/// A program that runs beside others, in the root of a mount.
struct Beside {
    process: Process,
    home: TempDir,
}

impl Beside {
    /// Its first argument is a path that exists once [`let_go`](Beside::let_go) was called.
    fn start(mount: &Mount, script: &str) -> Beside {
        let home = directory();
        let go = Beside::go(&home);
        let command = &mut python(mount, script, &[go.to_str().unwrap()]);
        Beside { process: Process::start(command, &home.path().join("log")), home }
    }

    fn go(home: &TempDir) -> PathBuf {
        home.path().join("go")
    }

    /// Waits until it has said that it is `ready`.
    fn ready(mut self) -> Beside {
        wait_until("the program is ready", PROGRAM_MAX, || {
            assert!(self.process.has_ended().is_none(), "it ended: {}", self.process.output());
            self.process.output().contains("ready")
        });
        self
    }

    /// Lets it go on, and returns what it said by its end.
    fn let_go(mut self) -> String {
        fs::write(Beside::go(&self.home), "").unwrap();
        let status = self.process.ends_within(PROGRAM_MAX);
        assert!(status.success(), "{status}: {}", self.process.output());
        self.process.output()
    }
}

/// Runs one program for each mount, all at once; each has to succeed. Their first argument is their number.
fn all_at_once(mounts: &[&Mount], script: &str) {
    std::thread::scope(|scope| {
        for (number, mount) in mounts.iter().enumerate() {
            scope
                .spawn(move || run_within(PROGRAM_MAX, &mut python(mount, script, &[&number.to_string()])).succeeded());
        }
    });
}

/// What a program says that has to succeed.
fn says(mount: &Mount, script: &str) -> String {
    run_within(PROGRAM_MAX, &mut python(mount, script, &[])).succeeded()
}

const WAIT: &str = "
def wait():
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
";

#[test]
fn sqlite_takes_back_what_a_killed_client_had_begun() {
    in_each_mode("sqlite3", |mode| {
        let Pair { left, right, server: _server, export } = Pair::with(mode);
        let create = "import sqlite3
c = sqlite3.connect('db'); c.execute('create table t(k integer primary key, v text)')
c.executemany('insert into t(v) values(?)', (('x' * 500,) for _ in range(400))); c.commit()";
        says(&left, create);
        let committed = fs::read(export.path().join("db")).unwrap();
        // With room for ten pages the rest goes to the file before the end.
        let begin = "import os, sqlite3, sys, time
c = sqlite3.connect('db'); c.execute('pragma cache_size = 10')
c.execute(\"update t set v = 'changed' || v\")
print('ready'); time.sleep(1000)";
        let program = Beside::start(&left, begin).ready();
        assert!(fs::read(export.path().join("db")).unwrap() != committed, "half of it is in the file");
        assert!(export.path().join("db-journal").exists());
        left.process.signal(Signal::KILL);
        drop(program);
        let check = "import sqlite3
c = sqlite3.connect('db', timeout=30)
print(c.execute('pragma integrity_check').fetchone()[0], *c.execute(\"select count(*), sum(v like 'changed%') from t\").fetchone())
c.execute(\"insert into t(v) values('after')\"); c.commit()";
        assert_eq!(says(&right, check), "ok 400 0\n", "{mode}");
        assert!(!export.path().join("db-journal").exists());
    });
}

const INSERT: &str = "import sqlite3, sys
c = sqlite3.connect('db', timeout=50, isolation_level=None)
for i in range(30):
    c.execute('begin immediate')
    n = c.execute('select count(*) from t').fetchone()[0]
    c.execute('insert into t(v) values(?)', (f'{sys.argv[1]} {i}',))
    c.execute('update n set n = n + 1')
    assert c.execute('select n from n').fetchone()[0] == n + 1
    c.execute('commit')";

const COUNT: &str = "import sqlite3
c = sqlite3.connect('db', timeout=30)
print(c.execute('pragma integrity_check').fetchone()[0], *c.execute('select count(distinct v) from t').fetchone(), *c.execute('select n from n').fetchone())";

fn create_sqlite(mount: &Mount, journal: &str) {
    let create = format!(
        "import sqlite3
c = sqlite3.connect('db'); print(c.execute('pragma journal_mode={journal}').fetchone()[0])
c.execute('create table t(k integer primary key, v text)'); c.execute('create table n(n)'); c.execute('insert into n values(0)'); c.commit()"
    );
    assert_eq!(says(mount, &create).trim(), journal);
}

#[test]
fn sqlite_with_a_rollback_journal_is_written_from_two_clients() {
    in_each_mode("sqlite3", |mode| {
        for journal in ["delete", "persist"] {
            let pair = Pair::with(mode);
            create_sqlite(&pair.left, journal);
            all_at_once(&[&pair.left, &pair.right, &pair.left, &pair.right], INSERT);
            for mount in [&pair.left, &pair.right] {
                assert_eq!(says(mount, COUNT), "ok 120 120\n", "{mode} {journal}");
            }
        }
    });
}

/// As through one export: locks are the inode's.
#[test]
fn sqlite_is_written_through_two_exports_of_one_directory() {
    in_each_mode("sqlite3", |mode| {
        for inner in WAYS {
            let shared = Shared::new(inner, mode);
            let insert = INSERT.replace("'db'", "'DIR/db'");
            let script = |directory: &str| insert.replace("DIR", directory);
            let left = if inner.is_empty() { "." } else { inner };
            create_sqlite(&shared.right, "delete");
            std::thread::scope(|scope| {
                for number in 0..4 {
                    let (mount, directory) = if number % 2 == 0 { (&shared.left, left) } else { (&shared.right, ".") };
                    let (script, number) = (script(directory), number.to_string());
                    scope.spawn(move || run_within(PROGRAM_MAX, &mut python(mount, &script, &[&number])).succeeded());
                }
            });
            for (mount, directory) in [(&shared.left, left), (&shared.right, ".")] {
                let count = COUNT.replace("'db'", &format!("'{directory}/db'"));
                assert_eq!(says(mount, &count), "ok 120 120\n", "{mode} {inner:?}");
            }
        }
    });
}

#[test]
fn sqlite_with_a_write_ahead_log_is_written_by_many_processes_of_one_client() {
    in_each_mode("sqlite3", |mode| {
        let pair = Pair::with(mode);
        create_sqlite(&pair.left, "wal");
        let give_up = "import sqlite3, time
c = sqlite3.connect('db', timeout=50, isolation_level=None); c.execute('begin immediate'); c.execute('delete from t')
print('ready'); time.sleep(1000)";
        let killed = Beside::start(&pair.left, give_up).ready();
        std::thread::scope(|scope| {
            scope.spawn(|| all_at_once(&[&pair.left; 4], INSERT));
            drop(killed);
        });
        // The other client may have it once nobody has it here.
        for mount in [&pair.left, &pair.right] {
            assert_eq!(says(mount, COUNT), "ok 120 120\n", "{mode}");
        }
    });
}

/// The index of the log is in memory that two clients do not share.
#[test]
fn sqlite_with_a_write_ahead_log_is_had_by_one_client_at_a_time() {
    within(TEST_MAX, || {
        if !have_modules("sqlite3") {
            return;
        }
        // One who writes and one who reads, who try for 10 s.
        for (mode, script) in MODES.into_iter().zip([INSERT, COUNT]) {
            let pair = Pair::with(mode);
            create_sqlite(&pair.left, "wal");
            let hold = format!(
                "import os, sqlite3, sys, time{WAIT}
c = sqlite3.connect('db', isolation_level=None); c.execute(\"insert into t(v) values('left 1')\")
print('ready'); wait()
c.execute(\"insert into t(v) values('left 2')\"); c.execute('update n set n = 2')"
            );
            let held = Beside::start(&pair.left, &hold).ready();
            let said = run_within(PROGRAM_MAX, &mut python(&pair.right, script, &["right"])).failed();
            assert!(said.contains("locking protocol") || said.contains("locked"), "{said}");
            held.let_go();
            for mount in [&pair.right, &pair.left] {
                assert_eq!(says(mount, COUNT), "ok 2 2\n", "{mode}");
            }
            all_at_once(&[&pair.right, &pair.right], INSERT);
            assert_eq!(says(&pair.left, COUNT), "ok 62 62\n", "{mode}");
        }
    });
}

const LMDB_INSERT: &str = "import lmdb, sys
e = lmdb.open('lm', map_size=1 << 24)
for i in range(30):
    with e.begin(write=True) as t:
        n = int(t.get(b'n', b'0')) + 1
        t.put(b'n', b'%d' % n); t.put(f'{sys.argv[1]} {i}'.encode(), b'x' * 300)
        assert t.stat()['entries'] == n + 1
    with e.begin() as t:
        assert int(t.get(b'n')) >= n";

const LMDB_COUNT: &str = "import lmdb
t = lmdb.open('lm', map_size=1 << 24).begin(); print(len(list(t.cursor())), t.get(b'n').decode())";

#[test]
fn lmdb_is_written_by_many_processes_of_one_client() {
    in_each_mode("lmdb", |mode| {
        let pair = Pair::with(mode);
        all_at_once(&[&pair.left; 4], LMDB_INSERT);
        for mount in [&pair.left, &pair.right] {
            assert_eq!(says(mount, LMDB_COUNT), "121 120\n", "{mode}");
        }
    });
}

/// The table of readers and the locks of writers are in memory that two clients do not share.
#[test]
fn lmdb_is_had_by_one_client_at_a_time() {
    in_each_mode("lmdb", |mode| {
        let pair = Pair::with(mode);
        let hold = format!(
            "import lmdb, os, sys, time{WAIT}
e = lmdb.open('lm', map_size=1 << 24)
with e.begin(write=True) as t: t.put(b'n', b'0')
print('ready'); wait()
with e.begin(write=True) as t: t.put(b'n', b'1'); t.put(b'left', b'1')"
        );
        let held = Beside::start(&pair.left, &hold).ready();
        for script in [LMDB_INSERT, LMDB_COUNT] {
            let said = run_within(PROGRAM_MAX, &mut python(&pair.right, script, &["right"])).failed();
            assert!(said.contains("Device or resource busy"), "{said}");
        }
        assert!(
            pair.server.process.output().contains("shared memory of a database"),
            "{}",
            pair.server.process.output()
        );
        held.let_go();
        all_at_once(&[&pair.right, &pair.right], LMDB_INSERT);
        for mount in [&pair.right, &pair.left] {
            assert_eq!(says(mount, LMDB_COUNT), "62 61\n", "{mode}");
        }
    });
}

#[test]
fn shared_memory_stays_with_its_client_over_a_restart_of_the_server() {
    in_each_mode("lmdb", |mode| {
        let Pair { left, right, server, export } = Pair::with(mode);
        let hold = format!(
            "import lmdb, os, sys, time{WAIT}
e = lmdb.open('lm', map_size=1 << 24)
with e.begin(write=True) as t: t.put(b'n', b'0')
print('ready'); wait()
with e.begin(write=True) as t: t.put(b'n', b'1'); t.put(b'left', b'1')"
        );
        let held = Beside::start(&left, &hold).ready();
        let _server = server.restart(&[export.path()]);
        let said = run_within(PROGRAM_MAX, &mut python(&right, LMDB_COUNT, &[])).failed();
        assert!(said.contains("Device or resource busy"), "{said}");
        held.let_go();
        assert_eq!(says(&right, LMDB_COUNT), "2 1\n", "{mode}");
    });
}

#[test]
fn databases_that_share_memory_outlive_their_client() {
    in_each_mode("sqlite3, lmdb", |mode| {
        let Pair { left, right, server: _server, export: _export } = Pair::with(mode);
        create_sqlite(&left, "wal");
        let begin = "import lmdb, sqlite3, time
c = sqlite3.connect('db', isolation_level=None); c.execute('pragma synchronous = full')
for i in range(30):
    c.execute('begin'); c.execute('insert into t(v) values(?)', (f'before {i}',)); c.execute('update n set n = n + 1'); c.execute('commit')
e = lmdb.open('lm', map_size=1 << 24)
for i in range(30):
    with e.begin(write=True) as t: t.put(b'n', b'%d' % (i + 1)); t.put(b'before %d' % i, b'x' * 300)
c.execute('begin'); c.execute('delete from t')
t = e.begin(write=True); t.put(b'n', b'1000')
print('ready'); time.sleep(1000)";
        let program = Beside::start(&left, begin).ready();
        left.process.signal(Signal::KILL);
        drop(program);
        let counts = || run_within(PROGRAM_MAX, &mut python(&right, LMDB_COUNT, &[]));
        wait_until("the server gives the locks of the killed client up", PROGRAM_MAX, || counts().status.success());
        assert_eq!(says(&right, COUNT) + &says(&right, LMDB_COUNT), "ok 30 30\n31 30\n", "{mode}");
        all_at_once(&[&right, &right], INSERT);
        all_at_once(&[&right, &right], LMDB_INSERT);
        assert_eq!(says(&right, COUNT) + &says(&right, LMDB_COUNT), "ok 90 90\n91 90\n", "{mode}");
    });
}

#[test]
fn hdf5_keeps_a_second_writer_out() {
    in_each_mode("h5py, numpy", |mode| {
        let pair = Pair::with(mode);
        let hold = format!(
            "import h5py, numpy, os, sys, time{WAIT}
f = h5py.File('data.h5', 'w'); d = f.create_dataset('d', data=numpy.arange(100000)); f.flush()
print('ready'); wait()
d[5] = -5; f.close()"
        );
        let held = Beside::start(&pair.left, &hold).ready();
        let second = "import h5py\nwith h5py.File('data.h5', 'r+') as f: f['d'][6] = -6";
        for mount in [&pair.right, &pair.left] {
            let said = run_within(PROGRAM_MAX, &mut python(mount, second, &[])).failed();
            assert!(said.contains("unable to lock file"), "{said}");
        }
        held.let_go();
        says(&pair.right, second);
        let sum = "import h5py\nwith h5py.File('data.h5', 'r') as f: print(f['d'][5], f['d'][6], f['d'][:].sum())";
        for mount in [&pair.left, &pair.right] {
            assert_eq!(says(mount, sum), format!("-5 -6 {}\n", 99_999u64 * 50_000 - 22), "{mode}");
        }
    });
}

#[test]
fn two_clients_push_to_one_git_repository() {
    within(TEST_MAX, || {
        if !have(&["git"]) {
            return;
        }
        for mode in MODES {
            let pair = Pair::with(mode);
            let git = "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_{AUTHOR,COMMITTER}_NAME=t GIT_{AUTHOR,COMMITTER}_EMAIL=t@example.org\n";
            let bash = |mount: &Mount, script: &str| {
                let script = format!("set -euo pipefail; {git}{script}");
                run_within(TEST_MAX, Command::new("bash").args(["-c", &script]).current_dir(mount.path())).succeeded()
            };
            bash(
                &pair.left,
                "git init -q --bare -b main bare; git clone -q bare left 2>&1; git clone -q bare shared 2>&1
                 cd left; echo start > start; git add .; git commit -qm start; git push -q origin main 2>&1
                 cd ../shared; git pull -q origin main; git -C .. clone -q bare right",
            );
            // Each has a clone of its own, and both commit in a third one, whose index and branch are locked by files.
            let work = |mount: &Mount, who: &str| {
                let script = format!(
                    "cd {who}; for i in $(seq 8); do
                       echo $i > {who}$i; git add .; git commit -qm '{who} '$i
                       until git push -q origin main 2> /dev/null; do git pull -q --rebase origin main 2>&1; done
                       echo $i > ../shared/{who}$i
                       until git -C ../shared add {who}$i 2> /dev/null && git -C ../shared commit -qm '{who} '$i -- {who}$i 2> /dev/null; do sleep 0.02; done
                     done"
                );
                bash(mount, &script);
            };
            std::thread::scope(|scope| {
                scope.spawn(|| work(&pair.left, "left"));
                scope.spawn(|| work(&pair.right, "right"));
            });
            for mount in [&pair.left, &pair.right] {
                for repository in ["bare", "shared"] {
                    let check = format!(
                        "git -C {repository} fsck --no-dangling --no-progress --full --strict 2>&1 &&
                         git -C {repository} log --format=%s main | sort -u | wc -l; git -C {repository} ls-tree --name-only main | wc -l"
                    );
                    assert_eq!(bash(mount, &check), "17\n17\n", "{mode} {repository}");
                }
            }
        }
    });
}

/// A server and four mounts of one export.
struct Four {
    mounts: Vec<Mount>,
    _server: Server,
    export: TempDir,
}

impl Four {
    fn with(options: &str) -> Four {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let mounts = (0..4).map(|_| server.mount_with(export.path(), options)).collect();
        Four { mounts, _server: server, export }
    }

    fn all(&self) -> Vec<&Mount> {
        self.mounts.iter().collect()
    }
}

/// The records of a log, `WHO NUMBER FILLING end` each: of each writer all of them, in its order, whole.
fn check_log(log: &Path, writers: usize, records: usize) {
    let text = fs::read_to_string(log).unwrap();
    let mut next = vec![0; writers];
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [who, number, filling, "end"] = words[..] else { panic!("torn: {line:?}") };
        let (who, number): (usize, usize) = (who.parse().unwrap(), number.parse().unwrap());
        assert_eq!(number, next[who], "lost, or out of order");
        assert!(filling.len() == 20 + number * 37 && filling.bytes().all(|byte| byte == b'f'), "torn: {line:?}");
        next[who] += 1;
    }
    assert_eq!(next, vec![records; writers]);
}

#[test]
fn four_clients_append_to_one_log() {
    in_each_mode("os", |mode| {
        let four = Four::with(mode);
        let append = "import os, sys
log = os.open('log', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
for i in range(100):
    record = f'{sys.argv[1]} {i} {\"f\" * (20 + i * 37)} end\\n'.encode()
    assert os.write(log, record) == len(record)";
        all_at_once(&four.all(), append);
        check_log(&four.export.path().join("log"), 4, 100);
    });
}

/// Records of several writes, each with the count of all before it, which its writer has read under the lock.
#[test]
fn four_clients_append_to_one_log_under_flock() {
    within(TEST_MAX, || {
        if !have_modules("fcntl") || !have(&["flock"]) {
            return;
        }
        for mode in MODES {
            let four = Four::with(mode);
            fs::write(four.export.path().join("count"), "0").unwrap();
            let append = "import fcntl, os, sys
log = os.open('log', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
for i in range(50):
    fcntl.flock(log, fcntl.LOCK_EX)
    size = os.fstat(log).st_size
    for part in [f'{sys.argv[1]} ', f'{i} ', 'f' * (20 + i * 37), ' end\\n']:
        os.write(log, part.encode())
        size += len(part)
        assert os.fstat(log).st_size == size
    with open('count') as f: count = int(f.read())
    with open('count', 'w') as f: f.write(str(count + 1))
    fcntl.flock(log, fcntl.LOCK_UN)";
            all_at_once(&four.all(), append);
            check_log(&four.export.path().join("log"), 4, 50);
            assert_eq!(fs::read_to_string(four.export.path().join("count")).unwrap(), "200", "{mode}");
            // As shell scripts do it.
            std::thread::scope(|scope| {
                for mount in four.all() {
                    let script = "for i in $(seq 15); do flock log.lock sh -c 'n=$(cat n 2> /dev/null || echo 0); echo $((n + 1)) > n; echo $n >> numbers'; done";
                    scope.spawn(|| shell(mount.path(), script).succeeded());
                }
            });
            let wanted: String = (0..60).map(|number| format!("{number}\n")).collect();
            assert_eq!(fs::read_to_string(four.export.path().join("numbers")).unwrap(), wanted, "{mode}");
        }
    });
}
