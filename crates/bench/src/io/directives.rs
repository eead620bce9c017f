//! `-O NAME=VALUE,...`: any of IOR's options by its name, in whatever case.

use super::arguments::{Arguments, Format};
use super::data::Packet;
use super::{arguments, size};
use crate::Failure;

/// The options with all directives in them, from the first to the last.
pub fn apply(mut arguments: Arguments) -> Result<Arguments, Failure> {
    for text in std::mem::take(&mut arguments.directives) {
        // As in IOR a comment ends a line.
        let line = text.split('#').next().unwrap_or_default();
        for directive in line.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
            let failed = |why: String| {
                Failure::usage(
                    format!("-O {directive}"),
                    why,
                    "give NAME=VALUE; 'aqueduct bench io --help' has all names",
                )
            };
            let (name, value) = directive.split_once('=').ok_or_else(|| failed("it has no value".into()))?;
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
            let name = name.trim_start_matches("--");
            let known = flag(&mut arguments, name, value)
                || number(&mut arguments, name, value).map_err(failed)?
                || word(&mut arguments, name, value).map_err(failed)?;
            if !known {
                return Err(failed(format!("there is no option '{name}'")));
            }
        }
    }
    Ok(arguments)
}

/// Those that are on or off: any number but 0 is on, as in IOR.
fn flag(arguments: &mut Arguments, name: &str, value: &str) -> bool {
    let is_on = value.parse::<i64>().map_or_else(|_| value.eq_ignore_ascii_case("true"), |number| number != 0);
    let field = match name {
        "useo_direct" | "posix.odirect" => &mut arguments.direct,
        "reordertasks" | "reordertasksconstant" => &mut arguments.reorder_constant,
        "fsync" => &mut arguments.fsync,
        "fsyncperwrite" => &mut arguments.fsync_each,
        "useexistingtestfile" => &mut arguments.use_existing,
        "fileperproc" => &mut arguments.file_per_rank,
        "intratestbarriers" => &mut arguments.barriers,
        "keepfile" => &mut arguments.keep,
        "keepfilewitherror" => &mut arguments.keep_with_error,
        "multifile" => &mut arguments.multi_file,
        "quitonerror" | "warningaserrors" => &mut arguments.quit_on_error,
        "readfile" => &mut arguments.read,
        "writefile" => &mut arguments.write,
        "checkread" => &mut arguments.check_read,
        "checkwrite" => &mut arguments.check_write,
        "uniquedir" => &mut arguments.unique_directory,
        "randomoffset" => &mut arguments.random,
        "dryrun" => &mut arguments.dry_run,
        "stonewallingwearout" => &mut arguments.named.wear_out,
        "storefileoffset" => {
            arguments.packet = if is_on { Packet::Offset } else { arguments.packet };
            return true;
        }
        _ => return false,
    };
    *field = is_on;
    true
}

/// Those with a number.
fn number(arguments: &mut Arguments, name: &str, value: &str) -> Result<bool, String> {
    let bad = || format!("'{value}' is not a number that it can have");
    let whole = || value.parse::<u32>().map_err(|_| bad());
    match name {
        "refnum" => arguments.reference = value.parse().map_err(|_| bad())?,
        "blocksize" => arguments.block = size::parse(value)?,
        "transfersize" => arguments.transfer = size::parse(value)?,
        "segmentcount" => arguments.segments = size::parse(value)?,
        "intertestdelay" => arguments.delay = arguments::seconds(value)?,
        "deadlineforstonewalling" => arguments.deadline = arguments::seconds(value)?,
        "maxtimeduration" => arguments.minutes = arguments::seconds(value)?,
        "outlierthreshold" => arguments.outlier = arguments::seconds(value)?,
        "settimestampsignature" => arguments.stamp = whole()?,
        "repetitions" => arguments.repetitions = Some(whole()?).filter(|count| *count > 0).ok_or_else(bad)?,
        "numtasks" => arguments.tasks = Some(whole()? as usize),
        "taskpernodeoffset" => arguments.task_offset = whole()?,
        "reordertasksrandom" => arguments.reorder_random = value.parse().map_err(|_| bad())?,
        "reordertasksrandomseed" => arguments.reorder_seed = value.parse().map_err(|_| bad())?,
        "verbose" => arguments.verbose = value.parse().map_err(|_| bad())?,
        "stonewallingwearoutiterations" => arguments.named.wear_out_iterations = value.parse().map_err(|_| bad())?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Those with a name or a path.
fn word(arguments: &mut Arguments, name: &str, value: &str) -> Result<bool, String> {
    match name {
        "api" => arguments.api = clap::ValueEnum::from_str(value, true)?,
        "testfile" => arguments.file = value.to_owned(),
        "datapackettype" => arguments.packet = clap::ValueEnum::from_str(value, true)?,
        "summaryformat" => arguments.named.format = <Format as clap::ValueEnum>::from_str(value, true)?,
        "summaryfile" => arguments.named.summary = Some(value.into()),
        "stonewallingstatusfile" => arguments.named.status_file = Some(value.into()),
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::tests::parsed;
    use super::*;
    use crate::io::arguments::Api;

    #[test]
    fn directives_say_what_letters_say() {
        let by_name = parsed(&[
            "-O",
            "api=uring,blockSize=4k,TRANSFERSIZE=1k,segmentcount=3,filePerProc=1,checkRead=1",
            "-O",
            "interTestDelay=2,deadlineForStonewalling=3,reorderTasksConstant=1,keepfile=1,testFile=/x/y,setTimeStampSignature=9",
        ]);
        let by_letter = parsed(&[
            "-a", "URING", "-b", "4k", "-t", "1k", "-s", "3", "-F", "-R", "-d", "2", "-D", "3", "-C", "-k", "-o",
            "/x/y", "-G", "9",
        ]);
        assert_eq!(format!("{by_name:?}"), format!("{by_letter:?}"));
        assert_eq!(by_name.api, Api::Uring);
    }

    #[test]
    fn names_that_have_no_letter_are_known() {
        let arguments =
            parsed(&["-O", "summaryFormat=JSON, summaryFile=/tmp/x.json,stoneWallingWearOut=1 # so says IOR"]);
        assert_eq!(arguments.named.format, Format::Json);
        assert_eq!(arguments.named.summary.as_deref(), Some("/tmp/x.json".as_ref()));
        assert!(arguments.named.wear_out);
        assert!(parsed(&["-O", "storeFileOffset=1"]).packet == Packet::Offset);
    }

    #[test]
    fn what_is_no_directive_is_refused() {
        for wrong in ["nonsense=1", "blockSize", "blockSize=x", "summaryFormat=xml", "api=mpiio", "repetitions=0"] {
            let arguments = Arguments { directives: vec![wrong.into()], ..parsed(&[]) };
            let failure = apply(arguments).unwrap_err();
            assert!(failure.is_usage && failure.what.contains(wrong), "{failure}");
        }
    }
}
