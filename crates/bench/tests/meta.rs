//! Whole runs of `bench meta`.

use std::fs;
use std::path::Path;
use std::process::{Command as Program, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_bench::{Command, Failure, meta, record, run};
use clap::{Args, Command as Line, FromArgMatches};
use serde_json::Value;

/// Runs with these options in a directory; the results of each operation.
fn measure(folder: &Path, options: &str) -> Result<(ExitCode, Vec<record::Measured>), Failure> {
    let file = folder.join("measured");
    let _ = fs::remove_file(&file);
    let (file_name, directory) = (file.to_str().unwrap(), folder.join("test"));
    let fixed = ["meta", "-d", directory.to_str().unwrap(), "--measured", file_name];
    let words = fixed.into_iter().chain(options.split_whitespace());
    let line = meta::Arguments::augment_args(Line::new("meta"));
    let arguments = meta::Arguments::from_arg_matches(&line.try_get_matches_from(words).unwrap()).unwrap();
    let code = run(Command::Meta(Box::new(arguments)))?;
    let text = fs::read_to_string(&file).unwrap_or_default();
    Ok((code, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()))
}

fn ops(measured: &[record::Measured]) -> Vec<(&str, u64)> {
    measured.iter().map(|one| (one.op.as_str(), one.more["operations"].as_u64().unwrap())).collect()
}

/// All files and directories below one, by their paths.
fn tree(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(at) = left.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            if path.is_dir() {
                left.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn all_phases_run_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (code, measured) = measure(folder.path(), "-n 40 -z 2 -b 2 -w 100 -e 100 -X --verify-write -y -i 2").unwrap();
    assert_eq!(code, ExitCode::SUCCESS);
    // 7 directories, so that 40 is rounded to 35.
    let once = [
        ("dir-create", 35),
        ("dir-stat", 35),
        ("dir-rename", 35),
        ("dir-remove", 35),
        ("create", 35),
        ("stat", 35),
        ("read", 35),
        ("remove", 35),
        ("tree-create", 7),
        ("tree-remove", 7),
    ];
    assert_eq!(ops(&measured), [once, once].concat());
    assert!(measured.iter().all(|one| one.unit == "op/s" && one.value > 0.0 && one.seconds > 0.0), "{measured:?}");
    assert_eq!(measured.iter().map(|one| one.repeat).collect::<Vec<_>>(), [vec![0; 10], vec![1; 10]].concat());
    assert_eq!(tree(folder.path()), ["measured"]);
}

#[test]
fn names_and_content_are_what_mdtest_makes() {
    let folder = tempfile::tempdir().unwrap();
    let (_, measured) = measure(folder.path(), "-C -F -I 2 -z 1 -b 2 -w 16").unwrap();
    assert_eq!(ops(&measured), [("create", 6), ("tree-create", 3)]);
    let root = "test/test-dir.0-0/mdtest_tree.0";
    let mut expected: Vec<String> = ["measured", "test", "test/test-dir.0-0", root].map(str::to_owned).into();
    expected.extend([0, 1].map(|item| format!("{root}/file.mdtest.0.{item}")));
    for directory in [1, 2] {
        expected.push(format!("{root}/mdtest_tree.{directory}"));
        expected.extend(
            [0, 1].map(|item| format!("{root}/mdtest_tree.{directory}/file.mdtest.0.{}", directory * 2 + item)),
        );
    }
    expected.sort();
    assert_eq!(tree(folder.path()), expected);
    assert_eq!(fs::metadata(folder.path().join(root).join("file.mdtest.0.1")).unwrap().len(), 16);

    // The phases of later runs find them, in any order; then they are gone.
    let (_, measured) = measure(folder.path(), "-T -E -R --random-seed 5 -F -I 2 -z 1 -b 2 -e 16 -X").unwrap();
    assert_eq!(ops(&measured), [("stat", 6), ("read", 6)]);
    let (_, measured) = measure(folder.path(), "-r -F -I 2 -z 1 -b 2").unwrap();
    assert_eq!(ops(&measured), [("remove", 6), ("tree-remove", 3)]);
    assert_eq!(tree(folder.path()), ["measured", "test"]);
}

#[test]
fn damage_is_found() {
    let folder = tempfile::tempdir().unwrap();
    measure(folder.path(), "-C -F -n 3 -w 32").unwrap();
    let file = folder.path().join("test/test-dir.0-0/mdtest_tree.0/file.mdtest.0.1");
    let mut content = fs::read(&file).unwrap();
    content[20] ^= 0x40;
    fs::write(&file, content).unwrap();
    assert_eq!(measure(folder.path(), "-E -F -n 3 -e 32").unwrap().0, ExitCode::SUCCESS, "nobody asked for a check");
    let (code, measured) = measure(folder.path(), "-E -F -n 3 -e 32 -X").unwrap();
    assert_eq!(code, ExitCode::FAILURE);
    assert!(measured.is_empty(), "what read wrong data is no measurement: {measured:?}");
}

#[test]
fn other_ways_to_make_files() {
    let folder = tempfile::tempdir().unwrap();
    for options in
        ["-n 5 -u -t", "-n 5 -S", "-n 5 -c", "-n 5 -k -F", "-n 6 -I 3 -z 1", "-n 5 -B", "-n 9 -L -z 2 -b 3 -Y"]
    {
        let (code, measured) = measure(folder.path(), options).unwrap();
        assert_eq!(code, ExitCode::SUCCESS, "{options}");
        let created = ops(&measured).into_iter().find(|(op, _)| *op == "create").unwrap().1;
        assert_eq!(
            created,
            if options.contains("-n 9") {
                9
            } else if options.contains("-I 3") {
                12
            } else {
                5
            },
            "{options}"
        );
        assert_eq!(tree(folder.path()), ["measured"], "{options}");
    }
}

#[test]
fn a_stonewall_stops_files_and_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let status = folder.path().join("wall");
    let options = format!("-F -n 100m -x {}", status.display());
    let (_, measured) = measure(folder.path(), &format!("{options} -C -W 1")).unwrap();
    let made = ops(&measured)[0].1;
    assert!(made > 0 && made < 100 << 20, "{made}");
    assert_eq!(fs::read_to_string(&status).unwrap(), format!("{made}\n"));
    let (_, measured) = measure(folder.path(), &format!("{options} -T -r")).unwrap();
    assert_eq!(ops(&measured), [("stat", made), ("remove", made), ("tree-remove", 1)]);
}

#[test]
fn a_failure_says_where_and_cleans_up() {
    let folder = tempfile::tempdir().unwrap();
    let missing = measure(folder.path(), "-T -F -n 3").unwrap_err();
    assert!(missing.what.contains("test") && !missing.is_usage, "{missing}");
    assert!(tree(folder.path()).iter().all(|path| path == "measured"));

    // A directory stands where a file should be made: all that this run has made goes, and what was there stays.
    let root = folder.path().join("test/test-dir.0-0");
    fs::create_dir_all(&root).unwrap();
    fs::create_dir(root.join("mdtest_tree.0")).unwrap();
    let left = measure(folder.path(), "-F -n 3").unwrap_err();
    assert!(left.what.contains("mdtest_tree.0") && left.hint.contains("-r"), "{left}");
    assert!(root.join("mdtest_tree.0").exists());
}

#[test]
fn too_few_inodes_are_noticed_before() {
    let folder = tempfile::tempdir().unwrap();
    let error = measure(folder.path(), "-n 1t -F -w 1m").unwrap_err();
    assert!(error.why.contains("are free there"), "{error}");
    let error = measure(folder.path(), "-n 1t -F -w 1m --dry-run").unwrap_err();
    assert!(error.why.contains("are free there"), "{error}");
    assert_eq!(measure(folder.path(), "-n 10 --dry-run").unwrap().1, []);
    assert!(!folder.path().join("test").exists());
}

#[test]
fn records_have_each_ranks_rate() {
    let folder = tempfile::tempdir().unwrap();
    let (_, measured) = measure(folder.path(), "-n 5 -F -C").unwrap();
    let Value::Array(ranks) = &measured[0].more["ranks"] else { panic!("{measured:?}") };
    assert_eq!((ranks.len(), measured[0].more["tasks"].as_u64()), (1, Some(1)));
}

/// Runs the program in a directory; what it has printed.
fn program(folder: &Path, options: &str) -> Output {
    let directory = folder.join("test");
    Program::new(env!("CARGO_BIN_EXE_aqueduct-bench"))
        .args(["meta", "-d", directory.to_str().unwrap()])
        .args(options.split_whitespace())
        .output()
        .unwrap()
}

#[test]
fn ranks_work_together() {
    let folder = tempfile::tempdir().unwrap();
    for (options, files) in [("-u", 60), ("-N 1", 60), ("-S", 60), ("-c", 60), ("-u -N 1 -R", 60), ("-l 3 -s 2", 20)] {
        let output = program(folder.path(), &format!("-n 20 -w 9 -e 9 -X --ranks 3 --json {options}"));
        assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let creation = &document["tests"][0]["iterations"][0]["File creation"];
        assert_eq!(creation["operations"].as_u64(), Some(files), "{options}: {document}");
        let removal = &document["tests"][0]["iterations"][0]["File removal"]["operations"];
        assert_eq!(removal.as_u64(), Some(if options == "-S" { 20 } else { files }), "{options}");
        assert_eq!(tree(folder.path()), Vec::<String>::new(), "{options}");
        if options.starts_with("-l") {
            let tasks: Vec<_> =
                document["tests"].as_array().unwrap().iter().map(|test| test["tasks"].clone()).collect();
            assert_eq!(tasks, [1, 3]);
        }
    }
}

#[test]
fn the_output_is_that_of_mdtest() {
    let folder = tempfile::tempdir().unwrap();
    let output = program(folder.path(), "-n 10 -F --ranks 2 -i 2");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "-- started at ",
        "was launched with 2 total task(s) on 1 node(s)\n",
        "Nodemap: 11\n",
        "2 tasks, 20 files\n",
        "SUMMARY rate (in ops/sec): (of 2 iterations)\n",
        "\n   File creation ",
        "\n   Tree removal ",
        "\n-- finished at ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("Directory creation"), "{text}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_failure_of_one_rank_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    assert!(program(folder.path(), "-C -F -n 5 --ranks 2").status.success());
    fs::remove_file(folder.path().join("test/test-dir.0-0/mdtest_tree.0/file.mdtest.1.3")).unwrap();
    let output = program(folder.path(), "-T -F -n 5 --ranks 2");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.matches("rank 1 cannot go on").count(), 1, "{text}");
    assert!(text.contains("file.mdtest.1.3"), "{text}");
}

#[test]
fn ctrl_c_removes_what_was_made() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("test");
    let mut child = Program::new(env!("CARGO_BIN_EXE_aqueduct-bench"))
        .args(["meta", "-d", directory.to_str().unwrap(), "-n", "1m", "-F", "-C", "-W", "60", "--ranks", "2"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let made = directory.join("test-dir.0-0/mdtest_tree.0/file.mdtest.1.9");
    let end = Instant::now() + Duration::from_secs(30);
    while !made.exists() && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!directory.exists(), "{:?}", tree(folder.path()).len());
}
