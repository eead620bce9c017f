//! What a plan takes: bytes, room, time; said before anything runs, and refused where it cannot be had.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::machine;
use super::plan::{Plan, Visit};
use super::value::seconds;
use crate::Failure;

/// How fast data move, in bytes a second, where nothing better is known.
const RATE: f64 = 500e6;

/// What a call takes beside moving data, in seconds.
const CALL: f64 = 0.5;

/// The first points of the order that are shown.
const SHOWN: usize = 12;

/// What visits take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Processes that are started.
    pub calls: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Seconds.
    pub seconds: f64,
}

impl Plan {
    /// What one visit takes.
    pub fn cost(&self, visit: &Visit) -> Cost {
        let mut cost = Cost::default();
        let told = self.file.run.takes.as_ref().and_then(|text| seconds(text.get_ref()));
        for step in 0..self.steps.len() {
            let mut longest: f64 = 0.0;
            for part in &self.steps[step].parts {
                for &system in &visit.systems {
                    let bytes = self.bytes(visit, system, step, part).unwrap_or(0);
                    cost.calls += 1;
                    cost.bytes = cost.bytes.saturating_add(bytes);
                    longest = longest.max(told.unwrap_or(CALL + bytes as f64 / RATE));
                }
            }
            cost.seconds += longest + self.pause;
        }
        cost
    }

    /// Bytes in all files of a visit at once, for each system.
    fn held(&self, visit: &Visit) -> BTreeMap<usize, u64> {
        let mut held = BTreeMap::new();
        for &system in &visit.systems {
            let mut files: BTreeMap<&str, u64> = BTreeMap::new();
            for step in 0..self.steps.len() {
                for part in &self.steps[step].parts {
                    let bytes = self.bytes(visit, system, step, part).unwrap_or(0);
                    let file = files.entry(&part.file).or_default();
                    *file = bytes.max(*file);
                }
            }
            held.insert(system, files.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)));
        }
        held
    }

    /// All directories are there, or will be made, and have room.
    pub fn check_targets(&self) -> Result<(), Failure> {
        // What one system's command starts, another may be measured through.
        let is_started = self.file.system.iter().any(|system| system.get_ref().start.is_some());
        let mut rooms: BTreeMap<PathBuf, Option<(u64, u64)>> = BTreeMap::new();
        for visit in &self.visits {
            let mut needed: BTreeMap<u64, (u64, u64, PathBuf)> = BTreeMap::new();
            for (system, bytes) in self.held(visit) {
                let Some(directory) = self.directory(visit, system) else { continue };
                let description = self.file.system[system].get_ref();
                let is_made = is_started || description.setup.is_some();
                if !rooms.contains_key(&directory) {
                    let room = match machine::room(&directory) {
                        Ok(_) if !directory.is_dir() => Err("it is no directory".to_owned()),
                        Ok(room) => Ok(Some(room)),
                        Err(_) if is_made => Ok(None),
                        Err(error) => Err(error.to_string()),
                    };
                    let room = room.map_err(|why| {
                        let what = format!("cannot measure {} in {}", description.name, directory.display());
                        Failure::new(what, why, "make that directory, or correct the system's dir")
                    })?;
                    rooms.insert(directory.clone(), room);
                }
                if let Some(Some((room, device))) = rooms.get(&directory) {
                    let entry = needed.entry(*device).or_insert((0, *room, directory));
                    entry.0 = entry.0.saturating_add(bytes);
                }
            }
            for (bytes, room, directory) in needed.into_values() {
                if bytes > room {
                    let what = format!("{} has too little room for {}", directory.display(), self.title(visit));
                    let why = format!("it takes {}, and {} are free", amount(bytes), amount(room));
                    return Err(Failure::new(what, why, "make room, write less, or take another directory"));
                }
            }
        }
        Ok(())
    }

    /// What will be done and what it takes, in words.
    pub fn shown(&self, done: usize) -> String {
        let names = |list: &mut dyn Iterator<Item = &str>| list.collect::<Vec<_>>().join(", ");
        let file = &self.file;
        let systems = names(&mut file.system.iter().map(|system| system.get_ref().name.as_str()));
        let block = self.visits.iter().map(|visit| self.cost(visit)).fold(Cost::default(), |sum, cost| Cost {
            calls: sum.calls + cost.calls,
            bytes: sum.bytes.saturating_add(cost.bytes),
            seconds: sum.seconds + cost.seconds,
        });
        let blocks = u64::from(self.warmup + self.repeat);
        let most = u64::from(self.blocks_max());
        let range = |of: &dyn Fn(u64) -> String| {
            if most > blocks { format!("{} to {}", of(blocks), of(most)) } else { of(blocks) }
        };
        let held = self.visits.iter().map(|visit| self.held(visit).values().sum::<u64>()).max().unwrap_or(0);
        let mut text = format!("Sweep     {}", file.name.get_ref());
        let about = Some(&file.about).filter(|about| !about.is_empty());
        text.push_str(&about.map_or_else(String::new, |about| format!(": {about}")));
        text.push_str(&format!("\nResults   {}", self.results.display()));
        if done > 0 {
            text.push_str(&format!(" ({done} steps are done and not measured again)"));
        }
        text.push_str(&format!(
            "\nPoints    {} of {}; {} of {systems}: {} in each block\n",
            self.points.len(),
            if file.matrix.is_empty() {
                "nothing".to_owned()
            } else {
                names(&mut file.matrix.keys().map(String::as_str))
            },
            file.system.len(),
            self.visits.len()
        ));
        text.push_str(&format!("Steps     {}\n", names(&mut self.steps.iter().map(|step| step.name.as_str()))));
        text.push_str(&format!("Blocks    {} to warm up, {} that count", self.warmup, self.repeat));
        if let Some(until) = self.until {
            let statistic = if until.goal.of_mean { "mean" } else { "median" };
            let width = 100.0 * until.goal.width;
            text.push_str(&format!(
                ", up to {} until the 95 % interval of the {statistic} is {width} % wide",
                until.most
            ));
        }
        text.push_str(&format!("\nCalls     {}\n", range(&|blocks| (block.calls * blocks).to_string())));
        text.push_str(&format!(
            "Bytes     {}; at most {} at once\n",
            range(&|blocks| amount(block.bytes.saturating_mul(blocks))),
            amount(held)
        ));
        let guess = if file.run.takes.is_some() { "as the file says" } else { "at 500 MB/s" };
        text.push_str(&format!("Time      about {} ({guess})\n", range(&|blocks| span(block.seconds * blocks as f64))));
        text.push_str(&self.shown_order());
        text
    }

    fn shown_order(&self) -> String {
        let mut text = format!("The first block, in its random order (seed {}):\n", self.file.seed);
        let order = self.order(0);
        for &visit in order.iter().take(SHOWN) {
            text.push_str(&format!("  {}\n", self.title(&self.visits[visit])));
        }
        if order.len() > SHOWN {
            text.push_str(&format!("  and {} more\n", order.len() - SHOWN));
        }
        if let Some(visit) = order.first().map(|&visit| &self.visits[visit]) {
            text.push_str("The first point calls:\n");
            for step in 0..self.steps.len() {
                for part in &self.steps[step].parts {
                    for &system in &visit.systems {
                        let call = self.call(visit, system, step, part).map(|call| call.shown()).unwrap_or_default();
                        text.push_str(&format!("  {}: {call}\n", self.steps[step].name));
                    }
                }
            }
        }
        for expectation in &self.expectations {
            text.push_str(&format!("Expected: {}\n", expectation.text));
        }
        text
    }
}

/// Bytes for people.
pub fn amount(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// Seconds for people.
pub fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..90 => format!("{whole} s"),
        90..5400 => format!("{} min", (whole + 30) / 60),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_spans_are_for_people() {
        assert_eq!([0, 1023, 1536, 3 << 29, 5 << 40].map(amount), ["0 B", "1023 B", "1.5 KiB", "1.5 GiB", "5.0 TiB"]);
        assert_eq!([0.2, 89.0, 100.0, 7200.0].map(span), ["0 s", "89 s", "2 min", "2.0 h"]);
    }
}
