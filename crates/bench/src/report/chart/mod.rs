//! Charts: what they show ([`choose`]), as data, and how they are drawn ([`svg`]). One drawing serves the page, files of SVG and pictures.

pub mod axis;
pub mod bars;
pub mod choose;
pub mod curves;
pub mod over_time;
pub mod spread;
pub mod svg;

use clap::ValueEnum;

use crate::stats::Interval;

/// The kinds of charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Kind {
    /// The figure against clients, ranks or whatever else counts who takes part
    Clients,
    /// The figure against a size of transfers, blocks or messages
    Sizes,
    /// A bar for each point
    Bars,
    /// Throughput over time, by tenths of a second
    Series,
    /// How the repetitions are distributed
    Cdf,
    /// Two parameters against each other
    Heat,
    /// The ratio to the base at each point
    Ratio,
}

impl Kind {
    /// As it is written on the command line, and in the names of files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Clients => "clients",
            Kind::Sizes => "sizes",
            Kind::Bars => "bars",
            Kind::Series => "series",
            Kind::Cdf => "cdf",
            Kind::Heat => "heat",
            Kind::Ratio => "ratio",
        }
    }
}

/// One chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it is.
    pub kind: Kind,
    /// What it shows.
    pub title: String,
    /// What must be known to read it: which statistic, how many repetitions, what the error bars are.
    pub caption: String,
    /// The rest.
    pub body: Body,
}

/// What is drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Points joined by lines.
    Lines(Lines),
    /// Bars.
    Bars(Bars),
    /// Coloured cells.
    Heat(Heat),
    /// Ratios with their intervals, one below another.
    Ratios(Vec<RatioMark>),
}

/// How an axis runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero.
    Linear,
    /// Doubling.
    Log2,
    /// By tens.
    Log10,
}

/// How the numbers beside an axis are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// As they are.
    Number,
    /// As sizes.
    Bytes,
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The quantity and its unit.
    pub label: String,
    /// How it runs.
    pub scale: Scale,
    /// How its numbers are written.
    pub format: Format,
    /// Where ticks stand, if not anywhere: at what was measured.
    pub ticks: Vec<f64>,
    /// It begins at zero. Always so for bars.
    pub from_zero: bool,
}

/// Curves in one frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// Those that change with x.
    pub curves: Vec<Curve>,
    /// Levels that were measured elsewhere than along x: drawn across.
    pub levels: Vec<Level>,
}

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Which colour and marker.
    pub color: usize,
    /// What was measured without Aqueduct and without a network, to compare with.
    pub is_native: bool,
    /// One of many of its kind.
    pub is_faint: bool,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// In the legend; empty for none.
    pub name: String,
    /// How it looks.
    pub look: Look,
    /// Markers at the points.
    pub has_markers: bool,
    /// It goes in steps rather than straight.
    pub is_step: bool,
    /// From left to right.
    pub marks: Vec<Mark>,
}

/// One point of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// To the right.
    pub x: f64,
    /// Upwards.
    pub y: f64,
    /// The error bar, where there is one.
    pub interval: Option<Interval>,
    /// All that is known of it.
    pub tip: String,
}

/// A level across the frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// In the legend.
    pub name: String,
    /// How it looks.
    pub look: Look,
    /// Where.
    pub mark: Mark,
}

/// Groups of bars from zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// Upwards.
    pub y: Axis,
    /// What stands below each group.
    pub groups: Vec<String>,
    /// What each bar of a group is, with its look.
    pub kinds: Vec<(String, Look)>,
    /// By group, then by kind.
    pub bars: Vec<Vec<Option<Bar>>>,
}

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Its height.
    pub value: f64,
    /// The error bar, where there is one.
    pub interval: Option<Interval>,
    /// How many repetitions.
    pub n: usize,
    /// The single values, and which of them are outliers.
    pub dots: Vec<(f64, bool)>,
    /// All that is known of it.
    pub tip: String,
}

/// Cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Heat {
    /// What the columns are.
    pub x: String,
    /// What the rows are.
    pub y: String,
    /// The columns.
    pub columns: Vec<String>,
    /// The rows, from below.
    pub rows: Vec<String>,
    /// What the colours mean.
    pub label: String,
    /// By row, then by column: the figure, and all that is known of it.
    pub cells: Vec<Vec<Option<(f64, String)>>>,
}

/// The ratio at one point.
#[derive(Clone, Debug, PartialEq)]
pub struct RatioMark {
    /// The point.
    pub name: String,
    /// The ratio.
    pub ratio: f64,
    /// Its interval; none where one side was measured once only.
    pub interval: Option<Interval>,
    /// What it means.
    pub verdict: String,
    /// All that is known of it.
    pub tip: String,
}
