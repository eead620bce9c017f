//! One seed: what runs, what happens to it, and what is found.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::cluster::{Cluster, UNLINKED};
use crate::common::{Process, directory, disk_directory, signal};
use crate::disk::Disk;
use crate::plan::{Fault, MOUNT_LIMITED, MOUNTS, MOUNTS_CHECKED, MOUNTS_MORTAL, Planned, RESOURCES};
use crate::proxy::{Cut, FAIR, Weather};
use crate::work::{self, Kind, Part, Report, Windows};

/// Whom programs act as that are not root.
const USER: u32 = 2001;

/// Once no fault is left, the longest wait for a lock is a dead session's grace and a restarted server's; a busy machine is slower.
const HANG: Duration = Duration::from_secs(60);

/// How long programs go on undisturbed.
const CALM: Duration = Duration::from_millis(1500);

/// The grace of sessions and recoveries: longer than any series of faults keeps a mount away (`plan`), on a busy machine too.
const GRACE_SECONDS: u64 = 12;

/// When a step that cannot be taken yet is tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// Which programs run, on which mount and as whom: all but the last share the first mounts.
const PARTS: [(Kind, usize, Option<u32>); 14] = [
    (Kind::Names, 0, None),
    (Kind::Names, 1, Some(USER)),
    (Kind::Names, MOUNT_LIMITED, Some(USER)),
    (Kind::Names, MOUNT_LIMITED, Some(USER)),
    (Kind::Files, 0, None),
    (Kind::Files, 1, Some(USER)),
    (Kind::Log, 0, None),
    (Kind::Log, 1, None),
    (Kind::Log, 0, Some(USER)),
    (Kind::Counters, 0, None),
    (Kind::Counters, 1, None),
    (Kind::Counters, 1, Some(USER)),
    (Kind::Listing, 0, None),
    (Kind::Sequences, 2, None),
];

/// What one seed gave.
#[derive(Debug, Default)]
pub struct Summary {
    pub faults: BTreeMap<&'static str, usize>,
    pub operations: u64,
    pub bytes: u64,
    pub refusals: u64,
    pub deaths: u64,
    /// Writes that mounts have held back; without those of mounts that were killed.
    pub held_back: u64,
    pub findings: Vec<String>,
    pub seconds: f64,
    /// Where the logs are, if something was found.
    pub home: Option<PathBuf>,
}

/// A step of the plan: when, which fault, and whether it begins or ends.
type Step = Reverse<(Duration, usize, bool)>;

struct Run {
    home: TempDir,
    control: PathBuf,
    disk: Disk,
    /// A place for the second export and the model's reference.
    second: TempDir,
    limited: Option<Disk>,
    exports: [PathBuf; 3],
    cluster: Cluster,
    windows: Windows,
    programs: Vec<Process>,
    summary: Summary,
}

/// Runs a seed's plan.
pub fn run(seed: u64, planned: &[Planned]) -> Summary {
    let started = Instant::now();
    let mut run = Run::new();
    run.start_programs(seed);
    if run.play(planned) {
        run.finish();
    }
    run.summary.seconds = started.elapsed().as_secs_f64();
    run.leave()
}

impl Run {
    fn new() -> Run {
        let (home, second) = (directory(), disk_directory());
        let disk = Disk::new(home.path());
        let control = home.path().join("control");
        let limited = Disk::with_quotas(home.path());
        let [second_export, reference, unlimited] =
            ["export", "export.reference", "third"].map(|name| second.path().join(name));
        for path in [&control, &second_export, &reference, &unlimited] {
            fs::create_dir(path).unwrap();
        }
        let third = limited.as_ref().map_or(unlimited, Disk::export);
        let exports = [disk.export(), second_export, third];
        work::prepare_listing(&exports[0].join("listing"));
        for folder in [exports[0].join("work"), exports[0].join("shared"), exports[2].join("work")] {
            fs::create_dir(&folder).unwrap();
            fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
        }
        prepare_unlinked(&exports[0].join(UNLINKED));
        work::prepare_counters(&exports[0].join("shared"));
        fs::write(exports[0].join("shared/log"), "").unwrap();
        fs::set_permissions(exports[0].join("shared/log"), PermissionsExt::from_mode(0o666)).unwrap();
        let cluster = start_cluster(home.path(), &exports);
        let (windows, programs, summary) = (Windows::of(&control), Vec::new(), Summary::default());
        Run { home, control, disk, second, limited, exports, cluster, windows, programs, summary }
    }

    fn start_programs(&mut self, seed: u64) {
        let points: Vec<_> = self.cluster.mounts.iter().map(|mounted| mounted.point.clone()).collect();
        // Users' programs write there as well.
        fs::set_permissions(&self.control, PermissionsExt::from_mode(0o777)).unwrap();
        for (number, (kind, mount, user)) in PARTS.into_iter().enumerate() {
            let mortal = mount < MOUNTS_MORTAL;
            let part = Part {
                kind,
                number,
                seed,
                user,
                mount,
                limited: mount == MOUNT_LIMITED,
                points: points.clone(),
                peers: if mortal { (0..MOUNTS_MORTAL).collect() } else { vec![mount] },
                export: self.exports[export_of(mount)].clone(),
                control: self.control.clone(),
            };
            let log = self.home.path().join(format!("program-{number:02}-{kind:?}.log"));
            self.programs.push(Process::start(&mut work::command(&part), &log));
        }
    }

    /// Lets the faults happen; false when something was found meanwhile.
    fn play(&mut self, planned: &[Planned]) -> bool {
        let mut steps: BinaryHeap<Step> =
            planned.iter().enumerate().map(|(number, fault)| Reverse((fault.at, number, true))).collect();
        let mut busy = [false; RESOURCES];
        let started = Instant::now();
        while let Some(Reverse((at, number, begins))) = steps.pop() {
            while started.elapsed() < at {
                if self.has_finding() {
                    return self.calm_down();
                }
                thread::sleep(Duration::from_millis(5).min(at - started.elapsed().min(at)));
            }
            let fault = &planned[number].fault;
            if !begins {
                if self.end_fault(fault) {
                    busy[fault.resource()] = false;
                } else {
                    steps.push(Reverse((started.elapsed() + AGAIN, number, false)));
                }
            } else if busy[fault.resource()] {
                // On a slow machine the one before has not ended.
                steps.push(Reverse((started.elapsed() + AGAIN, number, true)));
            } else if self.begin_fault(fault, planned[number].index) {
                busy[fault.resource()] = true;
                *self.summary.faults.entry(fault.kind()).or_default() += 1;
                steps.push(Reverse((started.elapsed() + fault.time(), number, false)));
            }
        }
        let calm = Instant::now();
        while calm.elapsed() < CALM {
            if self.has_finding() {
                return self.calm_down();
            }
            thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Something was found: lets everything run so that it can be ended.
    fn calm_down(&mut self) -> bool {
        for mounted in &self.cluster.mounts {
            mounted.proxy.set_weather(FAIR);
        }
        let mounts = (0..MOUNTS).filter_map(|number| self.cluster.mount_process(number));
        mounts.chain(self.cluster.server()).for_each(|process| process.signal(Signal::CONT));
        self.collect();
        false
    }

    fn has_finding(&mut self) -> bool {
        self.programs.iter_mut().any(|program| program.has_ended().is_some())
    }

    /// False for one that this machine cannot do.
    fn begin_fault(&mut self, fault: &Fault, index: usize) -> bool {
        let cluster = &mut self.cluster;
        let weather = |number: usize, weather| cluster.mounts[number].proxy.set_weather(weather);
        match fault {
            Fault::KillServer(_) => drop(cluster.end_server(Signal::KILL)),
            Fault::EndServer(_) => {
                let code = cluster.end_server(Signal::TERM);
                if code != Some(0) {
                    self.summary.findings.push(format!("fault {index}: the server ended with {code:?}"));
                }
            }
            Fault::StopServer(_) => cluster.server().expect("it runs").signal(Signal::STOP),
            Fault::StopMount(number, _) => cluster.mount_process(*number).expect("it runs").signal(Signal::STOP),
            Fault::KillMount(number) => {
                self.windows.note(&format!("gone-{number}"), true);
                cluster.kill_mount(*number);
            }
            Fault::Cut(number, how, share) => {
                let mut random = aqueduct_model::Random::new(index as u64);
                cluster.mounts[*number].proxy.cut_where(*how, |_| random.chance(*share));
            }
            Fault::Refuse(number, _) => {
                weather(*number, Weather { refuses: true, ..FAIR });
                cluster.mounts[*number].proxy.cut_where(Cut::Reset, |_| true);
            }
            Fault::Stall(number, ..) => weather(*number, Weather { stalled: true, ..FAIR }),
            Fault::Delay(number, delay, _) => weather(*number, Weather { delay: *delay, ..FAIR }),
            Fault::Trickle(number, piece, _) => {
                weather(*number, Weather { piece: *piece, delay: Duration::from_micros(200), ..FAIR });
            }
            Fault::Flip(number, every, _) => weather(*number, Weather { flips_every: *every, ..FAIR }),
            Fault::FillDisk(_) => {
                self.windows.note("full", true);
                self.disk.fill();
            }
            Fault::LimitUser(_) => {
                let Some(disk) = &self.limited else { return false };
                self.windows.note("quota", true);
                disk.limit(USER, true);
            }
        }
        true
    }

    /// False when it has to be tried again.
    fn end_fault(&mut self, fault: &Fault) -> bool {
        let cluster = &mut self.cluster;
        match fault {
            Fault::KillServer(_) | Fault::EndServer(_) => cluster.start_server(),
            Fault::StopServer(_) => cluster.server().expect("it runs").signal(Signal::CONT),
            Fault::StopMount(number, _) => cluster.mount_process(*number).expect("it runs").signal(Signal::CONT),
            Fault::KillMount(number) => {
                if !cluster.is_mounted_again(*number) {
                    return false;
                }
                self.windows.note(&format!("gone-{number}"), false);
            }
            Fault::Cut(..) => {}
            Fault::Stall(number, _, cut) => {
                if *cut {
                    cluster.mounts[*number].proxy.cut_where(Cut::Reset, |_| true);
                }
                cluster.mounts[*number].proxy.set_weather(FAIR);
            }
            Fault::Refuse(number, _)
            | Fault::Delay(number, ..)
            | Fault::Trickle(number, ..)
            | Fault::Flip(number, ..) => {
                cluster.mounts[*number].proxy.set_weather(FAIR);
            }
            Fault::FillDisk(_) => {
                self.disk.make_room();
                self.windows.note("full", false);
            }
            Fault::LimitUser(_) => {
                self.limited.iter().for_each(|disk| disk.limit(USER, false));
                self.windows.note("quota", false);
            }
        }
        true
    }

    /// Ends the programs, and looks at what they left.
    fn finish(&mut self) {
        fs::write(self.control.join("stop"), "").unwrap();
        let started = Instant::now();
        while self.programs.iter_mut().any(|program| program.has_ended().is_none()) {
            if started.elapsed() > HANG {
                self.show_hanging();
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let reports = self.collect();
        if !self.summary.findings.is_empty() {
            return;
        }
        self.audit(&reports);
        self.summary.held_back = self.cluster.gathered().0;
        self.no_leftovers();
        self.summary.findings.extend(self.cluster.end());
    }

    /// What the programs say.
    fn collect(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        for (number, program) in self.programs.iter_mut().enumerate() {
            let name = format!("program {number} ({:?})", PARTS[number].0);
            let report = fs::read(work::report_path(&self.control, number)).unwrap_or_default();
            match (program.has_ended(), serde_json::from_slice::<Report>(&report)) {
                (Some(_), Ok(report)) => {
                    let finding = report.finding.iter().map(|finding| format!("{name}: {finding}"));
                    self.summary.findings.extend(finding);
                    self.summary.operations += report.operations;
                    self.summary.bytes += report.bytes;
                    self.summary.refusals += report.refusals;
                    self.summary.deaths += report.deaths;
                    reports.push(report);
                }
                (Some(status), Err(_)) => {
                    self.summary.findings.push(format!("{name} ended with {status}: {}", program.output()));
                }
                (None, _) => {}
            }
        }
        reports
    }

    fn audit(&mut self, reports: &[Report]) {
        let shared = self.exports[0].join("shared");
        let writers: Vec<_> = reports.iter().flat_map(|report| report.log.clone()).collect();
        match work::audit_log(&shared.join("log"), &writers) {
            Ok(bytes) => self.summary.bytes += bytes,
            Err(text) => self.summary.findings.push(text),
        }
        self.summary.findings.extend(work::audit_counters(&shared, reports));
    }

    /// What all have closed is free on the server.
    fn no_leftovers(&mut self) {
        let started = Instant::now();
        loop {
            let (open, kept) = (self.cluster.open_files(), self.cluster.kept_files());
            let sessions = self.cluster.sessions();
            if open.is_empty() && kept.is_empty() && sessions == MOUNTS {
                return;
            }
            if started.elapsed() > HANG {
                let text = format!("the server has {open:?} open, keeps {kept:?}, and has {sessions} sessions");
                return self.summary.findings.push(text);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn show_hanging(&mut self) {
        for (number, program) in self.programs.iter_mut().enumerate() {
            if program.has_ended().is_none() {
                let at = fs::read_to_string(self.control.join(format!("at-{number}"))).unwrap_or_default();
                let text = format!("program {number} ({:?}) hangs: {}", PARTS[number].0, at.trim());
                self.summary.findings.push(format!("{text}\n{}", stacks(program.pid())));
            }
        }
        let mounts = (0..MOUNTS).filter_map(|number| self.cluster.mount_process(number));
        for process in mounts.chain(self.cluster.server()) {
            self.summary.findings.push(format!("process {}:\n{}", process.pid(), stacks(process.pid())));
        }
    }

    /// Ends what still runs; keeps the logs if something was found.
    fn leave(mut self) -> Summary {
        for log in logs(self.home.path()) {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let bad = text.lines().find(|line| line.contains("panicked at") || line.contains("EIO until"));
            if let Some(line) = bad.filter(|_| !log.ends_with("program")) {
                self.summary.findings.push(format!("{}: {line}", log.display()));
            }
        }
        let Run { home, disk, second, limited, cluster, programs, mut summary, .. } = self;
        programs.iter().for_each(|program| signal(program.pid(), Signal::KILL));
        drop(cluster);
        drop(programs);
        drop((disk, limited, second));
        if !summary.findings.is_empty() {
            for image in fs::read_dir(home.path()).unwrap().flatten().filter(|entry| is_image(&entry.file_name())) {
                let _ = fs::remove_file(image.path());
            }
            summary.home = Some(home.keep());
        }
        summary
    }
}

/// The first mounts share the first export, the others have one each.
fn export_of(mount: usize) -> usize {
    (mount + 1).saturating_sub(MOUNTS_MORTAL)
}

fn start_cluster(home: &Path, exports: &[PathBuf]) -> Cluster {
    let config =
        format!("[limits]\nsession_grace_seconds = {GRACE_SECONDS}\nrecovery_grace_seconds = {GRACE_SECONDS}\n");
    // Sequences are compared with a local directory, where each close ends its process's locks.
    let options = |mount| if MOUNTS_CHECKED.contains(&mount) { "strict_unlock,checksum=on" } else { "strict_unlock" };
    let mounts: Vec<_> = (0..MOUNTS).map(|mount| (export_of(mount), options(mount))).collect();
    Cluster::start(home, exports, &config, &mounts)
}

/// The folder of removed files, as large as after many removals: a full disk must have room in it, or the server cannot keep what is removed while open.
fn prepare_unlinked(folder: &Path) {
    fs::create_dir(folder).unwrap();
    fs::set_permissions(folder, PermissionsExt::from_mode(0o700)).unwrap();
    let names: Vec<_> = (0..500).map(|number| folder.join(format!("{number:0200}"))).collect();
    names.iter().for_each(|name| drop(fs::File::create(name).unwrap()));
    names.iter().for_each(|name| fs::remove_file(name).unwrap());
}

fn is_image(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"image")
}

fn logs(home: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(home).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect();
    logs.sort();
    logs
}

/// Where the threads of a process are.
fn stacks(pid: u32) -> String {
    let mut text = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default().trim().to_owned();
        let status = read("status");
        let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or_default();
        text += &format!("  {} {state} wchan {} syscall {}\n", read("comm"), read("wchan"), read("syscall"));
        text += &read("stack").lines().map(|line| format!("    {line}\n")).collect::<String>();
    }
    text
}
