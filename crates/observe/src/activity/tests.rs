use std::fs;

use proptest::prelude::*;

use super::*;

fn read(parse: impl FnOnce(&mut Readings)) -> Readings {
    let mut readings = Readings::default();
    parse(&mut readings);
    readings
}

/// Linux 6.18, x86-64, a virtual machine with a virtio disk.
const DISKSTATS: &str = "\
   7      38 loop38 140 3 286 49 36 21 98 3 0 0 55 0 0 0 0 22 2
   7      39 loop39 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 254       0 vda 1839583 60647 93826754 2211124 533473 636736 351212800 1682221 0 240512 3989341 394560 101 235122000 66266 100271 29729
";

#[test]
fn disks_are_read() {
    let all = read(|to| diskstats(DISKSTATS, to));
    let vda = |counter| all.value("disk", "vda", counter);
    assert_eq!(vda("read_operations"), Some(1_839_583));
    assert_eq!(vda("write_bytes"), Some(351_212_800 * 512));
    assert_eq!(vda("busy_microseconds"), Some(240_512_000));
    assert_eq!(vda("queued_microseconds"), Some(3_989_341_000));
    assert_eq!(vda("flush_operations"), Some(100_271));
    assert!(all.all().iter().all(|one| one.target != "loop39"), "it never did anything");
}

/// The same machine.
#[test]
fn file_systems_are_read() {
    let text = "extent_alloc 1910 41266 748 15649\ntrans 46 20898 0\nlog 4585 23085 0 4878 5151\nrw 7 9\n\
                xpc 166944768 148231083 226550935\n";
    let all = read(|to| xfs(text, to));
    let of = |counter| all.value("xfs", "all", counter);
    assert_eq!((of("allocated_blocks"), of("freed_blocks")), (Some(41_266), Some(15_649)));
    assert_eq!((of("log_bytes"), of("log_forces")), (Some(23_085 * 512), Some(4878)));
    assert_eq!((of("write_bytes"), of("read_bytes")), (Some(148_231_083), Some(226_550_935)));
    let all = read(|to| ext4("vda", "lifetime_write_kbytes", "175606397\n", to));
    assert_eq!(all.value("ext4", "vda", "write_bytes"), Some(175_606_397 * 1024));
    assert!(read(|to| ext4("vda", "reserved_clusters", "4\n", to)).all().is_empty());
}

/// The same machine; schedstat of version 15, from the kernel's documentation.
#[test]
fn processors_are_read() {
    let text =
        "cpu  772103 380003 269641 232434 5846 0 24146 1088 0 0\ncpu0 373499 0 0 0 0 0 0 566 0 0\nintr 5\nctxt 1\n";
    let all = read(|to| processors(text, to));
    assert_eq!(all.value("cpu", "all", "steal_microseconds"), Some(10_880_000));
    assert_eq!(all.value("cpu", "cpu0", "user_microseconds"), Some(3_734_990_000));
    let all = read(|to| schedstat("version 15\ncpu0 0 0 0 0 0 0 5000000 2000000 30\ndomain0 3\n", to));
    assert_eq!(all.value("schedule", "cpu0", "waiting_microseconds"), Some(2000));
    assert_eq!(all.value("schedule", "cpu0", "slices"), Some(30));
    let text = "some avg10=84.11 avg60=68.27 avg300=64.80 total=5704307983\nfull avg10=0.00 total=7\n";
    let all = read(|to| pressure("cpu", text, to));
    assert_eq!(all.value("pressure", "cpu", "some_microseconds"), Some(5_704_307_983));
    assert_eq!(all.value("pressure", "cpu", "full_microseconds"), Some(7));
}

/// The same machine.
#[test]
fn networks_are_read() {
    let text = "Inter-|   Receive\n face |bytes    packets errs drop\n  \
                eth0: 573187479   15395    0    2    0     0          0         0   839441    9068    0    3    0     0       0          0\n";
    let all = read(|to| interfaces(text, to));
    let eth0 = |counter| all.value("net", "eth0", counter);
    assert_eq!((eth0("receive_bytes"), eth0("receive_drops")), (Some(573_187_479), Some(2)));
    assert_eq!((eth0("transmit_bytes"), eth0("transmit_drops")), (Some(839_441), Some(3)));
    let text = "Udp: InDatagrams\nUdp: 4\nTcp: RtoAlgorithm MaxConn InSegs OutSegs RetransSegs\n\
                Tcp: 1 -1 53943515 53917935 23200\nTcpExt: TW TCPTimeouts\nTcpExt: 8 9\n";
    let all = read(|to| protocols(text, to));
    let tcp = |counter| all.value("tcp", "all", counter);
    assert_eq!((tcp("OutSegs"), tcp("RetransSegs"), tcp("TCPTimeouts")), (Some(53_917_935), Some(23_200), Some(9)));
    assert_eq!((tcp("MaxConn"), tcp("InDatagrams")), (None, None));
}

#[test]
fn mounts_of_nfs_are_read() {
    let all = read(|to| mountstats(include_str!("../../testdata/nfs.txt"), to));
    let of = |counter| all.value("nfs", "/mnt/nfs/test", counter);
    assert_eq!((of("read_bytes"), of("server_read_bytes")), (Some(1_207_640_230), Some(1_210_214_218)));
    assert_eq!((of("read_operations"), of("read_answer_microseconds")), (Some(1298), Some(79_386_000)));
    assert_eq!(of("access_operations"), Some(2_927_395_007));
    assert_eq!(of("access_queued_microseconds"), None, "it ran below zero");
    assert_eq!(of("write_operations"), None, "nothing was written");
    assert!(all.all().iter().all(|one| one.target == "/mnt/nfs/test"), "others are not NFS");
}

#[test]
fn parameters_of_lustre_are_read() {
    let all = read(|to| parameters(include_str!("../../testdata/lustre.txt"), to));
    let of = |target, counter| all.value("lustre", target, counter);
    assert_eq!(of("obdfilter.ai400-OST0000", "write_bytes"), Some(104_857_600_000));
    assert_eq!(of("obdfilter.ai400-OST0000", "write_bytes_samples"), Some(25_001));
    assert_eq!(of("obdfilter.ai400-OST0000", "write_microseconds"), Some(41_700_926));
    assert_eq!(of("obdfilter.ai400-OST0001", "write_bytes"), None);
    assert_eq!(of("obdfilter.ai400-OST0001", "statfs_samples"), Some(59_814));
    assert_eq!(of("llite.ai400x2-ff47bce9ca35d800", "unlink_microseconds"), Some(3_846_291_010));
    assert_eq!(of("llite.ai400x2-ff47bce9ca35d800", "ioctl_samples"), Some(114));
    assert_eq!(of("osd-ldiskfs.ai400-OST0000", "pages_per_bulk_rw_1K_write"), Some(25_000));
    assert_eq!(of("osd-ldiskfs.ai400-OST0000", "discontiguous_pages_1_write"), Some(3));
}

/// Whole recordings of servers and clients, where they are at hand.
#[test]
fn recorded_parameters_are_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/recorded/lustre/");
    for (file, target) in [("server-2.14.txt", "obdfilter.fs-OST0001"), ("client-2.14.txt", "llite.ai400x2-")] {
        let Ok(text) = fs::read_to_string(format!("{folder}{file}")) else {
            eprintln!("skipped: {file} is not here");
            continue;
        };
        let all = read(|to| parameters(&text, to));
        assert!(all.all().iter().any(|one| one.target.starts_with(target)), "{file}");
        assert_eq!(all.dropped(), 0);
    }
}

#[test]
fn what_has_no_room_is_counted() {
    let mut readings = Readings::default();
    (0..READINGS_MAX + 3).for_each(|_| readings.add("disk", "vda", "x", 1));
    readings.add("disk", &"x".repeat(NAME_MAX + 1), "x", 1);
    assert_eq!((readings.all().len(), readings.dropped()), (READINGS_MAX, 4));
}

/// A folder with files as Lustre and ext4 have them.
#[test]
fn files_below_a_root_are_read() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("sys/kernel/debug/lustre/osd-zfs/fs-OST0000/brw_stats", "disk I/O size  ios  % | ios\n4K: 3 0 0 | 7 0 0\n");
    write("proc/fs/lustre/obdfilter/fs-OST0000/stats", "read_bytes 2 samples [bytes] 1 2 3 5\n");
    write("sys/fs/ext4/sda1/errors_count", "2\n");
    write("lctl.txt", "osc.fs-OST0001-osc.stats=\nread_bytes 1 samples [bytes] 4 4 4\n");
    let all = Collector::new(root.path(), Some(&root.path().join("lctl.txt"))).look();
    assert_eq!(all.value("lustre", "osd-zfs.fs-OST0000", "disk_io_size_4K_write"), Some(7));
    assert_eq!(all.value("lustre", "obdfilter.fs-OST0000", "read_bytes"), Some(3));
    assert_eq!(all.value("lustre", "osc.fs-OST0001-osc", "read_bytes"), Some(4));
    assert_eq!(all.value("ext4", "sda1", "errors"), Some(2));
    assert_eq!(all.all().len(), 7);
}

fn all_of(text: &str) -> Readings {
    read(|to| {
        for parse in [diskstats, xfs, processors, schedstat, interfaces, protocols, mountstats, parameters] {
            parse(text, to);
        }
        pressure("cpu", text, to);
        ext4("vda", "errors_count", text, to);
        parameters(&format!("osd-ldiskfs.x.brw_stats=\n{text}"), to);
    })
}

proptest! {
    #[test]
    fn noise_does_no_harm(text in "(?s).{0,400}") {
        all_of(&text);
    }

    /// Words of the real files in any order, with numbers beyond all bounds.
    #[test]
    fn shuffled_words_do_no_harm(words in prop::collection::vec(prop::sample::select(vec![
        "cpu", "cpu0", "device", "mounted", "on", "with", "fstype", "nfs4", "bytes:", "per-op", "READ:", "Tcp:", "TcpExt:",
        "OutSegs", "extent_alloc", "xpc", "some", "total=", "obdfilter.x.stats=", "osd-a.x.brw_stats=", "samples",
        "[bytes]", "18446744073709551615", "99999999999999999999", "-1", "0", "7", " rpcs ", " ios ", "|", ":", "=", "\n",
        "\n", "é", "x:",
    ]), 0..120)) {
        let readings = all_of(&words.join(" "));
        prop_assert!(readings.all().iter().all(|one| one.counter.len() <= NAME_MAX));
    }
}
