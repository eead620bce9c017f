//! Real programs on a mount over a local directory.

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_fuse::{CacheMode, Config, MountOptions};
use aqueduct_posix::{Options, Posix};
use common::{Mounted, everybody, groups};

/// A directory and a mount that shows it.
struct Shown {
    backing: tempfile::TempDir,
    mounted: Mounted,
}

impl Shown {
    fn with(config: Config, options: &MountOptions) -> Shown {
        let backing = tempfile::Builder::new().permissions(permissions(0o755)).tempdir().unwrap();
        let posix = Posix::open(backing.path(), Options::default()).unwrap();
        Shown { mounted: Mounted::with(Arc::new(posix), config, options, groups(2, 8)), backing }
    }

    fn sh(&self, script: &str) -> String {
        self.mounted.sh(script)
    }

    fn backing(&self, name: &str) -> std::path::PathBuf {
        self.backing.path().join(name)
    }
}

fn permissions(mode: u32) -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(mode)
}

fn strict() -> Shown {
    Shown::with(Config::default(), &everybody())
}

fn close_to_open() -> Config {
    let timeout = Duration::from_secs(1);
    Config { cache: CacheMode::CloseToOpen, attr_timeout: timeout, entry_timeout: timeout, ..Config::default() }
}

/// Runs a script in a mount of each kind.
fn in_each_mode(script: &str) {
    strict().sh(script);
    Shown::with(close_to_open(), &MountOptions { default_permissions: true, ..everybody() }).sh(script);
}

fn is_missing(program: &str) -> bool {
    let missing = !std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| Path::new(&folder).join(program).exists());
    if missing {
        eprintln!("skipped: {program} is not installed");
    }
    missing
}

#[test]
fn files_are_copied_listed_and_removed() {
    in_each_mode(
        "cp -a /etc/passwd a; cmp a /etc/passwd; mkdir d; cp -a /usr/share/perl-base/. d/ 2>/dev/null || cp -a /etc/. d/\n\
         ls -laR d > listing; tar cf t.tar d; mkdir e; tar xf t.tar -C e; diff --no-dereference -r d e/d; rm -rf d e; test ! -e d\n\
         dd if=/dev/urandom of=big bs=1M count=20 status=none; cp big big2; cmp big big2; mv big2 big3; stat big3 >/dev/null\n\
         dd if=big of=direct bs=1M iflag=direct oflag=direct status=none; cmp big direct\n\
         truncate -s 5T sparse; printf x | dd of=sparse bs=1 seek=4500000000000 conv=notrunc status=none\n\
         test $(stat -c %s sparse) = 5497558138880; ln -s a l; test $(readlink l) = a; mkfifo p; (echo hi > p &) ; test \"$(cat p)\" = hi",
    );
}

#[test]
fn git_works() {
    if is_missing("git") {
        return;
    }
    in_each_mode(
        "export GIT_CONFIG_GLOBAL=/dev/null HOME=$PWD; git init -q r; cd r; git config user.email a@b; git config user.name n\n\
         for i in $(seq 40); do mkdir -p d$i; echo $i > d$i/f; done; git add .; git commit -qm one; git status --porcelain | wc -l | grep -qx 0\n\
         for i in $(seq 40); do echo more >> d$i/f; done; git commit -qam two; git gc -q; git fsck --strict; cd ..; git clone -q r s\n\
         diff -r r/d1 s/d1; cd s; git log --oneline | wc -l | grep -qx 2",
    );
}

#[test]
fn sqlite_works_with_both_journals() {
    if is_missing("sqlite3") {
        return;
    }
    in_each_mode(
        "for j in delete wal; do sqlite3 $j.db \"pragma journal_mode=$j; create table t(x); begin; \
         with recursive n(i) as (select 1 union all select i+1 from n where i < 2000) insert into t select i from n; commit;\" >/dev/null\n\
         sqlite3 $j.db 'pragma integrity_check' | grep -qx ok; sqlite3 $j.db 'select sum(x) from t' | grep -qx 2001000; done\n\
         for i in 1 2 3 4; do sqlite3 wal.db '.timeout 20000' 'insert into t values (0)' & done; wait\n\
         sqlite3 wal.db 'select count(*) from t' | grep -qx 2004",
    );
}

#[test]
fn locks_hold_between_processes() {
    in_each_mode(
        "touch l; flock l sleep 0.5 & sleep 0.2; if flock -n l true; then exit 1; fi; flock -w 5 l true; wait\n\
         python3 -c \"import fcntl, os, struct\n\
f = open('l', 'w'); g = open('l', 'w')\n\
OFD_SETLK = 37\n\
arg = lambda kind: struct.pack('hhqqi4x', kind, 0, 0, 10, 0)\n\
fcntl.fcntl(f, OFD_SETLK, arg(fcntl.F_WRLCK))\n\
try: fcntl.fcntl(g, OFD_SETLK, arg(fcntl.F_WRLCK)); raise SystemExit(1)\n\
except OSError: pass\n\
f.close()\n\
fcntl.fcntl(g, OFD_SETLK, arg(fcntl.F_WRLCK))\n\
fcntl.lockf(g, fcntl.LOCK_UN)\"",
    );
}

#[test]
fn locks_are_free_when_close_has_returned() {
    in_each_mode(
        "touch l; python3 -c \"import fcntl, struct\n\
arg = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 10, 0)\n\
for i in range(1000):\n\
\x20   f = open('l', 'w'); fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); f.close()\n\
\x20   g = open('l', 'w'); fcntl.fcntl(g, 37, arg); g.close()  # F_OFD_SETLK\n\
\"\n\
         for i in $(seq 30); do flock -n l true; done",
    );
}

#[test]
fn access_control_lists_work() {
    if is_missing("setfacl") {
        return;
    }
    let script = "umask 022; touch f; setfacl -m u:1234:rwx,g:77:r f; getfacl -cn f | grep -qx user:1234:rwx\n\
         mkdir d; setfacl -d -m u:1234:rwx,o::--- d; umask 077; touch d/x; getfacl -cn d/x | grep -q '^user:1234:rwx'\n\
         stat -c %a d/x | grep -qx 660; mkdir d/e; getfacl -cn d/e | grep -qx default:user:1234:rwx\n\
         umask 027; touch plain; stat -c %a plain | grep -qx 640; setfacl -b f; getfacl -c f | grep -qc user:1234 && exit 1 || true";
    in_each_mode(script);
    let config = Config { posix_acl: true, ..close_to_open() };
    Shown::with(config, &everybody()).sh(script);
}

#[test]
fn permissions_are_those_of_the_caller() {
    if is_missing("setpriv") {
        return;
    }
    let script = "chmod 777 .; as() { setpriv --reuid $1 --regid $2 --groups $3 sh -c \"$4\"; }\n\
         echo secret > s; chmod 600 s; ! as 1234 1234 1234 'cat s' 2>/dev/null\n\
         as 1234 1234 1234 'echo mine > m'; stat -c %u:%g m | grep -qx 1234:1234\n\
         chgrp 77 s; chmod 640 s; as 1234 1234 77,99 'cat s' | grep -qx secret; ! as 1234 1234 99 'cat s' 2>/dev/null\n\
         mkdir closed; echo x > closed/f; chmod 700 closed; ! as 1234 1234 1234 'cat closed/f' 2>/dev/null\n\
         ! as 1234 1234 1234 'chmod 777 s' 2>/dev/null; ! as 1234 1234 1234 'rm closed/f' 2>/dev/null\n\
         ! as 1234 1234 1234 'test -w s'; as 1234 1234 77 'test -r s'\n\
         cp /bin/true t; chmod 4755 t; as 1234 1234 1234 'echo >> t' 2>/dev/null || chmod 4777 t; as 1234 1234 1234 'printf x >> t'\n\
         stat -c %a t | grep -qx 777";
    in_each_mode(script);
}

#[test]
fn the_mount_shows_the_directory() {
    let shown = strict();
    fs::write(shown.backing("below"), "from below").unwrap();
    assert_eq!(shown.sh("cat below"), "from below");
    shown.sh("echo above > above; mkdir -p x/y; mv above x/y/");
    assert_eq!(fs::read_to_string(shown.backing("x/y/above")).unwrap(), "above\n");
    fs::write(shown.backing("below"), "longer, from below").unwrap();
    assert_eq!(shown.sh("cat below; stat -c %s below"), "longer, from below18\n");
    shown.sh("python3 -c \"import os; f = open('u', 'w+'); os.unlink('u'); f.write('x' * 9); f.flush(); assert os.fstat(f.fileno()).st_size == 9\"");
    let odd = "python3 -c \"import os; n = bytes([1, 2, 255, 254]); open(n, 'w').close(); assert os.listdir(b'.').count(n) == 1; os.unlink(n)\"";
    shown.sh(odd);
    assert!(shown.sh("touch $(printf 'x%.0s' $(seq 256)) 2>&1 || true").contains("File name too long"));
}

#[test]
fn a_program_is_built_and_run() {
    if is_missing("gcc") {
        return;
    }
    in_each_mode(
        "printf 'int twice(int x) { return 2 * x; }' > l.c; printf '#include <stdio.h>\\nint twice(int);int main() { printf(\"%%d\", twice(21)); }' > m.c\n\
         gcc -shared -fPIC l.c -o libl.so; gcc m.c -L. -ll -Wl,-rpath,$PWD -o m; test $(./m) = 42",
    );
}

#[test]
fn mappings_of_many_processes_meet() {
    in_each_mode(
        "python3 -c \"import mmap, os\n\
f = open('m', 'w+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192)\n\
pid = os.fork()\n\
if pid == 0:\n\
\x20   g = open('m', 'r+b'); n = mmap.mmap(g.fileno(), 8192); n[4096:4100] = b'kid!'; os._exit(0)\n\
os.waitpid(pid, 0); assert m[4096:4100] == b'kid!'; m[0:4] = b'mum!'; m.flush()\n\
assert open('m', 'rb').read(4) == b'mum!'\"\n",
    );
}

#[test]
fn a_full_list_of_a_large_directory() {
    let shown = strict();
    for n in 0..20_000 {
        fs::write(shown.backing(&format!("file-{n:05}")), "").unwrap();
    }
    assert_eq!(shown.sh("ls -f | sort -u | wc -l").trim(), "20002");
    assert_eq!(shown.sh("find . -type f | wc -l").trim(), "20000");
}
