//! What people read of measurements, and what a CI run decides by: `aqueduct bench report`.
//!
//! Records (`crate::record`) come in, of one or more runs, and are put together to *points*: one operation of one system at one place of the matrix, with all its repetitions.
//!
//! - `load` reads the files, and trusts nothing in them: sizes, lines and numbers have limits, and what is damaged is said with its file and line.
//! - `data` puts samples together. Values of one operation in MB/s and in MiB/s are brought to one unit, and the report says so.
//! - `text` is the view for terminals, `html` the page, `json` the same for programs. All figures come from `crate::stats`.
//! - `chart` has the charts: which fit the data, where their axes run, and how they are drawn, as SVG. `picture` makes PNG of the same drawings.
//! - `compare` puts two runs, or two systems of a run, side by side.
//! - `expression` is the language of `--fail-if`.
//! - `safe` makes text from data harmless, `unit` knows units.
//!
//! What a report never does: draw an error bar that was not measured, begin bars elsewhere than at zero, drop an outlier, or pass over a point that could not be compared.

pub mod chart;
mod compare;
mod data;
mod expression;
pub mod html;
mod json;
mod load;
mod output;
mod picture;
pub mod safe;
mod text;
mod unit;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::chart::choose::{Drawn, Wish, choose};
use self::chart::{Chart, Kind};
use self::compare::Comparison;
use self::data::{Data, Filter, How};
use self::expression::{Expression, Outcome};
use crate::Failure;

/// The most conditions of one report.
const CONDITIONS_MAX: usize = 64;

/// The options.
#[derive(Debug, Args)]
#[command(after_help = "\
Conditions of --fail-if speak of OP.STATISTIC, where STATISTIC is mean, median, min, max, stdev, cv, n, q1, q3, low, high (95 % interval of the mean), and, with a base, ratio,
ratio_low and ratio_high (of medians, with its 95 % interval). OP is one that was measured, or any; OP[clients=4,system=aqueduct] chooses points. base is what the base has for
the same; numbers may have a unit (100 MiB/s, 2 ms, 10 %); + - * / ( ) < <= > >= == != and or not join them. A condition that holds at any point makes the exit code 1.

Examples:
  aqueduct bench report run.jsonl                            tables, for a terminal
  aqueduct bench report run.jsonl --html report.html         one page with everything
  aqueduct bench report run.jsonl --png charts --chart clients --only op=read
  aqueduct bench report --compare old.jsonl new.jsonl        which points changed, and how sure that is
  aqueduct bench report run.jsonl --against native           all systems beside the one called native
  aqueduct bench report new.jsonl --base old.jsonl --fail-if 'read.median < 0.9*base'
  aqueduct bench report new.jsonl --base old.jsonl --fail-if 'any.ratio_high < 1 and any.n >= 5'")]
pub struct Arguments {
    /// Files of JSON lines, as a sweep writes them; all together are one report
    #[arg(value_name = "FILE", required_unless_present = "compare")]
    files: Vec<PathBuf>,
    /// Compare two files: the same as NEW --base OLD
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with_all = ["files", "base", "against"])]
    compare: Option<Vec<PathBuf>>,
    /// Compare with this file; several together are one base
    #[arg(long, value_name = "FILE", conflicts_with = "against")]
    base: Vec<PathBuf>,
    /// Compare all other systems with this one, point by point
    #[arg(long, value_name = "SYSTEM")]
    against: Option<String>,
    /// End with exit code 1 where this holds; may be given several times
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<String>,
    /// Points that a condition cannot be judged at fail as well
    #[arg(long, requires = "fail_if")]
    strict: bool,
    /// Only these: op=read, system=native, clients=4; alternatives where a name is given twice
    #[arg(long, value_name = "NAME=VALUE")]
    only: Vec<Filter>,
    /// Keep runs apart instead of putting their repetitions together
    #[arg(long)]
    by_run: bool,
    /// Leave damaged lines out, and name them, instead of ending
    #[arg(long)]
    skip_damaged: bool,
    /// Write one page with everything in it
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each chart as SVG into this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write each chart as PNG into this folder
    #[arg(long, value_name = "DIR")]
    png: Option<PathBuf>,
    /// Dots of a PNG for each of the SVG's, of which charts are 760 wide
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    png_scale: u8,
    /// A font for PNG, TrueType or OpenType, instead of one of the system
    #[arg(long, value_name = "FILE")]
    font: Option<PathBuf>,
    /// Only these charts instead of what fits the data
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    chart: Vec<Kind>,
    /// What charts show of the repetitions
    #[arg(long, value_enum, default_value_t = Drawn::Mean, value_name = "WHICH")]
    statistic: Drawn,
    /// The system whose lines are dashed
    #[arg(long, value_name = "SYSTEM", default_value = "native")]
    native: String,
    /// Draw values on logarithmic axes
    #[arg(long)]
    log: bool,
    /// What the page is called, instead of the name of the sweep
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Print the summaries as JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// A whole report, before it is written anywhere.
pub(crate) struct Report<'a> {
    title: String,
    data: &'a Data,
    comparison: Option<&'a Comparison>,
    outcomes: &'a [Outcome],
    charts: &'a [Chart],
    notes: &'a [String],
    strict: bool,
}

impl Report<'_> {
    /// A condition holds somewhere, or could be judged nowhere.
    fn has_failed(&self) -> bool {
        self.outcomes.iter().any(|outcome| verdict(outcome, self.strict).is_some())
    }
}

/// Why a condition fails the run, if it does.
fn verdict(outcome: &Outcome, strict: bool) -> Option<String> {
    let text = safe::plain(&outcome.text);
    if !outcome.failed.is_empty() {
        Some(format!("'{text}' holds at {} of {} points", outcome.failed.len(), outcome.judged))
    } else if outcome.judged == 0 {
        Some(format!("'{text}' could be judged at no point"))
    } else if strict && !outcome.missing.is_empty() {
        Some(format!("'{text}' could not be judged everywhere"))
    } else {
        None
    }
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    // What can be wrong on the command line is said before anything is read.
    let expressions = expressions(arguments)?;
    picture::check(arguments.png.is_some())?;
    let (files, base) = match &arguments.compare {
        Some(both) => (both[1..].to_vec(), both[..1].to_vec()),
        None => (arguments.files.clone(), arguments.base.clone()),
    };
    let how = How { filters: &arguments.only, by_run: arguments.by_run };
    let mut data = Data::of(load::load(&files, arguments.skip_damaged)?, how)?;
    let comparison = if let Some(system) = &arguments.against {
        let (new, base) = compare::split(&data, system).ok_or_else(|| against_nothing(&data, system))?;
        let comparison = Comparison::of(&new, base, system.clone(), true);
        Some((comparison, Some(new)))
    } else if base.is_empty() {
        None
    } else {
        let old = Data::of(load::load(&base, arguments.skip_damaged)?, how)?;
        let names: Vec<_> = base.iter().map(|path| path.display().to_string()).collect();
        data.notes.extend(old.notes.iter().map(|note| format!("Base: {note}")));
        Some((Comparison::of(&data, old, names.join(", "), false), None))
    };
    let (comparison, new) = comparison.map_or((None, None), |(comparison, new)| (Some(comparison), new));
    // With --against, conditions and ratios speak of the other systems' points.
    let compared = new.as_ref().unwrap_or(&data);
    let outcomes = expressions.iter().map(|expression| {
        expression::judge(expression, compared, comparison.as_ref()).map_err(|why| {
            Failure::usage(
                format!("cannot judge '{}'", safe::plain(&expression.text)),
                why,
                "compare what has the same unit",
            )
        })
    });
    let outcomes = outcomes.collect::<Result<Vec<_>, _>>()?;
    let wish = Wish {
        data: &data,
        drawn: arguments.statistic,
        native: &arguments.native,
        log: arguments.log,
        kinds: &arguments.chart,
    };
    let (mut charts, mut notes) = choose(&wish);
    if let Some(comparison) = comparison.as_ref().filter(|_| arguments.chart.is_empty() || wish.asks_for(Kind::Ratio)) {
        charts.splice(0..0, comparison.charts(compared));
    }
    notes.splice(0..0, data.notes.iter().cloned());
    let report = Report {
        title: title(arguments, &data),
        data: &data,
        comparison: comparison.as_ref(),
        outcomes: &outcomes,
        charts: &charts,
        notes: &notes,
        strict: arguments.strict,
    };
    write(arguments, &report, compared)
}

fn write(arguments: &Arguments, report: &Report<'_>, compared: &Data) -> Result<ExitCode, Failure> {
    let mut written = Vec::new();
    if let Some(path) = &arguments.html {
        output::file(path, html::page(report, compared).as_bytes())?;
        written.push(path.display().to_string());
    }
    if let Some(folder) = &arguments.svg {
        written.push(output::charts(folder, report.charts, "svg", |svg| Ok(svg.into_bytes()))?);
    }
    if let Some(folder) = &arguments.png {
        let painter = picture::Painter::new(arguments.font.as_deref(), arguments.png_scale)?;
        written.push(output::charts(folder, report.charts, "png", |svg| painter.paint(&svg))?);
    }
    if arguments.json {
        output::print(&format!("{:#}\n", json::report(report, compared)));
    } else {
        output::print(&text::report(report, compared));
        if !written.is_empty() {
            output::print(&format!("Written: {}\n", written.join(", ")));
        }
    }
    for outcome in report.outcomes {
        for missing in &outcome.missing {
            tell!("aqueduct: not judged: {missing}");
        }
        if let Some(why) = verdict(outcome, report.strict) {
            tell!("aqueduct: FAILED: {why}");
            for sentence in &outcome.failed {
                tell!("     {sentence}");
            }
        }
    }
    Ok(if report.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn expressions(arguments: &Arguments) -> Result<Vec<Expression>, Failure> {
    if arguments.fail_if.len() > CONDITIONS_MAX {
        let what = format!("more than {CONDITIONS_MAX} times --fail-if");
        return Err(Failure::usage(what, "that is the most", "join conditions by 'or'"));
    }
    let has_base = !arguments.base.is_empty() || arguments.compare.is_some() || arguments.against.is_some();
    let all = arguments.fail_if.iter().map(|text| {
        let expression = expression::parse(text).map_err(|problem| {
            let hint = "see 'aqueduct bench report --help' for what conditions may say";
            Failure::usage("cannot understand --fail-if", problem.shown(text), hint)
        })?;
        if expression.needs_base() && !has_base {
            let what = format!("cannot judge '{}'", safe::plain(text));
            return Err(Failure::usage(
                what,
                "it speaks of a base, and there is none",
                "name it with --base FILE or --against SYSTEM",
            ));
        }
        Ok(expression)
    });
    all.collect()
}

fn against_nothing(data: &Data, system: &str) -> Failure {
    let systems: Vec<_> = data.systems().into_iter().map(safe::plain).collect();
    let why = format!("measured were: {}", systems.join(", "));
    Failure::usage(
        format!("cannot compare with '{}'", safe::plain(system)),
        why,
        "name one of several systems with --against",
    )
}

fn title(arguments: &Arguments, data: &Data) -> String {
    let mut names: Vec<&str> = Vec::new();
    for run in data.runs.iter().filter(|run| !run.name.is_empty()) {
        // A name may have the whole file behind it.
        let name = run.name.lines().next().unwrap_or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    match &arguments.title {
        Some(title) => title.clone(),
        None if names.is_empty() => "Measurements".to_owned(),
        None => names.join(", "),
    }
}
