//! Programs that steps run.

use std::time::Duration;

use aqueduct_node::Failure;

use crate::host::Host;

/// Between two looks at something that is awaited.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// The words of a command.
pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Runs a program of a step.
pub(crate) fn run(host: &dyn Host, command: &[String]) -> Result<String, Failure> {
    host.run(command).map_err(|why| {
        let hint = if why.contains("not permitted") || why.contains("ermission denied") {
            "run it as root"
        } else if why.contains("No such file") && why.starts_with("ip:") {
            "install iproute2"
        } else {
            "'aqueduct agents up --dry-run' shows all steps: see whether the host can do this one"
        };
        Failure::new(format!("cannot run '{}'", command.join(" ")), why, hint)
    })
}
