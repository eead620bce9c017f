//! Real programs on a mount.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{One, Pair, directory, disk_directory, have, run_within, shell, within};

/// A program of this file may take so long; the whole of it takes seconds.
const PROGRAM_MAX: Duration = Duration::from_secs(120);

fn script(directory: &Path, script: &str) -> String {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(directory);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null").env("HOME", directory);
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "t").env(format!("GIT_{role}_EMAIL"), "t@example.org");
    }
    run_within(PROGRAM_MAX, &mut command).succeeded()
}

/// `count` files of different sizes in directories, with links, modes, times and holes.
fn tree(root: &Path, count: usize) {
    for number in 0..count {
        let directory = root.join(format!("tree/d{}/e{}", number % 17, number % 5));
        fs::create_dir_all(&directory).unwrap();
        let text = format!("file {number}\n").repeat(number * 37 % 900);
        fs::write(directory.join(format!("f{number}")), text).unwrap();
    }
    let extras = "cd tree; ln d0/e0/f0 hard; ln -s d0/e0 soft; ln -s nowhere dangling; mkfifo fifo; chmod 4755 d1/e1/f1
                  truncate -s 5M holes; printf x >> holes; touch -d '2001-02-03 04:05:06.789' d2/e2/f2; chown 1000:2000 d3/e3/f3
                  printf 'odd' > \"$(printf 'new\\nline \\377')\"; setfattr -n user.k -v v d4/e4/f4 2>/dev/null || true";
    shell(root, extras).succeeded();
}

#[test]
fn git_clones_collects_and_checks() {
    within(PROGRAM_MAX, || {
        if !have(&["git"]) {
            return;
        }
        let local = directory();
        let make = "git init -q -b main repo; cd repo
            for i in $(seq 30); do mkdir -p d$i; for j in $(seq 10); do seq $((i * j * 20)) > d$i/f$j; done; git add .; git commit -qm $i; done
            git checkout -q -b side HEAD~10; git mv d3 moved; git commit -qm side; git checkout -q main; git merge -q side -m merge; git tag v1";
        script(local.path(), make);
        let one = One::new();
        let work = format!(
            "git clone -q {}/repo clone 2>&1; cd clone; git fsck --full --strict 2>&1; git gc -q --aggressive --prune=now 2>&1
             git fsck --full 2>&1; git checkout -q side; git checkout -q main
             for i in $(seq 5); do echo $i >> d1/f1; git commit -qam again$i; done
             git rebase -q side 2>&1; git stash list; echo change > d2/f2; git stash -q; git stash pop -q; git checkout -q d2/f2
             git worktree add -q ../second side; git -C ../second log --oneline | wc -l
             git repack -adq; git status --porcelain; git log --oneline | wc -l",
            local.path().display()
        );
        script(one.mount.path(), &work);
        let compare = format!(
            "cd clone; git diff --stat v1 -- d9 moved; git rev-parse v1^{{tree}}; git -C {}/repo rev-parse v1^{{tree}}",
            local.path().display()
        );
        let trees = script(one.mount.path(), &compare);
        let lines: Vec<_> = trees.lines().collect();
        assert_eq!((lines.len(), lines[0]), (2, lines[1]));
    });
}

#[test]
fn tar_packs_and_unpacks_a_tree() {
    within(PROGRAM_MAX, || {
        if !have(&["tar", "find"]) {
            return;
        }
        let local = directory();
        tree(local.path(), 3000);
        let one = One::new();
        let work = format!(
            "tar -C {l} --xattrs -cf - tree | tar --xattrs -xpf -; tar --xattrs --sort=name -cf packed.tar tree
             tar -C {l} --sort=name -df packed.tar 2>&1
             mkdir back; tar --xattrs -C back -xpf packed.tar",
            l = local.path().display()
        );
        script(one.mount.path(), &work);
        let list = |root: &Path| {
            script(root, "find tree -printf '%P %y %m %U %G %l %n\\n' -type f -printf '%s %T@\\n' | LC_ALL=C sort")
        };
        let wanted = list(local.path());
        assert!(list(one.mount.path()) == wanted);
        assert!(list(&one.path("back")) == wanted);
        script(
            one.mount.path(),
            "diff -r --no-dereference tree/d1 back/tree/d1; rm -rf tree back; test \"$(ls)\" = packed.tar",
        );
    });
}

#[test]
fn sqlite_keeps_its_word() {
    within(PROGRAM_MAX, || {
        if !have(&["sqlite3"]) {
            return;
        }
        for (journal, pair) in [("delete", Pair::new()), ("truncate", Pair::new()), ("wal", Pair::new())] {
            let create = format!(
                "sqlite3 db 'pragma journal_mode={journal}; create table t(k integer primary key, v text)' > /dev/null"
            );
            script(pair.left.path(), &create);
            // A log in shared memory is for processes of one machine; the others may work from two.
            let second = if journal == "wal" { pair.left.path() } else { pair.right.path() };
            let insert = |who: &str| {
                format!(
                    "for i in $(seq 60); do sqlite3 -cmd '.timeout 30000' db \"begin immediate; insert into t(v) values('{who} $i'); insert into t(v) values('{who} $i again'); commit\"; done"
                )
            };
            std::thread::scope(|scope| {
                scope.spawn(|| script(second, &insert("right")));
                script(pair.left.path(), &insert("left"));
            });
            // One that gives up in the middle leaves no trace.
            script(second, "sqlite3 db 'begin; delete from t; rollback; begin; delete from t' || true");
            let check = "sqlite3 db 'pragma integrity_check; select count(*), count(distinct v) from t'";
            for root in [pair.left.path(), second] {
                assert_eq!(script(root, check), "ok\n240|240\n", "{journal}");
            }
        }
    });
}

#[test]
fn a_program_is_built() {
    within(PROGRAM_MAX, || {
        if !have(&["cc", "make", "ar"]) {
            return;
        }
        let one = One::new();
        let prepare = "for i in $(seq 40); do printf 'int f%d(int x) { return x + %d; }\\n' $i $i > f$i.c; done
            { for i in $(seq 40); do echo \"int f$i(int);\"; done; echo 'int main(void) { int x = 0;'
              for i in $(seq 40); do echo \"x = f$i(x);\"; done; echo 'return x == 820 ? 0 : 1; }'; } > main.c
            printf 'objects := $(patsubst %%.c,%%.o,$(wildcard f*.c))\\nmain: main.o libf.a\\n\\t$(CC) -o $@ $^\\nlibf.a: $(objects)\\n\\tar rcs $@ $^\\n' > Makefile";
        script(one.mount.path(), prepare);
        script(one.mount.path(), "make -s -j4 && ./main");
        // Times are good enough to tell what is done and what is not.
        assert_eq!(script(one.mount.path(), "make -q && echo done"), "done\n");
        script(
            one.mount.path(),
            "touch f7.c; make -n > todo; grep -q f7.c todo; test $(grep -c '\\.c' todo) = 1; make -s; make -q; ./main",
        );
    });
}

#[test]
fn rsync_there_and_back() {
    within(PROGRAM_MAX, || {
        if !have(&["rsync"]) {
            return;
        }
        let local = directory();
        tree(local.path(), 800);
        let one = One::over(disk_directory(), "");
        let work = |options: &str| {
            format!(
                "rsync {options} {l}/tree . && rsync {options} tree {l}/back && rsync {options} -c -n --itemize-changes {l}/tree . && rsync {options} -c -n --itemize-changes {l}/tree {l}/back/",
                l = local.path().display()
            )
        };
        assert_eq!(script(one.mount.path(), &work("-aHAX --delete")), "");
        // Again with a change, in place and sparse.
        script(
            local.path(),
            "echo more >> tree/d1/e1/f1; rm tree/hard; dd if=/dev/urandom of=tree/holes bs=4096 seek=100 count=10 conv=notrunc status=none",
        );
        assert_eq!(script(one.mount.path(), &work("-aHAX --delete --inplace")), "");
        script(local.path(), "dd if=/dev/zero of=tree/zeros bs=1M count=4 status=none");
        assert_eq!(script(one.mount.path(), &work("-aHAX --delete -S")), "");
    });
}
