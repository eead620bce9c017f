//! Data, as IOR measures them: its options, its patterns, its columns and its JSON.
//!
//! `plan` is what the options mean together, `pattern` which bytes each rank moves in which order, `data` what they hold; all pure. `phase` is
//! the inner loop, over one of the interfaces of `api` (`local`, `projected`); [`run`] a rank's way through the phases together with the others;
//! `results` what all of them measured, and `output` how that is shown.

mod api;
mod arguments;
mod clock;
mod data;
mod directives;
mod json;
mod local;
mod measured;
mod output;
mod pattern;
mod phase;
mod plan;
mod progress;
mod projected;
mod results;
mod run;
mod size;
mod table;
mod tally;
mod target;

use std::process::ExitCode;

pub use arguments::{Api, Arguments, Format, Named};
pub use data::Packet;

use crate::Failure;
use crate::ranks::{Team, TeamError};

/// What a process ends with that was interrupted: as shells count it, 128 and the signal.
const INTERRUPTED: u8 = 130;

/// Runs it, as one of the ranks.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let arguments = directives::apply(arguments)?;
    let mut team = Team::start(&arguments.team())?;
    match together(arguments, &mut team) {
        Ok(code) => team.finish(Ok(code)),
        Err(Trouble::Own(failure)) => team.finish(Err(failure)),
        // All have ended in order.
        Err(Trouble::Known(failure)) => {
            let is_first = team.rank() == 0;
            let ended = team.finish(Ok(ExitCode::FAILURE));
            if is_first { Err(failure) } else { ended }
        }
    }
}

/// Why a test does not come to its end.
#[derive(Debug)]
enum Trouble {
    /// All ranks know it, so that one says it for all.
    Known(Failure),
    /// Only this rank knows it.
    Own(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        Trouble::Own(failure)
    }
}

impl From<TeamError> for Trouble {
    fn from(error: TeamError) -> Trouble {
        Trouble::Own(error.into())
    }
}

fn together(arguments: Arguments, team: &mut Team) -> Result<ExitCode, Trouble> {
    let mut seed = [0; 8];
    let failed = |error| Failure::new("choosing a seed", error, "give one with --random-offset-seed");
    getrandom::fill(&mut seed).map_err(failed)?;
    let seed = team.broadcast(u64::from_le_bytes(seed))?;
    let plan = plan::Plan::new(arguments, &team.hosts(), seed).map_err(Trouble::Known)?;
    let reached = target::reach(&plan.options, team.rank());
    let (mut names, files) = agreed(team, reached)?;
    let checked = if team.rank() == 0 { target::check(&plan, &mut *names) } else { Ok(api::Space::default()) };
    if plan.options.dry_run {
        let space = agreed(team, checked)?;
        if team.rank() == 0 {
            print!("{}", target::describe(&plan, &space));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let printer = checked.and_then(|space| {
        let header = output::Header::new(&plan, space);
        (team.rank() == 0).then(|| output::Printer::start(&plan, header)).transpose()
    });
    let printer = agreed(team, printer)?;
    let end = run::Runner::new((&plan, team), (names, files), printer)?.run()?;
    if end.interrupted {
        if team.rank() == 0 {
            tell!("interrupted: {} of {} repetitions are complete", end.repetitions, plan.options.repetitions);
        }
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if end.wrong > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What came out here, if it did everywhere; else the first rank's failure.
fn agreed<T>(team: &mut Team, result: Result<T, Failure>) -> Result<T, Trouble> {
    let (value, failure) = match result {
        Ok(value) => (Some(value), None),
        Err(failure) => (None, Some(failure)),
    };
    let failures = team.gather_for_all(failure)?;
    match (value, failures.into_iter().flatten().next()) {
        (Some(value), None) => Ok(value),
        (_, Some(failure)) => Err(Trouble::Known(failure)),
        (None, None) => Err(Failure::new("preparing the test", "a task has failed", "see what it says").into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// The options of a command line, with all directives.
    pub(super) fn parsed(options: &[&str]) -> Arguments {
        let line = Line::try_parse_from(["io"].iter().chain(options)).unwrap_or_else(|error| panic!("{error}"));
        directives::apply(line.arguments).unwrap()
    }

    fn plan(options: &[&str], ranks: usize) -> Result<plan::Plan, Failure> {
        let line = Line::try_parse_from(["io"].iter().chain(options)).unwrap_or_else(|error| panic!("{error}"));
        plan::Plan::new(directives::apply(line.arguments)?, &vec!["host".to_owned(); ranks], 1)
    }

    /// The plan of a command line for so many ranks on one host.
    pub(super) fn planned(options: &[&str], ranks: usize) -> plan::Plan {
        plan(options, ranks).unwrap_or_else(|failure| panic!("{options:?}: {failure}"))
    }

    /// Why there is none.
    #[track_caller]
    pub(super) fn refused(options: &[&str], ranks: usize) -> Failure {
        match plan(options, ranks) {
            Err(failure) => failure,
            Ok(plan) => panic!("{options:?} make {plan:?}"),
        }
    }

    #[test]
    fn letters_and_names_say_the_same() {
        let letters = "-a uring -A 1 -b 2m -B -C -d 1 -D 2 -e -E -F -g -G 3 -i 4 -j 5 -k -K -l o -m -o f -q -Q 6 -r -R -s 7 -t 1m -T 8 -u -v -w -W -X -9 -Y -z -Z";
        let names = "--api uring --refNum 1 --blockSize 2m --posix.odirect --reorderTasksConstant --interTestDelay 1 --deadlineForStonewalling 2 \
                     --fsync --useExistingTestFile --filePerProc --intraTestBarriers --setTimeStampSignature 3 --repetitions 4 --outlierThreshold 5 \
                     --keepFile --keepFileWithError --dataPacketType offset --multiFile --testFile f --quitOnError --taskPerNodeOffset 6 --readFile \
                     --checkRead --segmentCount 7 --transferSize 1m --maxTimeDuration 8 --uniqueDir --verbose --writeFile --checkWrite \
                     --reorderTasksRandomSeed -9 --fsyncPerWrite --randomOffset --reorderTasksRandom";
        let [letters, names] = [letters, names].map(|line| parsed(&line.split_whitespace().collect::<Vec<_>>()));
        assert_eq!(format!("{letters:?}"), format!("{names:?}"));
        assert_eq!(letters.reorder_seed, -9);
        // Flags can be written together, values without a space: scripts do both.
        let together = parsed(&["-wrFCek", "-b4m", "-t=1m"]);
        assert!(together.write && together.read && together.file_per_rank && together.fsync && together.keep);
        assert_eq!((together.block, together.transfer), (4 << 20, 1 << 20));
    }
}
