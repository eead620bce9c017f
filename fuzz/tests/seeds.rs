//! Every target over its seeds, simple changes of them, and the inputs that once broke something.

use std::fs;
use std::path::Path;

use aqueduct_fuzz::{TARGETS, Target};

/// Changes of each seed: cut at so many places, and so many bytes given other values.
const CHANGES_PER_SEED: usize = 24;

/// The same for the target that waits for time to pass, some ten milliseconds for most inputs.
const CHANGES_PER_SEED_OF_CLIENT: usize = 5;

/// The seed cut, and with one byte changed, at places spread over it.
fn changes(seed: &[u8], count: usize) -> impl Iterator<Item = Vec<u8>> {
    let step = seed.len().div_ceil(count).max(1);
    let cut = (0..seed.len()).step_by(step).map(|at| seed[..at].to_vec());
    let changed = (0..seed.len()).step_by(step).flat_map(|at| {
        [1, 0x80, 0xff].map(|change| {
            let mut bytes = seed.to_vec();
            bytes[at] ^= change;
            bytes
        })
    });
    cut.chain(changed)
}

fn regressions(target: &Target) -> Vec<Vec<u8>> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
    let files = fs::read_dir(place).into_iter().flatten();
    files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
}

fn check(name: &str) {
    let target = aqueduct_fuzz::target(name).unwrap();
    let seeds = (target.seeds)();
    assert!(seeds.iter().all(|seed| seed.len() <= target.length_max), "{name} has seeds that are too long");
    let count = if name == "client" { CHANGES_PER_SEED_OF_CLIENT } else { CHANGES_PER_SEED };
    for seed in seeds {
        (target.run)(&seed);
        changes(&seed, count).for_each(|changed| (target.run)(&changed));
    }
    regressions(target).iter().for_each(|input| (target.run)(input));
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*

        #[test]
        fn every_target_is_checked() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets! { frame greeting request reply extra directory receive server client journal posix fuse place }
