//! `aqueduct route`: a router, until a signal, and what is asked of the one that runs here.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use aqueduct_metrics::status::{FlowStatus, NetworkStatus, RouteState, RouterStatus};
use aqueduct_metrics::{Sample, table};
use aqueduct_node::control::{self, Request};
use aqueduct_node::{Router, RouterConfig, RouterSettings, usual_control};

use crate::args::RouteCommand;
use crate::failure::Failure;
use crate::table::{bytes, render, span};
use crate::{args, output, service};

/// Flows that are shown to people.
const FLOWS_SHOWN_MAX: usize = 16;

/// Between looks whether all flows have left.
const DRAIN_STEP: Duration = Duration::from_millis(100);

/// Runs a router, or asks the one that runs.
pub fn run(arguments: &args::Route) -> Result<ExitCode, Failure> {
    match &arguments.command {
        None => return serve(arguments),
        Some(RouteCommand::Show { json, control }) => {
            let status = ask(control, &Request::Show)?;
            if *json {
                // Its keys are strings.
                output::json(&status);
            } else {
                output::print(format_args!("{}", text(&status)));
            }
        }
        Some(RouteCommand::Add { route, control }) => drop(ask(control, &Request::Add(route.clone()))?),
        Some(RouteCommand::Del { route, control }) => drop(ask(control, &Request::Delete(route.clone()))?),
        Some(RouteCommand::Resume { control }) => drop(ask(control, &Request::Resume)?),
        Some(RouteCommand::Drain { seconds, control }) => drain(control, *seconds)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(arguments: &args::Route) -> Result<ExitCode, Failure> {
    let file = RouterSettings::read(&arguments.config)?;
    let (metrics, token) = (arguments.metrics.clone(), arguments.metrics_token.clone());
    let settings =
        RouterSettings { metrics: metrics.or(file.metrics), metrics_token: token.or(file.metrics_token), ..file };
    let config = RouterConfig::resolve(settings)?;
    let signals = service::signals_and_reload()?;
    let mut router = Router::start(&config)?;
    for address in router.listens() {
        output::line(format_args!("listening on {address}"));
    }
    service::ready();
    service::wait_reloading(signals, service::has_nothing_to_reload);
    router.stop();
    Ok(ExitCode::SUCCESS)
}

fn ask(control: &args::Control, request: &Request) -> Result<RouterStatus, Failure> {
    let path: PathBuf = control.control.clone().map_or_else(usual_control, Ok)?;
    Ok(control::ask(&path, request)?)
}

/// Has it drain, and waits until it has.
fn drain(control: &args::Control, seconds: u32) -> Result<(), Failure> {
    let mut status = ask(control, &Request::Drain(seconds))?;
    while status.flows_total > 0 && status.stops_in_seconds.is_some_and(|left| left > 0) {
        thread::sleep(DRAIN_STEP);
        status = ask(control, &Request::Show)?;
    }
    match (status.stops_in_seconds, status.flows_total) {
        (None, _) => output::line(format_args!("it takes flows again: somebody has had it resume")),
        (Some(_), 0) => {
            output::line(format_args!("drained: it carries nothing, and takes nothing until 'aqueduct route resume'"))
        }
        (Some(_), left) => output::line(format_args!("{left} flows did not leave within {seconds} s, and were ended")),
    }
    Ok(())
}

/// What a router tells, for people.
pub fn text(status: &RouterStatus) -> String {
    let RouterStatus { router, version, uptime_seconds, flows_total, listens, .. } = status;
    let stops = status.stops_in_seconds.map_or_else(String::new, |left| format!(", drains (flows end in {left} s)"));
    let mut text = format!(
        "Router {router} at {}, version {version}, up {}, {flows_total} flows{stops}\n",
        listens.join(" and "),
        span(*uptime_seconds),
    );
    let network = |network: &NetworkStatus| {
        let ports: Vec<String> = network.ports.iter().map(ToString::to_string).collect();
        let ports = if ports.is_empty() { "all".to_owned() } else { ports.join(" ") };
        vec![network.name.clone(), network.addresses.join(" "), ports]
    };
    text.push_str(&render(
        &["NETWORK", "ADDRESSES", "PORTS"],
        &status.networks.iter().map(network).collect::<Vec<_>>(),
    ));
    text.push_str(&routes_text(&status.routes));
    let traffic = traffic(status);
    if !traffic.is_empty() {
        let headings =
            ["BY", "NAME", ">FLOWS", ">OPENED", ">REFUSED", ">OUT", ">BACK", ">CLIENT BLOCKED", ">NEXT BLOCKED"];
        text.push_str(&format!("\n{}", render(&headings, &traffic)));
    }
    let rows: Vec<Vec<String>> = status.flows.iter().take(FLOWS_SHOWN_MAX).map(flow).collect();
    if !rows.is_empty() {
        let headings = ["CLIENT", "TARGET", "NEXT", "FOR", ">OUT", ">BACK", "STALLED"];
        text.push_str(&format!("\n{}", render(&headings, &rows)));
        if let Some(more) = flows_total.checked_sub(rows.len() as u64).filter(|more| *more > 0) {
            text.push_str(&format!("and {more} more flows that have carried less\n"));
        }
    }
    text
}

/// Ways to networks, and whether their gateways answer.
pub fn routes_text(routes: &[RouteState]) -> String {
    if routes.is_empty() {
        return String::new();
    }
    let row = |route: &RouteState| {
        let state = if route.up { "up".to_owned() } else { format!("down ({} failures)", route.failures) };
        vec![route.network.clone(), route.gateway.clone(), route.hops.to_string(), route.priority.to_string(), state]
    };
    let headings = ["TO", "GATEWAY", ">HOPS", ">PRIORITY", "STATE"];
    format!("\n{}", render(&headings, &routes.iter().map(row).collect::<Vec<_>>()))
}

/// What has gone by route, by client and by network.
fn traffic(status: &RouterStatus) -> Vec<Vec<String>> {
    let of = |metric: &'static str| status.metrics.samples(metric).iter();
    let number = |metric, by: &Sample, label: &str, value: &str| -> u64 {
        let is_it = |sample: &&Sample| {
            sample.label("scope") == by.label("scope")
                && sample.label("name") == by.label("name")
                && (label.is_empty() || sample.label(label) == value)
        };
        of(metric).filter(is_it).map(Sample::number).sum()
    };
    let row = |by: &Sample| {
        let count = |metric| number(metric, by, "", "").to_string();
        let sent = |way| bytes(number(table::ROUTER_BYTES.definition.name, by, "way", way) as f64);
        let blocked = |side| {
            let nanos = number(table::ROUTER_BLOCKED_SECONDS.definition.name, by, "side", side);
            format!("{:.1} s", nanos as f64 / 1e9)
        };
        vec![
            by.label("scope").to_owned(),
            by.label("name").to_owned(),
            count(table::ROUTER_FLOWS.definition.name),
            count(table::ROUTER_FLOWS_OPENED.definition.name),
            count(table::ROUTER_FLOWS_REFUSED.definition.name),
            sent("out"),
            sent("back"),
            blocked("initiator"),
            blocked("next"),
        ]
    };
    // Of those that have no flow now, and were refused, there is no number of flows.
    let counted = [
        &table::ROUTER_FLOWS.definition,
        &table::ROUTER_FLOWS_OPENED.definition,
        &table::ROUTER_FLOWS_REFUSED.definition,
    ];
    let mut all: Vec<&Sample> = Vec::new();
    for sample in counted.into_iter().flat_map(|counted| of(counted.name)) {
        let is_it = |known: &&Sample| ["scope", "name"].iter().all(|label| known.label(label) == sample.label(label));
        if !all.iter().any(is_it) {
            all.push(sample);
        }
    }
    all.into_iter().map(row).collect()
}

fn flow(flow: &FlowStatus) -> Vec<String> {
    let stalled = |side, time: u64| (time > 0).then(|| format!("{side} for {}", span(time / 1000)));
    let stalled: Vec<String> = [stalled("client", flow.client_blocked_ms), stalled("next", flow.next_blocked_ms)]
        .into_iter()
        .flatten()
        .collect();
    vec![
        flow.client.clone(),
        flow.target.clone(),
        flow.next.clone(),
        if flow.bulk { "bulk" } else { "control" }.to_owned(),
        bytes(flow.bytes_out as f64),
        bytes(flow.bytes_back as f64),
        if stalled.is_empty() { "-".to_owned() } else { stalled.join(", ") },
    ]
}

#[cfg(test)]
mod tests {
    use aqueduct_metrics::Snapshot;

    use super::*;

    #[test]
    fn a_router_is_shown() {
        let flow = FlowStatus {
            client: "10.1.0.7".into(),
            target: "10.2.0.5:7170@net2".into(),
            next: "10.2.0.5:7170".into(),
            bulk: true,
            bytes_out: 2048,
            next_blocked_ms: 3000,
            ..FlowStatus::default()
        };
        let route = RouteState {
            network: "net3".into(),
            gateway: "10.2.0.9:7171".into(),
            hops: 2,
            failures: 3,
            ..RouteState::default()
        };
        let network = NetworkStatus { name: "net1".into(), addresses: vec!["10.1.0.0/16".into()], ports: vec![7170] };
        let mut metrics = Snapshot::default();
        metrics.put_number(&table::ROUTER_FLOWS_REFUSED, &["client", "10.1.0.8"], 26);
        let status = RouterStatus {
            router: "r1".into(),
            stops_in_seconds: Some(9),
            listens: vec!["10.1.0.1:7171@net1".into()],
            networks: vec![network],
            routes: vec![route],
            flows_total: 20,
            flows: vec![flow],
            metrics,
            ..RouterStatus::default()
        };
        let text = text(&status);
        for part in [
            "Router r1 at 10.1.0.1:7171@net1",
            "drains (flows end in 9 s)",
            "net1     10.1.0.0/16  7170",
            "down (3 failures)",
            "2.0 KiB   0 B  next for 3 s",
            "and 19 more flows",
            "client  10.1.0.8      0       0       26",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
