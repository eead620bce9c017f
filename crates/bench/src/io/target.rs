//! Where the test file lies: how it is reached, and whether what is planned can be done there at all.

use std::io;

use super::api::{Names, Space, Transfers};
use super::arguments::{Api, Arguments};
use super::local::{Mounted, Posix, Uring};
use super::phase::{Tally, Work};
use super::plan::Plan;
use super::projected::{Projected, Session, Target};
use super::{measured, size};
use crate::Failure;

/// Files by one of the interfaces. Not behind a pointer: the inner loop is compiled for each.
pub enum Files {
    /// pread and pwrite.
    Posix(Posix),
    /// io_uring.
    Uring(Box<Uring>),
    /// Aqueduct's client.
    Projected(Projected),
}

impl Files {
    /// Of any of them, what is not in the inner loop.
    pub fn any(&mut self) -> &mut dyn Transfers {
        match self {
            Files::Posix(files) => files,
            Files::Uring(files) => &mut **files,
            Files::Projected(files) => files,
        }
    }

    /// The inner loop.
    pub fn run(&mut self, work: &mut Work<'_>, tally: &mut Tally, stop: &mut dyn FnMut() -> bool) -> io::Result<()> {
        match self {
            Files::Posix(files) => work.run(files, tally, stop),
            Files::Uring(files) => work.run(&mut **files, tally, stop),
            Files::Projected(files) => work.run(files, tally, stop),
        }
    }
}

/// Opens what the options say: names, and buffers for transfers.
pub fn reach(options: &Arguments, rank: usize) -> Result<(Box<dyn Names>, Files), Failure> {
    let Arguments { api, depth, direct, .. } = *options;
    let length = options.transfer as usize;
    let what = format!("{} with {depth} transfers of {} under way", api.name(), size::show(options.transfer));
    match api {
        Api::Posix => {
            let files = Posix::new(length, direct);
            let files = files.map_err(|error| Failure::new(what, error, "give smaller transfers with -t"))?;
            Ok((Box::new(Mounted), Files::Posix(files)))
        }
        Api::Uring => {
            let hint = "see whether the kernel offers io_uring (sysctl kernel.io_uring_disabled), or use -a posix";
            let files = Uring::new(depth, length, direct).map_err(|error| Failure::new(what, error, hint))?;
            Ok((Box::new(Mounted), Files::Uring(Box::new(files))))
        }
        Api::Aqueduct => {
            let session = Session::connect(&Target::parse(&options.file)?, format!("aqueduct-bench-{rank}"))?;
            let files = Projected::new(session.clone(), depth, length);
            Ok((Box::new(session), Files::Projected(files)))
        }
    }
}

/// Why something could not be done with a file, and what to do.
pub fn failed(doing: &str, file: &str, error: &io::Error, options: &Arguments) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::NotFound if doing == "reading" => "write it first with -w -k and the same -o, -F and -N",
        io::ErrorKind::NotFound => "make its directory, or give another file with -o",
        io::ErrorKind::UnexpectedEof => "write it first with -w -k and the same -b, -s, -t, -F and -N",
        io::ErrorKind::PermissionDenied => "see who may write and read there, or give another file with -o",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "give less with -b or -s, or another place with -o"
        }
        io::ErrorKind::InvalidInput if options.direct => {
            "the file system may want larger or aligned transfers for O_DIRECT, or have none: try -t 4k, or leave --posix.odirect out"
        }
        _ => "see what the kernel's log and the server's say",
    };
    Failure::new(format!("{doing} {file}"), error, hint)
}

/// What is free, if what is planned can be done: the directory is there, the data have room, the buffers too.
pub fn check(plan: &Plan, names: &mut dyn Names) -> Result<Space, Failure> {
    let options = &plan.options;
    let file = plan.file(0, 0);
    // -u makes the last directory.
    let at = plan.own_directory(0).filter(|directory| !directory.is_empty()).unwrap_or(file);
    let space = names.space(&at).map_err(|error| {
        let hint = "make the directory, or give another file with -o";
        Failure::new(format!("looking for the directory of {at}"), error, hint)
    })?;
    check_memory(plan, available_memory())?;
    if !options.write {
        return Ok(space);
    }
    let files = if options.file_per_rank { plan.layout.ranks } else { 1 };
    let (mut freed, mut there) = (0, 0);
    for rank in 0..files {
        // What is there already is overwritten, or goes away first. Whatever hinders this is found when it is opened.
        if let Some((_, taken)) = names.size(&plan.file(rank, 0)).ok().flatten() {
            (freed, there) = (freed + taken, there + 1);
        }
    }
    let needed = plan.layout.total().saturating_mul(plan.copies());
    if plan.deadline().is_none() && space.bytes > 0 && needed > space.bytes_free.saturating_add(freed) {
        let why = format!("there is room for {}", size::show(space.bytes_free.saturating_add(freed)));
        let hint = "give less with -b, -s or -N, end it early with -D, or give another place with -o";
        return Err(Failure::new(format!("{} of data at {at}", size::show(needed)), why, hint));
    }
    if space.files > 0 && plan.files() > space.files_free.saturating_add(there) {
        let why = format!("there are {} inodes left", space.files_free);
        let hint = "leave -F out, or give another place with -o";
        return Err(Failure::new(format!("{} files at {at}", plan.files()), why, hint));
    }
    Ok(space)
}

/// Bytes that this host can still give away, if it says so.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib << 10)
}

fn check_memory(plan: &Plan, available: Option<u64>) -> Result<(), Failure> {
    let needed = plan.memory().saturating_mul(plan.nodes.per_node);
    match available {
        Some(available) if needed > available => {
            let why = format!("{} are available", size::show(available));
            let hint = "give smaller transfers with -t, or fewer of them with --depth, or fewer tasks to a host";
            Err(Failure::new(format!("{} of memory for buffers", size::show(needed)), why, hint))
        }
        _ => Ok(()),
    }
}

/// The plan and what it takes, as `--dry-run` prints it.
pub fn describe(plan: &Plan, space: &Space) -> String {
    let options = &plan.options;
    let (written, read) = plan.moved();
    let line = |key: &str, value: String| super::table::pair(key, value);
    let mut text = "Plan (dry run, nothing is done):\n".to_owned();
    super::table::options(plan).iter().for_each(|(key, value)| text += &super::table::pair(key, value));
    text.push('\n');
    let all = if options.deadline > 0.0 { " at most" } else { "" };
    text += &line("bytes written", size::show(written) + all);
    text += &line("bytes read", size::show(read) + all);
    let each = size::show(plan.layout.file());
    text += &line("files", format!("{} of {each}, first {}", plan.files(), plan.file(0, 0)));
    let needed = plan.layout.total().saturating_mul(plan.copies());
    text += &line("space needed", if options.write { size::show(needed) } else { "none".into() });
    text += &line("space free", size::show(space.bytes_free));
    let memory = size::show(plan.memory());
    text += &line("memory", format!("{memory} for each of {} tasks", plan.layout.ranks));
    text + &line("estimated time", estimate(plan))
}

fn estimate(plan: &Plan) -> String {
    let options = &plan.options;
    let repetitions = f64::from(options.repetitions);
    let (written, read) = plan.moved();
    let phases = f64::from(u8::from(options.write)) + f64::from(u8::from(plan.reads()));
    let delays = options.delay * phases * repetitions;
    let known = |op: &str, bytes: u64| -> Option<f64> {
        if bytes == 0 {
            return Some(0.0);
        }
        Some(bytes as f64 / measured::known_rate(options.measured.as_deref()?, op)?)
    };
    match (known("write", written), known("read", read)) {
        _ if options.deadline > 0.0 => {
            format!("{:.0} s, and what wearing out and checking take", phases * options.deadline * repetitions + delays)
        }
        (Some(write), Some(read)) => format!("{:.0} s, at the rates of {}", write + read + delays, shown(options)),
        _ => "unknown: --measured names no file with rates of earlier runs".to_owned(),
    }
}

fn shown(options: &Arguments) -> String {
    options.measured.as_ref().map_or_else(String::new, |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::super::tests::planned;
    use super::*;

    struct Full(Space);

    impl Names for Full {
        fn size(&mut self, _path: &str) -> io::Result<Option<(u64, u64)>> {
            Ok(Some((4096, 4096)))
        }

        fn remove(&mut self, _path: &str) -> io::Result<bool> {
            Ok(false)
        }

        fn make_directory(&mut self, _path: &str) -> io::Result<()> {
            Ok(())
        }

        fn remove_directory(&mut self, _path: &str) -> io::Result<()> {
            Ok(())
        }

        fn space(&mut self, path: &str) -> io::Result<Space> {
            if path.starts_with("/no/") { Err(io::ErrorKind::NotFound.into()) } else { Ok(self.0) }
        }
    }

    #[test]
    fn a_plan_that_has_no_room_is_refused() {
        let mut full = Full(Space { bytes: 1 << 30, bytes_free: 1 << 20, files: 1000, files_free: 2 });
        assert!(check(&planned(&["-b", "1m"], 1), &mut full).is_ok());
        // What is there already makes room.
        assert!(check(&planned(&["-b", "1028k", "-t", "4k"], 1), &mut full).is_ok());
        let failure = check(&planned(&["-b", "1032k", "-t", "4k"], 1), &mut full).unwrap_err();
        assert!(failure.what.contains("1.01 MiB of data") && failure.why.contains("room for 1.00 MiB"), "{failure}");
        assert!(check(&planned(&["-r", "-b", "1g"], 1), &mut full).is_ok());
        assert!(check(&planned(&["-b", "1g", "-D", "1"], 1), &mut full).is_ok());
        assert!(check(&planned(&["-b", "256k", "-i", "9"], 1), &mut full).is_ok());
        assert!(check(&planned(&["-b", "256k", "-i", "9", "-m", "-k"], 1), &mut full).is_err());
        let many = ["-b", "8", "-t", "8", "-F", "-m", "-k", "-i", "2"];
        full.0.files_free = 4;
        assert!(check(&planned(&many, 4), &mut full).is_ok());
        full.0.files_free = 3;
        assert!(check(&planned(&many, 4), &mut full).unwrap_err().what.contains("8 files"));
        let failure = check(&planned(&["-o", "/no/f"], 1), &mut full).unwrap_err();
        assert!(failure.what.contains("/no/f"), "{failure}");
        let plan = planned(&["-t", "1g", "-b", "1g"], 4);
        assert!(check_memory(&plan, Some(4 << 30)).is_ok() && check_memory(&plan, None).is_ok());
        assert!(check_memory(&plan, Some(3 << 30)).unwrap_err().why.contains("3 GiB"));
    }

    #[test]
    fn a_dry_run_says_what_it_takes() {
        let space = Space { bytes_free: 5 << 30, ..Space::default() };
        let text = describe(&planned(&["-b", "1g", "-F", "-i", "2", "-o", "/d/f"], 4), &space);
        for line in [
            "bytes written       : 8 GiB\n",
            "files               : 4 of 1 GiB, first /d/f.00000000\n",
            "space needed        : 4 GiB\n",
            "space free          : 5 GiB\n",
            "memory              : 262144 bytes for each of 4 tasks\n",
            "estimated time      : unknown",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let text = describe(&planned(&["-D", "30", "-i", "2", "-d", "1"], 4), &space);
        assert!(text.contains("estimated time      : 124 s"), "{text}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m");
        let measured = |op| super::super::results::Measurement { op, bytes: 1 << 20, total: 1.0, ..Default::default() };
        ["write", "read"].iter().for_each(|op| measured::append(&path, &measured(op)).unwrap());
        let text = describe(&planned(&["-b", "30m", "--measured", path.to_str().unwrap()], 1), &space);
        assert!(text.contains("estimated time      : 60 s, at the rates of"), "{text}");
    }
}
