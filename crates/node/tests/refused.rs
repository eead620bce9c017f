//! What cannot be served or mounted, and what is told of it.

use std::fs;

use aqueduct_node::{ExportSettings, Kind, Mount, MountConfig, MountSettings, ServeConfig, ServeSettings, Server};
use tempfile::TempDir;

/// What is told has what was tried, on what, why it failed and what to do, and says which sort it
/// is.
#[track_caller]
fn told<T>(result: Result<T, aqueduct_node::Failure>, kind: Kind, parts: [&str; 3]) {
    let failure = result.map(drop).unwrap_err();
    assert_eq!(failure.kind, kind, "{failure}");
    let [what, why, hint] = parts;
    assert!(failure.what.contains(what) && failure.why.contains(why) && failure.hint.contains(hint), "{failure}");
    let lines: Vec<_> = failure.to_string().lines().map(str::to_owned).collect();
    assert!(lines.len() >= 3 && lines.iter().any(|line| line.starts_with("     why: ")), "{failure}");
}

#[test]
fn settings_that_cannot_be_meant_are_refused_with_what_and_why_and_what_to_do() {
    let folder = TempDir::new().unwrap();
    let served = |settings: ServeSettings| {
        let export = vec![ExportSettings::of(folder.path())];
        let config = ServeConfig::resolve(ServeSettings { export, ..settings })?;
        Server::start(&config)
    };
    told(ServeConfig::resolve(ServeSettings::default()), Kind::Settings, ["serve", "no directory", "[[export]]"]);
    told(Server::start(&ServeConfig::default()), Kind::Settings, ["serve", "no directory", "[[export]]"]);
    let nowhere = ServeSettings { export: vec![ExportSettings::of("/nonexistent")], ..ServeSettings::default() };
    told(ServeConfig::resolve(nowhere), Kind::Export, ["/nonexistent", "No such file", "directory that exists"]);
    let open = ServeSettings { listen: vec!["0.0.0.0:0".into()], ..ServeSettings::default() };
    told(served(open), Kind::Settings, ["0.0.0.0:0", "as any user", "--insecure"]);
    let keyless = ServeSettings { key: Some("/nonexistent/key".into()), ..ServeSettings::default() };
    told(served(keyless), Kind::System, ["/nonexistent/key", "No such file", "keygen"]);
    let state = folder.path().join("state");
    fs::write(&state, "a file").unwrap();
    let stateless =
        ServeSettings { state: Some(state), listen: vec!["127.0.0.1:0".into()], ..ServeSettings::default() };
    told(served(stateless), Kind::State, ["folder", "File exists", "--state"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let busy = ServeSettings {
        state: Some(folder.path().join("s")),
        listen: vec![address.clone()],
        ..ServeSettings::default()
    };
    told(served(busy), Kind::Listen, [&address, "in use", "ss -ltnp"]);
}

#[test]
fn a_mount_that_cannot_be_is_refused_with_what_and_why_and_what_to_do() {
    let folder = TempDir::new().unwrap();
    let settings = |source: &str, options: &[&str]| MountSettings {
        source: source.into(),
        target: folder.path().into(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        local: false,
    };
    let resolve = |source: &str, options: &[&str]| MountConfig::resolve(&settings(source, options));
    told(resolve("host", &[]), Kind::Settings, ["mount 'host'", "names no export", "HOST:/EXPORT"]);
    told(resolve("host:/x", &["workers=0"]), Kind::Settings, ["workers=0", "'0' is not", "1 to 64"]);
    told(resolve("host:/x", &["key=/nonexistent/key"]), Kind::System, ["/nonexistent/key", "No such file", "keygen"]);
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let alone = resolve(&format!("127.0.0.1:{port}:/x"), &[]).and_then(Mount::new);
    let what = format!("cannot mount 127.0.0.1:{port}:/x on {}", folder.path().display());
    told(alone, Kind::Connect, [&what, "refused", "aqueduct serve"]);
    let local = MountSettings { local: true, ..settings("/nonexistent", &[]) };
    told(MountConfig::resolve(&local), Kind::Export, ["/nonexistent", "No such file", "directory that exists"]);
}
