//! Real mounts over file systems without a disk.

pub(crate) mod common;
#[allow(dead_code, reason = "shared with other tests")]
pub(crate) mod memory;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aqueduct_fs::Groups;
use aqueduct_fs::synthetic::Synthetic;
use aqueduct_fuse::{
    CacheMode, Config, Feature, MountError, MountOptions, OfferError, Unmount, mount, offered, start, unmount,
};
use common::{Mounted, eventually, everybody, groups};
use memory::Memory;

fn strict(filesystem: &Arc<Memory>) -> Mounted {
    Mounted::new(filesystem.clone(), Config::default())
}

fn close_to_open() -> Config {
    let timeout = Duration::from_secs(60);
    Config { cache: CacheMode::CloseToOpen, attr_timeout: timeout, entry_timeout: timeout, ..Config::default() }
}

#[test]
fn a_synthetic_file_is_read_and_written() {
    let mounted = Mounted::new(Arc::new(Synthetic { size: 5 << 20 }), Config::default());
    let file = mounted.join("zero");
    assert_eq!(fs::metadata(&file).unwrap().len(), 5 << 20);
    assert_eq!(fs::read(&file).unwrap(), vec![0; 5 << 20]);
    let mut writer = OpenOptions::new().write(true).open(&file).unwrap();
    writer.write_all(&vec![1; 3 << 20]).unwrap();
    writer.sync_all().unwrap();
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 1);
    assert_eq!(fs::metadata(mounted.join("none")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn files_and_names_behave_as_on_a_local_file_system() {
    for config in [Config::default(), close_to_open()] {
        let memory = Arc::new(Memory::default());
        let mounted = Mounted::new(memory.clone(), config);
        let (a, b, folder) = (mounted.join("a"), mounted.join("b"), mounted.join("folder"));
        let data: Vec<u8> = (0..3_300_000u32).map(|n| (n / 7) as u8).collect();
        fs::write(&a, &data).unwrap();
        assert_eq!(fs::read(&a).unwrap(), data);
        fs::hard_link(&a, &b).unwrap();
        assert_eq!(fs::metadata(&b).unwrap().nlink(), 2);
        assert_eq!(fs::metadata(&a).unwrap().ino(), fs::metadata(&b).unwrap().ino());
        fs::create_dir(&folder).unwrap();
        fs::rename(&b, folder.join("c")).unwrap();
        assert_eq!(fs::rename(&b, &a).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        std::os::unix::fs::symlink("folder/c", mounted.join("link")).unwrap();
        assert_eq!(fs::read(mounted.join("link")).unwrap().len(), data.len());
        fs::set_permissions(&a, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(&a).unwrap().mode(), 0o100640);
        let mut file = OpenOptions::new().read(true).write(true).open(&a).unwrap();
        file.set_len(10).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b"tail").unwrap();
        assert_eq!(fs::metadata(&a).unwrap().len(), 14);
        fs::remove_file(&a).unwrap();
        let mut text = [0; 4];
        file.read_exact_at(&mut text, 10).unwrap();
        assert_eq!(&text, b"tail", "unlinked and still open");
        fs::remove_file(folder.join("c")).unwrap();
        assert_eq!(fs::remove_dir(mounted.join("link")).unwrap_err().raw_os_error(), Some(libc::ENOTDIR));
        fs::remove_dir(&folder).unwrap();
        drop(file);
        eventually("all is released", || memory.open_count() == 0);
    }
}

#[test]
fn appends_of_two_descriptors_follow_each_other() {
    let memory = Arc::new(Memory::default());
    let mounted = strict(&memory);
    let open = || OpenOptions::new().append(true).create(true).open(mounted.join("log")).unwrap();
    let (mut one, mut two) = (open(), open());
    for _ in 0..10 {
        one.write_all(b"one\n").unwrap();
        two.write_all(b"two\n").unwrap();
    }
    assert_eq!(fs::read_to_string(mounted.join("log")).unwrap(), "one\ntwo\n".repeat(10));
}

#[test]
fn strict_mode_sees_what_changed_behind_the_kernel() {
    let memory = Arc::new(Memory::default());
    let mounted = strict(&memory);
    memory.put(b"file", b"old");
    let mut file = File::open(mounted.join("file")).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    memory.put(b"file", b"newer");
    assert_eq!(file.metadata().unwrap().len(), 5);
    let mut again = [0; 5];
    file.read_exact_at(&mut again, 0).unwrap();
    assert_eq!((text.as_str(), &again), ("old", b"newer"));
    memory.put(b"more", b"");
    assert!(mounted.join("more").exists());
}

#[test]
fn mappings_and_sendfile_see_at_open_what_changed_behind_the_kernel() {
    let memory = Arc::new(Memory::default());
    let mounted = strict(&memory);
    let script = "import os, mmap, sys\n\
        f = open('file', 'rb'); r, w = os.pipe()\n\
        assert os.sendfile(w, f.fileno(), 0, 8) == 5\n\
        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
        p = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)\n\
        print(os.read(r, 8), m[:], p[:])\n";
    for text in ["first", "other"] {
        memory.put(b"file", text.as_bytes());
        assert_eq!(mounted.python(script).trim(), format!("b'{text}' b'{text}' b'{text}'"));
    }
}

#[test]
fn close_to_open_sees_at_open_what_changed_behind_the_kernel() {
    let memory = Arc::new(Memory::default());
    let mounted = Mounted::new(memory.clone(), close_to_open());
    memory.put(b"file", b"old");
    assert_eq!(fs::read(mounted.join("file")).unwrap(), b"old");
    assert_eq!(fs::metadata(mounted.join("file")).unwrap().len(), 3);
    memory.put(b"file", b"newer");
    assert_eq!(fs::metadata(mounted.join("file")).unwrap().len(), 3, "attributes are kept until the next open");
    assert_eq!(fs::read(mounted.join("file")).unwrap(), b"newer");
    assert_eq!(fs::metadata(mounted.join("file")).unwrap().len(), 5);
}

#[test]
fn large_directories_list_every_name_once() {
    for config in [Config::default(), close_to_open()] {
        let memory = Arc::new(Memory::default());
        for n in 0..5000 {
            memory.put(format!("{n}-{}", "x".repeat(n % 200)).as_bytes(), b"");
        }
        let mounted = Mounted::new(memory.clone(), config);
        let mut names: Vec<_> = fs::read_dir(mounted.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 5000);
        assert_eq!(mounted.sh("ls -l | wc -l").trim(), "5001");
        mounted.sh("rm -f ./[0-9]*");
        assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 0);
        drop(names);
        eventually("directories are closed", || memory.open_count() == 0);
    }
}

#[test]
fn the_kernel_forgets_inodes() {
    let memory = Arc::new(Memory::default());
    let mounted = strict(&memory);
    for n in 0..300 {
        fs::write(mounted.join(&n.to_string()), b"x").unwrap();
    }
    assert!(mounted.session.nodes() >= 300);
    for n in 0..300 {
        fs::remove_file(mounted.join(&n.to_string())).unwrap();
    }
    eventually("removed files are forgotten", || mounted.session.nodes() == 0);
}

#[test]
fn mappings_work_private_and_shared() {
    for config in [Config::default(), close_to_open()] {
        let mounted = Mounted::new(Arc::new(Memory::default()), config);
        mounted.python(
            "import mmap, os\n\
             f = open('m', 'w+b'); f.write(b'a' * 100000); f.flush()\n\
             shared = mmap.mmap(f.fileno(), 0)\n\
             shared[50000:50005] = b'hello'\n\
             shared.flush()\n\
             assert open('m', 'rb').read()[50000:50005] == b'hello'\n\
             private = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE)\n\
             private[0:3] = b'xyz'\n\
             assert open('m', 'rb').read(3) == b'aaa'\n\
             r = open('m', 'rb')\n\
             read = mmap.mmap(r.fileno(), 0, prot=mmap.PROT_READ)\n\
             assert read[50000:50005] == b'hello'\n\
             shared[7:9] = b'QQ'; shared.close(); f.close()\n\
             assert os.pread(r.fileno(), 2, 7) == b'QQ'\n\
             # Pages written back through a descriptor that appends go where they were.\n\
             a = os.open('m', os.O_RDWR | os.O_APPEND)\n\
             m = mmap.mmap(a, 0); m[0:2] = b'ZZ'; m.flush(); m.close(); os.close(a)\n\
             assert os.stat('m').st_size == 100000 and open('m', 'rb').read(2) == b'ZZ'\n",
        );
    }
}

#[test]
fn programs_and_shared_libraries_run_from_the_mount() {
    for config in [Config::default(), close_to_open()] {
        let mounted = Mounted::new(Arc::new(Memory::default()), config);
        mounted.sh("cp /bin/bash prog && ./prog -c 'echo works' > out && grep -q works out");
        mounted.sh("printf '#!/bin/sh\\necho script\\n' > s && chmod +x s && test \"$(./s)\" = script");
        mounted.sh(
            "lib=$(ldd /bin/bash | awk '/libc.so/ {print $3}'); cp $lib ./libc.so.6 && LD_LIBRARY_PATH=$PWD /bin/true",
        );
        mounted.sh("sendfile=1; cat s > copy && cmp s copy && cp --reflink=never prog prog2 && cmp prog prog2");
    }
}

#[test]
fn special_operations_work() {
    let mounted = Mounted::new(Arc::new(Memory::default()), Config::default());
    mounted.python(
        "import os, ctypes\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600); os.write(fd, b'tmp')\n\
         assert libc.linkat(-100, b'/proc/self/fd/%d' % fd, -100, b'named', 0x400) == 0; os.close(fd)\n\
         assert open('named').read() == 'tmp'\n\
         os.posix_fallocate(os.open('big', os.O_CREAT | os.O_RDWR), 0, 1 << 16)\n\
         assert os.stat('big').st_size == 1 << 16\n\
         fd = os.open('big', os.O_RDONLY)\n\
         assert os.lseek(fd, 5, os.SEEK_DATA) == 5 and os.lseek(fd, 5, os.SEEK_HOLE) == 1 << 16\n\
         to = os.open('copy', os.O_CREAT | os.O_RDWR)\n\
         assert os.copy_file_range(fd, to, 1 << 16, 0, 0) == 1 << 16\n\
         assert os.stat('copy').st_size == 1 << 16\n\
         os.setxattr('copy', 'user.a', b'value'); assert os.getxattr('copy', 'user.a') == b'value'\n\
         assert os.listxattr('copy') == ['user.a']; os.removexattr('copy', 'user.a')\n\
         os.mknod('fifo', 0o010644); os.mknod('dev', 0o020600, os.makedev(260, 70000))\n\
         assert os.stat('dev').st_rdev == os.makedev(260, 70000)\n\
         os.utime('copy', ns=(-1500000001, 2000000003)); s = os.stat('copy')\n\
         assert (s.st_atime_ns, s.st_mtime_ns) == (-1500000001, 2000000003)\n\
         open('x', 'w').write('x'); open('y', 'w').write('y')\n\
         assert libc.renameat2(-100, b'x', -100, b'y', 2) == 0 and open('x').read() == 'y'\n\
         assert libc.renameat2(-100, b'x', -100, b'y', 1) == -1 and ctypes.get_errno() == 17\n\
         os.umask(0o027); os.mkdir('d', 0o777); assert os.stat('d').st_mode == 0o040750\n\
         fd = os.open('direct', os.O_CREAT | os.O_RDWR | os.O_DIRECT); os.close(fd)\n\
         os.fsync(os.open('.', os.O_RDONLY)); os.statvfs('.')\n\
         os.truncate('big', 3); assert os.stat('big').st_size == 3\n\
         assert os.access('big', os.R_OK)\n",
    );
    let birth = mounted.sh("stat -c %W named").trim().parse::<i64>().unwrap();
    assert!(birth > 1_600_000_000);
}

#[test]
fn the_root_tells_its_status() {
    let config = Config { status: Some(Box::new(|_, _, _, part| format!("{part:?}"))), ..Config::default() };
    let mounted = Mounted::new(Arc::new(Memory::default()), config);
    for (name, told) in [("status", "First"), ("status.0", "From(0)"), ("status.600", "From(600)")] {
        let out = mounted.python(&format!("import os; print(os.getxattr('.', 'aqueduct.{name}').decode())"));
        assert_eq!(out.trim(), told);
    }
    for name in ["status.", "status.x", "status.-1", "statusx"] {
        mounted.python(&format!(
            "import os\ntry: os.getxattr('.', 'aqueduct.{name}')\nexcept OSError: pass\nelse: raise SystemExit(1)"
        ));
    }
}

#[test]
fn callers_are_who_they_are() {
    let memory = Arc::new(Memory::default());
    let mounted = strict(&memory);
    let status = Command::new("setpriv")
        .args(["--reuid", "1234", "--regid", "2345", "--groups", "2345,77,78", "stat", "nobody-there"])
        .current_dir(mounted.path())
        .stderr(Stdio::null())
        .status();
    assert!(status.is_ok_and(|status| status.code() == Some(1)));
    let caller = memory.callers().into_iter().find(|caller| caller.uid == 1234).unwrap();
    assert_eq!(caller.gid, 2345);
    let Groups::Known(known) = caller.groups else { panic!("groups of a live caller are known") };
    let mut known = known.to_vec();
    known.sort_unstable();
    assert_eq!(known, [77, 78, 2345]);
}

#[test]
fn locks_exclude_wait_and_end_with_their_holder() {
    let memory = Arc::new(Memory::default());
    let mounted = strict(&memory);
    mounted.python(
        "import fcntl, os, signal, time\n\
         f = open('l', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)\n\
         pid = os.fork()\n\
         if pid == 0:\n\
         \x20   g = open('l', 'w')\n\
         \x20   try:\n\
         \x20       fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB); os._exit(1)\n\
         \x20   except BlockingIOError: pass\n\
         \x20   fcntl.lockf(g, fcntl.LOCK_EX); os._exit(0)\n\
         time.sleep(0.3); open('l').close()  # closes a descriptor of the file: the lock goes\n\
         assert os.waitpid(pid, 0)[1] == 0\n\
         fcntl.flock(f, fcntl.LOCK_EX)\n\
         pid = os.fork()\n\
         if pid == 0:\n\
         \x20   g = open('l', 'w'); hits = []\n\
         \x20   def hit(*_): hits.append(1); raise TimeoutError\n\
         \x20   signal.signal(signal.SIGALRM, hit); signal.setitimer(signal.ITIMER_REAL, 0.2)\n\
         \x20   try: fcntl.flock(g, fcntl.LOCK_EX); os._exit(1)\n\
         \x20   except TimeoutError: os._exit(0)\n\
         assert os.waitpid(pid, 0)[1] == 0\n\
         f.close(); g = open('l', 'w'); fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
    );
    assert_eq!(memory.cancelled(), 1, "the wait of the timed-out program ended by INTERRUPT");
}

fn reader_of_stall(mounted: &Mounted, prelude: &str) -> std::process::Child {
    let script = format!(
        "import os, signal\n{prelude}\nfd = os.open('stall', os.O_RDONLY)\nprint('r', flush=True)\nos.read(fd, 1)\n"
    );
    let mut child = Command::new("python3")
        .args(["-c", &script])
        .current_dir(mounted.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = [0; 2];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    std::thread::sleep(Duration::from_millis(100)); // now it reads
    child
}

fn signal(child: &std::process::Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

#[test]
fn a_stalled_reader_can_be_killed_also_after_a_handled_signal() {
    use rustix::process::Signal;
    let memory = Arc::new(Memory::default());
    memory.put(memory::STALL, b"data");
    let mounted = strict(&memory);
    for (ignored, fatal) in [(None, Signal::KILL), (None, Signal::TERM), (Some(Signal::ALARM), Signal::KILL)] {
        let mut child = reader_of_stall(&mounted, "signal.signal(signal.SIGALRM, lambda *_: None)");
        let before = memory.cancelled();
        if let Some(ignored) = ignored {
            signal(&child, ignored);
            std::thread::sleep(Duration::from_millis(800));
            assert_eq!(memory.cancelled(), before, "a handled SIGALRM ends no request");
        }
        signal(&child, fatal);
        let started = Instant::now();
        eventually("the reader dies", || child.try_wait().unwrap().is_some());
        assert!(started.elapsed() < Duration::from_secs(3));
        eventually("its read was cancelled", || memory.cancelled() == before + 1);
    }
}

#[test]
fn ctrl_c_ends_a_stalled_reader_that_handles_it() {
    let memory = Arc::new(Memory::default());
    memory.put(memory::STALL, b"data");
    let mounted = strict(&memory);
    let mut child = reader_of_stall(&mounted, "");
    signal(&child, rustix::process::Signal::INT);
    eventually("KeyboardInterrupt ends it", || child.try_wait().unwrap().is_some());
    assert_eq!(memory.cancelled(), 1);
}

#[test]
fn an_unmount_ends_the_session() {
    let memory = Arc::new(Memory::default());
    let mounted = strict(&memory);
    let ends = Arc::new(AtomicUsize::new(0));
    let counted = ends.clone();
    mounted.session.on_end(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let file = File::create(mounted.join("open")).unwrap();
    let error = unmount(mounted.path(), Unmount::Unused).unwrap_err();
    assert!(matches!(error, MountError::Busy { .. }), "{error}");
    assert!(!mounted.session.ended());
    drop(file);
    // A child that another test has just forked may still hold a copy of it.
    eventually("it can be unmounted", || unmount(mounted.path(), Unmount::Unused).is_ok());
    mounted.session.wait();
    assert!(mounted.session.ended());
    assert_eq!((ends.load(Ordering::SeqCst), memory.departed()), (1, 1));
    mounted.session.on_end({
        let ends = ends.clone();
        move || {
            ends.fetch_add(1, Ordering::SeqCst);
        }
    });
    assert_eq!(ends.load(Ordering::SeqCst), 2);
}

#[test]
fn an_aborted_mount_ends_with_what_waits_in_it() {
    let memory = Arc::new(Memory::default());
    memory.put(memory::STALL, b"data");
    let mounted = strict(&memory);
    let mut child = reader_of_stall(&mounted, "");
    rustix::mount::unmount(mounted.path(), rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH)
        .unwrap();
    mounted.session.wait();
    eventually("the reader goes on", || child.try_wait().unwrap().is_some());
    assert_eq!(memory.cancelled(), 1);
}

#[test]
fn a_dropped_session_unmounts() {
    let folder = tempfile::tempdir().unwrap();
    let groups = groups(1, 1);
    let device = mount(folder.path(), &everybody()).unwrap();
    let session = start(device, Arc::new(Memory::default()), &groups, Config::default()).unwrap();
    fs::write(folder.path().join("inside"), b"x").unwrap();
    drop(session);
    assert!(!folder.path().join("inside").exists());
    groups[0].stop();
}

#[test]
fn a_dead_mount_is_named_and_cleared() {
    let folder = tempfile::tempdir().unwrap();
    drop(mount(folder.path(), &everybody()).unwrap());
    assert_eq!(fs::metadata(folder.path()).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    let error = mount(folder.path(), &everybody()).unwrap_err();
    assert!(matches!(error, MountError::Stale { .. }), "{error}");
    unmount(&folder.path().join(""), Unmount::Unused).unwrap(); // with a trailing slash, as shells complete it
    assert!(fs::metadata(folder.path()).is_ok());
    assert!(matches!(unmount(folder.path(), Unmount::Unused), Err(MountError::NotMounted { .. })));
}

#[test]
fn a_second_mount_on_the_same_directory_is_refused() {
    let mounted = strict(&Arc::new(Memory::default()));
    let error = mount(mounted.path(), &everybody()).unwrap_err();
    assert!(matches!(&error, MountError::Mounted { holder, .. } if holder == "test"), "{error}");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        table
            .lines()
            .any(|line| line.contains(mounted.path().to_str().unwrap()) && line.contains(" fuse.aqueduct test "))
    );
}

#[test]
fn options_reach_the_kernel() {
    let options = MountOptions { read_only: true, noexec: true, nosuid: true, ..everybody() };
    let mounted = Mounted::with(Arc::new(Memory::default()), Config::default(), &options, groups(1, 1));
    let error = fs::write(mounted.join("x"), b"").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    let folder = tempfile::tempdir().unwrap();
    let options = MountOptions { extra: vec!["no_such_option".into()], ..everybody() };
    let error = mount(folder.path(), &options).unwrap_err();
    assert!(matches!(&error, MountError::Options { options, .. } if options.contains("no_such_option")), "{error}");
}

#[test]
fn an_idle_mount_does_not_wake_up() {
    let memory = Arc::new(Memory::default());
    memory.put(memory::STALL, b"data");
    let mounted = Mounted::with(memory, Config::default(), &everybody(), {
        let settings = aqueduct_worker::Settings {
            name: "idle-test".into(),
            threads_min: 1,
            threads_max: 1,
            spin_max: Duration::from_micros(50),
        };
        vec![aqueduct_worker::Group::new(settings).unwrap()]
    });
    let mut child = reader_of_stall(&mounted, "");
    child.kill().unwrap(); // leaves the watcher behind for a moment
    child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let wakeups = || -> u64 {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        let of = |task: fs::DirEntry| {
            let text = fs::read_to_string(task.path().join("status")).ok()?;
            let name = text.lines().next()?.contains("idle-test");
            let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            name.then(|| line.trim().parse::<u64>().unwrap())
        };
        tasks.filter_map(of).sum()
    };
    let before = wakeups();
    assert!(before > 0);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(wakeups(), before);
}

/// The part of the next test that runs as a plain user.
#[test]
#[ignore = "run by a_plain_user_mounts_through_fusermount3"]
fn as_a_plain_user() {
    let folder = std::env::var("AQUEDUCT_TEST_FOLDER").unwrap();
    let folder = std::path::Path::new(&folder);
    let groups = groups(2, 2);
    let options = MountOptions { source: "host:/a,b".into(), ..MountOptions::default() };
    let device = mount(folder, &options).unwrap();
    let session = start(device, Arc::new(Memory::default()), &groups, Config::default()).unwrap();
    fs::write(folder.join("file"), vec![7; 2 << 20]).unwrap();
    assert_eq!(fs::read(folder.join("file")).unwrap(), vec![7; 2 << 20]);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(table.lines().any(|line| line.contains(" fuse.aqueduct host:/a,b ")), "{table}");
    let file = File::open(folder.join("file")).unwrap();
    let error = unmount(folder, Unmount::Unused).unwrap_err();
    assert!(matches!(error, MountError::Busy { .. }), "{error}");
    drop(file);
    unmount(folder, Unmount::Unused).unwrap();
    session.wait();
    drop(mount(folder, &options).unwrap());
    assert!(matches!(mount(folder, &options), Err(MountError::Stale { .. })));
    unmount(folder, Unmount::Lazily).unwrap();
    let error = mount(folder, &MountOptions { allow_other: true, ..options }).unwrap_err();
    assert!(error.to_string().contains("user_allow_other"), "{error}");
}

#[test]
fn a_plain_user_mounts_through_fusermount3() {
    let helper = Command::new("fusermount3").arg("--version").output();
    if helper.is_err() || !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root, to become a plain user, and fusermount3");
    }
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
    // A copy, since a plain user may not enter the folder of the build.
    let program = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let copy = program.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    // Where udev is missing only root may open /dev/fuse: a namespace of its own gets one as distributions have it.
    let device = program.path().join("fuse");
    let script = "mknod -m 666 $DEVICE c 10 229 && mount --bind $DEVICE /dev/fuse && \
        exec setpriv --reuid 65534 --regid 65534 --clear-groups timeout 60 \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .env("DEVICE", &device)
        .arg(&copy)
        .args(["--exact", "as_a_plain_user", "--ignored", "--nocapture"])
        .env("AQUEDUCT_TEST_FOLDER", folder.path())
        .current_dir("/")
        .output()
        .unwrap();
    let _ = rustix::mount::unmount(folder.path(), rustix::mount::UnmountFlags::DETACH);
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn new_files_take_their_mode_exactly() {
    let mounted = strict(&Arc::new(Memory::default()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o4711).open(mounted.join("x")).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o4700, 0o4700);
    let again = OpenOptions::new().write(true).create_new(true).open(mounted.join("x"));
    assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EEXIST));
}

#[test]
fn churn_with_notifications_and_kills_comes_to_its_end() {
    let memory = Arc::new(Memory::default());
    let mounted = Mounted::new(memory.clone(), close_to_open());
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    // A thread of its own, since a notification of a name waits for whoever works in the directory.
    let notifier = std::thread::spawn({
        let (session, stop) = (mounted.session.clone(), stop.clone());
        move || {
            let root = 1u64.to_le_bytes();
            while !stop.load(Ordering::SeqCst) {
                for n in 0..20u64 {
                    let _ = session.notify_entry(&root, format!("f{n}").as_bytes(), n % 2 == 0);
                    let _ = session.notify_inode(&(n + 2).to_le_bytes(), 0, 0);
                }
                if session.can_notify_epoch() {
                    session.notify_epoch().unwrap();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    mounted.sh(
        "churn() { for i in $(seq 120); do n=$((RANDOM % 20)); m=$((RANDOM % 20)); case $((i % 6)) in\n\
           0) echo $i > f$n;; 1) mv f$n f$m 2>/dev/null;; 2) rm -f f$n;; 3) cat f$n >/dev/null 2>&1;; 4) ls -l >/dev/null 2>&1;; 5) ln f$n l$m 2>/dev/null;;\n\
           esac || true; done; }\n\
         for p in 1 2 3; do churn & done; for k in 1 2 3 4 5; do timeout -s KILL 0.1 bash -c 'while :; do echo x >> f1; cat f1 >/dev/null; done' || true; done\n\
         wait",
    );
    stop.store(true, Ordering::SeqCst);
    notifier.join().unwrap();
    mounted.sh("rm -rf ./*; test -z \"$(ls)\"");
    eventually("removed files are forgotten", || mounted.session.nodes() == 0);
    eventually("all is released", || memory.open_count() == 0);
}

#[test]
fn what_the_kernel_offers_is_asked_by_a_mount_that_ends() {
    let target = tempfile::tempdir().unwrap();
    let offer = match offered(target.path()) {
        Err(OfferError::Mount(MountError::NoDevice { error })) => return println!("skipped: no /dev/fuse: {error}"),
        offer => offer.unwrap(),
    };
    assert!(offer.minor >= 26 && offer.has(Feature::LargeRequests), "{offer:?}");
    // It is an ordinary directory again, on which the same can be asked.
    fs::write(target.path().join("file"), "x").unwrap();
    fs::remove_file(target.path().join("file")).unwrap();
    assert_eq!(offered(target.path()).unwrap(), offer);
    let gone = target.path().join("gone");
    assert!(matches!(offered(&gone), Err(OfferError::Mount(MountError::TargetMissing { .. }))));
}
