//! The model's role played by ext4 and tmpfs: where two local file systems agree, the model must not see a difference; where they do not, it must.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use aqueduct_model::{Profile, Settings, Tally, check_seed, generate, minimise};
use rustix::fs::statfs;
use tempfile::TempDir;

/// Magic numbers of statfs(2).
const EXT4: i64 = 0xef53;
const TMPFS: i64 = 0x0102_1994;

/// A fresh directory on a file system of this type, wherever one is usually found.
fn directory_on(magic: i64) -> Option<TempDir> {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let usual = ["/dev/shm", "/tmp", "/var/tmp", "/run"].map(PathBuf::from);
    let found = usual.into_iter().chain([target]).find(|path| statfs(path).is_ok_and(|s| s.f_type == magic))?;
    tempfile::Builder::new().prefix("model-").tempdir_in(found).ok()
}

fn skip(why: &str) {
    println!("skipped: {why}");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn settings(reference: &Path, subject: &Path, operations: usize) -> Settings {
    Settings {
        reference: reference.to_path_buf(),
        subjects: vec![subject.to_path_buf()],
        operations,
        patience: Duration::from_secs(20),
        restarts: false,
    }
}

fn assert_alike(reference: &Path, subject: &Path, seeds: std::ops::Range<u64>) -> Tally {
    let settings = settings(reference, subject, 300);
    let profile = Profile::probe(reference, &settings.subjects).unwrap();
    println!("left out: {:?}", profile.left_out());
    let mut tally = Tally::default();
    for seed in seeds {
        if let Err(divergence) = check_seed(&settings, &profile, seed, &mut tally).unwrap() {
            let ops = generate(seed, settings.operations, &profile);
            let minimal = minimise(&settings, &ops, divergence, Duration::from_secs(20)).unwrap();
            let kept: Vec<_> = minimal.ops.iter().map(|op| op.index.to_string()).collect();
            panic!("seed {seed}, --keep {}:\n{:#?}\n{}", kept.join(","), minimal.ops, minimal.divergence);
        }
    }
    tally
}

#[test]
fn ext4_and_tmpfs_agree() {
    if !is_root() {
        return skip("the actors of the model take on several users, which needs root");
    }
    let (Some(ext4), Some(tmpfs)) = (directory_on(EXT4), directory_on(TMPFS)) else {
        return skip("no ext4 or no tmpfs in the usual places");
    };
    let tally = assert_alike(ext4.path(), tmpfs.path(), 0..60);
    println!("{tally}");
    assert_alike(tmpfs.path(), ext4.path(), 60..80);
    // A skipped kind would prove nothing.
    for kind in tally.kinds() {
        assert!(tally.succeeded(kind) >= 5, "{kind} hardly ever succeeds:\n{tally}");
    }
    assert!(tally.kinds().count() >= 40, "{tally}");
}

#[test]
fn ext4_agrees_with_itself() {
    if !is_root() {
        return skip("the actors of the model take on several users, which needs root");
    }
    let (Some(one), Some(two)) = (directory_on(EXT4), directory_on(EXT4)) else {
        return skip("no ext4 in the usual places");
    };
    assert_alike(one.path(), two.path(), 100..130);
}

/// Unmounts when it goes.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_noticed_and_made_small() {
    if !is_root() {
        return skip("mounting needs root");
    }
    let (Some(reference), Some(home)) = (directory_on(TMPFS), directory_on(TMPFS)) else {
        return skip("no tmpfs in the usual places");
    };
    let subject = home.path().join("small");
    fs::create_dir(&subject).unwrap();
    let status = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "model"]).arg(&subject).status().unwrap();
    if !status.success() {
        return skip("tmpfs cannot be mounted here");
    }
    let _mounted = Mounted(subject.clone());
    let settings = settings(reference.path(), &subject, 300);
    let profile = Profile::probe(reference.path(), &settings.subjects).unwrap();
    let found = (0..20).find_map(|seed| {
        let divergence = check_seed(&settings, &profile, seed, &mut Tally::default()).unwrap().err()?;
        Some((seed, divergence))
    });
    let (seed, divergence) = found.expect("300 operations write more than 64 KiB");
    let ops = generate(seed, settings.operations, &profile);
    let minimal = minimise(&settings, &ops, divergence, Duration::from_secs(20)).unwrap();
    assert!(minimal.ops.len() <= 6, "{:#?}", minimal.ops);
}

#[test]
fn a_seed_always_gives_the_same_sequence() {
    let profile = Profile::full();
    assert_eq!(generate(7, 500, &profile), generate(7, 500, &profile));
    assert_eq!(generate(7, 500, &profile)[..100], generate(7, 100, &profile)[..]);
    assert_ne!(generate(7, 100, &profile), generate(8, 100, &profile));
}
