//! `aqueduct cp`, `sync` and `verify`: their arguments, what is shown meanwhile, and what they
//! end with.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_node::{ChecksumChoice, copies_folder, default_state, keyfile, rate};
use aqueduct_transfer::{
    Access, Described, Filter, Options, Place, Plan, Signer, Spans, Summary, Trouble, Verified, Verify, Watch,
    check_manifest, check_signature, copy, jobs, jobs::Database, limit, third, verify,
};
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::failure::{FAILED, Failure};
use crate::output;
use crate::routes::Routes;
use crate::table::{bytes, span};

/// The exit code of a copy that is whole, but for what the destination could not hold.
const LOST: u8 = 3;

/// Between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Threads that carry the requests of an export: one has 3 GB/s here, and the copying needs the
/// other cores.
const CARRIERS: usize = 2;

/// The longest list of paths.
const LIST_MAX: u64 = 1 << 30;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct cp -r results server:/srv/data/          results becomes /srv/data/results
  aqueduct cp server:/srv/data/big.h5 /scratch/
  aqueduct cp -r --manifest run7.manifest run7 server:/archive/run7
  aqueduct cp -r agent://fta1/scratch/run7 agent://fta2/archive/
  aqueduct cp -r --resume run7 server:/archive/run7 after it was interrupted

A side is a path, HOST[:PORT]:/EXPORT/path, or agent://HOST[:PORT]/EXPORT/path: the same, at a server that is
an agent (serve --agent). Where both sides are at servers and one is an agent, data go straight between the two;
Ctrl-C ends the copy, and the end of this process alone does not. Each file has its name only when it is whole, with its mode,
owner, times, extended attributes, ACLs, holes and hard links. As cp has it, a source goes into a destination
that is a directory, and else becomes it; as rsync has it, SRC/ means what is in SRC.

Exit codes: 0 all is there; 1 something is not, each is told; 2 the command line makes no sense; 3 all is
there, and the destination could not hold some attributes, each is told.")]
pub struct Copy {
    /// Copy directories with what is in them
    #[arg(short, long)]
    pub recursive: bool,
    #[command(flatten)]
    pub common: Common,
    /// What to copy, and where to
    #[arg(value_name = "PATH", num_args = 2.., required = true)]
    pub paths: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct sync run7/ server:/archive/run7          makes /archive/run7 what run7 is
  aqueduct sync --delete -n run7/ server:/archive/run7   what would be done
  aqueduct sync --checksum a/ b/                    compares by content

A file of the same size and time is left as it is. As rsync has it, SRC/ means what is in SRC, and SRC goes
into DST under its name; what has a name at DST and is of another type is replaced, a directory with names in
it only with --delete. --delete removes what SRC does not have after everything was copied, and nothing at
all if anything went wrong before. Exit codes as of 'aqueduct cp'.")]
pub struct Sync {
    /// Remove from DST what SRC does not have, after everything was copied
    #[arg(long)]
    pub delete: bool,
    /// With --delete: if it were more than so many, remove nothing
    #[arg(long, value_name = "N", requires = "delete")]
    pub max_delete: Option<u64>,
    /// Compare files of the same size by their content, whatever their times
    #[arg(long, short)]
    pub checksum: bool,
    #[command(flatten)]
    pub common: Common,
    /// What to copy
    #[arg(value_name = "SRC")]
    pub source: std::ffi::OsString,
    /// Where to
    #[arg(value_name = "DST")]
    pub target: std::ffi::OsString,
}

/// Whether the number of threads is found while they copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TuneChoice {
    /// It is
    On,
    /// As many as are usual
    Off,
}

/// How it is checked that data arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerifyChoice {
    /// What travels has checksums, which are compared before it is written
    Wire,
    /// And what was written is read back after the flush and compared
    Stable,
    /// Not at all
    Off,
}

#[derive(Debug, Args)]
pub struct Common {
    /// Say what would be done, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Leave out what matches, as *.o, /build/ or doc/*.html: patterns mean what they mean to rsync,
    /// one that begins with a slash from SRC on
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Take what matches, although --exclude leaves it out
    #[arg(long, value_name = "PATTERN")]
    pub include: Vec<String>,
    /// Take only the paths that this file lists, and what is below them; - is stdin
    #[arg(long, value_name = "FILE")]
    pub files_from: Option<PathBuf>,
    /// Leave what is there as it is
    #[arg(long)]
    pub no_clobber: bool,
    /// Hold all data together to a rate, as 160MB/s
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub bwlimit: Option<u64>,
    /// How to check that data arrived
    #[arg(long, value_enum, default_value = "wire")]
    pub verify: VerifyChoice,
    /// Have files recalled whose data are in an archive alone (Lustre HSM), rather than say so and
    /// leave them out
    #[arg(long)]
    pub recall: bool,
    /// Give files their names before they are on the disk
    #[arg(long)]
    pub no_flush: bool,
    /// Write there what was copied, with the hash of each file, for 'aqueduct verify': lines of
    /// JSON, or a Parquet file if its name ends with .parquet
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Sign the manifest with this key of minisign's (made with 'minisign -G -W'), beside it in
    /// MANIFEST.minisig
    #[arg(long, value_name = "FILE", requires = "manifest")]
    pub sign: Option<PathBuf>,
    /// Go on with this copy where it was interrupted
    #[arg(long)]
    pub resume: bool,
    /// Keep the journal, by which a copy goes on, there [default: transfers in the state folder]
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,
    /// Keep no journal: a copy that is ended by Ctrl-C or SIGTERM then leaves nothing that is not
    /// whole
    #[arg(long, conflicts_with_all = ["resume", "journal"])]
    pub no_journal: bool,
    /// Copy with so many threads [default: found while they copy, from 4 on; from 16 with a
    /// server]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub streams: Option<u16>,
    /// Whether the number of threads is found while they copy, where it is not given
    #[arg(long, value_enum, default_value = "on")]
    pub tune: TuneChoice,
    /// The file with the servers' key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub routes: Routes,
    #[command(flatten)]
    pub shared: Shared,
    /// Send the copy as a span, with its stages below it, to this collector of OpenTelemetry
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// Print what came of it as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Shared {
    /// Have agents make the copy, that work for this store: see 'aqueduct agents run'
    #[arg(long, value_name = "URL", conflicts_with_all = ["resume", "journal", "no_journal", "streams"])]
    pub store: Option<String>,
    /// With --store: which agents take it
    #[arg(long, value_name = "NAME", requires = "store", default_value = "default")]
    pub queue: String,
    /// With --store: those with greater numbers come first
    #[arg(long, value_name = "N", requires = "store", default_value = "0", allow_hyphen_values = true)]
    pub priority: i32,
    /// With --store: print the number of the job, and do not wait for it
    #[arg(long, requires = "store", conflicts_with = "sign")]
    pub detach: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct verify run7.manifest /archive/run7       each name, attribute and byte
  aqueduct verify run7.manifest server:/archive/run7
  aqueduct verify --b3sum run7.manifest             what 'b3sum --check' reads

Exit codes: 0 all is as the manifest says, and nothing else is there; 1 something is not, each is told.")]
pub struct VerifyManifest {
    /// What 'aqueduct cp --manifest' wrote
    pub manifest: PathBuf,
    /// The copy, or what it was copied from
    #[arg(required_unless_present = "b3sum")]
    pub path: Option<std::ffi::OsString>,
    /// Believe it only if it is signed (MANIFEST.minisig) by who has the secret key to this public
    /// one of minisign's
    #[arg(long, value_name = "FILE")]
    pub signer: Option<PathBuf>,
    /// Print the hashes as b3sum does, and compare nothing
    #[arg(long, conflicts_with = "path")]
    pub b3sum: bool,
    /// Compare with so many threads
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub streams: u16,
    /// The file with the servers' key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub routes: Routes,
    /// Print what came of it as JSON
    #[arg(long)]
    pub json: bool,
}

/// Copies as cp does.
pub fn run_copy(mut arguments: Copy, verbose: u8) -> Result<ExitCode, Failure> {
    let Some(target) = arguments.paths.pop() else { return Ok(ExitCode::SUCCESS) };
    let options = Options { recursive: arguments.recursive, ..options(&arguments.common, verbose)? };
    run(&arguments.paths, &target, &arguments.common, options, false)
}

/// Copies as rsync does.
pub fn run_sync(arguments: &Sync, verbose: u8) -> Result<ExitCode, Failure> {
    let common = &arguments.common;
    let options = Options {
        recursive: true,
        update: true,
        checksum: arguments.checksum,
        delete: arguments.delete,
        delete_max: arguments.max_delete,
        ..options(common, verbose)?
    };
    run(std::slice::from_ref(&arguments.source), &arguments.target, common, options, true)
}

fn options(common: &Common, verbose: u8) -> Result<Options, Failure> {
    common.manifest.as_deref().map_or(Ok(()), check_manifest)?;
    let mut filter = Filter::new(&common.exclude, &common.include)?;
    if let Some(path) = &common.files_from {
        filter = filter.with_list(&list(path)?)?;
    }
    let journals = match &common.journal {
        _ if common.no_journal => None,
        Some(folder) => Some(folder.clone()),
        None => Some(default_state()?.join("transfers")),
    };
    Ok(Options {
        no_clobber: common.no_clobber,
        dry_run: common.dry_run,
        verify: match common.verify {
            VerifyChoice::Wire => Verify::Wire,
            VerifyChoice::Stable => Verify::Stable,
            VerifyChoice::Off => Verify::Off,
        },
        no_flush: common.no_flush,
        recall: common.recall,
        hashes: common.manifest.is_some(),
        manifest: common.manifest.clone(),
        streams: common.streams.map(usize::from),
        rate: common.bwlimit,
        tune: common.tune == TuneChoice::On,
        filter,
        resume: common.resume,
        journals,
        told_in: copies_folder(),
        is_verbose: verbose > 0,
        ..Options::default()
    })
}

fn list(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let mut read = || match path.as_os_str() == "-" {
        true => std::io::stdin().take(LIST_MAX + 1).read_to_end(&mut text),
        false => File::open(path)?.take(LIST_MAX + 1).read_to_end(&mut text),
    };
    let what = || format!("cannot read the list {}", path.display());
    let hint = "name a file with a path in each line";
    let length = read().map_err(|error| Failure::new(what(), error, hint))?;
    if length as u64 > LIST_MAX {
        let why = format!("it has more than {LIST_MAX} bytes, and what is behind would not be copied");
        return Err(Failure::new(what(), why, "cut it into several lists"));
    }
    Ok(text)
}

fn access(key: Option<&Path>, routes: &Routes, verify: VerifyChoice) -> Result<Access, Failure> {
    let key = key.map(keyfile::load_client).transpose()?;
    let checksums = if verify == VerifyChoice::Off { ChecksumChoice::Auto } else { ChecksumChoice::On };
    Ok(Access::new(key, checksums.checksums(), CARRIERS).by(routes.resolve()?))
}

fn run(
    sources: &[std::ffi::OsString],
    target: &std::ffi::OsStr,
    common: &Common,
    options: Options,
    is_sync: bool,
) -> Result<ExitCode, Failure> {
    let mut sources: Vec<Place> = sources.iter().map(|text| Place::parse(text)).collect::<Result<_, _>>()?;
    if common.files_from.is_some() {
        // As rsync has it, the listed paths are below the source.
        sources.iter_mut().for_each(|source| source.is_content = true);
    }
    let access = access(common.key.as_deref(), &common.routes, common.verify)?;
    // Before anything is copied: it may not be a key.
    let signer = common.sign.as_deref().map(Signer::load).transpose()?;
    let plan = Plan { sources, target: Place::parse(target)?, is_sync, options, access, signer };
    make(plan, common)
}

/// So long a copy that is asked to end may take to remove what is not whole: its server may have
/// gone.
const END_MAX: Duration = Duration::from_secs(20);

/// So often is looked whether it has been asked.
const ASKED_LOOKS: Duration = Duration::from_millis(100);

/// A signal that asks a copy to end. The second one ends the process itself.
struct Asked {
    is_asked: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Asked {
    fn watch() -> Result<Asked, Failure> {
        let asked = Asked { is_asked: Arc::default(), signal: Arc::default() };
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let (is_asked, number) = (&asked.is_asked, &asked.signal);
            let registered = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, is_asked.clone())
                .and_then(|_| signal_hook::flag::register_usize(signal, number.clone(), signal as usize))
                .and_then(|_| signal_hook::flag::register(signal, is_asked.clone()));
            registered.map_err(|error| Failure::new("cannot watch for signals", error, "see the system's log"))?;
        }
        let (is_asked, signal) = (asked.is_asked.clone(), asked.signal.clone());
        let end = move || {
            while !is_asked.load(Ordering::Acquire) {
                std::thread::sleep(ASKED_LOOKS);
            }
            std::thread::sleep(END_MAX);
            output::error(format_args!(
                "aqueduct: the copy was ended by a signal, but did not end within {} s, as where a side does not answer: what was not whole (.aqueduct-part-*) stays",
                END_MAX.as_secs()
            ));
            std::process::exit(128 + signal.load(Ordering::Acquire) as i32);
        };
        let started = std::thread::Builder::new().name("ends".into()).spawn(end);
        started.map_err(|error| Failure::new("cannot watch for signals", error, "check the limit on processes"))?;
        Ok(asked)
    }

    /// What the process ends with that was asked to; `None`: it was not.
    fn code(&self) -> Option<ExitCode> {
        let is_asked = self.is_asked.load(Ordering::Acquire);
        is_asked.then(|| ExitCode::from(128 + self.signal.load(Ordering::Acquire) as u8))
    }
}

/// Makes a copy, or has it made.
fn make(mut plan: Plan, common: &Common) -> Result<ExitCode, Failure> {
    let spans = Spans::to(common.otlp.as_deref())?;
    // What would be done can be seen from here, where both sides have to be reached anyway.
    if let Some(store) = common.shared.store.as_ref().filter(|_| !common.dry_run) {
        return submit(store, plan, common, &spans);
    }
    if third::is_third_party(&plan) {
        return by_agent(&plan, common, &spans);
    }
    // With a journal what is not whole stays: --resume goes on with it.
    let asked = common.no_journal.then(Asked::watch).transpose()?;
    plan.options.stop = asked.as_ref().map(|asked| asked.is_asked.clone());
    let described = Described::of(&plan);
    let watch = Arc::new(Watch::default());
    let shows = !common.json && std::io::stderr().is_terminal();
    // Whoever reads JSON reads nothing else there.
    let is_json = common.json;
    let told = move |line: &str| match is_json {
        true => output::error(format_args!("{line}")),
        false => output::line(format_args!("{line}")),
    };
    let work = || with_progress(&watch, shows, || copy(plan, watch.clone(), Some(Box::new(told))));
    let summary = spans.around(&described, work, |summary| summary)?;
    match asked.and_then(|asked| asked.code()).filter(|_| summary.trouble_count > 0 || summary.not_deleted.is_some()) {
        Some(code) => {
            let files = summary.counts.files;
            output::error(format_args!(
                "aqueduct: the copy was ended by a signal after {files} files; what was not whole is removed"
            ));
            Ok(code)
        }
        None => Ok(end(&summary, common.json)),
    }
}

/// Has one of two servers make the copy, so that no data come here.
fn by_agent(plan: &Plan, common: &Common, spans: &Spans) -> Result<ExitCode, Failure> {
    let Asked { is_asked: stop, .. } = Asked::watch()?;
    let watch = Watch::default();
    let shows = !common.json && std::io::stderr().is_terminal();
    let told = |line: &str| output::error(format_args!("aqueduct: {line}"));
    let work = || with_progress(&watch, shows, || third::copy(plan, &watch, &stop, told));
    let summary = spans.around(&Described::of(plan), work, |summary| summary)?;
    Ok(end(&summary, common.json))
}

/// Has agents make the copy.
fn submit(store: &str, mut plan: Plan, common: &Common, spans: &Spans) -> Result<ExitCode, Failure> {
    let database = Database::connect(store)?;
    plan.options.is_verbose &= !common.shared.detach; // nobody would hear it
    let submitted = jobs::submit(&database, &plan, &common.shared.queue, common.shared.priority)?;
    if common.shared.detach {
        output::line(format_args!("{}", submitted.id));
        return Ok(ExitCode::SUCCESS);
    }
    let described = Described::of(&plan).as_job(submitted.name);
    let work = || watched(&database, submitted.id, common.json);
    let (summary, state) = spans.around(&described, work, |told: &(Summary, String)| &told.0)?;
    let manifest = plan.options.manifest.as_deref().map(|path| (path, plan.signer.as_ref()));
    ended(&database, submitted.id, manifest, (&summary, &state), common.json)
}

/// Waits until agents have made a copy.
pub fn wait(database: &Database, id: i64, manifest: Option<&Path>, json: bool) -> Result<ExitCode, Failure> {
    manifest.map_or(Ok(()), check_manifest)?;
    let (summary, state) = watched(database, id, json)?;
    ended(database, id, manifest.map(|path| (path, None)), (&summary, &state), json)
}

/// What came of a job, and its state then.
fn watched(database: &Database, id: i64, json: bool) -> Result<(Summary, String), Failure> {
    let watch = Watch::default();
    let shows = !json && std::io::stderr().is_terminal();
    let told = |line: &str| output::error(format_args!("aqueduct: job {id}: {line}"));
    let said = |line: &str| output::line(format_args!("{line}"));
    let listeners = jobs::Listeners { told: &mut { told }, said: &mut { said } };
    Ok(with_progress(&watch, shows, || jobs::watch(database, id, &watch, listeners))?)
}

/// Tells what came of a job.
fn ended(
    database: &Database,
    id: i64,
    manifest: Option<(&Path, Option<&Signer>)>,
    (summary, state): (&Summary, &str),
    json: bool,
) -> Result<ExitCode, Failure> {
    let code = end(summary, json);
    if state == "cancelled" {
        output::error(format_args!("aqueduct: job {id} was cancelled"));
        return Ok(ExitCode::from(FAILED));
    }
    if let Some(to) = manifest {
        jobs::write_manifest(database, id, to, summary)?;
    }
    Ok(code)
}

/// Tells what came of a copy.
fn end(summary: &Summary, json: bool) -> ExitCode {
    if json {
        output::json(summary);
    } else {
        tell(summary);
    }
    match (summary.trouble_count, summary.lost_count) {
        _ if summary.not_deleted.is_some() => ExitCode::from(FAILED),
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(LOST),
        _ => ExitCode::from(FAILED),
    }
}

/// Shows how far it is, as long as the work lasts.
fn with_progress<T>(watch: &Watch, shows: bool, work: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(!shows);
    thread::scope(|scope| {
        let shower = scope.spawn(|| progress(watch, &ended));
        let result = work();
        ended.store(true, Ordering::Release);
        shower.thread().unpark();
        result
    })
}

fn progress(watch: &Watch, ended: &AtomicBool) {
    let started = Instant::now();
    let (mut at, mut moved, mut stages) = (started, 0, watch.stages());
    while !ended.load(Ordering::Acquire) {
        thread::park_timeout(PROGRESS_INTERVAL);
        let (now, bytes_now, stages_now) = (Instant::now(), watch.bytes.load(Ordering::Relaxed), watch.stages());
        let rate = bytes_now.saturating_sub(moved) as f64 / (now - at).as_secs_f64().max(0.001);
        let took = std::array::from_fn(|stage| stages_now[stage].saturating_sub(stages[stage]));
        let names = watch.names.load(Ordering::Relaxed);
        let found = watch.names_found.load(Ordering::Relaxed);
        let left = watch.left(now - started).map(|left| format!(", {} left", span(left.as_secs())));
        let limit = limit(took).map(|stage| format!(", limited by: {stage}"));
        let line = format!(
            "{names} of {found} names found so far, {}, {}/s{}{}",
            bytes(bytes_now as f64),
            bytes(rate),
            left.unwrap_or_default(),
            limit.unwrap_or_default()
        );
        output::error_part(format_args!("\r\x1b[K{line}"));
        let _ = std::io::stderr().flush();
        (at, moved, stages) = (now, bytes_now, stages_now);
    }
    if moved > 0 {
        output::error_part(format_args!("\r\x1b[K"));
    }
}

fn tell(summary: &Summary) {
    tell_troubles(&summary.troubles, summary.trouble_count);
    for lost in &summary.lost {
        output::error(format_args!(
            "aqueduct: {}: the destination does not hold: {}: {}",
            lost.path, lost.what, lost.why
        ));
    }
    more(summary.lost_count, summary.lost.len());
    if let Some(why) = &summary.not_deleted {
        match summary.counts.deleted {
            0 => output::error(format_args!("aqueduct: nothing was deleted: {why}")),
            count => output::error(format_args!("aqueduct: {count} names were deleted, and no more: {why}")),
        }
    }
    let counts = &summary.counts;
    if counts.unfinished > 0 {
        let count = counts.unfinished;
        output::error(format_args!(
            "aqueduct: {count} names of the source were left out: copies into it have not ended (.aqueduct-part-*)"
        ));
    }
    let mut parts = vec![format!("{} files, {}", counts.files, bytes(counts.bytes as f64))];
    for (count, what) in [
        (counts.directories, "directories"),
        (counts.links, "links"),
        (counts.others, "others"),
        (counts.unchanged, "unchanged"),
        (counts.attributes, "with other attributes"),
        (counts.resumed, "done before"),
        (counts.replaced, "of another type replaced"),
        (counts.skipped, "left as they are"),
        (counts.deleted, "deleted"),
        (summary.trouble_count, "not copied"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let rate = counts.moved as f64 / summary.seconds.max(0.001);
    let what = if summary.dry_run { "would be copied" } else { "copied" };
    output::line(format_args!("{what}: {} in {:.1} s ({}/s)", parts.join(", "), summary.seconds, bytes(rate)));
    if !summary.spent.is_empty() {
        let spent: Vec<String> = summary.spent.iter().map(|(what, percent)| format!("{what} {percent} %")).collect();
        let limit = summary.limit.as_ref().map(|stage| format!("; limited by: {stage}")).unwrap_or_default();
        output::line(format_args!("time of all threads: {}{limit}", spent.join(", ")));
    }
}

fn tell_troubles(troubles: &[Trouble], count: u64) {
    for trouble in troubles {
        output::error(format_args!("aqueduct: {}: {}: {}", trouble.path, trouble.what, trouble.why));
    }
    more(count, troubles.len());
}

fn more(count: u64, shown: usize) {
    if let Some(more) = count.checked_sub(shown as u64).filter(|more| *more > 0) {
        output::error(format_args!("aqueduct: and {more} more"));
    }
}

/// Compares a tree with a manifest.
pub fn run_verify(arguments: &VerifyManifest) -> Result<ExitCode, Failure> {
    let name = arguments.manifest.display().to_string();
    if let Some(key) = &arguments.signer {
        check_signature(&arguments.manifest, key)?;
    }
    let file = File::open(&arguments.manifest).map_err(|error| {
        Failure::new(format!("cannot read the manifest {name}"), error, "name what 'aqueduct cp --manifest' wrote")
    })?;
    let Some(path) = &arguments.path else {
        let print = |line: &str| output::line(format_args!("{line}"));
        let (troubles, trouble_count) = aqueduct_transfer::b3sum(file, &name, print)?;
        tell_troubles(&troubles, trouble_count);
        return Ok(if trouble_count == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) });
    };
    let place = Place::parse(path)?;
    let access = access(arguments.key.as_deref(), &arguments.routes, VerifyChoice::Wire)?;
    let Verified { good, bytes: read, troubles, trouble_count } =
        verify(file, &name, &place, &access, arguments.streams.into())?;
    if arguments.json {
        let count = trouble_count;
        output::json(&json!({ "good": good, "bytes": read, "troubles": troubles, "trouble_count": count }));
    } else {
        tell_troubles(&troubles, trouble_count);
        output::line(format_args!(
            "{good} names are as the manifest says, {} read; {trouble_count} are not",
            bytes(read as f64)
        ));
    }
    Ok(if trouble_count == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}
