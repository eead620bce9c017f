use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::verdict::{Cause, Stage, Verdict};

/// Logs of real systems, where this machine has them.
fn recorded(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/recorded").join(name);
    if !path.exists() {
        println!("skipped: {} is not there", path.display());
    }
    path.exists().then_some(path)
}

fn read(path: &Path) -> Records {
    let mut records = Records::default();
    records.add(path).unwrap();
    records
}

fn said(text: &str) -> (Records, Verdict) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    fs::write(&path, text).unwrap();
    let records = read(&path);
    let verdict = judge(&records);
    (records, verdict)
}

/// A dump in which each of so many targets has two files, written in so many seconds each.
fn dump(seconds: impl Fn(u64) -> f64, names: f64) -> String {
    let mut text = "*WARNING*: incomplete\n# darshan log version: 3.41\n# nprocs: 48\n".to_owned();
    for file in 0..48u64 {
        let target = file % 24;
        for (counter, value) in [
            ("POSIX_BYTES_READ", 0.0),
            ("POSIX_BYTES_WRITTEN", 1e9),
            ("POSIX_F_WRITE_TIME", seconds(target) * (1.0 + file as f64 / 1000.0)),
            ("POSIX_F_META_TIME", names),
            ("POSIX_F_READ_TIME", -1.0),
        ] {
            text += &format!("POSIX\t{file}\t77{file}\t{counter}\t{value}\t/scratch/f{file}\t/scratch\tlustre\n");
        }
        text += &format!("LUSTRE\t{file}\t77{file}\tLUSTRE_OST_ID_0\t{target}\t/scratch/f{file}\t/scratch\tlustre\n");
    }
    text
}

#[test]
fn one_slow_target_is_named() {
    let (records, verdict) = said(&dump(|target| if target == 14 { 4.0 } else { 2.0 + target as f64 / 100.0 }, 0.01));
    assert_eq!((records.files.len(), records.files[0].targets.len()), (48, 1));
    assert_eq!((verdict.verdict, verdict.target.as_str()), (Cause::Write, "OST14"), "{verdict}");
    assert!(verdict.confidence > 0.9 && verdict.gain > 1.5, "{verdict:?}");
}

#[test]
fn targets_that_are_alike_are_said_to_be() {
    let (_, verdict) = said(&dump(|target| 2.0 + (target % 5) as f64 / 20.0, 0.01));
    assert_eq!((verdict.verdict, verdict.target.as_str()), (Cause::None, ""), "{verdict}");
    let (_, several) = said(&dump(|target| if target < 5 { 4.0 } else { 2.0 + target as f64 / 100.0 }, 0.01));
    assert_eq!(several.verdict, Cause::Write);
    assert!(several.target.contains(", OST0") && several.evidence[1].contains("5 of 24"), "{several}");
    let (_, names) = said(&dump(|_| 2.0, 9.0));
    assert_eq!(names.verdict, Cause::Metadata, "{names}");
    let (_, few) = said(&dump(|_| 2.0, 0.01).replace("LUSTRE_OST_ID", "LUSTRE_OTHER"));
    assert_eq!(few.verdict, Cause::Undetermined, "{few}");
}

fn line(minute: u32, seconds: u32, bytes: f64) -> String {
    format!(
        "[12] Tue :: Transfer stats: DATE=2018012800{minute:02}{seconds:02}.5 HOST=dtn PROG=g NL.EVNT=FTP_INFO \
         START=2018012800{minute:02}00.5 USER=u FILE=/a b=c DATE=1 TYPE=x BUFFER=87040 BLOCK=1 NBYTES={bytes} VOLUME=/ \
         STREAMS=4 STRIPES=1 DEST=[10.0.0.1] TYPE=STOR CODE=226 TASKID=none\n"
    )
}

#[test]
fn transfers_are_read_and_joined_with_what_targets_did() {
    let text: String = (0..20).map(|minute| line(minute, 20, 2e9 * f64::from(minute + 1))).collect();
    let (records, alone) = said(&text);
    assert_eq!(records.transfers.len(), 20);
    let first = &records.transfers[0];
    assert_eq!((first.time[0], first.time[1] - first.time[0], first.streams), (1_517_097_600.5, 20.0, 4));
    assert!(first.is_stored && first.is_whole && first.peer == "10.0.0.1" && first.rate() == 1e8, "{first:?}");
    assert_eq!(alone.verdict, Cause::Undetermined);
    assert!(alone.evidence[0].contains("add what targets did"), "{alone}");
    // Others move less from minute to minute, while the transfers move more.
    let step = |number: u32| {
        let others = 1e9 * (25.0 - f64::from(number) / 12.0);
        let own = if number % 12 < 5 { 5e8 * f64::from(number / 12 + 1) } else { 0.0 };
        let from = 1_517_097_600.0 + f64::from(number) * 5.0;
        Activity { time: [from, from + 5.0], targets: [("OST3".to_owned(), [others, own])].into() }
    };
    let joined = Records { activity: (0..300).map(step).collect(), ..records.clone() };
    let verdict = judge(&joined);
    assert_eq!((verdict.verdict, verdict.target.as_str()), (Cause::Write, "OST3"), "{verdict}");
    let late = Records { activity: joined.activity[250..].to_vec(), ..joined };
    assert_eq!(judge(&late).verdict, Cause::Undetermined);
}

#[test]
fn parts_that_were_measured_alone_are_compared() {
    let iperf = r#"{"start":{"connecting_to":{"host":"dtn2"}},"end":{"sum_sent":{"retransmits":3},"sum_received":{"bits_per_second":8e9}}}"#;
    let ior = r#"{"tests":[{"Parameters":{"testFileName":"/s/f"},"Results":[{"access":"write","bwMiB":300.0},{"access":"read","bwMiB":900.0}]}]}"#;
    let folder = tempfile::tempdir().unwrap();
    let mut records = Records::default();
    for (name, text) in [("iperf", iperf), ("ior", ior)] {
        fs::write(folder.path().join(name), text).unwrap();
        records.add(&folder.path().join(name)).unwrap();
    }
    let verdict = judge(&records);
    assert_eq!((verdict.verdict, verdict.target.as_str()), (Cause::Write, "/s/f"), "{verdict}");
    assert_eq!((verdict.next.as_str(), records.measurements[0].stage), ("read", Stage::Network));
}

#[test]
fn what_is_none_of_these_is_refused_with_what_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("noise");
    for noise in
        [&b""[..], b"hello\n", b"\xff\x00\x01", b"{}", b"{\"tests\": 3}", b"SQLite format 3\0junk", b"\x1f\x8bx"]
    {
        fs::write(&path, noise).unwrap();
        assert!(Records::default().add(&path).is_err(), "{noise:?}");
    }
    let told = Records::default().add(Path::new("/nonexistent")).unwrap_err().to_string();
    assert!(told.contains("/nonexistent") && told.contains("name a file"), "{told}");
}

#[test]
fn real_logs_are_read() {
    if let Some(path) = recorded("gridftp/dtn.log") {
        let records = read(&path);
        assert_eq!(records.transfers.len(), 11);
        assert!(records.transfers.iter().any(|transfer| !transfer.is_stored && transfer.streams == 4));
    }
    if let Some(path) = recorded("lmt/edison-scratch1.sqlite3") {
        let records = read(&path);
        assert_eq!((records.activity.len(), records.activity[0].targets.len()), (60, 24));
        assert!(records.activity.iter().all(|step| step.time[1] - step.time[0] == 5.0));
    }
    if let Some(path) = recorded("darshan/ior-48-ranks.txt.gz") {
        let records = read(&path);
        assert_eq!(records.files.iter().filter(|file| file.targets.len() == 1).count(), 48);
        // Two groups of targets: no one of them is the cause.
        let verdict = judge(&records);
        assert!(!verdict.target.is_empty() && verdict.target.contains(", "), "{verdict}");
    }
}
