//! The same as the tables, for programs.

use serde_json::{Map, Value, json};

use super::data::{Data, Place, Point};
use super::{Report, compare};

/// The version of this format.
const SCHEMA: u32 = 1;

/// All figures of a report.
pub fn report(report: &Report<'_>, compared: &Data) -> Value {
    let comparison = report.comparison.map(|comparison| {
        let pairs = comparison.pairs.iter().map(|pair| {
            let (new, base) = (&compared.points[pair.new], &comparison.base.points[pair.base]);
            let mut value = place(new);
            value.insert("unit".to_owned(), json!(new.unit));
            value.insert("median".to_owned(), json!(new.summary.median));
            value.insert("base_median".to_owned(), json!(base.summary.median * pair.factor));
            value.insert("n".to_owned(), json!(new.summary.n));
            value.insert("base_n".to_owned(), json!(base.summary.n));
            value.insert("ratio".to_owned(), json!(pair.ratio.as_ref().ok().map(|ratio| ratio.ratio)));
            let interval = pair.ratio.as_ref().ok().filter(|ratio| ratio.n > 1).map(|ratio| ratio.interval);
            value.insert("ratio_interval".to_owned(), json!(interval));
            value.insert("problem".to_owned(), json!(pair.ratio.as_ref().err()));
            value.insert("verdict".to_owned(), json!(pair.verdict));
            Value::Object(value)
        });
        json!({
            "base": comparison.base_name,
            "differences": comparison.differences.iter().map(|d| json!({"name": d.name, "base": d.base, "new": d.new, "fleeting": d.is_fleeting})).collect::<Vec<_>>(),
            "points": pairs.collect::<Vec<_>>(),
            "only_new": comparison.only_new.iter().map(|index| place(&compared.points[*index])).collect::<Vec<_>>(),
            "only_base": comparison.only_base.iter().map(|index| place(&comparison.base.points[*index])).collect::<Vec<_>>(),
        })
    });
    let outcomes = report.outcomes.iter().map(|outcome| {
        json!({
            "condition": outcome.text, "judged": outcome.judged, "failed": outcome.failed, "missing": outcome.missing,
            "ok": super::verdict(outcome, report.strict).is_none(),
        })
    });
    json!({
        "schema": SCHEMA,
        "title": report.title,
        "runs": report.data.runs,
        "constant": settings(&report.data.constant),
        "points": report.data.points.iter().map(|one| point(report.data, one)).collect::<Vec<_>>(),
        "comparison": comparison,
        "conditions": outcomes.collect::<Vec<_>>(),
        "notes": report.notes,
        "fleeting": report.data.runs.iter().flat_map(|run| run.facts.keys()).filter(|name| compare::is_fleeting(name)).collect::<std::collections::BTreeSet<_>>(),
    })
}

fn settings(place: &Place) -> Value {
    let value = |setting: &super::data::Setting| setting.number.map_or(json!(setting.text), |number| json!(number));
    Value::Object(place.iter().map(|(name, setting)| (name.clone(), value(setting))).collect())
}

fn place(point: &Point) -> Map<String, Value> {
    let all = [("op", json!(point.op)), ("system", json!(point.system)), ("parameters", settings(&point.place))];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn point(data: &Data, point: &Point) -> Value {
    let mut value = place(point);
    value.insert("unit".to_owned(), json!(point.unit));
    if let Value::Object(summary) = json!(point.summary) {
        value.extend(summary);
    }
    value.insert("values".to_owned(), json!(point.values));
    let more = point.samples.iter().filter_map(|index| data.samples.get(*index)).map(|sample| &sample.more);
    value.insert("more".to_owned(), json!(more.collect::<Vec<_>>()));
    Value::Object(value)
}
