//! From records to a verdict: pure.

use std::collections::BTreeMap;

use super::darshan::FileOfRun;
use super::gridftp::Transfer;
use super::lmt::Activity;
use super::records::Records;
use super::reports::Measurement;
use super::statistics::{correlation, deviation, interval, median};
use crate::verdict::{Cause, Kind, Stage, TIE, Verdict};

/// A target is slow from here on: so many deviations below the median of all, and so many times
/// slower than it.
const DEVIATIONS: f64 = 3.5;
const SLOWER: f64 = 1.25;

/// One target is named where the next slowest is so many times as fast.
const ALONE: f64 = 1.15;

/// With fewer targets, or transfers, a few that differ by chance look like a cause.
const TARGETS_MIN: usize = 6;
const TRANSFERS_MIN: usize = 8;

/// The smallest deviation of the logarithm that is believed: targets are never as alike as that.
const DEVIATION_MIN: f64 = 0.02;

/// The share of time in names and attributes from which on they are what takes it.
const METADATA: f64 = 0.5;

/// Says what limited.
pub fn judge(records: &Records) -> Verdict {
    let verdict = match () {
        () if !records.files.is_empty() => of_files(&records.files),
        () if !records.transfers.is_empty() && !records.activity.is_empty() => {
            of_transfers(&records.transfers, &records.activity)
        }
        () if !records.measurements.is_empty() => of_measurements(&records.measurements, &records.transfers),
        () if !records.transfers.is_empty() => alone(&records.transfers),
        () if !records.activity.is_empty() => Verdict::unknown(
            "what targets did is known, and nothing of a transfer: add the log of its server (GridFTP), or a dump of Darshan",
        ),
        () => Verdict::unknown("the files have no records in them"),
    };
    let told = records.known_as.iter().map(|(path, what)| format!("{} was read as {what}", path.display()));
    told.fold(verdict, Verdict::because)
}

/// Of a run in which each rank has files of its own: which target has slow ones.
fn of_files(files: &[FileOfRun]) -> Verdict {
    let sums = [0, 1].map(|way: usize| files.iter().map(|file| file.bytes[way]).sum::<f64>());
    let way = usize::from(sums[1] >= sums[0]);
    let stage = [Stage::Read, Stage::Write][way];
    let io: f64 = files.iter().map(|file| file.seconds[0] + file.seconds[1]).sum();
    let names: f64 = files.iter().map(|file| file.names_seconds).sum();
    if names > METADATA * (io + names) && names > 0.0 {
        let share = names / (io + names) * 100.0;
        return Verdict::of((Stage::Metadata, Kind::Metadata), "", 0.9)
            .because(format!("names and attributes took {share:.0} % of the time of {} files", files.len()))
            .advising("put small files together, or give each process a directory of its own");
    }
    let mut of_target: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    let is_own = |file: &&FileOfRun| file.targets.len() == 1 && !file.is_shared;
    for file in files.iter().filter(is_own).filter(|file| file.bytes[way] > 0.0 && file.seconds[way] > 0.0) {
        of_target.entry(file.targets[0]).or_default().push((file.bytes[way] / file.seconds[way]).ln());
    }
    if of_target.len() < TARGETS_MIN {
        let found = of_target.len();
        return Verdict::unknown(format!(
            "files that lie on one target each are known for {found} targets, and {TARGETS_MIN} are needed to say which one differs"
        ));
    }
    let rates: BTreeMap<u64, f64> = of_target.iter().map(|(target, logs)| (*target, median(logs))).collect();
    of_targets(&rates, stage)
}

/// Which of the targets is slower than the others, by the logarithms of their rates.
fn of_targets(rates: &BTreeMap<u64, f64>, stage: Stage) -> Verdict {
    let logs: Vec<f64> = rates.values().copied().collect();
    let (middle, spread) = (median(&logs), deviation(&logs).max(DEVIATION_MIN));
    let mut sorted: Vec<(u64, f64)> = rates.iter().map(|(target, log)| (*target, *log)).collect();
    sorted.sort_by(|one, two| one.1.total_cmp(&two.1));
    let is_slow = |log: f64| (middle - log) / spread > DEVIATIONS && (middle - log).exp() > SLOWER;
    let slow: Vec<(u64, f64)> = sorted.iter().copied().take_while(|(_, log)| is_slow(*log)).collect();
    let typical = format!("{} targets moved {:.0} MB/s in the median for each file", rates.len(), middle.exp() / 1e6);
    let ratio = |log: f64| (middle - log).exp();
    let told = |(target, log): &(u64, f64)| {
        let deviations = (middle - log) / spread;
        format!("OST{target} was {:.2} times slower than the median, {deviations:.1} deviations below it", ratio(*log))
    };
    let Some(first) = slow.first() else {
        let worst = sorted.first().map(told).unwrap_or_default();
        return Verdict::nothing(0.9).because(typical).because(format!("no target stands out: {worst}"));
    };
    let next = sorted[1];
    let gain = (next.1 - first.1).exp();
    if slow.len() == 1 || gain > ALONE {
        let sure = 0.98 - 0.25 * (-((middle - first.1) / spread - DEVIATIONS)).exp();
        return Verdict::of((stage, Kind::Saturated), format!("OST{}", first.0), sure)
            .then(stage.to_string(), gain)
            .because(typical)
            .because(told(first))
            .because(format!("the next, OST{}, was {:.2} times slower than the median", next.0, ratio(next.1)))
            .advising("look at that target and its server: its disks, a rebuild, who else uses it; keep files off it meanwhile");
    }
    let names: Vec<String> = slow.iter().map(|(target, _)| format!("OST{target}")).collect();
    Verdict::of((stage, Kind::Saturated), names.join(", "), 0.75)
        .because(typical)
        .because(format!(
            "{} of {} targets are slower together, so that no one of them is the cause",
            slow.len(),
            rates.len()
        ))
        .because(told(first))
        .advising("see what those targets have in common: a server, an enclosure, other users")
}

/// What all targets moved in each step, by time: transfers are many, and steps are.
struct Moved {
    /// From when to when, and bytes that were read and written.
    steps: Vec<([f64; 2], [f64; 2])>,
    /// The longest step, in seconds.
    longest: f64,
}

impl Moved {
    fn of(activity: &[Activity]) -> Moved {
        let sum = |step: &Activity, way: usize| step.targets.values().map(|counts| counts[way]).sum::<f64>();
        let mut steps: Vec<_> =
            activity.iter().map(|step| (step.time, [0, 1].map(|way: usize| sum(step, way)))).collect();
        steps.sort_by(|one, two| one.0[0].total_cmp(&two.0[0]));
        let longest = steps.iter().map(|(time, _)| time[1] - time[0]).fold(0.0, f64::max);
        Moved { steps, longest }
    }

    /// From one time to another, shares of steps included; `None`: not all of that time is known.
    fn between(&self, [from, to]: [f64; 2], way: Option<usize>) -> Option<f64> {
        let (mut bytes, mut covered) = (0.0, 0.0);
        let first = self.steps.partition_point(|(time, _)| time[0] < from - self.longest);
        for (time, counts) in self.steps[first..].iter().take_while(|(time, _)| time[0] < to) {
            let shared = time[1].min(to) - time[0].max(from);
            if shared > 0.0 {
                let whole = way.map_or(counts[0] + counts[1], |way| counts[way]);
                bytes += whole * shared / (time[1] - time[0]).max(1e-9);
                covered += shared;
            }
        }
        (covered >= 0.9 * (to - from)).then_some(bytes)
    }
}

/// Whether transfers are slow when others are busy: the transfer's own bytes are taken out of what
/// the targets did, as they rise with it by construction.
fn of_transfers(transfers: &[Transfer], activity: &[Activity]) -> Verdict {
    let is_stored = transfers.iter().filter(|transfer| transfer.is_stored).count() * 2 >= transfers.len();
    let (way, stage) = if is_stored { (1, Stage::Write) } else { (0, Stage::Read) };
    let step = activity.first().map_or(1.0, |step| step.time[1] - step.time[0]);
    let of_way: Vec<&Transfer> =
        transfers.iter().filter(|transfer| transfer.is_whole && transfer.is_stored == is_stored).collect();
    let moved = Moved::of(activity);
    let pairs_at = |lag: f64| -> Vec<(f64, f64)> {
        let pair = |transfer: &&Transfer| {
            let time = transfer.time.map(|time| time + lag);
            let all = moved.between(time, None)?;
            let own = if lag == 0.0 { transfer.bytes.min(moved.between(time, Some(way))?) } else { 0.0 };
            Some(((all - own) / (time[1] - time[0]).max(1e-3), transfer.rate()))
        };
        of_way.iter().filter_map(pair).collect()
    };
    let pairs = pairs_at(0.0);
    if pairs.len() < TRANSFERS_MIN {
        return Verdict::unknown(format!(
            "{} of {} transfers lie within the time of which the targets' activity is known, and {TRANSFERS_MIN} are needed: add logs of the same time",
            pairs.len(),
            of_way.len()
        ));
    }
    let (found, [low, high]) = (correlation(&pairs), interval(&pairs));
    let said = format!(
        "over {} transfers, rate and what others moved have a rank correlation of {found:.2} [{low:.2}, {high:.2}], the transfers' own bytes taken out",
        pairs.len()
    );
    let lags = [-step, step].map(|lag| format!("{:.2} at {lag:+.0} s", correlation(&pairs_at(lag))));
    let (busiest, bytes) = busiest(activity);
    let verdict = if high < 0.0 {
        Verdict::of((stage, Kind::Saturated), busiest.clone(), (0.7 + 0.28 * -found).min(0.95))
            .advising("copy at other times, or have the file system's other users take turns")
    } else {
        Verdict::between(&[Stage::Network, stage], 0.5).advising(
            "add what the network alone does (iperf3 --json), and what the file system alone does (IOR's JSON)",
        )
    };
    verdict
        .because(said)
        .because(format!("with lags: {}", lags.join(", ")))
        .because(format!("the busiest target is {busiest}, with {:.0} MB in all", bytes / 1e6))
}

fn busiest(activity: &[Activity]) -> (String, f64) {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, counts) in activity.iter().flat_map(|step| &step.targets) {
        *sums.entry(name).or_default() += counts[0] + counts[1];
    }
    let most = sums.into_iter().max_by(|one, two| one.1.total_cmp(&two.1));
    most.map_or((String::new(), 0.0), |(name, bytes)| (name.to_owned(), bytes))
}

/// The least of the parts that were measured alone, and whether transfers came near it.
fn of_measurements(measurements: &[Measurement], transfers: &[Transfer]) -> Verdict {
    let mut rates: BTreeMap<Stage, Vec<&Measurement>> = BTreeMap::new();
    measurements.iter().for_each(|measured| rates.entry(measured.stage).or_default().push(measured));
    let of_stage = |(stage, all): (&Stage, &Vec<&Measurement>)| {
        (*stage, median(&all.iter().map(|measured| measured.rate).collect::<Vec<_>>()))
    };
    let mut parts: Vec<(Stage, f64)> = rates.iter().map(of_stage).collect();
    parts.sort_by(|one, two| one.1.total_cmp(&two.1));
    let said = parts.iter().map(|(stage, rate)| format!("{stage} alone moves {:.1} MB/s", rate / 1e6));
    let verdict = match parts[..] {
        [(only, _)] => Verdict::unknown(format!(
            "{only} alone was measured: add the other parts (iperf3, IOR), or a log of transfers"
        )),
        [(first, least), (second, next), ..] if next < least * (1.0 + TIE) => Verdict::between(&[first, second], 0.9),
        [(first, least), (second, next), ..] => {
            let place = rates[&first].first().map(|measured| measured.place.clone()).unwrap_or_default();
            let sure = (1.0 - 0.35 * (-3.0 * (next / least - 1.0)).exp()).min(0.95);
            Verdict::of((first, Kind::Saturated), place, sure).then(second.to_string(), next / least)
        }
        [] => Verdict::unknown("the reports have no rates in them"),
    };
    let verdict = said.fold(verdict, Verdict::because);
    let whole = median(&transfers.iter().map(Transfer::rate).collect::<Vec<_>>());
    match parts.first() {
        Some((_, least)) if whole.is_finite() => {
            let share = whole / least * 100.0;
            let mut verdict =
                verdict.because(format!("transfers moved {:.1} MB/s, {share:.0} % of the least part", whole / 1e6));
            if whole < 0.5 * least && verdict.verdict != Cause::Undetermined {
                // Something else holds them back.
                verdict.confidence = verdict.confidence.min(0.5);
                verdict.verdict = Cause::Undetermined;
            }
            verdict
        }
        _ => verdict,
    }
}

fn alone(transfers: &[Transfer]) -> Verdict {
    let rates: Vec<f64> = transfers.iter().filter(|transfer| transfer.is_whole).map(Transfer::rate).collect();
    Verdict::unknown(format!(
        "{} transfers are known, at {:.1} MB/s in the median, and nothing of what else went on: add what targets did (LMT), the network alone (iperf3 --json) or the file system alone (IOR's JSON)",
        transfers.len(),
        median(&rates) / 1e6
    ))
}
