//! IOR's tables: what people read, and what scripts cut to pieces.

use super::plan::Plan;
use super::results::{Measurement, Spread, mib};
use super::size;

/// A key and its value, as IOR aligns them.
pub fn pair(key: &str, value: impl std::fmt::Display) -> String {
    format!("{key:<20}: {value}\n")
}

/// The heading of the results.
pub fn heading() -> String {
    "\naccess    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter\n\
     ------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----\n"
        .to_owned()
}

/// A number in ten columns: six digits behind the point below 1, two below 3600, none above.
fn column(value: f64) -> String {
    match value {
        _ if value < 0.0 => "   -      ".to_owned(),
        _ if value < 1.0 => format!("{value:<10.6}"),
        _ if value < 3600.0 => format!("{value:<10.2}"),
        _ => format!("{value:<10.0}"),
    }
}

/// A row of the results.
pub fn row(plan: &Plan, measured: &Measurement) -> String {
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    let [bandwidth, iops, latency] = [mib(measured.rate()), measured.iops, measured.latency].map(column);
    let [block, transfer] = [plan.layout.block, plan.layout.transfer].map(|bytes| column(kib(bytes)));
    let [open, access, close, total] = [measured.open, measured.access, measured.close, measured.total].map(column);
    let Measurement { op, repetition, .. } = measured;
    format!(
        "{op:<10}{bandwidth} {iops} {latency}  {block} {transfer} {open} {access} {close} {total} {repetition:<4}\n"
    )
}

/// The row that says how long removing took.
pub fn removed(seconds: f64, repetition: u32) -> String {
    let empty = format!("{:<10} ", "-").repeat(2) + &format!("{:<10}  ", "-") + &format!("{:<10} ", "-").repeat(5);
    format!("{:<10}{empty}{} {repetition:<4}\n", "remove", column(seconds))
}

/// The greatest rates of writing and reading.
pub fn greatest(measurements: &[Measurement]) -> String {
    let mut text = String::new();
    for (op, name) in [("write", "Max Write: "), ("read", "Max Read:  ")] {
        let rates = measurements.iter().filter(|measured| measured.op == op).map(Measurement::rate);
        if let Some(greatest) = rates.reduce(f64::max) {
            text += &format!("{name}{:.2} MiB/sec ({:.2} MB/sec)\n", mib(greatest), greatest / 1e6);
        }
    }
    text
}

/// The heading of the summary.
pub fn summary_heading() -> String {
    let mut text = format!("\nSummary of all tests:\n{:<9}", "Operation");
    for name in
        ["Max(MiB)", "Min(MiB)", "Mean(MiB)", "StdDev", "Max(OPs)", "Min(OPs)", "Mean(OPs)", "StdDev", "Mean(s)"]
    {
        text += &format!(" {name:>10}");
    }
    text += " Stonewall(s) Stonewall(MiB) Test# #Tasks tPN reps fPP reord reordoff reordrand seed segcnt ";
    text += &format!("{:>8} {:>8} {:>9} {:>5} RefNum\n", " blksiz", "xsize", "aggs(MiB)", "API");
    text
}

/// What the summary says of one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// `write` or `read`.
    pub op: &'static str,
    /// Bytes by seconds.
    pub rates: Spread,
    /// Transfers by seconds.
    pub operations: Spread,
    /// Seconds.
    pub time: f64,
    /// Seconds until the deadline had stopped all, and bytes by second until then.
    pub stonewall: Option<(f64, f64)>,
    /// Bytes of the first repetition.
    pub bytes: u64,
}

/// Of the operations that were measured.
pub fn summaries(plan: &Plan, measurements: &[Measurement]) -> Vec<Summary> {
    let of = |op: &'static str| {
        let all: Vec<&Measurement> = measurements.iter().filter(|measured| measured.op == op).collect();
        let rates: Vec<f64> = all.iter().map(|measured| measured.rate()).collect();
        let operations: Vec<f64> = rates.iter().map(|rate| rate / plan.layout.transfer as f64).collect();
        let walls: Vec<(f64, u64)> = all.iter().filter_map(|measured| measured.stonewall).collect();
        let (wall_time, wall_bytes) =
            walls.iter().fold((0.0, 0), |(time, bytes), wall| (time + wall.0, bytes + wall.1));
        let stonewall = (wall_time > 0.0).then(|| (wall_time / walls.len() as f64, wall_bytes as f64 / wall_time));
        let first = all.first()?;
        let time = all.iter().map(|measured| measured.total).sum::<f64>() / all.len() as f64;
        Some(Summary {
            op,
            rates: Spread::of(&rates),
            operations: Spread::of(&operations),
            time,
            stonewall,
            bytes: first.bytes,
        })
    };
    ["write", "read"].into_iter().filter_map(of).collect()
}

/// A row of the summary.
pub fn summary_row(plan: &Plan, summary: &Summary) -> String {
    let Summary { op, rates, operations, time, stonewall, bytes } = *summary;
    let options = &plan.options;
    let mut text = format!("{op:<9} ");
    let spread = |spread: Spread| [spread.max, spread.min, spread.mean, spread.deviation];
    for value in spread(rates).map(mib).into_iter().chain(spread(operations)) {
        text += &format!("{value:>10.2} ");
    }
    text += &format!("{time:>10.5} ");
    text += &match stonewall {
        Some((time, rate)) => format!("{time:>10.2} {:>13.2} ", mib(rate)),
        None => format!("{:>10} {:>13} ", "NA", "NA"),
    };
    text += &format!("{:>5} {:>6} {:>3} ", 0, plan.layout.ranks, plan.nodes.per_node);
    text += &format!("{:>4} {:>3} ", options.repetitions, u8::from(options.file_per_rank));
    text += &format!("{:>5} {:>8} ", u8::from(options.reorder_constant), options.task_offset);
    text += &format!("{:>9} {:>4} ", options.reorder_random, options.reorder_seed);
    text += &format!("{:>6} {:>8} {:>8} ", plan.layout.segments, plan.layout.block, plan.layout.transfer);
    text += &format!("{:>9.1} {:>3} {:>6}\n", mib(bytes as f64), options.api.name(), options.reference);
    text
}

/// The block of options.
pub fn options(plan: &Plan) -> Vec<(&'static str, String)> {
    let (options, layout, nodes) = (&plan.options, &plan.layout, &plan.nodes);
    let choose = |is: bool, yes: &str, no: &str| if is { yes } else { no }.to_owned();
    let mut pairs = vec![
        ("api", options.api.name().to_owned()),
        ("apiVersion", String::new()),
        ("test filename", options.file.clone()),
        ("access", choose(options.file_per_rank, "file-per-process", "single-shared-file")),
        ("type", "independent".to_owned()),
        ("segments", layout.segments.to_string()),
        ("ordering in a file", choose(options.random, "random", "sequential")),
    ];
    if options.reorder_constant {
        pairs.push(("ordering inter file", "constant task offset".to_owned()));
        pairs.push(("task offset", options.task_offset.to_string()));
    } else if options.reorder_random > 0 {
        pairs.push(("ordering inter file", "random task offset".to_owned()));
        pairs.push(("task offset", options.task_offset.to_string()));
        pairs.push(("reorder random seed", options.reorder_seed.to_string()));
    } else {
        pairs.push(("ordering inter file", "no tasks offsets".to_owned()));
    }
    pairs.extend([
        ("nodes", nodes.nodes.to_string()),
        ("tasks", layout.ranks.to_string()),
        ("clients per node", nodes.per_node.to_string()),
    ]);
    if options.depth > 1 {
        pairs.push(("depth", options.depth.to_string()));
    }
    pairs.extend([
        ("repetitions", options.repetitions.to_string()),
        ("xfersize", size::show(layout.transfer)),
        ("blocksize", size::show(layout.block)),
        ("aggregate filesize", size::show(layout.total())),
    ]);
    if options.verbose > 0 {
        pairs.push(("verbose", options.verbose.to_string()));
    }
    if options.deadline > 0.0 {
        pairs.push(("stonewallingTime", options.deadline.to_string()));
        pairs.push(("stoneWallingWearOut", u8::from(options.named.wear_out).to_string()));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::super::tests::planned;
    use super::*;

    /// As in output of IOR 4 that people have published: `ior -w -r -o testfile` on one task.
    const PUBLISHED: &str = "\
Options: 
api                 : POSIX
apiVersion          : 
test filename       : testfile
access              : single-shared-file
type                : independent
segments            : 1
ordering in a file  : sequential
ordering inter file : no tasks offsets
nodes               : 1
tasks               : 1
clients per node    : 1
repetitions         : 1
xfersize            : 262144 bytes
blocksize           : 1 MiB
aggregate filesize  : 1 MiB

Results: 

access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----
write     443.66     1981.01    0.000505    1024.00    256.00     0.000229   0.002019   0.000006   0.002254   0   
read      3584.23    15033      0.000067    1024.00    256.00     0.000009   0.000266   0.000004   0.000279   0   
remove    -          -          -           -          -          -          -          -          0.000564   0   
Max Write: 443.66 MiB/sec (465.21 MB/sec)
Max Read:  3584.23 MiB/sec (3758.34 MB/sec)

Summary of all tests:
Operation   Max(MiB)   Min(MiB)  Mean(MiB)     StdDev   Max(OPs)   Min(OPs)  Mean(OPs)     StdDev    Mean(s) Stonewall(s) Stonewall(MiB) Test# #Tasks tPN reps fPP reord reordoff reordrand seed segcnt   blksiz    xsize aggs(MiB)   API RefNum
write         443.66     443.66     443.66       0.00    1774.62    1774.62    1774.62       0.00    0.00225         NA            NA     0      1   1    1   0     0        1         0    0      1  1048576   262144       1.0 POSIX      0
read         3584.23    3584.23    3584.23       0.00   14336.92   14336.92   14336.92       0.00    0.00028         NA            NA     0      1   1    1   0     0        1         0    0      1  1048576   262144       1.0 POSIX      0
";

    fn measured(op: &'static str, [open, access, close, total]: [f64; 4], iops: f64, latency: f64) -> Measurement {
        Measurement { op, bytes: 1 << 20, open, access, close, total, iops, latency, ..Measurement::default() }
    }

    #[test]
    fn tables_look_like_iors() {
        let plan = planned(&["-w", "-r", "-o", "testfile"], 1);
        let measurements = [
            measured("write", [0.000229, 0.002019, 0.000006, 0.002254], 1981.01, 0.000505),
            measured("read", [0.000009, 0.000266, 0.000004, 0.000279], 15033.2, 0.000067),
        ];
        let mut text = "Options: \n".to_owned();
        options(&plan).iter().for_each(|(key, value)| text += &pair(key, value));
        text += "\nResults: \n";
        text += &heading();
        measurements.iter().for_each(|measured| text += &row(&plan, measured));
        text += &removed(0.000564, 0);
        text += &greatest(&measurements);
        text += &summary_heading();
        summaries(&plan, &measurements).iter().for_each(|summary| text += &summary_row(&plan, summary));
        for (line, expected) in text.lines().zip(PUBLISHED.lines()) {
            assert_eq!(line, expected);
        }
        assert_eq!(text, PUBLISHED);
    }

    #[test]
    fn columns_have_as_many_digits_as_iors() {
        let columns = [0.0, 0.9999, 1.0, 3599.994, 3600.0, 123456.7, -1.0].map(column);
        let expected =
            ["0.000000  ", "0.999900  ", "1.00      ", "3599.99   ", "3600      ", "123457    ", "   -      "];
        assert_eq!(columns, expected);
    }

    #[test]
    fn options_say_what_was_chosen() {
        let plan = planned(
            &[
                "-F",
                "-C",
                "-Q",
                "2",
                "-D",
                "30",
                "-O",
                "stoneWallingWearOut=1",
                "-a",
                "uring",
                "--depth",
                "4",
                "-v",
                "-z",
            ],
            2,
        );
        let text: String = options(&plan).iter().map(|(key, value)| pair(key, value)).collect();
        for line in [
            "api                 : URING\n",
            "access              : file-per-process\n",
            "ordering in a file  : random\n",
            "ordering inter file : constant task offset\ntask offset         : 2\n",
            "depth               : 4\n",
            "verbose             : 1\nstonewallingTime    : 30\nstoneWallingWearOut : 1\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let text: String =
            options(&planned(&["-Z", "-X", "7"], 2)).iter().map(|(key, value)| pair(key, value)).collect();
        assert!(text.contains("random task offset\ntask offset         : 1\nreorder random seed : 7\n"), "{text}");
    }
}
