//! What is run at a point: steps in order, each of one part or several at once.

use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use toml::Spanned;

use super::file::{Bench, Run, Source};
use super::plan::{Plan, Visit};
use super::template::{fill, product, split};
use crate::Failure;

/// In the name of each file that a sweep makes in a system's directory.
pub const FILE_PREFIX: &str = "aqueduct-sweep";

/// The file that one step leaves for the next.
const COMMON_FILE: &str = "data";

/// What io writes with, unless told.
const WRITE: &str = "-w {keep} -o {file}";

/// What io reads with, unless told.
const READ: &str = "-r {keep} -o {file}";

/// What meta is given, unless told.
const META: &str = "-d {file}";

/// One step: its parts run at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// `write`, `write+read`.
    pub name: String,
    /// Each a group of processes.
    pub parts: Vec<Part>,
}

/// One group of processes of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// `write`.
    pub name: String,
    /// Its options, or whole command, before names are replaced.
    pub template: String,
    /// Where it stands in the file, for messages.
    pub at: Range<usize>,
    /// The last part of its file name.
    pub file: String,
    /// A later step needs its file.
    pub is_kept: bool,
}

/// What a process is started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The benchmark, or a command for the shell.
    pub bench: Bench,
    /// Another program than this one.
    pub program: Option<PathBuf>,
    /// All arguments behind `bench io`, or the command.
    pub arguments: Vec<String>,
}

/// The steps of a file.
pub fn steps(source: &Source, run: &Run) -> Result<Vec<Step>, Failure> {
    let whole_file = 0..0;
    let known = |name: &str| match (run.bench, name) {
        (Bench::Io, "write") => Some(WRITE),
        (Bench::Io, "read") => Some(READ),
        (Bench::Meta, "meta") => Some(META),
        (Bench::Net, "net") => Some(""),
        _ => None,
    };
    let sequence: Vec<(String, Range<usize>)> = match &run.sequence {
        Some(sequence) => sequence.iter().map(|step| (step.get_ref().clone(), step.span())).collect(),
        None if !run.steps.is_empty() => {
            // In the order of the file, which is that of their places.
            let mut steps: Vec<_> = run.steps.iter().map(|(name, text)| (name.clone(), text.span())).collect();
            steps.sort_by_key(|(_, at)| at.start);
            steps
        }
        None if run.bench == Bench::Command => Vec::new(),
        None if run.bench == Bench::Io => {
            vec![("write".to_owned(), whole_file.clone()), ("read".to_owned(), whole_file.clone())]
        }
        None => vec![(run.bench.name().to_owned(), whole_file.clone())],
    };
    if sequence.is_empty() {
        let what = format!("{} measures nothing", source.path.display());
        return Err(Failure::usage(what, "it has no steps", "write [run.steps], a command for each"));
    }
    if let (Bench::Command, Some(options)) = (run.bench, &run.options) {
        return Err(source.wrong(&options.span(), "options mean nothing to a command: write them into its steps"));
    }
    let mut steps = Vec::new();
    for (name, at) in sequence {
        let names: Vec<&str> = name.split('+').map(str::trim).collect();
        let mut parts: Vec<Part> = Vec::new();
        for part in &names {
            if parts.iter().any(|earlier| earlier.name == *part) {
                return Err(source.wrong(&at, format!("{part} stands in it twice")));
            }
            let given = run.steps.get(*part);
            let template = given.map(|text| text.get_ref().as_str()).or_else(|| known(part));
            let template = template.ok_or_else(|| source.wrong(&at, format!("[run.steps] has no {part}")))?;
            let is_alone = names.len() == 1 || *part == "read";
            parts.push(Part {
                name: (*part).to_owned(),
                template: template.to_owned(),
                at: given.map_or(at.clone(), Spanned::span),
                file: if is_alone { COMMON_FILE.to_owned() } else { format!("{COMMON_FILE}.{part}") },
                is_kept: false,
            });
        }
        steps.push(Step { name: names.join("+"), parts });
    }
    check_reads(source, run, &steps)?;
    keep_what_is_needed(&mut steps);
    Ok(steps)
}

/// io's own `read` reads what an earlier `write` alone has written.
fn check_reads(source: &Source, run: &Run, steps: &[Step]) -> Result<(), Failure> {
    let is_own = |part: &Part| run.bench == Bench::Io && !run.steps.contains_key(&part.name);
    for (index, step) in steps.iter().enumerate() {
        for part in step.parts.iter().filter(|part| part.name == "read" && is_own(part)) {
            let written = steps[..index].iter().any(|earlier| earlier.parts.len() == 1 && earlier.name == "write");
            if !written {
                return Err(source.wrong(&part.at, "nothing has written what this reads: put \"write\" before it"));
            }
        }
    }
    Ok(())
}

fn keep_what_is_needed(steps: &mut [Step]) {
    for index in 0..steps.len() {
        let (done, later) = steps.split_at_mut(index + 1);
        for part in &mut done[index].parts {
            part.is_kept = later.iter().any(|step| step.parts.iter().any(|other| other.file == part.file));
        }
    }
}

impl Plan {
    /// What one part of a step calls.
    pub fn call(&self, visit: &Visit, system: usize, step: usize, part: &Part) -> Result<Call, String> {
        let run = &self.file.run;
        let description = self.file.system[system].get_ref();
        let mut names = self.names(visit, system)?;
        let file = format!("{FILE_PREFIX}-{system}.{}", part.file);
        let file = names.get("dir").map_or(file.clone(), |dir| Path::new(dir).join(&file).display().to_string());
        for (name, text) in [
            ("step", self.steps[step].name.clone()),
            ("keep", if part.is_kept { "-k".to_owned() } else { String::new() }),
            ("file", file),
        ] {
            names.insert(name.to_owned(), text);
        }
        if run.bench == Bench::Command {
            let arguments = vec![fill(&part.template, &names, false)?];
            return Ok(Call { bench: run.bench, program: None, arguments });
        }
        let options = run.options.as_ref().map(|text| text.get_ref().as_str()).unwrap_or_default();
        let mut arguments = Vec::new();
        for text in [options, description.options.as_deref().unwrap_or_default(), &part.template] {
            // Split first, so that a value with a blank stays one argument.
            for word in split(text)? {
                let filled = fill(&word, &names, false)?;
                if !filled.is_empty() || !word.contains('{') {
                    arguments.push(filled);
                }
            }
        }
        if let Some(launch) = &description.launch {
            arguments.extend(["--launch".to_owned(), fill(launch, &names, true)?]);
        }
        let program = description.program.as_ref().map(|program| fill(program, &names, false)).transpose()?;
        Ok(Call { bench: run.bench, program: program.map(PathBuf::from), arguments })
    }

    /// What one call moves, in bytes, as far as that is known.
    pub fn bytes(&self, visit: &Visit, system: usize, step: usize, part: &Part) -> Result<u64, String> {
        if let Some(bytes) = &self.file.run.bytes {
            return product(&fill(bytes.get_ref(), &self.names(visit, system)?, false)?);
        }
        let call = self.call(visit, system, step, part)?;
        if call.bench != Bench::Io {
            return Ok(0);
        }
        // IOR's own defaults.
        let factors = [(["-b", "--blockSize"], 1 << 20), (["-s", "--segmentCount"], 1), (["-N", "--ranks"], 1)];
        let number = |(options, unless): ([&str; 2], u64)| {
            let found = options.iter().find_map(|option| last_value(&call.arguments, option));
            found.and_then(|text| super::value::size(&text)).unwrap_or(unless)
        };
        let bytes = factors.into_iter().map(number).try_fold(1u64, u64::checked_mul);
        bytes.ok_or_else(|| "this moves more bytes than can be counted".to_owned())
    }
}

/// What an option is given, the last time that it stands there: `-b 1m`, `-b1m`, `--blockSize=1m`.
fn last_value(arguments: &[String], option: &str) -> Option<String> {
    let at = arguments.iter().rposition(|word| word.starts_with(option))?;
    let rest = arguments[at].strip_prefix(option)?;
    if rest.is_empty() { arguments.get(at + 1).cloned() } else { Some(rest.trim_start_matches('=').to_owned()) }
}

impl Call {
    /// As a person would type it.
    pub fn shown(&self) -> String {
        if self.bench == Bench::Command {
            return self.arguments.join(" ");
        }
        let program = self.program.as_ref().map_or("aqueduct".into(), |program| program.display().to_string());
        let quoted = shlex::try_join(self.arguments.iter().map(String::as_str)).unwrap_or_default();
        format!("{program} bench {} {quoted}", self.bench.name())
    }

    /// Whether the benchmark knows these options. Those of another program are its own affair.
    pub fn check(&self) -> Result<(), String> {
        if self.bench == Bench::Command || self.program.is_some() {
            return Ok(());
        }
        let words = ["bench", self.bench.name()].into_iter().chain(self.arguments.iter().map(String::as_str));
        let parser = crate::Command::augment_subcommands(clap::Command::new("bench"));
        parser.try_get_matches_from(words).map(drop).map_err(|error| {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps_of(text: &str) -> Result<Vec<Step>, Failure> {
        let text = format!("name = 'x'\n[[system]]\nname = 'a'\ndir = '/'\n{text}");
        let source = Source { path: "a.toml".into(), text };
        steps(&source, &source.parse(false)?.run)
    }

    fn files(text: &str) -> Vec<(String, bool)> {
        let parts = steps_of(text).unwrap().into_iter().flat_map(|step| step.parts);
        parts.map(|part| (format!("{} {}", part.name, part.file), part.is_kept)).collect()
    }

    #[test]
    fn files_are_kept_while_they_are_needed() {
        let found = files("[run]\nbench = 'io'\nsequence = ['write', 'read', 'write+read', 'read']");
        let expected = [
            ("write data", true),
            ("read data", true),
            ("write data.write", false),
            ("read data", true),
            ("read data", false),
        ];
        assert_eq!(found, expected.map(|(name, is_kept)| (name.to_owned(), is_kept)));
    }

    #[test]
    fn each_benchmark_has_steps_of_its_own() {
        let names = |text: &str| steps_of(text).map(|all| all.into_iter().map(|step| step.name).collect::<Vec<_>>());
        assert_eq!(names("[run]\nbench = 'io'").unwrap(), ["write", "read"]);
        assert_eq!(names("[run]\nbench = 'meta'").unwrap(), ["meta"]);
        assert_eq!(names("[run]\nbench = 'net'").unwrap(), ["net"]);
        let steps = "[run]\nbench = 'command'\n[run.steps]\nzoo = 'true'\nape = 'true'";
        assert_eq!(names(steps).unwrap(), ["zoo", "ape"], "in the order of the file");
        assert!(names("[run]\nbench = 'command'").unwrap_err().why.contains("no steps"));
        assert!(names("[run]\nbench = 'command'\noptions = '-x'\n[run.steps]\ngo = 'true'").is_err());
    }

    #[test]
    fn combinations_that_mean_nothing_are_refused() {
        let why = |text: &str| steps_of(&format!("[run]\nbench = 'io'\nsequence = {text}")).unwrap_err().why;
        assert!(why("['read']").contains("nothing has written"));
        assert!(why("['write+read']").contains("nothing has written"));
        assert!(why("['write', 'write+write']").contains("twice"));
        assert!(why("['write', 'verify']").contains("no verify"));
        assert!(why("[]").contains("no steps"));
    }

    #[test]
    fn options_give_their_last_value() {
        let words = |text: &str| split(text).unwrap();
        assert_eq!(last_value(&words("-b 1m -t 4k -b 2m"), "-b"), Some("2m".to_owned()));
        assert_eq!(last_value(&words("-b4k"), "-b"), Some("4k".to_owned()));
        assert_eq!(last_value(&words("--blockSize=8k"), "--blockSize"), Some("8k".to_owned()));
        assert_eq!(last_value(&words("-t 4k -b"), "-b"), None);
    }
}
