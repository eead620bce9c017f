//! `seeds DIR`: writes the seeds of each target into a folder of its name, and prints the targets with their longest input.

use std::fs;
use std::io;
use std::path::PathBuf;

use aqueduct_fuzz::TARGETS;

fn main() -> io::Result<()> {
    let directory = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("name the folder: seeds DIR"))?;
    for target in TARGETS {
        let place = PathBuf::from(&directory).join(target.name);
        fs::create_dir_all(&place)?;
        for (at, seed) in (target.seeds)().iter().enumerate() {
            fs::write(place.join(format!("seed-{at:03}")), seed)?;
        }
        println!("{} {}", target.name, target.length_max);
    }
    Ok(())
}
