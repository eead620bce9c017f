//! What an agent runs, and the files that it needs for that.

use std::path::{Path, PathBuf};

use aqueduct_node::Failure;

use crate::agent::{Agent, folder, mac};
use crate::container::Container;
use crate::host::Host;
use crate::image::Content;
use crate::machine::Machine;
use crate::settings::{AgentKind, Settings};
use crate::step::Step;

/// The steps that make what an agent needs, and its command. `mixed`: where control groups of two
/// versions are, the second.
pub(crate) fn work(
    host: &dyn Host,
    settings: &Settings,
    program: &Path,
    agent: &Agent,
    mixed: Option<PathBuf>,
) -> Result<(Vec<Step>, Vec<String>), Failure> {
    let folder = &folder(&settings.name).join(agent.number.to_string());
    let (mut steps, command) = command(settings, program, agent, folder)?;
    match settings.kind {
        AgentKind::Process => Ok((steps, command)),
        AgentKind::Vm => {
            let mut files = Vec::new();
            // What the host would have read there the machine has in its first file system.
            steps.retain(|step| match step {
                Step::Write { path, text, .. } => {
                    files.push((path.clone(), Content::Text(text.clone())));
                    false
                }
                _ => true,
            });
            files.extend(settings.key.iter().map(|key| (key.clone(), Content::Of(key.clone()))));
            let mut shares = binds(settings, folder);
            shares.retain(|(path, _)| Some(path) != settings.key.as_ref());
            // Its state outlives it; the images and sockets of the folder are no business of its.
            let state = folder.join("state");
            shares[0] = (state.clone(), true);
            steps.push(Step::Folder { path: state });
            let mac = mac(agent.address);
            let machine = Machine { settings, agent, folder, mac, files, shares, command: &command };
            let (more, command) = machine.plan(host)?;
            steps.extend(more);
            Ok((steps, command))
        }
        AgentKind::Container => {
            let container = Container {
                runtime: &settings.runtime,
                name: &agent.namespace,
                folder,
                hidden: mixed,
                binds: binds(settings, folder),
                command: &command,
            };
            let (more, command) = container.plan(host)?;
            steps.extend(more);
            Ok((steps, command))
        }
    }
}

/// What an agent that does not see the host sees of it: whether it may change it.
fn binds(settings: &Settings, folder: &Path) -> Vec<(PathBuf, bool)> {
    let mut binds = vec![(folder.to_owned(), true)];
    binds.extend(settings.key.clone().map(|key| (key, false)));
    let exported = settings.export.iter().filter_map(|export| export.get("path")?.as_str());
    binds.extend(exported.map(|path| (path.into(), true)));
    binds.extend(settings.bind.iter().map(|path| (path.clone(), true)));
    binds
}

/// What an agent runs where it sees all of the host.
fn command(
    settings: &Settings,
    program: &Path,
    agent: &Agent,
    folder: &Path,
) -> Result<(Vec<Step>, Vec<String>), Failure> {
    let Settings { command, store, .. } = settings;
    let program = program.display().to_string();
    if !command.is_empty() {
        let own = |word: &String| {
            word.replace("{agent}", &agent.number.to_string()).replace("{address}", &agent.address.to_string())
        };
        return Ok((Vec::new(), command.iter().map(own).collect()));
    }
    if let Some(store) = store {
        // The key is for the servers that it copies from and to.
        let key = settings.key.iter().flat_map(|key| ["--key".to_owned(), key.display().to_string()]);
        let words = [&program, "agents", "run", "--store", store].map(str::to_owned);
        let root = settings.allow_root.then(|| "--allow-root".to_owned());
        return Ok((Vec::new(), words.into_iter().chain(key).chain(root).collect()));
    }
    let path = folder.join("serve.toml");
    let text = serve(settings, agent, folder).map_err(|error| {
        let hint = "see the [[export]] tables of the configuration file";
        Failure::usage("cannot write down what an agent serves", error, hint)
    })?;
    let file = path.display().to_string();
    let steps = vec![Step::Write { path, text, back: None }];
    Ok((steps, [&program, "serve", "--config", &file].map(str::to_owned).to_vec()))
}

/// The configuration file of a server.
fn serve(settings: &Settings, agent: &Agent, folder: &Path) -> Result<String, toml::ser::Error> {
    let Settings { export, key, insecure, port, .. } = settings;
    let mut table = toml::Table::new();
    let address = std::net::SocketAddr::new(agent.address, *port).to_string();
    table.insert("listen".into(), toml::Value::Array(vec![address.into()]));
    // Mounts of this host's loopback addresses do not mean a server in another namespace.
    table.insert("local_sockets".into(), "".into());
    table.insert("state".into(), folder.join("state").display().to_string().into());
    table.insert("insecure".into(), (*insecure).into());
    table.insert("agent".into(), true.into());
    table.extend(key.as_ref().map(|key| ("key".to_owned(), key.display().to_string().into())));
    table.insert("export".into(), toml::Value::Array(export.iter().cloned().map(toml::Value::Table).collect()));
    toml::to_string(&table)
}
