//! Spans as OTLP's JSON has them (opentelemetry-proto 1.x).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aqueduct_metrics::trace::{Hop, HopTime, SlowOperation};
use serde_json::{Value, json};

use super::config::OtlpConfig;

/// What is sent.
pub(super) enum Item {
    Operation(Arc<SlowOperation>),
    Work(Box<Work>),
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Text.
    Text(String),
    /// A number.
    Number(u64),
}

/// Work of a tool: a span, and one for each part below it.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What was done, in a word.
    pub name: String,
    /// What tells this trace from all others: works that have it in common belong to one.
    pub trace: String,
    /// It is what the trace is about; others are below it.
    pub is_root: bool,
    /// When it began.
    pub began: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// Why it failed.
    pub failed: Option<String>,
    /// What else is known of it.
    pub attributes: Vec<(&'static str, Said)>,
    /// Where its time went: names, and parts of 1. They stand one behind the other, although that
    /// is not how it was.
    pub parts: Vec<(String, f64)>,
}

fn nanos_of(at: SystemTime) -> u128 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

/// The spans of a work.
fn spans_of_work(work: &Work) -> Vec<Value> {
    let hash = |what: String| blake3::hash(what.as_bytes()).to_hex();
    let trace = hash(format!("trace {}", work.trace))[..32].to_owned();
    let root = hash(format!("root {}", work.trace))[..16].to_owned();
    let own = match work.is_root {
        true => root.clone(),
        false => hash(format!("{} {} {:?} {:?}", work.trace, work.name, work.began, work.attributes))[..16].to_owned(),
    };
    let (began, took) = (nanos_of(work.began), work.took.as_nanos());
    let span = |id: &str, above: Option<&str>, name: &str, from: u128, to: u128| {
        let mut span = json!({
            "traceId": trace, "spanId": id, "name": name, "kind": INTERNAL, "status": {},
            "startTimeUnixNano": from.to_string(), "endTimeUnixNano": to.to_string(), "attributes": [],
        });
        above.into_iter().for_each(|above| span["parentSpanId"] = json!(above));
        span
    };
    let above = (!work.is_root).then_some(root.as_str());
    let mut whole = span(&own, above, &work.name, began, began + took);
    let attribute = |(key, said): &(&'static str, Said)| match said {
        Said::Text(value) => text(key, value),
        Said::Number(value) => number(key, *value),
    };
    whole["attributes"] = work.attributes.iter().map(attribute).collect();
    if let Some(why) = &work.failed {
        whole["status"] = json!({ "code": 2, "message": why });
    }
    let mut at = began;
    let part = |(index, (name, share)): (usize, &(String, f64))| {
        let from = at;
        at = (at + (took as f64 * share) as u128).min(began + took);
        span(&hash(format!("{own} {index} {name}"))[..16], Some(&own), name, from, at)
    };
    let parts: Vec<Value> = work.parts.iter().enumerate().map(part).collect();
    std::iter::once(whole).chain(parts).collect()
}

/// A batch as OTLP's JSON has it.
pub(super) fn document(config: &OtlpConfig, batch: &[Item]) -> Value {
    let of = |item: &Item| match item {
        Item::Operation(operation) => spans(config, operation),
        Item::Work(work) => spans_of_work(work),
    };
    let spans: Vec<Value> = batch.iter().flat_map(of).collect();
    let resource = [text("service.name", &config.service), text("host.name", &config.host)];
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "aqueduct", "version": env!("CARGO_PKG_VERSION") }, "spans": spans }],
    }] })
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Numbers of 64 bits are text in the JSON of protocol buffers.
fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

/// Kinds of spans.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const CLIENT: u8 = 3;

/// The identity of a trace: the operation's, or one made up of what tells it apart.
fn trace_of(config: &OtlpConfig, operation: &SlowOperation) -> (String, String) {
    let own = |salt: &str| {
        let what = format!("{salt} {} {} {} {}", config.host, config.service, operation.at_us, operation.number);
        blake3::hash(what.as_bytes()).to_hex()
    };
    match &operation.trace {
        // The span of the operation is named as the end of its trace: so a server knows its
        // parent.
        Some(trace) if trace.len() == 32 && !config.is_server => (trace.clone(), trace[16..].to_owned()),
        Some(trace) if trace.len() == 32 => (trace.clone(), own(&operation.operation)[..16].to_owned()),
        _ => (own("trace")[..32].to_owned(), own("span")[..16].to_owned()),
    }
}

/// The span of an operation, and one for each hop. How long each took is measured; they stand one
/// behind the other, though where in the operation a hop was is not known.
fn spans(config: &OtlpConfig, operation: &SlowOperation) -> Vec<Value> {
    let (trace, own) = trace_of(config, operation);
    let nanos = |us: u64| us.saturating_mul(1000).to_string();
    let mut attributes = vec![text("rpc.system", "aqueduct"), text("rpc.method", &operation.operation)];
    let texts = [
        ("file.path", &operation.path),
        ("aqueduct.job", &operation.job),
        ("aqueduct.export", &operation.export),
        ("client.address", &operation.client),
    ];
    attributes.extend(texts.iter().filter_map(|(key, value)| Some(text(key, value.as_deref()?))));
    let numbers = [
        ("process.pid", operation.pid.map(u64::from)),
        ("aqueduct.offset", operation.offset),
        ("aqueduct.bytes", operation.bytes),
        ("aqueduct.repeats", Some(operation.repeats).filter(|repeats| *repeats > 0)),
    ];
    attributes.extend(numbers.iter().filter_map(|(key, value)| Some(number(key, (*value)?))));
    attributes.extend(operation.errno.map(|errno| text("error.type", &errno.to_string())));
    let status = match operation.errno {
        Some(errno) => json!({ "code": 2, "message": format!("errno {errno}") }),
        None => json!({}),
    };
    let mut whole = json!({
        "traceId": trace, "spanId": own, "name": operation.operation, "status": status,
        "kind": if config.is_server { SERVER } else { INTERNAL },
        "startTimeUnixNano": nanos(operation.at_us),
        "endTimeUnixNano": nanos(operation.at_us.saturating_add(operation.took_us)),
        "attributes": attributes,
    });
    if let Some(trace) = operation.trace.as_ref().filter(|trace| config.is_server && trace.len() == 32) {
        whole["parentSpanId"] = json!(trace[16..]);
    }
    let mut at = operation.at_us;
    let hop = |(index, hop): (usize, &HopTime)| {
        let id = blake3::hash(format!("{trace} {own} {index}").as_bytes()).to_hex();
        let start = at;
        at = at.saturating_add(hop.us);
        let mut attributes: Vec<Value> = hop.detail.iter().map(|detail| text("aqueduct.detail", detail)).collect();
        attributes.extend(hop.server.iter().flat_map(|server| address(server)));
        json!({
            "traceId": trace, "spanId": id[..16], "parentSpanId": own, "name": hop.hop.name(), "status": {},
            "kind": if hop.hop == Hop::Wire { CLIENT } else { INTERNAL },
            "startTimeUnixNano": nanos(start), "endTimeUnixNano": nanos(at), "attributes": attributes,
        })
    };
    let hops: Vec<Value> = operation.hops.iter().enumerate().map(hop).collect();
    std::iter::once(whole).chain(hops).collect()
}

/// The conventions have host and port apart.
fn address(server: &str) -> Vec<Value> {
    match server.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
        Some((host, port)) => {
            vec![text("server.address", host.trim_matches(['[', ']'])), number("server.port", port.into())]
        }
        None => vec![text("server.address", server)],
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{config, operation};
    use super::*;

    fn id(value: &Value, length: usize) -> &str {
        let id = value.as_str().unwrap();
        assert!(
            id.len() == length
                && id.bytes().all(|byte| byte.is_ascii_hexdigit())
                && id.bytes().any(|byte| byte != b'0'),
            "{id}"
        );
        id
    }

    #[test]
    fn an_operation_is_a_span_with_its_hops_below() {
        let spans_of_client = spans(&config("http://h", false), &operation());
        let [whole, client, wire] = &spans_of_client[..] else { panic!("{spans_of_client:?}") };
        assert_eq!(
            (id(&whole["traceId"], 32), id(&whole["spanId"], 16)),
            ("000102030405060708090a0b0c0d0e0f", "08090a0b0c0d0e0f")
        );
        assert!(whole["parentSpanId"].is_null());
        assert_eq!(
            (&whole["startTimeUnixNano"], &whole["endTimeUnixNano"]),
            (&json!("1000000000"), &json!("1000030000"))
        );
        assert_eq!(whole["status"]["code"], 2);
        for (hop, start, end) in [(client, "1000000000", "1000010000"), (wire, "1000010000", "1000030000")] {
            assert_eq!((id(&hop["traceId"], 32), &hop["parentSpanId"]), (id(&whole["traceId"], 32), &whole["spanId"]));
            assert_ne!(id(&hop["spanId"], 16), id(&whole["spanId"], 16));
            assert_eq!((&hop["startTimeUnixNano"], &hop["endTimeUnixNano"]), (&json!(start), &json!(end)));
        }
        assert_eq!(wire["attributes"], json!([text("server.address", "::1"), number("server.port", 7170)]));
        // The server's span of the same trace is below the client's.
        let of_server = &spans(&config("http://h", true), &operation())[0];
        assert_eq!((&of_server["traceId"], &of_server["parentSpanId"]), (&whole["traceId"], &whole["spanId"]));
        assert_ne!(id(&of_server["spanId"], 16), id(&whole["spanId"], 16));
        let alone = SlowOperation { trace: None, ..operation() };
        id(&spans(&config("http://h", false), &alone)[0]["traceId"], 32);
    }

    #[test]
    fn a_work_is_a_span_with_its_parts_below_and_others_of_its_trace_beside() {
        let job = Work {
            name: "copy".into(),
            trace: "job 7 of 9".into(),
            is_root: true,
            began: UNIX_EPOCH + Duration::from_secs(10),
            took: Duration::from_secs(2),
            failed: None,
            attributes: vec![("aqueduct.bytes", Said::Number(5)), ("aqueduct.source", Said::Text("/a".into()))],
            parts: vec![("read".into(), 0.25), ("write".into(), 0.75)],
        };
        let unit = Work { name: "files".into(), is_root: false, failed: Some("no room".into()), ..job.clone() };
        let of_job = spans_of_work(&job);
        let [whole, read, write] = &of_job[..] else { panic!("{of_job:?}") };
        id(&whole["traceId"], 32);
        assert!(whole["parentSpanId"].is_null() && whole["status"] == json!({}));
        assert_eq!(whole["attributes"], json!([number("aqueduct.bytes", 5), text("aqueduct.source", "/a")]));
        for (part, start, end) in [(read, "10000000000", "10500000000"), (write, "10500000000", "12000000000")] {
            assert_eq!(
                (id(&part["traceId"], 32), &part["parentSpanId"]),
                (id(&whole["traceId"], 32), &whole["spanId"])
            );
            assert_eq!((&part["startTimeUnixNano"], &part["endTimeUnixNano"]), (&json!(start), &json!(end)));
        }
        assert_ne!(id(&read["spanId"], 16), id(&write["spanId"], 16));
        let of_unit = &spans_of_work(&unit)[0];
        assert_eq!((&of_unit["traceId"], &of_unit["parentSpanId"]), (&whole["traceId"], &whole["spanId"]));
        assert_eq!(of_unit["status"]["message"], "no room");
    }
}
