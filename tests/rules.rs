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

/// Each package may use those before it, never the reverse. Some are still to come.
const ORDER: [&str; 18] = [
    "aqueduct-fs",
    "aqueduct-metrics",
    "aqueduct-wire",
    "aqueduct-worker",
    "aqueduct-net",
    "aqueduct-posix",
    "aqueduct-layout",
    "aqueduct-server",
    "aqueduct-session",
    "aqueduct-client",
    "aqueduct-fuse",
    "aqueduct-observe",
    "aqueduct-node",
    "aqueduct-agents",
    "aqueduct-transfer",
    "aqueduct-bench",
    "aqueduct-diagnose",
    ROOT,
];

/// Tells metrics by HTTP, beside the data path: the one that has a runtime.
const HAS_RUNTIME: &str = "aqueduct-observe";

/// Only these libraries know about sockets' owner.
const KNOW_NET: [&str; 2] = ["aqueduct-server", "aqueduct-session"];

/// Crates that are for tests and benchmarks only; nobody may need them.
const DEVELOPMENT: [&str; 3] = ["aqueduct-model", "aqueduct-fuzz", "aqueduct-load"];

/// The binary, which knows all.
const ROOT: &str = "aqueduct";

/// Those who put servers and mounts together, feed each parser, have clients load servers, and
/// measure any layer.
const KNOW_ALL: [&str; 5] = [ROOT, "aqueduct-node", "aqueduct-fuzz", "aqueduct-load", "aqueduct-bench"];

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
fn dependencies_go_one_way() {
    let packages = dependencies();
    let place = |package: &str| ORDER.iter().position(|known| *known == package);
    let mut broken = Vec::new();
    for (package, needs) in packages.iter().filter(|(package, _)| !DEVELOPMENT.contains(&package.as_str())) {
        let Some(own) = place(package) else {
            broken.push(format!("{package} has no place in the order"));
            continue;
        };
        for need in needs.iter().filter(|need| packages.contains_key(*need)) {
            let net = need != "aqueduct-net" || KNOW_NET.contains(&package.as_str());
            if place(need).is_none_or(|of| of >= own) || !(net || KNOW_ALL.contains(&package.as_str())) {
                broken.push(format!("{package} needs {need}"));
            }
        }
    }
    none(broken, "each crate may use those before it in the order; of the libraries only server and session know net");
    assert!(packages.contains_key(ROOT) && packages["aqueduct-server"].contains("aqueduct-net"), "{packages:?}");
    assert!(packages["aqueduct-client"].contains("aqueduct-session"), "{packages:?}");
}

#[test]
fn the_lower_crates_know_none_above() {
    let packages = dependencies();
    let local = |package: &str| -> Vec<&String> {
        packages[package].iter().filter(|need| packages.contains_key(*need)).collect()
    };
    assert_eq!(local("aqueduct-fs"), Vec::<&String>::new());
    assert_eq!(local("aqueduct-metrics"), Vec::<&String>::new());
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
    for (package, needs) in packages.iter().filter(|(package, _)| *package != HAS_RUNTIME) {
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

/// Examples in documentation would be tests that nobody runs: `.ci/tests` does not ask for them.
#[test]
fn documentation_holds_no_tests() {
    let mut found = Vec::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        let fences = text.lines().map(str::trim).filter(|line| line.starts_with("///") || line.starts_with("//!"));
        // Every second one ends a block.
        let fences = fences.filter(|line| line[3..].trim_start().starts_with("```")).step_by(2);
        found.extend(fences.filter(|line| !line.ends_with("```text")).map(|line| format!("{}: {line}", shown(&path))));
    }
    none(found, "blocks of code in documentation are marked as text");
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

/// The modules of a crate, as far as they use each other.
mod modules {
    use std::collections::{BTreeMap, BTreeSet};

    /// A module by its path in the crate; empty: the root.
    pub type Module = Vec<String>;

    /// What uses what.
    pub type Graph = BTreeMap<Module, BTreeSet<Module>>;

    /// A path in the source of a module.
    struct Path {
        segments: Vec<String>,
        /// The name under which an import is known; `None`: used where it stands.
        import: Option<String>,
        /// It is only handed on.
        is_public: bool,
    }

    fn tokens(code: &str) -> Vec<&str> {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let (mut found, mut rest) = (Vec::new(), code);
        while let Some(first) = rest.chars().next() {
            let length = match first {
                _ if is_word(first) => rest.find(|letter| !is_word(letter)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            let (token, behind) = rest.split_at(length);
            rest = behind;
            if !first.is_whitespace() {
                found.push(token);
            }
        }
        found
    }

    /// What stands before an item that is only there for tests.
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

    /// The modules in files of their own that a source has for tests only.
    fn for_tests(module: &Module, code: &str) -> Vec<Module> {
        let tokens = tokens(code);
        let items = (0..tokens.len()).filter_map(|at| tokens[at..].strip_prefix(&TEST));
        let names = items.filter_map(|item| {
            let at = item.iter().position(|token| !matches!(*token, "pub" | "(" | "crate" | "super" | ")"))?;
            matches!(item[at..], ["mod", _, ";", ..]).then(|| item[at + 1].to_owned())
        });
        names.map(|name| [&module[..], &[name]].concat()).collect()
    }

    /// The tokens without what is only there for tests.
    fn product<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
        let (mut kept, mut at) = (Vec::new(), 0);
        while at < tokens.len() {
            if !tokens[at..].starts_with(&TEST) {
                kept.push(tokens[at]);
                at += 1;
                continue;
            }
            let mut depth = 0;
            loop {
                match tokens.get(at) {
                    Some(&"{") => depth += 1,
                    Some(&"}") => depth -= 1,
                    _ => {}
                }
                let ends = matches!(tokens.get(at), None | Some(&"}") | Some(&";")) && depth == 0;
                at += 1;
                if ends {
                    break;
                }
            }
        }
        kept
    }

    fn is_name(token: &str) -> bool {
        token.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
    }

    /// The paths of one tree of imports, from `at` on; returns where it ends.
    fn tree(tokens: &[&str], mut at: usize, start: &[String], is_public: bool, found: &mut Vec<Path>) -> usize {
        let mut segments = start.to_vec();
        while let Some(token) = tokens.get(at) {
            match *token {
                "{" => {
                    at += 1;
                    while tokens.get(at).is_some_and(|token| *token != "}") {
                        at = tree(tokens, at, &segments, is_public, found);
                        at += usize::from(tokens.get(at) == Some(&","));
                    }
                    return at + 1;
                }
                "self" if !segments.is_empty() => {}
                "::" => {}
                name if name == "*" || is_name(name) => segments.push(name.to_owned()),
                _ => break,
            }
            at += 1;
            if tokens.get(at) == Some(&"as") {
                let import = tokens.get(at + 1).map(|name| (*name).to_owned());
                found.push(Path { segments, import, is_public });
                return at + 2;
            }
        }
        let import = segments.last().cloned();
        found.push(Path { segments, import, is_public });
        at
    }

    /// The paths in a source, and the names that stand in it outside of imports.
    fn paths(code: &str) -> (Vec<Path>, BTreeSet<String>) {
        let all = tokens(code);
        let tokens = product(&all);
        let (mut found, mut names) = (Vec::new(), BTreeSet::new());
        // Depths at which modules inside of the file begin.
        let (mut inner, mut depth, mut at) = (Vec::new(), 0, 0);
        while at < tokens.len() {
            let before = found.len();
            match tokens[at] {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    inner.pop_if(|begun| *begun == depth);
                }
                "mod" if tokens.get(at + 2) == Some(&"{") => inner.push(depth),
                "use" if tokens.get(at + 1) != Some(&"<") => {
                    let is_public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                    at = tree(&tokens, at + 1, &[], is_public, &mut found);
                }
                name if is_name(name) && (at == 0 || tokens[at - 1] != "::") => {
                    let mut segments = vec![name.to_owned()];
                    while tokens.get(at + 1) == Some(&"::") && tokens.get(at + 2).is_some_and(|next| is_name(next)) {
                        segments.push(tokens[at + 2].to_owned());
                        at += 2;
                    }
                    names.extend(segments.iter().cloned());
                    if segments.len() > 1 {
                        found.push(Path { segments, import: None, is_public: false });
                    }
                }
                _ => {}
            }
            for path in found.iter_mut().skip(before) {
                // Out of modules inside of the file.
                let outward = path.segments.iter().take_while(|segment| *segment == "super").count().min(inner.len());
                path.segments.drain(..outward);
                if outward > 0 && path.segments.first().is_none_or(|first| first != "super") {
                    path.segments.insert(0, "self".to_owned());
                }
            }
            at += 1;
        }
        (found, names)
    }

    /// The sources of a crate, read.
    struct Crate {
        paths: BTreeMap<Module, (Vec<Path>, BTreeSet<String>)>,
    }

    impl Crate {
        /// The modules in which what a path stands for is defined. One that hands on what others
        /// define is passed through.
        fn targets(&self, from: &Module, path: &[String], tries: usize) -> BTreeSet<Module> {
            let mut module = from.clone();
            let mut rest = path;
            match path.first().map(String::as_str) {
                Some("crate") => (module, rest) = (Vec::new(), &path[1..]),
                Some("self") => rest = &path[1..],
                Some("super") => {
                    while let Some(("super", behind)) = rest.split_first().map(|(first, rest)| (first.as_str(), rest)) {
                        module.pop();
                        rest = behind;
                    }
                }
                Some(first) if self.paths.contains_key(&[&module[..], &[first.to_owned()]].concat()) => {}
                _ => return BTreeSet::new(),
            }
            while let Some((first, behind)) = rest.split_first() {
                let child = [&module[..], std::slice::from_ref(first)].concat();
                if !self.paths.contains_key(&child) {
                    break;
                }
                (module, rest) = (child, behind);
            }
            let handed_on = |name: Option<&String>| {
                let imports = self.paths[&module].0.iter().filter(move |path| {
                    let known = path.import.as_ref();
                    known.is_some() && (name.is_none() && path.is_public || name.is_some() && known == name)
                });
                imports.flat_map(|path| self.targets(&module, &path.segments, tries - 1)).collect::<BTreeSet<_>>()
            };
            let item = rest.first().filter(|item| *item != "*");
            let through = if tries == 0 { BTreeSet::new() } else { handed_on(item) };
            match item {
                Some(_) if !through.is_empty() => through,
                Some(_) => BTreeSet::from([module]),
                None => &through | &BTreeSet::from([module]),
            }
        }
    }

    /// Which module uses which, of sources by their modules, without comments and strings. What a
    /// module only hands on it does not use.
    pub fn graph(sources: &BTreeMap<Module, String>) -> Graph {
        let tests: Vec<_> = sources.iter().flat_map(|(module, code)| for_tests(module, code)).collect();
        let is_product = |module: &Module| !tests.iter().any(|test| module.starts_with(test));
        let sources = sources.iter().filter(|(module, _)| is_product(module));
        let read = Crate { paths: sources.map(|(module, code)| (module.clone(), paths(code))).collect() };
        let uses = |(module, (paths, names)): (&Module, &(Vec<Path>, BTreeSet<String>))| {
            let is_used =
                |path: &&Path| !path.is_public || path.import.as_ref().is_some_and(|name| names.contains(name));
            let targets = paths.iter().filter(is_used).flat_map(|path| read.targets(module, &path.segments, 8));
            (module.clone(), targets.filter(|target| target != module).collect())
        };
        read.paths.iter().map(uses).collect()
    }

    /// The shortest way from a module back to itself.
    fn circle(graph: &Graph, from: &Module) -> Option<Vec<Module>> {
        let mut ways = std::collections::VecDeque::from([vec![from.clone()]]);
        let mut seen = BTreeSet::new();
        while let Some(way) = ways.pop_front() {
            for next in &graph[way.last()?] {
                if next == from {
                    return Some(way);
                }
                if graph.contains_key(next) && seen.insert(next.clone()) {
                    ways.push_back([&way[..], std::slice::from_ref(next)].concat());
                }
            }
        }
        None
    }

    /// Circles, each module of which can reach all others, and the shortest of each as text.
    pub fn circles(graph: &Graph) -> Vec<String> {
        let shown = |module: &Module| if module.is_empty() { "crate".to_owned() } else { module.join("::") };
        let (mut told, mut found) = (BTreeSet::new(), Vec::new());
        for module in graph.keys() {
            let Some(circle) = circle(graph, module) else { continue };
            if !circle.iter().any(|module| told.contains(module)) {
                let names: Vec<String> = circle.iter().chain([module]).map(shown).collect();
                found.push(names.join(" -> "));
            }
            told.extend(circle);
        }
        found
    }
}

/// Each crate's sources by their modules.
fn crates() -> BTreeMap<String, BTreeMap<modules::Module, String>> {
    let mut crates = BTreeMap::<String, BTreeMap<modules::Module, String>>::new();
    for path in sources().iter().filter(|path| !is_test(path)) {
        let inside = path.strip_prefix(root()).unwrap();
        let mut parts: Vec<String> = inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        let at = parts.iter().position(|part| part == "src").unwrap();
        let mut module = parts.split_off(at + 1);
        let last = module.pop().unwrap();
        if !matches!(&*last, "lib.rs" | "main.rs" | "mod.rs") {
            module.push(last.trim_end_matches(".rs").to_owned());
        }
        let code = code(&fs::read_to_string(path).unwrap());
        let name = parts.get(1).cloned().unwrap_or_else(|| ROOT.to_owned());
        crates.entry(name).or_default().entry(module).or_default().push_str(&code);
    }
    crates
}

/// The crate that keeps circles among its modules, since nothing stands on it.
const CIRCLES: &str = "bench";

#[test]
fn modules_use_each_other_one_way() {
    let mut broken = Vec::new();
    let crates = crates();
    for (name, sources) in crates.iter().filter(|(name, _)| *name != CIRCLES) {
        let graph = modules::graph(sources);
        broken.extend(modules::circles(&graph).into_iter().map(|circle| format!("{name}: {circle}")));
    }
    none(broken, "what a module uses does not use it, by whatever way");
    let client = modules::graph(&crates["client"]);
    let module = |path: &str| path.split("::").map(str::to_owned).collect::<modules::Module>();
    assert!(
        client[&module("cache::held")].contains(&module("writeback::table")),
        "what is handed on is found: {client:?}"
    );
}

#[test]
fn a_planted_circle_is_found() {
    let circles = |sources: &[(&str, &str)]| {
        let module = |path: &str| path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let sources = sources.iter().map(|(path, source)| (module(path), code(source))).collect();
        modules::circles(&modules::graph(&sources))
    };
    let none = Vec::<String>::new();
    let b = ("b", "use crate::c::{D, e::F};");
    assert_eq!(circles(&[("", "mod a; mod b;"), ("a", "use super::b;"), b, ("c", ""), ("c::e", "")]), none);
    assert_eq!(circles(&[("", ""), ("a", "use super::b;"), ("b", "fn f() { crate::a::g() }")]), ["a -> b -> a"]);
    assert_eq!(circles(&[("", ""), ("a", "use crate::{x::Y, b::Z};"), ("b", "use super::a as c;")]), ["a -> b -> a"]);
    let long = [("", ""), ("a", "use crate::b::B;"), ("b", "impl crate::c::C {}"), ("c", "fn f(a: crate::a::A) {}")];
    assert_eq!(circles(&long), ["a -> b -> c -> a"]);
    // A parent that hands on is no step of a circle, and is passed through; one that has something
    // of its own is.
    let facade = ("p", "mod a; mod b; pub use a::A;");
    assert_eq!(circles(&[("", ""), facade, ("p::a", ""), ("p::b", "use super::A;")]), none);
    assert_eq!(
        circles(&[("", ""), facade, ("p::a", "use super::b::B;"), ("p::b", "use super::A;")]),
        ["p::a -> p::b -> p::a"]
    );
    assert_eq!(circles(&[("", ""), ("p", "use a::A; pub struct P;"), ("p::a", "use super::P;")]), ["p -> p::a -> p"]);
    assert_eq!(
        circles(&[("", ""), ("p", "pub use a::A; struct P(A);"), ("p::a", "use super::P;")]),
        ["p -> p::a -> p"]
    );
    // What stands in tests, in comments or in a module inside of the file does not count.
    let tests = "#[cfg(test)]\nmod tests { use crate::b::B; }\n// crate::b\nmod inner { use super::C; }";
    assert_eq!(circles(&[("", "struct C;"), ("a", tests), ("b", "use crate::a::A;")]), none);
    let tests = "#[cfg(test)]\npub(crate) mod schedule;";
    let schedule = [("", tests), ("schedule", "use crate::schedule::a::A;"), ("schedule::a", "use super::B;")];
    assert_eq!(circles(&schedule), none);
    assert_eq!(circles(&[("", "mod schedule;"), schedule[1], schedule[2]]), ["schedule -> schedule::a -> schedule"]);
}

/// A metric that nobody records says nothing, and one that nobody tells is recorded in vain.
#[test]
fn every_metric_is_told() {
    let rows = fs::read_to_string(root().join("crates/metrics/src/rows.rs")).unwrap();
    let constants: Vec<&str> = rows.lines().filter_map(|line| line.split_once(": ")?.0.trim().into()).collect();
    let is_constant = |name: &&str| name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_');
    let constants: Vec<&str> = constants.into_iter().filter(is_constant).collect();
    assert!(constants.len() > 60, "{constants:?}");
    let metrics = root().join("crates/metrics");
    let told: BTreeSet<String> = sources()
        .iter()
        .filter(|path| !path.starts_with(&metrics) && !is_test(path))
        .flat_map(|path| {
            let code = code(&fs::read_to_string(path).unwrap());
            let named = code.split("put").skip(1).filter_map(|rest| rest.split("table::").nth(1));
            named.map(|rest| words(rest).next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        })
        .chain(net_rows())
        .collect();
    none(constants.into_iter().filter(|row| !told.contains(*row)).map(str::to_owned).collect(), "each metric is told");
}

/// Those that connections tell stand in a list.
fn net_rows() -> Vec<String> {
    let source = code(&fs::read_to_string(root().join("crates/net/src/counters.rs")).unwrap());
    source.split("&table::").skip(1).map(|rest| words(rest).next().unwrap_or_default().to_owned()).collect()
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
