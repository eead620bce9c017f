//! What is mounted on directories of a mount, as a container's root has it.

use std::fs;
use std::process::Command;

use crate::common::{Pair, run, test};

/// The kernel forgets names that it keeps by a way that takes away what is mounted on any of them
/// (INC_EPOCH, Linux 6.16). Where it keeps none, nothing is taken away.
#[test]
fn what_is_mounted_below_stays_where_names_are_asked_for() {
    test(|| {
        let pair = Pair::with("names=ask");
        let (left, right) = (pair.left.path(), pair.right.path());
        fs::create_dir_all(left.join("image/tmp")).unwrap();
        let below = left.join("image/tmp");
        run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&below)).succeeded();
        let renames = |root: &std::path::Path| {
            for name in ["a", "b"] {
                fs::write(root.join(name), name).unwrap();
                assert!(root.join(name).exists());
            }
            fs::rename(root.join("b"), root.join("a")).unwrap();
        };
        renames(left);
        fs::write(below.join("kept"), "here").unwrap();
        // What this mount has looked up is recalled.
        assert_eq!(fs::read(left.join("a")).unwrap(), b"b");
        renames(right);
        fs::create_dir(right.join("image/new")).unwrap();
        assert!(left.join("image/new").is_dir());
        assert_eq!(fs::read(below.join("kept")).unwrap(), b"here");
        assert!(!right.join("image/tmp/kept").exists());
        run(Command::new("umount").arg(&below)).succeeded();
        assert!(!below.join("kept").exists());
    });
}
