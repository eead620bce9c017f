//! What the options mean together: the plan of a test, checked.

use std::time::Duration;

use super::arguments::{Api, Arguments};
use super::pattern::{Layout, Nodes, RANDOM_TRANSFERS_MAX, Reorder};
use super::size;
use crate::Failure;

/// IOR's data are words of 8 bytes.
const WORD: u64 = 8;

/// The largest transfer: one call of the kernel moves no more.
const TRANSFER_MAX: u64 = 1 << 30;

/// O_DIRECT moves whole sectors.
const SECTOR: u64 = 512;

/// A test.
#[derive(Clone, Debug)]
pub struct Plan {
    /// As they were given, with all directives.
    pub options: Arguments,
    /// Which bytes.
    pub layout: Layout,
    /// Where ranks are.
    pub nodes: Nodes,
    /// Whose data are read.
    pub reorder: Reorder,
}

impl Plan {
    /// What the options say, with all directives in them, for ranks on these hosts, or why they cannot be meant. The seed is that of `-z`, if none was given.
    pub fn new(mut options: Arguments, hosts: &[String], seed: u64) -> Result<Plan, Failure> {
        if !(options.write || options.read || options.check_write || options.check_read) {
            (options.write, options.read) = (true, true);
        }
        check_sizes(&options)?;
        check_checks(&options)?;
        check_order(&options)?;
        check_stonewall(&options)?;
        check_api(&options)?;
        let nodes = Nodes::of(hosts);
        let layout = Layout {
            ranks: nodes.ranks,
            segments: options.segments,
            block: options.block,
            transfer: options.transfer,
            file_per_rank: options.file_per_rank,
            random: options.random.then(|| options.random_seed.unwrap_or(seed)),
        };
        let at_least = u64::from(options.task_offset);
        let reorder = match (options.reorder_constant, options.reorder_random) {
            (true, _) => Reorder::Constant(at_least),
            (false, 0) => Reorder::None,
            (false, 1) => Reorder::Random { at_least, seed: options.reorder_seed },
            (false, _) => Reorder::Shuffle { seed: options.reorder_seed },
        };
        let plan = Plan { options, layout, nodes, reorder };
        plan.check_total()?;
        Ok(plan)
    }

    fn check_total(&self) -> Result<(), Failure> {
        let Layout { ranks, segments, block, transfer, .. } = self.layout;
        let total = ranks.checked_mul(segments).and_then(|blocks| blocks.checked_mul(block));
        if total.is_none_or(|total| total > i64::MAX as u64) {
            return Err(Failure::usage(
                format!("{ranks} tasks with {segments} segments of {} each", size::show(block)),
                "no file system holds so much",
                "give less with -b or -s",
            ));
        }
        let of_segment = if self.layout.file_per_rank { block } else { block * ranks } / transfer;
        if self.layout.random.is_some() && of_segment > RANDOM_TRANSFERS_MAX {
            return Err(Failure::usage(
                format!("-z with {of_segment} transfers in a segment"),
                format!("their order is kept in memory, and there is room for {RANDOM_TRANSFERS_MAX}"),
                "give a smaller block with -b and more segments with -s, or larger transfers with -t",
            ));
        }
        Ok(())
    }

    /// After so long no more transfers begin.
    pub fn deadline(&self) -> Option<Duration> {
        (self.options.deadline > 0.0).then(|| Duration::from_secs_f64(self.options.deadline))
    }

    /// The file of a rank (with `-F`; else that of all) in a repetition.
    pub fn file(&self, rank: u64, repetition: u32) -> String {
        let names: Vec<&str> = self.options.file.split('@').filter(|name| !name.is_empty()).collect();
        let own = self.options.file_per_rank;
        let index = if own { rank as usize % names.len().max(1) } else { 0 };
        let mut name = names.get(index).copied().unwrap_or_default().to_owned();
        if own {
            if self.options.unique_directory {
                let (directory, last) =
                    name.rsplit_once('/').map_or(("", &*name), |(directory, last)| (directory, last));
                let slash = if name.contains('/') { "/" } else { "" };
                name = format!("{directory}{slash}{rank}/{last}");
            }
            name = format!("{name}.{rank:08}");
        }
        if self.options.multi_file { format!("{name}.{repetition}") } else { name }
    }

    /// The directory that `-u` makes for a rank.
    pub fn own_directory(&self, rank: u64) -> Option<String> {
        let file = self.file(rank, 0);
        self.options.unique_directory.then(|| file.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned())
    }

    /// Bytes of memory that each rank needs.
    pub fn memory(&self) -> u64 {
        let depth = u64::from(self.options.depth);
        let expected = u64::from(self.options.check_read || self.options.check_write);
        let places = match self.layout.random {
            Some(_) => self.layout.block / self.layout.transfer * 8,
            None => 0,
        };
        (depth + expected) * self.layout.transfer + places
    }

    /// Files that are there at the same time.
    pub fn files(&self) -> u64 {
        let each = if self.options.file_per_rank { self.layout.ranks } else { 1 };
        each * self.copies()
    }

    /// How often the data are on the file system at the same time.
    pub fn copies(&self) -> u64 {
        if self.options.multi_file && self.options.keep { u64::from(self.options.repetitions) } else { 1 }
    }

    /// Bytes that are written, and read, in all repetitions, if no deadline ends them earlier.
    pub fn moved(&self) -> (u64, u64) {
        let all = self.layout.total().saturating_mul(u64::from(self.options.repetitions));
        let times = |count: bool| if count { all } else { 0 };
        let reads = times(self.options.read || self.options.check_read).saturating_add(times(self.options.check_write));
        (times(self.options.write), reads)
    }

    /// Whether there is a timed reading phase.
    pub fn reads(&self) -> bool {
        self.options.read || self.options.check_read
    }
}

fn refuse(options: &str, why: impl std::fmt::Display, hint: &str) -> Result<(), Failure> {
    Err(Failure::usage(options, why, hint))
}

fn check_sizes(options: &Arguments) -> Result<(), Failure> {
    let Arguments { block, transfer, segments, .. } = *options;
    let named = format!("-b {block} -t {transfer}");
    if block == 0 || transfer == 0 || segments == 0 {
        return refuse(
            &format!("{named} -s {segments}"),
            "nothing would be moved",
            "give at least 8 bytes and one segment",
        );
    }
    if !block.is_multiple_of(WORD) || !transfer.is_multiple_of(WORD) {
        return refuse(&named, "data are words of 8 bytes", "give multiples of 8");
    }
    if !block.is_multiple_of(transfer) {
        return refuse(&named, "a block must be whole transfers", "give a block that is a multiple of the transfer");
    }
    if transfer > TRANSFER_MAX {
        let why = format!("a transfer is at most {}", size::show(TRANSFER_MAX));
        return refuse(&named, why, "give less with -t");
    }
    if options.direct && !transfer.is_multiple_of(SECTOR) {
        return refuse(&named, "O_DIRECT moves whole sectors of 512 bytes", "give a multiple of 512, better of 4k");
    }
    if options.random && block == transfer {
        let why = "random order is within a block, and the same in each segment: a block of one transfer has only one";
        return refuse(&format!("-z {named}"), why, "give a larger block with -b, and fewer segments");
    }
    Ok(())
}

fn check_checks(options: &Arguments) -> Result<(), Failure> {
    if options.check_read && !options.write && options.stamp == 0 {
        let why = "what was written before has a mark that is not known";
        return refuse("-R without -w", why, "write with -G N -k, and check with -R -G N");
    }
    if options.check_write && !options.write && options.stamp == 0 {
        let why = "what was written before has a mark that is not known";
        return refuse("-W without -w", why, "write with -G N -k, and check with -W -G N");
    }
    let checks = options.check_read || options.check_write;
    if checks && options.random && !options.file_per_rank && !options.write && options.random_seed.is_none() {
        let why = "which task wrote what depends on the seed";
        return refuse(
            "-z with -R or -W, without -w",
            why,
            "give the seed of the run that wrote, --random-offset-seed",
        );
    }
    if options.quit_on_error && !checks {
        return refuse("-q", "nothing is checked", "add -W or -R");
    }
    if options.keep_with_error && !checks {
        return refuse("-K", "nothing is checked", "add -W or -R");
    }
    Ok(())
}

fn check_order(options: &Arguments) -> Result<(), Failure> {
    let reorders = options.reorder_constant || options.reorder_random > 0;
    if options.reorder_constant && options.reorder_random > 0 {
        return refuse("-C and -Z", "tasks are put in order by a constant, or at random", "choose one");
    }
    if options.random && reorders && !options.file_per_rank {
        let why = "in a file of all tasks, transfers already fall to tasks at random";
        return refuse("-z with -C or -Z, without -F", why, "leave -C and -Z out, or add -F");
    }
    if options.unique_directory && !options.file_per_rank {
        return refuse("-u without -F", "there is only one file", "add -F");
    }
    if options.unique_directory && options.file.contains('@') {
        return refuse("-u with several files in -o", "tasks have directories of their own", "choose one");
    }
    if options.file.split('@').all(str::is_empty) {
        return refuse("-o", "it names no file", "give the name of the test file");
    }
    Ok(())
}

fn check_stonewall(options: &Arguments) -> Result<(), Failure> {
    let named = &options.named;
    if named.wear_out && options.deadline == 0.0 {
        return refuse("-O stoneWallingWearOut=1", "without a deadline nothing wears out", "add -D SECONDS");
    }
    if named.status_file.is_some() && !options.keep {
        let why = "it is for reading in another run what this one wrote, and this one removes it";
        return refuse("-O stoneWallingStatusFile", why, "add -k");
    }
    if named.status_file.is_some() && options.write && !named.wear_out {
        let why = "without wearing out tasks write different amounts";
        return refuse("-O stoneWallingStatusFile with -w", why, "add -O stoneWallingWearOut=1");
    }
    if options.use_existing && !options.write {
        return refuse("-E", "nothing is written", "leave it out, or add -w");
    }
    let syncs = options.fsync || options.fsync_each;
    if syncs && !options.write {
        return refuse("-e and -Y", "nothing is written that could be made stable", "leave them out, or add -w");
    }
    Ok(())
}

fn check_api(options: &Arguments) -> Result<(), Failure> {
    if options.api == Api::Posix && options.depth > 1 {
        let why = "pread and pwrite have one transfer under way";
        return refuse(&format!("--depth {} with -a posix", options.depth), why, "use -a uring");
    }
    if options.api == Api::Aqueduct && options.direct {
        let why = "without a mount there is no page cache here, and the server's is always used";
        return refuse("--posix.odirect with -a aqueduct", why, "leave it out");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{parsed, planned, refused};

    #[test]
    fn without_a_phase_all_is_written_and_read() {
        let plan = planned(&["-b", "4m"], 2);
        assert!(plan.options.write && plan.options.read && !plan.options.check_read);
        assert_eq!(plan.moved(), (8 << 20, 8 << 20));
        assert_eq!(planned(&["-w", "-W", "-b", "4m", "-i", "3"], 1).moved(), (12 << 20, 12 << 20));
        assert!(!planned(&["-r"], 1).options.write);
    }

    #[test]
    fn files_have_the_names_that_ior_gives() {
        assert_eq!(planned(&["-o", "/d/f"], 2).file(1, 0), "/d/f");
        assert_eq!(planned(&["-o", "/d/f", "-F"], 2).file(1, 0), "/d/f.00000001");
        assert_eq!(planned(&["-o", "/d/f", "-F", "-m", "-i", "3"], 2).file(1, 2), "/d/f.00000001.2");
        assert_eq!(planned(&["-o", "/d/f", "-F", "-u"], 2).file(1, 0), "/d/1/f.00000001");
        assert_eq!(planned(&["-o", "f", "-F", "-u"], 2).file(1, 0), "1/f.00000001");
        assert_eq!(planned(&["-o", "/f", "-F", "-u"], 2).file(1, 0), "/1/f.00000001");
        assert_eq!(planned(&["-o", "/a/f@/b/g", "-F"], 4).file(3, 0), "/b/g.00000003");
        assert_eq!(planned(&["-o", "/d/f", "-F", "-u"], 2).own_directory(1).as_deref(), Some("/d/1"));
    }

    #[test]
    fn combinations_that_mean_nothing_are_refused() {
        for wrong in [
            "-b 1m -t 3k",
            "-b 0",
            "-t 4",
            "-s 0",
            "-b 4g -t 2g",
            "-z -b 64k -t 64k",
            "-B -t 520 -b 520",
            "-R -r",
            "-W -r",
            "-q",
            "-K",
            "-C -Z",
            "-z -C",
            "-z -Z",
            "-u",
            "-F -u -o a@b",
            "-o @",
            "-O stoneWallingWearOut=1",
            "-O stoneWallingStatusFile=x",
            "-k -D 1 -w -O stoneWallingStatusFile=x",
            "-r -E",
            "-r -e",
            "-r -Y",
            "--depth 2",
            "-a aqueduct -B",
            "-R -G 1 -z -t 4k",
            "-s 8388608t",
            "-z -t 8 -b 2g",
        ] {
            let failure = refused(&wrong.split(' ').collect::<Vec<_>>(), 1);
            assert!(failure.is_usage && !failure.hint.is_empty(), "{wrong}: {failure}");
        }
        for right in [
            "-R -r -G 5",
            "-z -C -F -t 4k",
            "-Z -Z",
            "-k -D 1 -w -O stoneWallingStatusFile=x,stoneWallingWearOut=1",
            "-a uring --depth 9",
            "-R -G 1 -z -t 4k --random-offset-seed 4",
            "-R -G 1 -z -t 4k -F",
            "-B -t 4k",
            "-w -E -k",
            "-q -w -W",
        ] {
            planned(&right.split(' ').collect::<Vec<_>>(), 1);
        }
    }

    #[test]
    fn memory_and_files_are_counted() {
        let plan = planned(
            &["-a", "uring", "--depth", "4", "-t", "1m", "-b", "1g", "-w", "-R", "-F", "-m", "-k", "-i", "3"],
            8,
        );
        assert_eq!(plan.memory(), 5 << 20);
        assert_eq!(plan.files(), 24);
        assert_eq!(planned(&["-z", "-t", "4k", "-b", "1m"], 1).memory(), 4096 + 256 * 8);
        assert!(parsed(&["-D", "0.5"]).deadline > 0.4);
    }
}
