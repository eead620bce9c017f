//! A collector of OpenTelemetry's spans, in a test.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

/// A collector: takes what is posted, and gives what it got.
pub fn collector() -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, got) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Value>>>::default());
    let kept = got.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut request, mut part) = (Vec::new(), [0; 4096]);
            loop {
                let count = stream.read(&mut part).unwrap();
                request.extend_from_slice(&part[..count]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let head = head.to_lowercase();
                assert!(
                    head.starts_with("post /v1/traces ") && head.contains("content-type: application/json"),
                    "{head}"
                );
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                if body.len() >= length.parse().unwrap() {
                    kept.lock().unwrap().push(serde_json::from_str(body).unwrap());
                    break;
                }
            }
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{{}}").unwrap();
        }
    });
    (format!("http://{address}"), got)
}

/// All spans of a service, checked against the schema.
pub fn spans(got: &Mutex<Vec<Value>>, service: &str) -> Vec<Value> {
    let mut spans = Vec::new();
    for of in got.lock().unwrap().iter().flat_map(|document| document["resourceSpans"].as_array().unwrap()) {
        let attributes = of["resource"]["attributes"].as_array().unwrap();
        let name = attributes.iter().find(|attribute| attribute["key"] == "service.name").unwrap();
        if name["value"]["stringValue"] == service {
            of["scopeSpans"]
                .as_array()
                .unwrap()
                .iter()
                .for_each(|of| spans.extend(of["spans"].as_array().unwrap().clone()));
        }
    }
    let is_hex = |id: &Value, length: usize| {
        id.as_str().is_some_and(|id| id.len() == length && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    for span in &spans {
        assert!(is_hex(&span["traceId"], 32) && is_hex(&span["spanId"], 16), "{span:#}");
        assert!(span["parentSpanId"].is_null() || is_hex(&span["parentSpanId"], 16), "{span:#}");
        let nanos = |at: &str| span[at].as_str().unwrap().parse::<u64>().unwrap();
        // Within ten years of when this was written, in nanoseconds.
        assert!(
            (1_700_000_000_000_000_000..2_100_000_000_000_000_000).contains(&nanos("startTimeUnixNano")),
            "{span:#}"
        );
        assert!(nanos("startTimeUnixNano") <= nanos("endTimeUnixNano"), "{span:#}");
    }
    spans
}
