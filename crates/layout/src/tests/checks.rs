//! What a check finds, and what it does not.

use super::*;
use crate::attribute::object_name;

fn objects(volume: &Volume, store: usize) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(volume.store(store).join(marker::OBJECTS)).unwrap();
    let objects = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    objects.map(|object| object.unwrap().path()).collect()
}

/// A volume with some files, one of which is open without a name, and harm.
fn after(harm: impl Fn(&Volume)) -> crate::Report {
    let volume = Volume::new(2, 0);
    let process = volume.start(usize::MAX);
    for number in 0..3 {
        process.put(&format!("file-{number}"), &content(number, 60_000)).unwrap();
        process.put(&format!("small-{number}"), &content(number, 5_000)).unwrap();
    }
    process.open("file-2", READ_WRITE).unwrap();
    process.unlink("file-2").unwrap();
    harm(&volume);
    drop(process);
    let process = volume.start(usize::MAX);
    process.wait(process.plain.check()).unwrap()
}

#[test]
fn a_healthy_volume_is_found_so() {
    let report = after(|_| {});
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.files, report.objects), (3, 6));
}

#[test]
fn each_planted_damage_is_found_and_nothing_else() {
    let report = after(|volume| objects(volume, 1).iter().for_each(|object| std::fs::remove_file(object).unwrap()));
    assert_eq!((report.damaged.len(), report.orphans.len()), (2, 0), "not the one that is to go: {report:?}");
    assert!(report.damaged[0].1.contains("missing on server d1"), "{report:?}");

    let name = object_name(&[0xab; 16], 1).1;
    let report = after(|volume| {
        std::fs::write(volume.store(0).join(marker::OBJECTS).join("a").join(&name), b"x").unwrap();
    });
    assert_eq!((report.damaged.len(), report.orphans.as_slice()), (0, &[("d0".to_owned(), name)][..]));

    let report = after(|volume| std::fs::remove_file(volume.tree().join("file-0")).unwrap());
    assert_eq!((report.damaged.len(), report.orphans.len()), (0, 2), "a stub that went past the volume");

    let report = after(|volume| std::fs::remove_file(volume.store(0).join(marker::NAME)).unwrap());
    assert_eq!((report.unseen.len(), report.damaged.len(), report.orphans.len()), (1, 0, 0), "{report:?}");

    for arguments in [&["--sparse=never"][..], &["-a", "--preserve=xattr"]] {
        let report = after(|volume| {
            let mut command = std::process::Command::new("cp");
            let copy = command.args(arguments).args(["file-1", "copy"]).current_dir(volume.tree());
            assert!(copy.status().unwrap().success());
        });
        assert_eq!((report.damaged.len(), report.orphans.len()), (1, 0), "{report:?}");
        assert_eq!(report.damaged[0].0, "/copy");
    }
}
