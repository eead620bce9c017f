//! `aqueduct-model`: random operations on two file systems, compared.

use std::env;
use std::path::PathBuf;
use std::process::exit;
use std::time::Duration;

use aqueduct_model::{Divergence, Profile, Settings, Tally, check_seed, generate, minimise, replay};

const USAGE: &str = "\
usage: aqueduct-model --reference DIR --subject DIR [--subject DIR2] [--seeds A..B] [--operations N]
                      [--keep I,J,...] [--print] [--keep-going] [--patience SECONDS]

Runs the sequences of the seeds A to B-1 on a local directory and on a mount (or on two mounts of one export in turn) and compares every
result. Stops at the first difference, makes its sequence small and prints how to replay it.

  --keep I,J,...   only these operations of the sequence
  --print          print the sequence of the first seed and do nothing
  --keep-going     look at the other seeds after a difference

Exit status: 0 all alike, 1 a difference, 2 the test could not run.";

/// Time given to making one failing sequence small.
const SHRINK_BUDGET: Duration = Duration::from_secs(60);

struct Arguments {
    settings: Settings,
    seeds: std::ops::Range<u64>,
    keep: Option<Vec<usize>>,
    print: bool,
    keep_going: bool,
}

fn usage(problem: &str) -> ! {
    eprintln!("aqueduct-model: {problem}\n\n{USAGE}");
    exit(2)
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| usage(&format!("{text:?} is no number")))
}

fn seeds(text: &str) -> std::ops::Range<u64> {
    match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(text)..number::<u64>(text) + 1,
    }
}

fn arguments() -> Arguments {
    let mut reference = None;
    let mut subjects = Vec::new();
    let mut parsed = Arguments {
        settings: Settings {
            reference: PathBuf::new(),
            subjects: Vec::new(),
            operations: 300,
            patience: Duration::from_secs(20),
            restarts: false,
        },
        seeds: 0..10,
        keep: None,
        print: false,
        keep_going: false,
    };
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| usage(&format!("{word} wants a value")));
        match word.as_str() {
            "--reference" => reference = Some(PathBuf::from(value())),
            "--subject" => subjects.push(PathBuf::from(value())),
            "--seeds" | "--seed" => parsed.seeds = seeds(&value()),
            "--operations" => parsed.settings.operations = number(&value()),
            "--patience" => parsed.settings.patience = Duration::from_secs(number(&value())),
            "--keep" => parsed.keep = Some(value().split(',').map(number).collect()),
            "--keep-going" => parsed.keep_going = true,
            "--print" => parsed.print = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                exit(0)
            }
            other => usage(&format!("unknown argument {other:?}")),
        }
    }
    if !(1..=2).contains(&subjects.len()) {
        usage("one --subject, or two, are needed");
    }
    parsed.settings.reference = reference.unwrap_or_else(|| usage("--reference is needed"));
    parsed.settings.subjects = subjects;
    parsed
}

fn report(arguments: &Arguments, profile: &Profile, seed: u64, divergence: Box<Divergence>) {
    println!("seed {seed}: the results differ\n{divergence}");
    let settings = &arguments.settings;
    let ops = generate(seed, settings.operations, profile);
    let minimal = match minimise(settings, &ops, divergence, SHRINK_BUDGET) {
        Ok(minimal) => minimal,
        Err(error) => return println!("cannot make it small: {error}"),
    };
    println!("smallest sequence found ({} replays):", minimal.tries);
    for op in &minimal.ops {
        println!("{op:?}");
    }
    println!("{}", minimal.divergence);
    let kept: Vec<String> = minimal.ops.iter().map(|op| op.index.to_string()).collect();
    println!("replay: --seed {seed} --operations {} --keep {}", settings.operations, kept.join(","));
}

fn main() {
    let arguments = arguments();
    let settings = &arguments.settings;
    let trouble = |error: std::io::Error| -> ! {
        eprintln!("aqueduct-model: {error}");
        exit(2)
    };
    let profile = Profile::probe(&settings.reference, &settings.subjects).unwrap_or_else(|error| trouble(error));
    for name in profile.left_out() {
        println!("left out, because one side lacks it: {name}");
    }
    let mut different = 0;
    let mut tally = Tally::default();
    for seed in arguments.seeds.clone() {
        let result = match (&arguments.keep, arguments.print) {
            (_, true) => {
                generate(seed, settings.operations, &profile).iter().for_each(|op| println!("{op:?}"));
                return;
            }
            (None, _) => check_seed(settings, &profile, seed, &mut tally),
            (Some(keep), _) => {
                let mut ops = generate(seed, settings.operations, &profile);
                ops.retain(|op| keep.contains(&op.index));
                replay(settings, &ops, &mut tally)
            }
        };
        if let Err(divergence) = result.unwrap_or_else(|error| trouble(error)) {
            different += 1;
            let hung = divergence.hung;
            report(&arguments, &profile, seed, divergence);
            if hung || !arguments.keep_going {
                // Threads that hang are not waited for.
                exit(1);
            }
        }
    }
    print!("{tally}");
    println!("seeds {:?}, {} operations each: {different} differ", arguments.seeds, settings.operations);
    exit(i32::from(different > 0))
}
