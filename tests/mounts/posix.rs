//! What programs may do to files through one mount.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, RenameFlags, SeekFrom as Whence, Timespec, Timestamps, Uid,
    XattrFlags, accessat, chownat, copy_file_range, fallocate, fgetxattr, fsetxattr, futimens, linkat, listxattr,
    mknodat, renameat_with, seek, setxattr, statfs, statvfs, syncfs,
};
use rustix::io::Errno;

use crate::common::{
    Mount, One, directory, disk_directory, errno, has_linux, have, run, run_within, shell, skip, test, wait_until,
    within,
};
use crate::sys;

const TIB: u64 = 1 << 40;

/// Runs a shell script as another user: uid 1000, gid 1000, with these supplementary groups.
fn as_user(groups: &str, directory: &Path, script: &str) -> crate::common::Output {
    let groups = if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={groups}") };
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1000", "--regid=1000", &groups, "sh", "-euc", script]).current_dir(directory);
    run(&mut command)
}

fn chown(path: &Path, uid: u32, gid: u32) {
    chownat(CWD, path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn unlinked_file_stays_usable() {
    test(|| {
        for export in [directory(), disk_directory()] {
            let one = One::over(export, "");
            let path = one.path("file");
            let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
            file.write_all(b"before").unwrap();
            fs::remove_file(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(fs::read_dir(one.mount.path()).unwrap().count(), 0, "nothing of it is listed");
            file.write_all(b" and after").unwrap();
            assert_eq!(file.metadata().unwrap().nlink(), 0);
            assert_eq!(file.metadata().unwrap().len(), 16);
            file.set_len(9).unwrap();
            file.set_permissions(Permissions::from_mode(0o600)).unwrap();
            file.sync_all().unwrap();
            let mut text = String::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "before an");
            // A file that takes its name is another one.
            fs::write(&path, "new").unwrap();
            assert_eq!(file.metadata().unwrap().len(), 9);
            fs::rename(&path, one.path("other")).unwrap();
            drop(file);
            wait_until("the server lets it go", Duration::from_secs(5), || {
                one.server.open_below(one.export.path()).is_empty()
            });
        }
    });
}

#[test]
fn renamed_over_file_stays_usable() {
    test(|| {
        let one = One::new();
        fs::write(one.path("victim"), "victim").unwrap();
        let mut victim = File::open(one.path("victim")).unwrap();
        fs::write(one.path("new"), "new").unwrap();
        fs::rename(one.path("new"), one.path("victim")).unwrap();
        let mut text = String::new();
        victim.read_to_string(&mut text).unwrap();
        assert_eq!(text, "victim");
        assert_eq!(fs::read_to_string(one.path("victim")).unwrap(), "new");
    });
}

#[test]
fn rename_noreplace_and_exchange() {
    test(|| {
        let one = One::new();
        let (a, b, c) = (one.path("a"), one.path("b"), one.path("c"));
        fs::write(&a, "a").unwrap();
        fs::create_dir(&b).unwrap();
        fs::write(b.join("inside"), "inside").unwrap();
        let rename = |from: &Path, to: &Path, flags| renameat_with(CWD, from, CWD, to, flags);
        assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename(&a, &b, RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read_to_string(&b).unwrap(), "a");
        assert_eq!(fs::read_to_string(a.join("inside")).unwrap(), "inside");
        rename(&a, &c, RenameFlags::NOREPLACE).unwrap();
        assert_eq!(rename(&a, &b, RenameFlags::EXCHANGE), Err(Errno::NOENT));
        assert_eq!(rename(&b, &c, RenameFlags::empty()), Err(Errno::ISDIR));
        assert_eq!(rename(&c, &c.join("below"), RenameFlags::empty()), Err(Errno::INVAL));
        // The server saw the same.
        assert_eq!(fs::read_to_string(one.export.path().join("c/inside")).unwrap(), "inside");
    });
}

#[test]
fn unnamed_file_is_linked_into_place() {
    test(|| {
        if !has_linux((6, 1), "O_TMPFILE on FUSE") {
            return;
        }
        for export in [directory(), disk_directory()] {
            let one = One::over(export, "");
            let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(one.mount.path());
            let mut file = open(libc::O_TMPFILE).unwrap();
            file.write_all(b"unnamed").unwrap();
            assert_eq!(fs::read_dir(one.mount.path()).unwrap().count(), 0);
            let link = |file: &File, to: &str| {
                let from = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
                linkat(CWD, from, CWD, one.path(to), AtFlags::SYMLINK_FOLLOW)
            };
            link(&file, "named").unwrap();
            assert_eq!(fs::read_to_string(one.path("named")).unwrap(), "unnamed");
            assert_eq!(link(&file, "named"), Err(Errno::EXIST));
            assert_eq!(file.metadata().unwrap().nlink(), 1);
            let exclusive = open(libc::O_TMPFILE | libc::O_EXCL).unwrap();
            assert_eq!(link(&exclusive, "never"), Err(Errno::NOENT));
        }
    });
}

#[test]
fn special_files_are_made_and_seen() {
    test(|| {
        let one = One::new();
        let mode = Mode::from_raw_mode(0o640);
        let null = rustix::fs::makedev(1, 3);
        mknodat(CWD, one.path("fifo"), FileType::Fifo, mode, 0).unwrap();
        mknodat(CWD, one.path("null"), FileType::CharacterDevice, mode, null).unwrap();
        mknodat(CWD, one.path("block"), FileType::BlockDevice, mode, rustix::fs::makedev(259, 1_048_575)).unwrap();
        let server_side = |name| fs::symlink_metadata(one.export.path().join(name)).unwrap();
        assert!(server_side("fifo").file_type().is_fifo());
        assert_eq!((server_side("null").rdev(), server_side("null").mode() & 0o777), (null, 0o640));
        let block = fs::metadata(one.path("block")).unwrap();
        assert_eq!((block.file_type().is_block_device(), block.rdev()), (true, rustix::fs::makedev(259, 1_048_575)));

        // Both ends of a fifo and of a socket are on this machine.
        let fifo = one.path("fifo");
        let writer = thread::spawn(move || fs::write(fifo, "through the fifo").unwrap());
        assert_eq!(fs::read_to_string(one.path("fifo")).unwrap(), "through the fifo");
        writer.join().unwrap();
        let listener = UnixListener::bind(one.path("socket")).unwrap();
        assert!(server_side("socket").file_type().is_socket());
        let mut client = UnixStream::connect(one.path("socket")).unwrap();
        client.write_all(b"hi").unwrap();
        let mut greeting = [0; 2];
        listener.accept().unwrap().0.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"hi");
    });
}

#[test]
fn a_device_without_permission_is_refused() {
    test(|| {
        let one = One::new();
        mknodat(CWD, one.path("null"), FileType::CharacterDevice, Mode::from_raw_mode(0), rustix::fs::makedev(1, 3))
            .unwrap();
        chmod(&one.path("null"), 0o600);
        as_user("", one.mount.path(), "exec 3<> null").failed();
    });
}

/// Only where the kernel checks permission: it does not ask us before it opens them.
#[test]
fn default_permissions_guard_fifos_and_sockets() {
    test(|| {
        for options in ["", "cache=none,default_permissions"] {
            fifo_and_socket_are_refused(&One::with(options));
        }
    });
}

fn fifo_and_socket_are_refused(one: &One) {
    mknodat(CWD, one.path("fifo"), FileType::Fifo, Mode::from_raw_mode(0), 0).unwrap();
    let _listener = UnixListener::bind(one.path("socket")).unwrap();
    for name in ["fifo", "socket"] {
        chmod(&one.path(name), 0o600);
    }
    let mut user = crate::agent::Agent::start();
    user.ask("become 1000 1000").unwrap();
    let opened = user.ask(&format!("open 0 {} rw", one.path("fifo").display()));
    let connected = user.ask(&format!("connect {}", one.path("socket").display()));
    assert_eq!((opened, connected), (Err(libc::EACCES), Err(libc::EACCES)), "another user came in, with mode 0600");
}

#[test]
fn names_of_any_bytes() {
    test(|| {
        let one = One::new();
        let bytes = (1..=255u8).filter(|byte| !b"/.".contains(byte));
        let mut names: Vec<Vec<u8>> = bytes.map(|byte| vec![byte]).collect();
        names.extend([b" leading".to_vec(), b"...".to_vec(), vec![0xff; 255], b"a\nb\tc\\d".to_vec(), b"-rf".to_vec()]);
        for name in &names {
            File::create_new(one.path(OsStr::from_bytes(name))).unwrap();
        }
        let list = |path: &Path| -> HashSet<Vec<u8>> {
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().as_bytes().to_vec()).collect()
        };
        let wanted: HashSet<_> = names.iter().cloned().collect();
        assert_eq!(list(one.mount.path()), wanted);
        assert_eq!(list(one.export.path()), wanted);
        for name in &names {
            fs::remove_file(one.path(OsStr::from_bytes(name))).unwrap();
        }
    });
}

#[test]
fn offsets_beyond_4_tib() {
    test(|| {
        let one = One::new();
        let file = File::options().read(true).write(true).create_new(true).open(one.path("sparse")).unwrap();
        let at = 4 * TIB + 12_345;
        file.write_all_at(b"far away", at).unwrap();
        assert_eq!(file.metadata().unwrap().len(), at + 8);
        let mut bytes = [1; 16];
        file.read_exact_at(&mut bytes, at - 8).unwrap();
        assert_eq!(&bytes, b"\0\0\0\0\0\0\0\0far away");
        assert_eq!(fs::metadata(one.export.path().join("sparse")).unwrap().len(), at + 8);
        assert!(file.metadata().unwrap().blocks() < 1000);
        file.set_len(7 * TIB).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 7 * TIB);
        assert_eq!(file.read_at(&mut bytes, 7 * TIB).unwrap(), 0);
    });
}

#[test]
fn holes_are_found() {
    test(|| {
        for export in [directory(), disk_directory()] {
            let one = One::over(export, "");
            let file = File::options().read(true).write(true).create_new(true).open(one.path("holes")).unwrap();
            file.set_len(10 << 20).unwrap();
            file.write_all_at(&[1; 8192], 1 << 20).unwrap();
            assert_eq!(seek(&file, Whence::Data(0)), Ok(1 << 20));
            assert_eq!(seek(&file, Whence::Hole(1 << 20)), Ok((1 << 20) + 8192));
            assert_eq!(seek(&file, Whence::Data(2 << 20)), Err(Errno::NXIO));
            assert_eq!(seek(&file, Whence::Hole(10 << 20)), Err(Errno::NXIO));
        }
    });
}

#[test]
fn space_is_allocated_and_given_back() {
    test(|| {
        let one = One::over(disk_directory(), "");
        let file = File::options().read(true).write(true).create_new(true).open(one.path("space")).unwrap();
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
        assert_eq!((file.metadata().unwrap().len(), file.metadata().unwrap().blocks() >= 2048), (0, true));
        fallocate(&file, FallocateFlags::empty(), 0, 2 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 2 << 20);
        file.write_all_at(&[7; 65536], 0).unwrap();
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 8192).unwrap();
        let mut bytes = [9; 16384];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let zeros = bytes.iter().filter(|&&byte| byte == 0).count();
        assert_eq!((zeros, bytes[4095], bytes[4096], bytes[12288]), (8192, 7, 0, 7));
        // The kernel itself refuses these on every FUSE file system.
        assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
        if !has_linux((5, 14), "FALLOC_FL_ZERO_RANGE on FUSE") {
            return;
        }
        fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 4096).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[4095], 0);
    });
}

#[test]
fn copy_file_range_copies_on_the_server() {
    test(|| {
        let one = One::new();
        let data: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
        fs::write(one.path("from"), &data).unwrap();
        let from = File::open(one.path("from")).unwrap();
        let to = File::create_new(one.path("to")).unwrap();
        let moved = |name: &str| one.mount.status()[name].as_u64().unwrap();
        let before = (moved("bytes_read"), moved("bytes_written"));
        let (mut from_at, mut to_at) = (5, 0);
        let mut copied = 0;
        loop {
            match copy_file_range(&from, Some(&mut from_at), &to, Some(&mut to_at), data.len()).unwrap() {
                0 => break,
                count => copied += count,
            }
        }
        assert_eq!(copied, data.len() - 5);
        assert_eq!((moved("bytes_read"), moved("bytes_written")), before, "the data went through the client");
        assert!(fs::read(one.path("to")).unwrap() == data[5..]);
    });
}

#[test]
fn times_keep_nanoseconds() {
    test(|| {
        let one = One::new();
        let file = File::create_new(one.path("file")).unwrap();
        let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times =
            Timestamps { last_access: time(1_234_567_890, 123_456_789), last_modification: time(999, 999_999_999) };
        futimens(&file, &times).unwrap();
        for path in [one.path("file"), one.export.path().join("file")] {
            let seen = fs::metadata(path).unwrap();
            assert_eq!((seen.atime(), seen.atime_nsec()), (1_234_567_890, 123_456_789));
            assert_eq!((seen.mtime(), seen.mtime_nsec()), (999, 999_999_999));
        }
        let before = file.metadata().unwrap().ctime_nsec();
        (&file).write_all(b"x").unwrap();
        let after = file.metadata().unwrap();
        assert!(after.mtime() > 999 && after.ctime_nsec() != before);
    });
}

#[test]
fn extended_attributes_are_kept() {
    test(|| {
        let one = One::over(disk_directory(), "");
        let file = File::create_new(one.path("file")).unwrap();
        let long = vec![b'v'; 3000];
        let (name, empty) = ("user.\u{e4}\u{f6}", "user.empty");
        fsetxattr(&file, name, &long, XattrFlags::CREATE).unwrap();
        assert_eq!(fsetxattr(&file, name, b"", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(fsetxattr(&file, empty, b"", XattrFlags::REPLACE), Err(Errno::NODATA));
        fsetxattr(&file, empty, b"", XattrFlags::empty()).unwrap();
        setxattr(one.path("file"), "trusted.t", b"t", XattrFlags::empty()).unwrap();
        let mut value = vec![0; 4096];
        assert_eq!(fgetxattr(&file, name, &mut value[..]), Ok(3000));
        assert_eq!(value[..3000], long);
        assert_eq!(fgetxattr(&file, name, &mut value[..10]), Err(Errno::RANGE));
        assert_eq!(fgetxattr(&file, empty, &mut value[..]), Ok(0));
        let mut list = vec![0; 4096];
        let length = listxattr(one.path("file"), &mut list[..]).unwrap();
        let names: HashSet<_> = list[..length].split(|&byte| byte == 0).collect();
        assert!([name, empty, "trusted.t"].iter().all(|name| names.contains(name.as_bytes())));
        if have(&["setpriv", "getfattr"]) {
            chmod(&one.path("file"), 0o644);
            let seen = as_user("", one.mount.path(), "getfattr -m - file").succeeded();
            assert!(!seen.contains("trusted.t"), "trusted attributes are root's: {seen}");
        }
    });
}

#[test]
fn default_acl_overrides_the_umask() {
    test(|| {
        if !have(&["setfacl", "getfacl", "setpriv"]) {
            return;
        }
        for options in ["", "default_permissions"] {
            let one = One::with(options);
            let script = "umask 077; mkdir d; setfacl -d -m u::rwx,g::rx,o::rx,u:1000:rwx d; echo x > d/f; mkdir d/e
                          umask 022; echo x > plain; stat -c %a d/f plain";
            assert_eq!(shell(one.mount.path(), script).succeeded(), "664\n644\n", "{options}");
            let acl = |root: &Path, name: &str| shell(root, &format!("getfacl -n -p {name}")).succeeded();
            for name in ["d", "d/f", "d/e"] {
                assert_eq!(acl(one.mount.path(), name), acl(one.export.path(), name));
            }
            assert!(acl(one.mount.path(), "d/f").contains("user:1000:rwx"));
            assert!(acl(one.mount.path(), "d/e").contains("default:user:1000:rwx"));
        }
    });
}

#[test]
fn acls_decide() {
    test(|| {
        if !have(&["setfacl", "setpriv"]) {
            return;
        }
        for options in ["", "default_permissions"] {
            let one = One::with(options);
            fs::write(one.path("secret"), "secret\n").unwrap();
            chmod(&one.path("secret"), 0o600);
            as_user("", one.mount.path(), "cat secret").failed();
            shell(one.mount.path(), "setfacl -m u:1000:r secret").succeeded();
            assert_eq!(as_user("", one.mount.path(), "cat secret").succeeded(), "secret\n", "{options}");
            as_user("", one.mount.path(), "echo more >> secret").failed();
            shell(one.mount.path(), "setfacl -m m::- secret").succeeded();
            as_user("", one.mount.path(), "cat secret").failed();
            shell(one.mount.path(), "setfacl -b secret; setfacl -m g:2000:rw,m::rw secret").succeeded();
            as_user("", one.mount.path(), "cat secret").failed();
            as_user("2000", one.mount.path(), "cat secret; echo more >> secret").succeeded();
        }
    });
}

#[test]
fn another_user_is_refused() {
    test(|| {
        if !have(&["setpriv"]) {
            return;
        }
        let one = One::new();
        let root = one.mount.path();
        shell(root, "echo s > secret; chmod 600 secret; mkdir closed; echo i > closed/inside; chmod 700 closed
                     mkdir open; chmod 777 open; echo r > open/readable; mkdir sticky; chmod 1777 sticky; echo k > sticky/kept")
            .succeeded();
        for refused in [
            "cat secret",
            "echo x >> secret",
            "cat closed/inside",
            "ls closed",
            "touch new",
            "chmod 777 secret",
            "chown 1000 secret",
            "echo x >> open/readable",
            "rm -f sticky/kept",
            "mv sticky/kept sticky/moved",
            "ln -s x closed/link",
            "mkdir sub",
            "setfattr -n user.x -v y open/readable",
            "cd closed",
            "test -r secret",
            "mknod open/device c 1 3",
        ] {
            as_user("", root, refused).failed();
        }
        let allowed = "cat open/readable; echo mine > open/mine; chmod 640 open/mine; ln open/mine open/again
                       rm -f open/readable; mkdir sticky/dir; touch -d @5 open/mine; ls . > /dev/null";
        as_user("", root, allowed).succeeded();
        let mine = fs::metadata(one.export.path().join("open/mine")).unwrap();
        assert_eq!(
            (mine.uid(), mine.gid(), mine.mode() & 0o777, mine.nlink(), mine.mtime()),
            (1000, 1000, 0o640, 2, 5)
        );
    });
}

#[test]
fn a_supplementary_group_grants_access() {
    test(|| {
        if !have(&["setpriv"]) {
            return;
        }
        let one = One::new();
        fs::write(one.path("team"), "team\n").unwrap();
        chown(&one.path("team"), 0, 2345);
        chmod(&one.path("team"), 0o660);
        as_user("", one.mount.path(), "cat team").failed();
        as_user("2000,2001", one.mount.path(), "cat team").failed();
        assert_eq!(as_user("2000,2345", one.mount.path(), "cat team; echo x >> team").succeeded(), "team\n");
        // Many groups, more than fit into one page of text.
        let many = (3000..3400).map(|gid| gid.to_string()).collect::<Vec<_>>().join(",");
        assert_eq!(as_user(&format!("{many},2345"), one.mount.path(), "head -1 team").succeeded(), "team\n");
        // A directory's group goes on to what is made in it.
        shell(one.mount.path(), "mkdir shared; chgrp 2345 shared; chmod 2775 shared").succeeded();
        as_user("2345", one.mount.path(), "umask 002; echo x > shared/file; mkdir shared/dir").succeeded();
        let made = |name| fs::metadata(one.export.path().join("shared").join(name)).unwrap();
        assert_eq!((made("file").uid(), made("file").gid(), made("file").mode() & 0o7777), (1000, 2345, 0o664));
        assert_eq!((made("dir").gid(), made("dir").mode() & 0o7777), (2345, 0o2775));
    });
}

#[test]
fn access_tells_what_open_would() {
    test(|| {
        let one = One::new();
        fs::write(one.path("file"), "").unwrap();
        chmod(&one.path("file"), 0o444);
        let access = |mode| accessat(CWD, one.path("file"), mode, AtFlags::EACCESS);
        assert_eq!(access(rustix::fs::Access::WRITE_OK), Ok(()), "root may");
        assert_eq!(access(rustix::fs::Access::EXEC_OK), Err(Errno::ACCESS), "nobody may");
        if have(&["setpriv"]) {
            as_user("", one.mount.path(), "test -r file && test ! -w file && test ! -x file").succeeded();
        }
    });
}

#[test]
fn a_descriptor_keeps_its_right() {
    test(|| {
        let one = One::new();
        fs::create_dir(one.path("d")).unwrap();
        chmod(&one.path("d"), 0o777);
        if !have(&["setpriv"]) {
            return;
        }
        // git writes through descriptors of files that it has made read-only.
        let script = "exec 3> d/file; chmod 444 d/file; echo first >&3; rm d/file; echo second >&3
                      umask 777; echo x > d/none; umask 022; test $(stat -c %a d/none) = 0";
        as_user("", one.mount.path(), script).succeeded();
    });
}

/// Entries of the large directory; the promise is for a million, `AQUEDUCT_TEST_ENTRIES=1000000` tries that.
const ENTRIES: usize = 200_000;

/// What listing may add to the memory of either process.
const LISTING_KIB_MAX: u64 = 16 << 10;

/// What a mount keeps under leases.
const KEPT_KIB_MAX: u64 = 32 << 10;

#[test]
fn a_large_directory_lists_completely() {
    within(Duration::from_secs(300), || {
        let entries = std::env::var("AQUEDUCT_TEST_ENTRIES").map_or(ENTRIES, |text| text.parse().unwrap());
        let one = One::new();
        fs::create_dir(one.export.path().join("large")).unwrap();
        let first = one.export.path().join("first");
        File::create(&first).unwrap();
        for number in 0..entries {
            fs::hard_link(&first, one.export.path().join(format!("large/entry-{number:07}"))).unwrap();
        }
        let before = (one.mount.process.memory_kib().0, one.server.process.memory_kib().0);
        let mut seen = vec![false; entries];
        for entry in fs::read_dir(one.path("large")).unwrap() {
            let name = entry.unwrap().file_name();
            let number: usize = name.to_str().unwrap().strip_prefix("entry-").unwrap().parse().unwrap();
            assert!(!std::mem::replace(&mut seen[number], true), "{number} twice");
        }
        assert!(seen.iter().all(|&seen| seen), "{} are missing", seen.iter().filter(|&&seen| !seen).count());
        let after = (one.mount.process.memory_kib().1, one.server.process.memory_kib().1);
        println!("{entries} entries; KiB before {before:?}, at most {after:?}");
        assert!(after.0 < before.0 + LISTING_KIB_MAX + KEPT_KIB_MAX, "mount: {} KiB, then {}", before.0, after.0);
        assert!(after.1 < before.1 + LISTING_KIB_MAX, "server: {} KiB, then {}", before.1, after.1);
    });
}

#[test]
fn a_listing_survives_removals() {
    test(|| {
        for export in [directory(), disk_directory()] {
            let one = One::over(export, "");
            let total = 1500; // some pages; on a busy disk each change is some milliseconds
            fs::create_dir(one.path("d")).unwrap();
            (0..total).for_each(|n| drop(File::create(one.path(format!("d/{n}"))).unwrap()));
            let mut listed = HashSet::new();
            for entry in fs::read_dir(one.path("d")).unwrap() {
                let entry = entry.unwrap();
                assert!(listed.insert(entry.file_name()), "listed twice: {:?}", entry.file_name());
                fs::remove_file(entry.path()).unwrap();
            }
            assert_eq!(listed.len(), total);
            fs::remove_dir(one.path("d")).unwrap();
        }
    });
}

#[test]
fn private_and_shared_mappings() {
    test(|| {
        let one = One::new();
        let data: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
        fs::write(one.path("file"), &data).unwrap();
        let file = File::options().read(true).write(true).open(one.path("file")).unwrap();
        assert!(sys::load_private(file.as_fd(), data.len()).unwrap() == data);
        sys::store_shared(file.as_fd(), data.len(), 123_456, 255).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 123_456).unwrap();
        assert_eq!(byte, [255]);
        assert_eq!(fs::read(one.export.path().join("file")).unwrap()[123_456], 255);
        // What write(2) changes, a mapping sees; also one made through another descriptor.
        file.write_all_at(&[254], 123_456).unwrap();
        assert_eq!(sys::load_private(file.as_fd(), data.len()).unwrap()[123_456], 254);
        let reader = File::open(one.path("file")).unwrap();
        assert_eq!(sys::load_private(reader.as_fd(), data.len()).unwrap()[123_456], 254);
        assert_eq!(sys::store_shared(reader.as_fd(), 10, 1, 1).unwrap_err().raw_os_error(), Some(libc::EACCES));
    });
}

#[test]
fn programs_run_from_the_mount() {
    test(|| {
        let one = One::new();
        let root = one.mount.path();
        shell(
            root,
            "cp \"$(command -v cat)\" cat; echo it runs > text; printf '#!/bin/sh\\necho script $1\\n' > s; chmod +x s",
        )
        .succeeded();
        assert_eq!(shell(root, "./cat text; ./s here").succeeded(), "it runs\nscript here\n");
        if have(&["cc"]) {
            let script = "echo 'int answer(void) { return 42; }' > l.c; cc -shared -fPIC -o libl.so l.c
                          echo 'int answer(void); int main(void) { return answer() == 42 ? 0 : 1; }' > m.c
                          cc -o m m.c -L. -ll -Wl,-rpath,\"$PWD\"; ./m";
            shell(root, script).succeeded();
        }
        // A running program cannot be written to, and one without the x bit does not run.
        let mut sleeper = crate::common::Process::start(Command::new(one.path("sleep")).arg("30"), &{
            shell(root, "cp \"$(command -v sleep)\" sleep").succeeded();
            one.export.path().join("log")
        });
        assert!(sleeper.has_ended().is_none());
        assert_eq!(errno(File::options().write(true).open(one.path("sleep"))), libc::ETXTBSY);
        drop(sleeper);
        chmod(&one.path("s"), 0o644);
        assert_eq!(errno(Command::new(one.path("s")).output()), libc::EACCES);
        let noexec = one.server.mount_with(one.export.path(), "noexec");
        assert_eq!(errno(Command::new(noexec.join("cat")).output()), libc::EACCES);
    });
}

#[test]
fn statfs_is_the_servers() {
    test(|| {
        let one = One::new();
        let (here, there) = (statvfs(one.mount.path()).unwrap(), statvfs(one.export.path()).unwrap());
        assert_eq!((here.f_blocks * here.f_frsize, here.f_files), (there.f_blocks * there.f_frsize, there.f_files));
        assert_eq!(here.f_namemax, 255);
        assert_eq!(statfs(one.mount.path()).unwrap().f_type, 0x6573_5546);
    });
}

#[test]
fn direct_io_and_synchronous_files() {
    test(|| {
        let one = One::new();
        for flags in [libc::O_DIRECT, libc::O_SYNC, libc::O_DSYNC, libc::O_DIRECT | libc::O_SYNC] {
            let path = one.path(format!("file-{flags}"));
            let options = File::options().read(true).write(true).create(true).custom_flags(flags).open(&path);
            let file = options.unwrap();
            let data: Vec<u8> = (0..1 << 22).map(|n: u32| (n >> 8) as u8).collect();
            file.write_all_at(&data, 0).unwrap();
            let mut back = vec![0; data.len()];
            file.read_exact_at(&mut back, 0).unwrap();
            assert!(back == data);
            file.sync_data().unwrap();
            file.sync_all().unwrap();
            syncfs(&file).unwrap();
        }
        File::open(one.mount.path()).unwrap().sync_all().unwrap();
    });
}

#[test]
fn links_keep_their_identity() {
    test(|| {
        let one = One::new();
        fs::write(one.path("a"), "a").unwrap();
        fs::hard_link(one.path("a"), one.path("b")).unwrap();
        let (a, b) = (fs::metadata(one.path("a")).unwrap(), fs::metadata(one.path("b")).unwrap());
        assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
        assert_eq!(a.ino(), fs::metadata(one.export.path().join("a")).unwrap().ino());
        let text = "../".repeat(60) + "\u{1f41f} nowhere";
        symlink(&text, one.path("link")).unwrap();
        assert_eq!(fs::read_link(one.path("link")).unwrap(), Path::new(&text));
        assert_eq!(fs::symlink_metadata(one.path("link")).unwrap().len(), text.len() as u64);
        symlink("loop", one.path("loop")).unwrap();
        assert_eq!(errno(fs::metadata(one.path("loop"))), libc::ELOOP);
    });
}

#[test]
fn deep_trees_are_walked() {
    test(|| {
        let one = One::new();
        let deep = "d/".repeat(200);
        fs::create_dir_all(one.path(&deep)).unwrap();
        fs::write(one.path(deep.clone() + "file"), "deep").unwrap();
        assert_eq!(fs::read_to_string(one.path(deep + "file")).unwrap(), "deep");
        fs::remove_dir_all(one.path("d")).unwrap();
        assert_eq!(fs::read_dir(one.export.path()).unwrap().count(), 0);
    });
}

#[test]
fn a_local_mount_is_the_directory() {
    test(|| {
        let source = directory();
        let mount = Mount::local(source.path());
        fs::write(mount.join("file"), "local").unwrap();
        assert_eq!(fs::read_to_string(source.path().join("file")).unwrap(), "local");
        if have(&["setpriv"]) {
            as_user("", mount.path(), "cat file").succeeded();
            as_user("", mount.path(), "touch new").failed();
        }
    });
}

#[test]
fn many_programs_at_once() {
    test(|| {
        if !have(&["dd", "cmp", "find"]) {
            return skip("needs coreutils and findutils");
        }
        let one = One::new();
        let script = "head -c 8000000 /dev/urandom > source
            for i in 1 2 3 4 5 6; do (mkdir d$i; for j in 1 2 3 4; do cp source d$i/$j; cmp source d$i/$j; done) & done
            for i in 1 2 3; do (while ! test -e done; do find . > /dev/null || true; done) & finders=\"${finders:-} $!\"; done
            wait $(jobs -p | head -6); touch done; wait; test $(find . -type f | wc -l) = 26";
        run_within(Duration::from_secs(50), Command::new("bash").arg("-euc").arg(script).current_dir(one.mount.path()))
            .succeeded();
    });
}
