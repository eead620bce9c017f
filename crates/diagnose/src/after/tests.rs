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

/// As IOR 4.0 writes it: a list for each repetition, and lines of others around it.
#[test]
fn what_ior_writes_is_read() {
    let result = |access: &str, rate: f64| {
        format!(
            r#"{{ "access": "{access}", "bwMiB": {rate}, "blockKiB": 1024.0, "xferKiB": 256.0, "openTime": 0.1, "totalTime": 2.0 }}"#
        )
    };
    let repetition = |write: f64, read: f64| format!("[ {} , \n{}\n]", result("write", write), result("read", read));
    let document = |results: &str| {
        format!(
            r#"{{ "Version": "4.0.0", "Command line": "ior -O summaryFormat=JSON", "tests": [
            {{ "TestID": 0, "Parameters": {{ "testID": 0, "testFileName": "/scratch/f" }},
            "Options": {{ "api": "POSIX", "test filename": "/scratch/f", "access": "file-per-process" }},
            {results} "Finished": "Fri" }} ],
            "summary": [ {{ "operation": "write", "bwMaxMIB": 310.0, "bwMeanMIB": 305.0 }},
            {{ "operation": "read", "bwMaxMIB": 930.0, "bwMeanMIB": 915.0 }} ], "Finished": "Fri" }}"#
        )
    };
    let results = format!(r#""Results": [ {}, {} ],"#, repetition(300.0, 900.0), repetition(310.0, 930.0));
    let around = format!("ior WARNING: {{slow}}\n{}\nMax Write: 310 MiB/sec\n", document(&results));
    for text in [document(&results), around] {
        let (records, verdict) = said(&text);
        let found: Vec<_> = records.measurements.iter().map(|found| (found.stage, found.rate / 1_048_576.0)).collect();
        let [write, read] = [Stage::Write, Stage::Read];
        assert_eq!(found, [(write, 300.0), (read, 900.0), (write, 310.0), (read, 930.0)]);
        assert_eq!((verdict.verdict, verdict.target.as_str()), (Cause::Write, "/scratch/f"), "{verdict}");
    }
    let (records, _) = said(&document(""));
    let rates: Vec<_> = records.measurements.iter().map(|found| found.rate / 1_048_576.0).collect();
    assert_eq!(rates, [305.0, 915.0], "of the summary alone");
}

fn packed(text: &str) -> Vec<u8> {
    use std::io::Write;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(text.as_bytes()).unwrap();
    packer.finish().unwrap()
}

#[test]
fn a_packed_log_of_several_parts_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.gz");
    let part = |from: u32| packed(&(from..from + 5).map(|minute| line(minute, 20, 2e9)).collect::<String>());
    fs::write(&path, [part(0), part(5), part(10)].concat()).unwrap();
    assert_eq!(read(&path).transfers.len(), 15);
    // One that was cut off is told, and not read in part.
    fs::write(&path, &[part(0), part(5)].concat()[..part(0).len() + 20]).unwrap();
    assert!(Records::default().add(&path).unwrap_err().to_string().contains("cannot read"));
    fs::write(&path, packed("SQLite format 3\0")).unwrap();
    assert!(Records::default().add(&path).unwrap_err().to_string().contains("gunzip"));
}

/// A log that is longer than what is kept of it, as a pipe, which can be read once.
#[test]
fn a_large_log_is_read_as_it_comes() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let to = path.clone();
    let writer = std::thread::spawn(move || {
        let mut pipe = std::io::BufWriter::new(fs::File::create(to).unwrap());
        let noise = "[12] Tue :: Server started in inetd mode, and nothing else that is known of it\n".repeat(100);
        for minute in 0..60 {
            pipe.write_all(line(minute, 20, 2e9).as_bytes()).unwrap();
            (0..100).for_each(|_| pipe.write_all(noise.as_bytes()).unwrap());
        }
    });
    assert_eq!(read(&path).transfers.len(), 60);
    writer.join().unwrap();
}

#[test]
fn what_is_none_of_these_is_refused_with_what_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("noise");
    for noise in [
        &b""[..],
        b"hello\n",
        b"\xff\x00\x01",
        b"{}",
        b"{\"tests\": 3}",
        b"{\"tests\": []}",
        b"x\n{\n",
        b"SQLite format 3\0junk",
        b"\x1f\x8bx",
    ] {
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
