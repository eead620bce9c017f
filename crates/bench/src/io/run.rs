//! One rank's way through a test, together with the others: phases, and what is between them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Trouble;
use super::api::Names;
use super::clock::{self, Nanos};
use super::data::Signature;
use super::measured;
use super::output::{Printer, Removal};
use super::phase::{Kind, Tally, Work};
use super::plan::Plan;
use super::progress::Progress;
use super::results::{Damage, Measurement, Outcome, Verdict, outliers};
use super::target::{Files, failed};
use crate::Failure;
use crate::ranks::{Team, TeamError};
use crate::sys::Aligned;

/// While it waits between repetitions a rank looks so often whether the user has had enough.
const LOOK: Duration = Duration::from_millis(50);

/// How a test ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Words of data that were wrong.
    pub wrong: u64,
    /// The user interrupted it.
    pub interrupted: bool,
    /// Repetitions that are complete.
    pub repetitions: u32,
}

/// One rank.
pub struct Runner<'a> {
    plan: &'a Plan,
    team: &'a mut Team,
    names: Box<dyn Names>,
    files: Files,
    tally: Tally,
    /// What a check should read.
    expected: Aligned,
    stamp: u32,
    moved: Arc<AtomicU64>,
    /// How many transfers each rank has written.
    written: Vec<u64>,
    /// At rank 0: by how much each rank's clock is ahead.
    offsets: Vec<Nanos>,
    /// At rank 0.
    report: Option<Report>,
    begun: Nanos,
    /// Wrong words, of all ranks.
    wrong: u64,
}

/// What rank 0 tells people.
struct Report {
    printer: Printer,
    progress: Progress,
}

/// One pass over the files.
#[derive(Clone, Copy)]
struct Pass {
    kind: Kind,
    /// `write` or `read`; of a check after writing there is no measurement.
    op: Option<&'static str>,
    repetition: u32,
    /// The rank whose data that are.
    source: u64,
}

impl<'a> Runner<'a> {
    /// Made before anything is timed; `printer` at rank 0.
    pub fn new(
        (plan, team): (&'a Plan, &'a mut Team),
        (names, mut files): (Box<dyn Names>, Files),
        printer: Option<Printer>,
    ) -> Result<Runner<'a>, Trouble> {
        let options = &plan.options;
        let checks = options.check_read || options.check_write;
        let length = if checks { plan.layout.transfer as usize } else { 0 };
        let expected = Aligned::new(length);
        let expected = expected
            .map_err(|error| Failure::new("memory for checking data", error, "give smaller transfers with -t"))?;
        let moved = Arc::new(AtomicU64::new(0));
        let report = printer.map(|printer| Report { printer, progress: Progress::start(plan, moved.clone()) });
        let tally = Tally::new(files.any().depth(), options.latency);
        let limit = options.named.wear_out_iterations;
        let written = vec![if limit > 0 { limit } else { u64::MAX }; team.size()];
        let offsets = compare_clocks(team)?;
        Ok(Runner {
            plan,
            team,
            names,
            files,
            tally,
            expected,
            stamp: options.stamp,
            moved,
            written,
            offsets,
            report,
            begun: clock::now(),
            wrong: 0,
        })
    }

    fn rank(&self) -> u64 {
        self.team.rank() as u64
    }

    /// All repetitions. What is complete stays printed, whatever happens to the rest.
    pub fn run(&mut self) -> Result<End, Trouble> {
        let mut end = End::default();
        let mut failure = None;
        for repetition in 0..self.plan.options.repetitions {
            match self.repetition(repetition) {
                Ok(Verdict { interrupted: false, over, .. }) => {
                    end.repetitions += 1;
                    if over {
                        break;
                    }
                }
                Ok(_) => {
                    end.interrupted = true;
                    self.abandon(repetition);
                    break;
                }
                Err(error) => {
                    self.abandon(repetition);
                    failure = Some(error);
                    break;
                }
            }
        }
        end.wrong = self.wrong;
        if let Some(Report { printer, progress }) = &mut self.report
            && (failure.is_none() || end.repetitions > 0)
        {
            progress.hidden(|| printer.finish(self.plan))?;
        }
        failure.map_or(Ok(end), Err)
    }

    /// Removes what a repetition has left that did not come to its end.
    fn abandon(&mut self, repetition: u32) {
        let options = &self.plan.options;
        let keeps = options.keep || (self.wrong > 0 && options.keep_with_error);
        if options.write && !keeps {
            // There is a failure already that says more.
            let _ = self.remove_own(repetition);
        }
    }

    fn repetition(&mut self, repetition: u32) -> Result<Verdict, Trouble> {
        let (plan, rank) = (self.plan, self.rank());
        let options = &plan.options;
        let stamp = if options.stamp > 0 { options.stamp } else { jiff::Timestamp::now().as_second() as u32 };
        self.stamp = self.team.broadcast(stamp)?;
        let mut damaged = false;
        let mut verdict = Verdict::default();
        if options.write {
            self.pause(options.delay);
            let pass = Pass { kind: Kind::Write, op: Some("write"), repetition, source: rank };
            verdict = self.pass(pass)?;
            self.written.clone_from(&verdict.done);
            self.store_status(&verdict)?;
        } else {
            self.read_status()?;
        }
        if options.check_write && !verdict.interrupted && !verdict.over {
            let source = plan.reorder.check_source(rank, &plan.nodes);
            verdict = self.pass(Pass { kind: Kind::Check, op: None, repetition, source })?;
            damaged |= verdict.damaged;
        }
        if plan.reads() && !verdict.interrupted && !verdict.over {
            self.pause(options.delay);
            let source = plan.reorder.source(rank, &plan.nodes, repetition.into());
            let kind = if options.check_read { Kind::Check } else { Kind::Read };
            verdict = self.pass(Pass { kind, op: Some("read"), repetition, source })?;
            damaged |= verdict.damaged;
        }
        let keeps = options.keep || (damaged && options.keep_with_error);
        if !verdict.interrupted && !keeps {
            self.remove(repetition)?;
        }
        Ok(verdict)
    }

    fn pause(&mut self, seconds: f64) {
        let until = clock::now() + (seconds * 1e9) as Nanos;
        while clock::now() < until && !self.team.interrupted() {
            std::thread::sleep(LOOK.min(Duration::from_nanos((until - clock::now()).max(0) as u64)));
        }
    }

    /// Opens, moves data, closes; then all hear what came of it.
    fn pass(&mut self, pass: Pass) -> Result<Verdict, Trouble> {
        let plan = self.plan;
        let file = plan.file(pass.source, pass.repetition);
        let name = if pass.kind == Kind::Write { "write" } else { pass.op.unwrap_or("check") };
        if let Some(Report { progress, .. }) = &self.report {
            progress.phase(name);
        }
        let signature = Signature { packet: plan.options.packet, stamp: self.stamp, rank: pass.source as u32 };
        let mut outcome = Outcome::default();
        match pass.kind {
            Kind::Write => {
                self.files.any().fill(&signature);
                outcome.failure = self.make_room(&file, pass.repetition).err();
            }
            Kind::Check => signature.fill(&mut self.expected),
            Kind::Read => {}
        }
        self.moved.store(0, Ordering::Relaxed);
        self.team.barrier()?;
        self.timed(pass, &file, signature, &mut outcome)?;
        let damage = self.tally.damage.iter();
        outcome.damage = damage.map(|(offset, difference)| Damage::new(&file, *offset, difference)).collect();
        (outcome.done, outcome.wrong) = (self.tally.done, self.tally.wrong);
        outcome.latencies = self.tally.latencies.as_ref().map(|latencies| latencies.sparse());
        outcome.series = self.tally.series.bins().to_vec();
        outcome.interrupted = self.team.interrupted();
        self.team.barrier()?;
        if outcome.failure.is_none() && (plan.options.file_per_rank || self.team.rank() == 0) {
            outcome.size = self.names.size(&file).ok().flatten().map_or(0, |(size, _)| size);
        }
        self.conclude(pass, outcome)
    }

    /// What is timed. An error does not keep the rank from waiting where the others wait.
    fn timed(&mut self, pass: Pass, file: &str, signature: Signature, outcome: &mut Outcome) -> Result<(), TeamError> {
        let options = &self.plan.options;
        let barriers = options.barriers && pass.op.is_some();
        let doing = if pass.kind == Kind::Write { "writing" } else { "reading" };
        let keep = |outcome: &mut Outcome, result: io::Result<()>| {
            if let (Err(error), None) = (result, &outcome.failure) {
                outcome.failure = Some(failed(doing, file, &error, options));
            }
        };
        let from = clock::now();
        self.tally.start(from);
        if outcome.failure.is_none() {
            let files = self.files.any();
            let opened = if pass.kind == Kind::Write { files.create(file) } else { files.open(file) };
            keep(outcome, opened);
        }
        outcome.times.open = (from, clock::now());
        if barriers {
            self.team.barrier()?;
        }
        let from = clock::now();
        let mut work = Work {
            kind: pass.kind,
            pattern: self.plan.layout.pattern(pass.source),
            transfer: self.plan.layout.transfer,
            signature,
            expected: &mut self.expected,
            limit: self.written.get(pass.source as usize).copied().unwrap_or(u64::MAX),
            deadline: None,
            sync_each: options.fsync_each,
            quit_on_error: options.quit_on_error,
            moved: &self.moved,
        };
        if pass.kind == Kind::Write {
            let iterations = options.named.wear_out_iterations;
            work.limit = if iterations > 0 { iterations } else { u64::MAX };
        }
        // The order of random transfers is not part of moving them.
        let from = if self.plan.layout.random.is_some() { clock::now() } else { from };
        self.tally.start(from);
        let deadline = self.plan.deadline().filter(|_| pass.op.is_some());
        work.deadline = deadline.map(|deadline| from + deadline.as_nanos() as Nanos);
        if outcome.failure.is_none() {
            keep(outcome, self.files.run(&mut work, &mut self.tally, &mut || self.team.interrupted()));
        }
        if deadline.is_some() && options.named.wear_out {
            outcome.stonewall = Some((clock::now() - from, self.tally.done));
            let most = self.team.gather_for_all(self.tally.done)?.into_iter().max().unwrap_or_default();
            (work.limit, work.deadline) = (work.limit.min(most), None);
            if outcome.failure.is_none() {
                keep(outcome, self.files.run(&mut work, &mut self.tally, &mut || self.team.interrupted()));
            }
        }
        if pass.kind == Kind::Write && options.fsync && outcome.failure.is_none() {
            keep(outcome, self.files.any().sync());
        }
        outcome.times.access = (from, clock::now());
        if barriers {
            self.team.barrier()?;
        }
        let from = clock::now();
        keep(outcome, self.files.any().close());
        outcome.times.close = (from, clock::now());
        Ok(())
    }

    /// Rank 0 hears of all outcomes and says what is to be done.
    fn conclude(&mut self, pass: Pass, outcome: Outcome) -> Result<Verdict, Trouble> {
        let outcomes = self.team.gather(outcome)?;
        let mut verdict = Verdict::default();
        if let Some(outcomes) = outcomes {
            verdict = self.judge(pass, &outcomes);
        }
        let verdict = self.team.broadcast(verdict)?;
        match verdict.failure {
            Some(failure) => Err(Trouble::Known(failure)),
            None => Ok(verdict),
        }
    }

    fn judge(&mut self, pass: Pass, outcomes: &[Outcome]) -> Verdict {
        let options = &self.plan.options;
        let wrong: u64 = outcomes.iter().map(|outcome| outcome.wrong).sum();
        self.wrong += wrong;
        let minutes = clock::seconds(clock::now() - self.begun) / 60.0;
        let mut verdict = Verdict {
            failure: outcomes.iter().find_map(|outcome| outcome.failure.clone()),
            interrupted: outcomes.iter().any(|outcome| outcome.interrupted),
            over: options.minutes > 0.0 && minutes >= options.minutes,
            done: outcomes.iter().map(|outcome| outcome.done).collect(),
            damaged: wrong > 0,
        };
        let Some(Report { printer, progress }) = &mut self.report else {
            return verdict;
        };
        let plan = self.plan;
        let bytes = verdict.done.iter().sum::<u64>() * plan.layout.transfer;
        self.moved.store(0, Ordering::Relaxed);
        progress.add(bytes, pass.op.is_some());
        let reported = progress.hidden(|| {
            if verdict.damaged {
                show_damage(printer, pass, outcomes, (wrong, self.stamp));
            }
            if verdict.failure.is_some() || verdict.interrupted {
                return Ok(());
            }
            let Some(op) = pass.op else {
                return Ok(());
            };
            let ident = (op, pass.repetition, plan.layout.transfer);
            let measured = Measurement::new(ident, outcomes, &self.offsets);
            warn(printer, plan, outcomes, &measured);
            if options.outlier > 0.0 {
                let all = outliers(op, outcomes, &self.offsets, options.outlier);
                all.iter().for_each(|line| printer.log(line));
            }
            printer.measured(plan, &measured)?;
            // What read wrong data is shown, and has measured nothing that others may reckon with.
            let path = options.measured.as_deref().filter(|_| !verdict.damaged);
            path.map_or(Ok(()), |path| measured::append(path, &measured))
        });
        if verdict.failure.is_none() {
            verdict.failure = reported.err();
        }
        if verdict.failure.is_none() && verdict.damaged && options.quit_on_error {
            let what = format!("checking {}", plan.file(0, pass.repetition));
            let hint = "see above which; leave -q out to have all of them";
            verdict.failure = Some(Failure::new(what, format!("{wrong} words of data are wrong"), hint));
        }
        verdict
    }

    /// Removes what is in the way of writing, and makes the directory of `-u`.
    fn make_room(&mut self, file: &str, repetition: u32) -> Result<(), Failure> {
        let plan = self.plan;
        if !plan.options.file_per_rank && self.team.rank() != 0 {
            return Ok(());
        }
        let failed = |error: io::Error| failed("removing", file, &error, &plan.options);
        if let Some(directory) = plan.own_directory(self.rank()) {
            self.names.make_directory(&directory).map_err(failed)?;
        }
        if repetition == 0 || !plan.options.use_existing {
            let found = if plan.options.use_existing {
                self.names.size(file).map_err(failed)?.is_some()
            } else {
                self.names.remove(file).map_err(failed)?
            };
            if let Some(Report { printer, progress }) = self.report.as_ref().filter(|_| found && repetition == 0) {
                let what = if plan.options.use_existing { "is overwritten" } else { "was deleted" };
                progress.hidden(|| printer.log(&format!("WARNING: The file \"{file}\" existed already and {what}")));
            }
        }
        Ok(())
    }

    /// All remove their files; how long that takes is shown.
    fn remove(&mut self, repetition: u32) -> Result<(), Trouble> {
        let from = clock::now();
        self.team.barrier()?;
        let failure = self.remove_own(repetition).err();
        let failures = self.team.gather_for_all(failure)?;
        let seconds = clock::seconds(clock::now() - from);
        if let Some(failure) = failures.into_iter().flatten().next() {
            return Err(Trouble::Known(failure));
        }
        if let Some(Report { printer, progress }) = &mut self.report {
            progress.hidden(|| printer.removed(Removal { repetition, seconds }))?;
        }
        Ok(())
    }

    fn remove_own(&mut self, repetition: u32) -> Result<(), Failure> {
        let plan = self.plan;
        if !plan.options.file_per_rank && self.team.rank() != 0 {
            return Ok(());
        }
        let file = plan.file(self.rank(), repetition);
        self.names.remove(&file).map_err(|error| failed("removing", &file, &error, &plan.options))?;
        if let Some(directory) = plan.own_directory(self.rank()).filter(|_| plan.options.write) {
            // Whoever has put something else there keeps it.
            let _ = self.names.remove_directory(&directory);
        }
        Ok(())
    }

    /// Keeps how much was written, for those who read it in another run.
    fn store_status(&self, verdict: &Verdict) -> Result<(), Failure> {
        let path = self.plan.options.named.status_file.as_deref().filter(|_| self.team.rank() == 0);
        let Some(path) = path else {
            return Ok(());
        };
        let most = verdict.done.iter().max().copied().unwrap_or_default();
        let hint = "give another with -O stoneWallingStatusFile=";
        std::fs::write(path, format!("{most}\n"))
            .map_err(|error| Failure::new(format!("writing {}", path.display()), error, hint))
    }

    /// How much was written in another run.
    fn read_status(&mut self) -> Result<(), Trouble> {
        let Some(path) = self.plan.options.named.status_file.as_deref() else {
            return Ok(());
        };
        let found = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let found = self.team.broadcast(found.unwrap_or_default())?;
        if found > 0 {
            self.written.fill(found);
        } else if let Some(Report { printer, .. }) = &self.report {
            printer.log("WARNING: Could not read back the stonewalling status from the file!");
        }
        Ok(())
    }
}

/// By how much each rank's clock is ahead of rank 0's, at rank 0.
fn compare_clocks(team: &mut Team) -> Result<Vec<Nanos>, TeamError> {
    let ahead = (team.clock_ahead() * 1e9) as Nanos;
    Ok(team.gather(ahead)?.unwrap_or_default())
}

fn show_damage(printer: &Printer, pass: Pass, outcomes: &[Outcome], (wrong, stamp): (u64, u32)) {
    for (rank, outcome) in outcomes.iter().enumerate() {
        for Damage { file, offset, expected, found, words } in &outcome.damage {
            printer.log(&format!(
                "[{rank}] FAILED comparison of buffer containing 8-byte ints:\n[{rank}]   File name = {file}\n\
                 [{rank}]   File byte offset = {offset}: {words} wrong in this transfer\n\
                 [{rank}]     Expected: 0x{expected:016x}\n[{rank}]     Actual:   0x{found:016x}"
            ));
        }
    }
    let op = if pass.op.is_none() { "write" } else { "read" };
    printer.log(&format!(
        "WARNING: incorrect data on {op} ({wrong} errors found).\nUsed Time Stamp {stamp} (0x{stamp:x}) for Data Signature"
    ));
}

/// Says where the amount is not what was planned, as IOR does.
fn warn(printer: &Printer, plan: &Plan, outcomes: &[Outcome], measured: &Measurement) {
    let expected = plan.layout.total();
    let sizes: u64 = outcomes.iter().map(|outcome| outcome.size).sum();
    if expected != measured.bytes || sizes != measured.bytes {
        printer.log(&format!("WARNING: Expected aggregate file size       = {expected}"));
        printer.log(&format!("WARNING: Stat() of aggregate file size      = {sizes}"));
        printer.log(&format!("WARNING: Using actual aggregate bytes moved = {}", measured.bytes));
        if plan.options.deadline > 0.0 {
            printer.log("WARNING: Maybe caused by deadlineForStonewalling");
        }
    }
    if plan.options.verbose > 0
        && let Some((seconds, bytes)) = measured.stonewall
    {
        let done = outcomes.iter().filter_map(|outcome| outcome.stonewall.map(|(_, done)| done));
        let (least, most) = (done.clone().min().unwrap_or_default(), done.max().unwrap_or_default());
        let gib = bytes as f64 / f64::from(1 << 30);
        printer.log(&format!(
            "stonewalling pairs accessed min: {least} max: {most} -- all data: {gib:.1} GiB time: {seconds:.1}s"
        ));
    }
}
