//! `aqueduct doctor`: what this host has for mounts and servers, and what to do about the rest.

use std::process::ExitCode;

use aqueduct_node::doctor::{Facts, Finding, State, examine};

use crate::failure::Failure;
use crate::output;
use crate::table::render;

/// Exits with 1 if something is missing that mounts need.
pub fn run(json: bool) -> Result<ExitCode, Failure> {
    let findings = examine(&Facts::gather());
    if json {
        output::json(&findings);
    } else {
        output::print(format_args!("{}", text(&findings)));
    }
    let is_missing = findings.iter().any(|finding| finding.state == State::Missing);
    Ok(if is_missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn text(findings: &[Finding]) -> String {
    let state = |state| match state {
        State::Good => "good",
        State::Less => "less",
        State::Missing => "MISSING",
        State::Unknown => "unknown",
    };
    let row = |finding: &Finding| {
        vec![state(finding.state).to_owned(), finding.what.to_owned(), finding.found.clone(), finding.gives.to_owned()]
    };
    let mut text = render(&["", "what", "found", "what for"], &findings.iter().map(row).collect::<Vec<_>>());
    let advice = findings.iter().filter_map(|finding| Some((finding.what, finding.advice.as_deref()?)));
    for (at, (what, advice)) in advice.enumerate() {
        text.push_str(if at == 0 { "\nWhat to do:\n" } else { "" });
        text.push_str(&format!("  {what}: {advice}\n"));
    }
    text
}
