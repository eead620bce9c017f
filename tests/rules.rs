//! Our own rules, checked: which crate may know which, how long files and functions are, where `unsafe` may stand, and that every promise has its test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Longer files hold more than one idea.
const FILE_LINES_MAX: usize = 800;

/// Longer functions do more than one thing.
const FUNCTION_LINES_MAX: usize = 70;

/// What every library may know.
const COMMON: [&str; 3] = ["aqueduct-fs", "aqueduct-wire", "aqueduct-worker"];

/// Only these libraries know about sockets' owner.
const KNOW_NET: [&str; 2] = ["aqueduct-server", "aqueduct-client"];

/// Crates that are for tests and benchmarks only; nobody may need them.
const DEVELOPMENT: [&str; 3] = ["aqueduct-model", "aqueduct-fuzz", "aqueduct-load"];

/// The binary, which knows all.
const ROOT: &str = "aqueduct";

/// Those who feed each parser, have clients load servers, and measure any layer.
const KNOW_ALL: [&str; 4] = [ROOT, "aqueduct-fuzz", "aqueduct-load", "aqueduct-bench"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn metadata() -> Value {
    let arguments = ["metadata", "--format-version=1", "--no-deps", "--offline"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Each package with what it needs to be built (not what its tests need).
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        all.filter(|dependency| dependency["kind"] != "dev").map(|dependency| text(&dependency["name"])).collect()
    };
    let metadata = metadata();
    metadata["packages"].as_array().unwrap().iter().map(|package| (text(&package["name"]), of(package))).collect()
}

/// All files below `directory` with this ending.
fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// All Rust sources of the product: `src` and `crates/*/src`.
fn sources() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let all: Vec<_> = crates.chain([root().join("src")]).flat_map(|directory| files(&directory, "rs")).collect();
    assert!(all.len() > 20, "where are the sources?");
    all
}

/// Everything, tests and benchmarks too.
fn all_sources() -> Vec<PathBuf> {
    ["crates", "src", "tests", "bench", "fuzz"]
        .iter()
        .flat_map(|directory| files(&root().join(directory), "rs"))
        .collect()
}

fn is_test(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    name == "tests.rs" || name.ends_with("_tests.rs") || path.components().any(|part| part.as_os_str() == "tests")
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// A source with comments, strings and characters blanked out, line for line: what is left is code.
fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let length = blank_length(&bytes[at..], at > 0 && is_word(bytes[at - 1]));
        if length == 0 {
            out.push(bytes[at]);
            at += 1;
        } else {
            out.extend(bytes[at..at + length].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
            at += length;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// How much of `rest` is one comment, string or character from its start; 0 for code.
fn blank_length(rest: &[u8], in_word: bool) -> usize {
    let until = |end: &[u8], from: usize| {
        rest[from..].windows(end.len()).position(|window| window == end).map_or(rest.len(), |at| from + at + end.len())
    };
    if rest.starts_with(b"//") {
        return rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return until(b"*/", 2);
    }
    if !in_word {
        let prefix = rest.iter().take_while(|&&byte| byte == b'b' || byte == b'c').count().min(1);
        let raw = &rest[prefix..];
        if raw.first() == Some(&b'r') {
            let hashes = raw[1..].iter().take_while(|&&byte| byte == b'#').count();
            if raw.get(1 + hashes) == Some(&b'"') {
                let end = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
                return until(&end, prefix + hashes + 2);
            }
        }
    }
    match rest {
        [b'"', ..] => quoted(rest, b'"'),
        // Not a lifetime.
        [b'\'', b'\\', ..] => quoted(rest, b'\''),
        [b'\'', first, ..] => {
            let width = match first {
                0..0x80 => 1,
                0x80..0xe0 => 2,
                0xe0..0xf0 => 3,
                _ => 4,
            };
            if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
        }
        _ => 0,
    }
}

fn quoted(rest: &[u8], end: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != end {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// The words of a line of code.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')).filter(|word| !word.is_empty())
}

/// Functions with the number of their first line and their length, from the line with `fn` to the closing brace.
fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    let mut open: Vec<(String, usize, usize)> = Vec::new();
    let mut waiting: Option<(String, usize)> = None;
    let (mut depth, mut round) = (0usize, 0usize);
    for (number, line) in code.lines().enumerate() {
        let mut previous = "";
        for word in words(line) {
            if previous == "fn" && waiting.is_none() {
                waiting = Some((word.to_owned(), number + 1));
            }
            previous = word;
        }
        for letter in line.chars() {
            match letter {
                '(' | '[' => round += 1,
                ')' | ']' => round = round.saturating_sub(1),
                // A declaration without a body.
                ';' if round == 0 => waiting = None,
                '{' => {
                    depth += 1;
                    if let Some((name, first)) = waiting.take_if(|_| round == 0) {
                        open.push((name, first, depth));
                    }
                }
                '}' => {
                    if let Some((name, first, _)) = open.pop_if(|(_, _, at)| *at == depth) {
                        found.push((name, first, number + 2 - first));
                    }
                    depth = depth.saturating_sub(1);
                }
                _ => {}
            }
        }
    }
    found
}

#[track_caller]
fn none(found: Vec<String>, rule: &str) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn dependencies_form_a_star() {
    let packages = dependencies();
    let mut broken = Vec::new();
    for (package, needs) in &packages {
        for need in needs.iter().filter(|need| packages.contains_key(*need)) {
            let net = need == "aqueduct-net" && KNOW_NET.contains(&package.as_str());
            let allowed = KNOW_ALL.contains(&package.as_str()) || COMMON.contains(&need.as_str()) || net;
            if !allowed || DEVELOPMENT.contains(&need.as_str()) {
                broken.push(format!("{package} needs {need}"));
            }
        }
    }
    none(broken, "libraries depend on fs, wire and worker; server and client also on net; only the binary knows all");
    assert!(packages.contains_key(ROOT) && packages["aqueduct-server"].contains("aqueduct-net"), "{packages:?}");
}

#[test]
fn the_lower_crates_know_none_above() {
    let packages = dependencies();
    let local = |package: &str| -> Vec<&String> {
        packages[package].iter().filter(|need| packages.contains_key(*need)).collect()
    };
    assert_eq!(local("aqueduct-fs"), Vec::<&String>::new());
    assert_eq!(local("aqueduct-worker"), Vec::<&String>::new());
    assert!(local("aqueduct-wire").iter().all(|need| *need == "aqueduct-fs"), "{:?}", local("aqueduct-wire"));
}

#[test]
fn the_protocol_has_no_sockets_and_no_clock() {
    let packages = dependencies();
    for forbidden in ["rustix", "libc", "socket2", "aqueduct-net", "aqueduct-worker", "getrandom", "tokio"] {
        assert!(!packages["aqueduct-wire"].contains(forbidden), "crates/wire needs {forbidden}");
    }
    let mut broken = Vec::new();
    for path in files(&root().join("crates/wire/src"), "rs") {
        let code = code(&fs::read_to_string(&path).unwrap());
        for word in ["std::net", "std::os", "std::fs", "std::time", "std::thread", "std::io", "Instant", "SystemTime"] {
            if code.contains(word) {
                broken.push(format!("{}: {word}", shown(&path)));
            }
        }
    }
    none(broken, "crates/wire is pure");
    let library = fs::read_to_string(root().join("crates/wire/src/lib.rs")).unwrap();
    assert!(library.contains("#![forbid(unsafe_code)]"), "crates/wire forbids unsafe code");
}

#[test]
fn the_data_path_has_no_runtime() {
    let packages = dependencies();
    for (package, needs) in &packages {
        for runtime in ["tokio", "async-std", "smol", "futures"] {
            assert!(!needs.contains(runtime), "{package} needs {runtime}: we have workers of our own");
        }
    }
}

#[test]
fn files_are_short() {
    let long = |path: &PathBuf| {
        let lines = fs::read_to_string(path).unwrap().lines().count();
        (lines >= FILE_LINES_MAX).then(|| format!("{}: {lines} lines", shown(path)))
    };
    none(all_sources().iter().filter_map(long).collect(), &format!("files have fewer than {FILE_LINES_MAX} lines"));
}

#[test]
fn functions_are_short() {
    let mut long = Vec::new();
    let mut count = 0;
    for path in sources().iter().filter(|path| !is_test(path)) {
        for (name, first, length) in functions(&code(&fs::read_to_string(path).unwrap())) {
            count += 1;
            if length >= FUNCTION_LINES_MAX {
                long.push(format!("{}:{first}: {name} has {length} lines", shown(path)));
            }
        }
    }
    assert!(count > 300, "only {count} functions were found");
    none(long, &format!("functions have fewer than {FUNCTION_LINES_MAX} lines"));
}

#[test]
fn unsafe_stands_in_sys_modules() {
    let mut elsewhere = Vec::new();
    for path in all_sources().into_iter().filter(|path| !is_test(path) || path.starts_with(root().join("tests"))) {
        let code = code(&fs::read_to_string(&path).unwrap());
        let is_home = path.file_name().is_some_and(|name| name == "sys.rs");
        for (number, line) in code.lines().enumerate() {
            let names = |wanted| words(line).any(|word| word == wanted);
            if !is_home && names("unsafe") && !line.contains("unsafe_op_in") {
                elsewhere.push(format!("{}:{}", shown(&path), number + 1));
            }
        }
    }
    none(elsewhere, "unsafe code stands in the sys.rs of its crate");
}

#[test]
fn nothing_is_left_to_do_later() {
    let mut left = Vec::new();
    for path in all_sources().iter().filter(|path| !path.ends_with("tests/rules.rs")) {
        let text = fs::read_to_string(path).unwrap();
        for (number, (line, comment)) in code(&text).lines().zip(text.lines()).enumerate() {
            let macros = ["todo!", "unimplemented!", "dbg!"].iter().any(|name| line.contains(name));
            let notes = ["TODO", "FIXME", "XXX", "HACK"].iter().any(|note| words(comment).any(|word| word == *note));
            if macros || notes {
                left.push(format!("{}:{}: {}", shown(path), number + 1, comment.trim()));
            }
        }
    }
    none(left, "no todo!, unimplemented!, dbg! and no notes of that kind");
}

/// `[test: MODULE::NAME]` everywhere in a text.
fn promised(text: &str) -> Vec<(String, String)> {
    let parts = text.split("[test: ").skip(1).filter_map(|rest| rest.split(']').next());
    parts.map(|path| path.rsplit_once("::").unwrap_or(("", path))).map(|(m, n)| (m.into(), n.into())).collect()
}

#[test]
fn every_promise_names_its_test() {
    let text = fs::read_to_string(root().join("SEMANTICS.md")).unwrap();
    let promises = promised(&text);
    assert!(promises.len() > 20, "SEMANTICS.md names only {} tests", promises.len());
    // Tests are functions right below their attribute, in the file or inline module of that name.
    let mut tests = BTreeSet::new();
    for path in all_sources() {
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let parent = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        for pair in lines.windows(2).filter(|pair| pair[0].starts_with("#[test]")) {
            let name = pair[1].trim_start_matches("fn ").split('(').next().unwrap_or_default();
            tests.extend([stem, parent].map(|module| (module.to_owned(), name.to_owned())));
        }
    }
    let missing = promises.iter().filter(|(module, name)| {
        let module = module.rsplit("::").next().unwrap_or_default();
        !tests.contains(&(module.to_owned(), name.clone()))
    });
    none(missing.map(|(module, name)| format!("{module}::{name}")).collect(), "tests that SEMANTICS.md names exist");
}

/// A mutation that does not fit any more shows nothing.
#[test]
fn every_mutation_fits_the_code() {
    let text = fs::read_to_string(root().join("tests/mutations/mutations.toml")).unwrap();
    let table: toml::Table = text.parse().unwrap();
    let mutations = table["mutation"].as_array().unwrap();
    let further =
        |mutation: &toml::Value| mutation.get("also").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let changes = mutations.iter().flat_map(|mutation| {
        [vec![mutation.clone()], further(mutation)]
            .concat()
            .into_iter()
            .map(|change| (mutation["name"].clone(), change))
    });
    let misfits = changes.filter_map(|(name, change)| {
        let field = |name: &str| change[name].as_str().unwrap();
        let source = fs::read_to_string(root().join(field("file"))).unwrap_or_default();
        let count = source.matches(field("find")).count();
        (count != 1).then(|| format!("{name:?}: found {count} times in {}", field("file")))
    });
    none(misfits.collect(), "what a mutation replaces stands exactly once in its file");
}

#[test]
fn the_checks_see_what_they_should() {
    let source = "fn a() {\n    let s = \"} fn x {\";\n}\n// fn no() {}\nimpl T {\n    fn b<'a>(x: &'a [u8; 2]) -> char {\n        '}'\n    }\n    fn c();\n}\n";
    let found = functions(&code(source));
    let names: Vec<_> = found.iter().map(|(name, first, length)| (name.as_str(), *first, *length)).collect();
    assert_eq!(names, [("a", 1, 3), ("b", 6, 3)]);
    assert!(!code("let x = r#\"unsafe \" todo!\"#; // unsafe\n/* unsafe */ b\"unsafe\"").contains("unsafe"));
    assert!(code("'\\'' ; '\"' ; unsafe").contains("unsafe"));
    assert_eq!(promised("x [test: a::b] y\n[test: c::d::e]"), [("a".into(), "b".into()), ("c::d".into(), "e".into())]);
}
