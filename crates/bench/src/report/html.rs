//! One page with everything in it: no script, nothing from elsewhere, to be read in light and dark rooms and on paper.

use super::chart::svg;
use super::compare::{self, Comparison};
use super::data::{Data, Point};
use super::text::{self, HEADINGS};
use super::{Report, safe};
use crate::record::Environment;
use crate::stats::Verdict;

/// The most samples of a point whose single values stand in the page.
const VALUES_MAX: usize = 200;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c1c1c;--soft:#5a5a5a;--paper:#fff;--rule:#d8d8d8;--band:#f5f6f8;--good:#0072B2;--bad:#B34700}
body{font:15px/1.5 Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif;color:var(--ink);background:var(--paper);max-width:76rem;margin:0 auto;padding:1.5rem}
h1{font-size:1.7rem;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--rule);padding-bottom:.2rem}h3{font-size:1rem;margin:1.2rem 0 .4rem}
p.soft,caption,.soft-text{color:var(--soft)}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums}th,td{padding:.22rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule);white-space:nowrap}
th{font-weight:600;background:var(--band)}td.number,th.number{text-align:right}td.wrap{white-space:normal;overflow-wrap:anywhere;min-width:14rem}
tr.flagged td{background:color-mix(in srgb,var(--bad) 9%,transparent)}.faster{color:var(--good);font-weight:600}.slower{color:var(--bad);font-weight:600}
figure{margin:1rem 0;overflow-x:auto}figure svg{max-width:100%;height:auto}ul.plain{padding-left:1.2rem}pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:.82rem;background:var(--band);padding:.6rem}
details{margin:.4rem 0}summary{cursor:pointer;color:var(--soft)}.failed{border-left:4px solid var(--bad);padding:.3rem .8rem;background:var(--band)}.passed{border-left:4px solid var(--good);padding:.3rem .8rem;background:var(--band)}
@media print{body{font-size:10pt;max-width:none;padding:0}figure,tr{break-inside:avoid}h2,h3{break-after:avoid}.scroll{overflow:visible}table{font-size:7.5pt}th,td{padding:.1rem .3rem}}
";

/// A page with a title and what stands below it, whole in itself. The body is taken as it is: what
/// comes from elsewhere goes through [`safe`] before.
pub fn framed(title: &str, body: &str) -> String {
    let title = safe::xml(title);
    let dark = format!(
        "@media screen and (prefers-color-scheme:dark){{:root{{--ink:#e8e8e8;--soft:#a8a8a8;--paper:#15171a;--rule:#33373d;--band:#1e2126;--good:#4BA3E0;--bad:#FF8A3D}}{}}}",
        svg::dark_style()
    );
    format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n<title>{title}</title>\n<style>\n{STYLE}{dark}\n</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n"
    )
}

/// The page.
pub(super) fn page(report: &Report<'_>, compared: &Data) -> String {
    let mut page = String::new();
    overview(&mut page, report);
    conditions(&mut page, report);
    if let Some(comparison) = report.comparison {
        comparison_part(&mut page, comparison, compared);
    }
    page.push_str("<section id=\"charts\">\n<h2>Charts</h2>\n");
    for chart in report.charts {
        page.push_str(&format!("<figure>\n{}</figure>\n", svg::draw(chart)));
    }
    if report.charts.is_empty() {
        page.push_str("<p>The data hold nothing to draw.</p>\n");
    }
    page.push_str("</section>\n<section id=\"tables\">\n<h2>Tables</h2>\n");
    for (op, unit) in report.data.families() {
        let points: Vec<_> = report.data.points.iter().filter(|point| point.op == op && point.unit == unit).collect();
        summary_table(&mut page, report.data, &points);
    }
    page.push_str("<p class=\"soft\">95 % interval: of the mean, by Student's t. Quartiles by linear interpolation. CV: standard deviation / mean. Outliers lie beyond Tukey's fences (1.5 interquartile ranges); they are marked, and count in every figure.</p>\n</section>\n");
    notes(&mut page, report);
    environments(&mut page, &report.data.runs);
    framed(&report.title, &page)
}

fn overview(page: &mut String, report: &Report<'_>) {
    let count = report.data.samples.len();
    let runs: Vec<_> =
        report.data.runs.iter().map(|run| format!("{} ({})", safe::xml(&run.run), safe::xml(&run.time))).collect();
    page.push_str(&format!("<p class=\"soft\">{count} samples at {} points", report.data.points.len()));
    if !runs.is_empty() {
        page.push_str(&format!(", of {}", runs.join(", ")));
    }
    page.push_str(".</p>\n");
    if !report.data.constant.is_empty() {
        page.push_str(&format!("<p class=\"soft\">Everywhere: {}.</p>\n", safe::xml_lines(&report.data.constants())));
    }
}

fn conditions(page: &mut String, report: &Report<'_>) {
    if report.outcomes.is_empty() {
        return;
    }
    page.push_str("<section id=\"conditions\">\n<h2>Conditions</h2>\n");
    for outcome in report.outcomes {
        let said = super::verdict(outcome, report.strict);
        let (class, word) = if said.is_some() { ("failed", "Failed") } else { ("passed", "Passed") };
        page.push_str(&format!(
            "<div class=\"{class}\"><p><strong>{word}</strong>: <code>{}</code>, judged at {} points.</p>\n",
            safe::xml_lines(&outcome.text),
            outcome.judged
        ));
        let failed = outcome.failed.iter().map(|sentence| safe::xml_lines(sentence));
        let missing = outcome.missing.iter().map(|sentence| format!("Not judged: {}", safe::xml_lines(sentence)));
        list(page, failed.chain(missing));
        page.push_str("</div>\n");
    }
    page.push_str("</section>\n");
}

fn list(page: &mut String, items: impl Iterator<Item = String>) {
    let items: Vec<_> = items.map(|item| format!("<li>{item}</li>\n")).collect();
    if !items.is_empty() {
        page.push_str(&format!("<ul class=\"plain\">\n{}</ul>\n", items.concat()));
    }
}

fn comparison_part(page: &mut String, comparison: &Comparison, new: &Data) {
    let name = safe::xml_lines(&comparison.base_name);
    page.push_str(&format!("<section id=\"comparison\">\n<h2>Compared with {name}</h2>\n"));
    if !comparison.differences.is_empty() {
        page.push_str("<h3>What was not the same</h3>\n<div class=\"scroll\"><table class=\"differences\"><thead><tr><th>Fact</th><th>Base</th><th>New</th></tr></thead><tbody>\n");
        for difference in &comparison.differences {
            let fleeting =
                if difference.is_fleeting { " <span class=\"soft-text\">(changes by itself)</span>" } else { "" };
            page.push_str(&format!(
                "<tr><td>{}{fleeting}</td><td class=\"wrap\">{}</td><td class=\"wrap\">{}</td></tr>\n",
                safe::xml(&difference.name),
                safe::xml_lines(&difference.base),
                safe::xml_lines(&difference.new)
            ));
        }
        page.push_str("</tbody></table></div>\n");
    }
    list(page, comparison.sentences(new).iter().map(|sentence| safe::xml_lines(sentence)));
    let names = compare::all_varying(new, &comparison.base);
    let headings = ["Op", "System"].into_iter().map(str::to_owned).chain(names.iter().map(|name| format!(">{name}")));
    let rest = [">New median", ">Base median", "Unit", ">n", ">Base n", ">Ratio", ">95 % interval", "Verdict"];
    head(page, "comparison", headings.chain(rest.map(str::to_owned)));
    for pair in &comparison.pairs {
        let (point, base) = (&new.points[pair.new], &comparison.base.points[pair.base]);
        let (ratio, interval, verdict) = text::ratio_cells(pair);
        let class = match pair.verdict {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifferenceShown => "same",
        };
        page.push_str("<tr>");
        place_cells(page, point, &names);
        let median = super::unit::figure(base.summary.median * pair.factor);
        let figures = [super::unit::figure(point.summary.median), median];
        numbers(page, figures.iter().map(String::as_str));
        page.push_str(&format!("<td>{}</td>", safe::xml(&point.unit)));
        let counts = [point.summary.n.to_string(), base.summary.n.to_string(), ratio, interval];
        numbers(page, counts.iter().map(String::as_str));
        page.push_str(&format!("<td class=\"{class}\">{}</td></tr>\n", safe::xml(&verdict)));
    }
    page.push_str("</tbody></table></div>\n</section>\n");
}

/// Begins a table; headings with '>' stand to the right.
fn head(page: &mut String, class: &str, headings: impl Iterator<Item = String>) {
    page.push_str(&format!("<div class=\"scroll\"><table class=\"{class}\"><thead><tr>"));
    for heading in headings {
        let class = if heading.starts_with('>') { " class=\"number\"" } else { "" };
        page.push_str(&format!("<th{class}>{}</th>", safe::xml(heading.trim_start_matches('>'))));
    }
    page.push_str("</tr></thead><tbody>\n");
}

fn place_cells(page: &mut String, point: &Point, names: &[String]) {
    page.push_str(&format!("<td>{}</td><td>{}</td>", safe::xml(&point.op), safe::xml(&point.system)));
    let settings = names.iter().map(|name| point.place.get(name).map_or("-", |setting| setting.text.as_str()));
    numbers(page, settings);
}

fn numbers<'a>(page: &mut String, cells: impl Iterator<Item = &'a str>) {
    for cell in cells {
        page.push_str(&format!("<td class=\"number\">{}</td>", safe::xml(cell)));
    }
}

fn summary_table(page: &mut String, data: &Data, points: &[&Point]) {
    let Some(first) = points.first() else { return };
    let (names, decimals) = (text::columns(data, points), text::decimals(points));
    page.push_str(&format!("<h3>{} ({})</h3>\n", safe::xml(&first.op), safe::xml(&first.unit)));
    let headings = ["Op", "System"].into_iter().map(str::to_owned).chain(names.iter().map(|name| format!(">{name}")));
    head(page, "summary", headings.chain(HEADINGS.map(str::to_owned)));
    for point in points {
        let class = if point.summary.outliers.is_empty() { "" } else { " class=\"flagged\"" };
        page.push_str(&format!("<tr{class}>"));
        place_cells(page, point, &names);
        let figures = text::figures(point, decimals);
        numbers(page, figures.iter().map(String::as_str));
        page.push_str("</tr>\n");
    }
    page.push_str(
        "</tbody></table></div>\n<details><summary>Single values, in the order they were measured</summary>\n",
    );
    list(
        page,
        points.iter().map(|point| {
            let values = point.values.iter().enumerate().take(VALUES_MAX).map(|(index, value)| {
                let figure = super::unit::figure(*value);
                if point.summary.outliers.contains(&index) {
                    format!("<strong title=\"outlier\">{figure} !</strong>")
                } else {
                    figure
                }
            });
            let values: Vec<_> = values.collect();
            let more = point.values.len().saturating_sub(VALUES_MAX);
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            format!("{}: {}{more}", safe::xml_lines(&point.name(&names)), values.join(", "))
        }),
    );
    page.push_str("</details>\n");
    further(page, data, points, &names);
}

/// Whatever else was measured.
fn further(page: &mut String, data: &Data, points: &[&Point], settings: &[String]) {
    let (names, rows) = text::further(data, points);
    if names.is_empty() {
        return;
    }
    page.push_str("<details><summary>Measured with it (medians)</summary>\n");
    let headings = ["Op", "System"].into_iter().map(str::to_owned);
    head(page, "further", headings.chain(settings.iter().chain(&names).map(|name| format!(">{name}"))));
    for (point, cells) in points.iter().zip(rows) {
        page.push_str("<tr>");
        place_cells(page, point, settings);
        numbers(page, cells.iter().map(String::as_str));
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n</details>\n");
}

fn notes(page: &mut String, report: &Report<'_>) {
    if !report.notes.is_empty() {
        page.push_str("<section id=\"notes\">\n<h2>Notes</h2>\n");
        list(page, report.notes.iter().map(|note| safe::xml_lines(note)));
        page.push_str("</section>\n");
    }
}

fn environments(page: &mut String, runs: &[Environment]) {
    page.push_str("<section id=\"environment\">\n<h2>Environment</h2>\n");
    if runs.is_empty() {
        page.push_str("<p>The records do not say where they were measured.</p>\n");
    }
    for run in runs {
        page.push_str(&format!(
            "<h3>Run {} at {}</h3>\n<div class=\"scroll\"><table class=\"environment\"><tbody>\n",
            safe::xml(&run.run),
            safe::xml(&run.time)
        ));
        for (name, value) in compare::facts(run) {
            let shown = safe::xml_lines(&value).replace('\n', "<br/>");
            page.push_str(&format!("<tr><th>{}</th><td class=\"wrap\">{shown}</td></tr>\n", safe::xml(&name)));
        }
        page.push_str("</tbody></table></div>\n");
        if !run.plan.is_empty() {
            let plan = safe::xml_lines(&run.plan);
            page.push_str(&format!("<details><summary>What was asked for</summary><pre>{plan}</pre></details>\n"));
        }
    }
    page.push_str("</section>\n");
}
