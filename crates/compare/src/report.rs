//! What was measured as a table, as JSON and as a page with a chart.

use serde_json::{Value, json};

use crate::contender::Who;
use crate::measure::{Measured, Round};
use crate::rows::{Load, Target};

/// Median, least and greatest of some numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    fn of(numbers: impl Iterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = numbers.collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = match n {
            0 => 0.0,
            n if n % 2 == 1 => sorted[n / 2],
            n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        };
        let at = |i: usize| sorted.get(i).copied().unwrap_or(0.0);
        Spread { median, min: at(0), max: at(n.saturating_sub(1)) }
    }

    fn json(self) -> Value {
        // Three decimals are more than the rounds agree on.
        let short = |number: f64| (number * 1000.0).round() / 1000.0;
        json!({ "median": short(self.median), "min": short(self.min), "max": short(self.max) })
    }
}

/// One row in numbers.
#[derive(Clone, Debug)]
pub struct Summary<'a> {
    /// Where they come from.
    pub measured: &'a Measured,
    /// nginx's cost over Forebay's, round by round.
    pub ratio: Spread,
    /// HAProxy's, where it ran.
    pub haproxy: Option<Spread>,
    /// nginx's over that of a server of nothing but system calls, where that ran: the most there is.
    pub most: Option<Spread>,
    /// The same of HAProxy.
    pub most_haproxy: Option<Spread>,
    /// Whether the target is met; none when there is none, or nothing to judge by.
    pub pass: Option<bool>,
    /// Wrong answers, on both sides.
    pub errors: u64,
}

fn field(rounds: &[Round], get: fn(&Round) -> f64) -> Spread {
    Spread::of(rounds.iter().map(get))
}

/// Works a row out.
pub fn summarize(measured: &Measured) -> Summary<'_> {
    let forebay = measured.of(Who::Forebay);
    let over = |who, ours| {
        let pairs = measured.of(who).iter().zip(measured.of(ours));
        Spread::of(pairs.map(|(other, ours)| other.cost / ours.cost.max(f64::MIN_POSITIVE)))
    };
    let ratio = over(Who::Nginx, Who::Forebay);
    let has = |who| !measured.of(who).is_empty();
    let haproxy = has(Who::Haproxy).then(|| over(Who::Haproxy, Who::Forebay));
    let most = has(Who::Floor).then(|| over(Who::Nginx, Who::Floor));
    let most_haproxy =
        (has(Who::Haproxy) && has(Who::Floor)).then(|| over(Who::Haproxy, Who::Floor));
    let errors = measured.rounds.values().flatten().map(|r| r.errors).sum();
    let cost = field(forebay, |r| r.cost).median;
    let met = match measured.row.target {
        Target::CpuRatio(least) | Target::P99Ratio(least) => Some(ratio.median >= least),
        Target::CpuRatios { nginx, haproxy: least } => {
            haproxy.map(|haproxy| ratio.median >= nginx && haproxy.median >= least)
        }
        Target::BytesAtMost(most) | Target::SlowestAtMost(most) | Target::P99AtMost(most) => {
            Some(cost <= most)
        }
        Target::None => None,
    };
    let pass = met.map(|met| met && errors == 0);
    Summary { measured, ratio, haproxy, most, most_haproxy, pass, errors }
}

/// The head of the table.
pub fn table_head() -> String {
    format!(
        "{:<14} {:>22} {:>22} {:>17} {:>24}  target",
        "row",
        "requests/s n / f / h",
        "CPU µs/req n / f / h",
        "p99 ms n / f / h",
        "ratio (min..max)"
    )
}

/// A row of the table.
pub fn table_row(summary: &Summary) -> String {
    let row = &summary.measured.row;
    let sides = |get: fn(&Round) -> f64, scale: f64, digits: usize| {
        let all = summary.measured.rounds.iter().filter(|(who, _)| **who != Who::Floor);
        let shown =
            all.map(|(_, rounds)| format!("{:.digits$}", field(rounds, get).median / scale));
        shown.collect::<Vec<_>>().join(" / ")
    };
    let mut ratio =
        format!("{:.2} ({:.2}..{:.2})", summary.ratio.median, summary.ratio.min, summary.ratio.max);
    if let Some(haproxy) = summary.haproxy {
        ratio.push_str(&format!(", {:.2}", haproxy.median));
    }
    if let Some(most) = summary.most {
        ratio.push_str(&format!(", of {:.2}", most.median));
    }
    if let Some(most) = summary.most_haproxy {
        ratio.push_str(&format!(", {:.2}", most.median));
    }
    let speed = || sides(|r| r.per_second, 1.0, 0);
    let p99 = || sides(|r| r.p99_us, 1000.0, 2);
    let (speed, cost, p99) = match row.load {
        Load::Requests | Load::Http2 => (speed(), sides(|r| r.cost, 1.0, 2), p99()),
        Load::Handshakes | Load::Resumed => (speed(), sides(|r| r.cost, 1.0, 2), String::new()),
        Load::Steady | Load::Http2OneStream => (speed(), String::new(), p99()),
        Load::Uploads => (speed(), format!("max {}", sides(|r| r.cost, 1.0, 0)), p99()),
        Load::Idle | Load::Stalled => {
            (String::new(), format!("{} B", sides(|r| r.cost, 1.0, 0)), String::new())
        }
    };
    let errors = match summary.errors {
        0 => String::new(),
        n => format!("  {n} ERRORS"),
    };
    format!(
        "{:<14} {speed:>22} {cost:>22} {p99:>17} {ratio:>24}  {}{errors}",
        row.name,
        verdict(summary)
    )
}

fn verdict(summary: &Summary) -> String {
    let word = match summary.pass {
        Some(true) => "pass",
        Some(false) => "MISS",
        None => "",
    };
    match summary.measured.row.target {
        Target::CpuRatio(least) | Target::P99Ratio(least) => format!("{least:.2} {word}"),
        Target::CpuRatios { nginx, haproxy } => format!("{nginx:.2}, {haproxy:.2} {word}"),
        Target::SlowestAtMost(most) | Target::P99AtMost(most) => format!("{most:.0} µs {word}"),
        Target::BytesAtMost(most) => format!("{most:.0} B {word}"),
        Target::None => "-".to_owned(),
    }
}

/// Everything for programs to read.
pub fn to_json(summaries: &[Summary], about: &Value) -> Value {
    let rows: Vec<Value> = summaries.iter().map(row_json).collect();
    json!({ "about": about, "rows": rows })
}

fn row_json(summary: &Summary) -> Value {
    let row = &summary.measured.row;
    let unit = match row.load {
        Load::Requests | Load::Http2 | Load::Handshakes | Load::Resumed => "cpu_us_per_request",
        Load::Steady => "p99_us_at_70_percent",
        Load::Http2OneStream => "p99_us_alone",
        Load::Uploads => "slowest_us",
        Load::Idle | Load::Stalled => "pss_bytes_per_connection",
    };
    let side = |rounds: &[Round]| {
        json!({
            "requests_per_second": field(rounds, |r| r.per_second).json(),
            unit: field(rounds, |r| r.cost).json(),
            "p99_us": field(rounds, |r| r.p99_us).json(),
            "errors": rounds.iter().map(|r| r.errors).sum::<u64>(),
        })
    };
    let target = match row.target {
        Target::CpuRatio(least) => json!({ "cpu_ratio_at_least": least }),
        Target::CpuRatios { nginx, haproxy } => {
            json!({ "cpu_ratio_at_least": nginx, "cpu_ratio_to_haproxy_at_least": haproxy })
        }
        Target::P99Ratio(least) => json!({ "p99_ratio_at_least": least }),
        Target::BytesAtMost(most) => json!({ "bytes_at_most": most }),
        Target::SlowestAtMost(most) => json!({ "slowest_us_at_most": most }),
        Target::P99AtMost(most) => json!({ "p99_us_at_most": most }),
        Target::None => Value::Null,
    };
    let mut value = json!({
        "name": row.name,
        "what": row.what,
        "unit": unit,
        "ratio": summary.ratio.json(),
        "ratio_to_haproxy": summary.haproxy.map(Spread::json),
        "ratio_of_floor": summary.most.map(Spread::json),
        "haproxy_ratio_of_floor": summary.most_haproxy.map(Spread::json),
        "target": target,
        "pass": summary.pass,
    });
    for (who, rounds) in &summary.measured.rounds {
        value[who.to_string()] = side(rounds);
    }
    value
}

const STYLE: &str = "body{font:15px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#222;background:#fff}table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;\
border-bottom:1px solid #ccc;text-align:right}td:first-child,th:first-child{text-align:left}\
.pass{color:#176f2c}.miss{color:#b3261e}svg text{font:13px system-ui,sans-serif;fill:currentColor}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}td,th{border-color:#444}\
.pass{color:#7bd88f}.miss{color:#ff8a80}}";

/// One page with chart and table that needs nothing else.
pub fn to_html(summaries: &[Summary], about: &Value) -> String {
    let mut rows = String::new();
    for summary in summaries {
        rows.push_str(&html_row(summary));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>Forebay beside nginx</title><style>{STYLE}</style></head><body>\n\
         <h1>Forebay beside nginx</h1>\n<p>Processor time per request (or memory, or another time), \
         nginx's over Forebay's: above 1 Forebay needs less. The line through a bar spans the rounds; the \
         mark is the target. At most: what a server of nothing but the system calls would come to.</p>\n{}\n<table><tr><th>row</th>{}{}{}<th>ratio</th><th>to HAProxy</th>\
         <th>at most</th><th>target</th></tr>\n{rows}</table>\n<p>{}</p>\n</body></html>\n",
        chart(summaries),
        heads("requests/s"),
        heads("µs or B"),
        heads("p99 ms"),
        escape(&about_line(about)),
    )
}

fn heads(what: &str) -> String {
    ["nginx", "Forebay", "HAProxy"].map(|who| format!("<th>{who} {what}</th>")).concat()
}

fn html_row(summary: &Summary) -> String {
    let row = &summary.measured.row;
    let digits = if matches!(row.load, Load::Idle | Load::Stalled) { 0 } else { 2 };
    let cells = |get: fn(&Round) -> f64, scale: f64, digits: usize| {
        let cell = |who| match summary.measured.of(who) {
            [] => "<td></td>".to_owned(),
            rounds => format!("<td>{:.digits$}</td>", field(rounds, get).median / scale),
        };
        [Who::Nginx, Who::Forebay, Who::Haproxy].map(cell).concat()
    };
    let shown = |ratio: Option<Spread>| ratio.map_or(String::new(), |r| format!("{:.2}", r.median));
    let class = match summary.pass {
        Some(true) => "pass",
        Some(false) => "miss",
        None => "",
    };
    format!(
        "<tr><td>{}</td>{}{}{}<td>{:.2}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}</td></tr>\n",
        escape(row.what),
        cells(|r| r.per_second, 1.0, 0),
        cells(|r| r.cost, 1.0, digits),
        cells(|r| r.p99_us, 1000.0, 2),
        summary.ratio.median,
        shown(summary.haproxy),
        shown(summary.most),
        verdict(summary),
    )
}

fn chart(summaries: &[Summary]) -> String {
    const LEFT: f64 = 230.0;
    const WIDTH: f64 = 560.0;
    const STEP: f64 = 30.0;
    let top = summaries.iter().map(|s| s.ratio.max).fold(1.5, f64::max) * 1.05;
    let x = |ratio: f64| LEFT + ratio / top * WIDTH;
    let height = STEP * summaries.len() as f64 + 30.0;
    let mut svg = format!(
        "<svg role=\"img\" viewBox=\"0 0 {:.0} {height:.0}\" width=\"100%\">\
         <title>ratio per row</title>\n",
        LEFT + WIDTH + 60.0
    );
    for (i, summary) in summaries.iter().enumerate() {
        let y = STEP * i as f64 + 8.0;
        let middle = y + 9.0;
        let fill = if summary.pass == Some(false) { "#d9534f" } else { "#3a7bd5" };
        let Spread { median, min, max } = summary.ratio;
        svg.push_str(&format!(
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"18\" fill=\"{fill}\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"currentColor\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.0}\">{median:.2}</text>\n",
            LEFT - 8.0,
            middle + 4.0,
            escape(summary.measured.row.what),
            x(median) - LEFT,
            x(min),
            x(max),
            x(max) + 6.0,
            middle + 4.0,
        ));
        let least = match summary.measured.row.target {
            Target::CpuRatio(least) | Target::P99Ratio(least) => Some(least),
            Target::CpuRatios { nginx, .. } => Some(nginx),
            _ => None,
        };
        if let Some(least) = least {
            svg.push_str(&format!(
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#e0a800\" stroke-width=\"3\"/>\n",
                x(least),
                y - 3.0,
                y + 21.0
            ));
        }
    }
    svg.push_str(&format!(
        "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{1:.0}\" stroke=\"currentColor\" stroke-dasharray=\"4\"/>\
         <text x=\"{0:.1}\" y=\"{2:.0}\" text-anchor=\"middle\">1.0</text></svg>",
        x(1.0),
        height - 22.0,
        height - 8.0
    ));
    svg
}

fn about_line(about: &Value) -> String {
    let Some(map) = about.as_object() else { return String::new() };
    let parts = map.iter().map(|(name, value)| match value {
        Value::String(text) => format!("{name}: {text}"),
        other => format!("{name}: {other}"),
    });
    parts.collect::<Vec<_>>().join("; ")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::ROWS;

    fn round(cost: f64) -> Round {
        Round { per_second: 1000.0, cost, p99_us: 500.0, errors: 0 }
    }

    fn measured(index: usize, nginx: &[f64], forebay: &[f64]) -> Measured {
        let rounds = |costs: &[f64]| costs.iter().map(|c| round(*c)).collect();
        let rounds = [(Who::Nginx, rounds(nginx)), (Who::Forebay, rounds(forebay))].into();
        Measured { row: ROWS[index], rounds }
    }

    #[test]
    fn ratio_is_taken_round_by_round() {
        let measured = measured(0, &[6.0, 8.0, 5.0], &[4.0, 4.0, 5.0]);
        let summary = summarize(&measured);
        assert_eq!(summary.ratio, Spread { median: 1.5, min: 1.0, max: 2.0 });
        assert_eq!(summary.pass, Some(true));
        assert!(table_row(&summary).ends_with("1.50 (1.00..2.00)  1.05 pass"));
    }

    #[test]
    fn errors_and_missed_targets_do_not_pass() {
        let slow = measured(0, &[4.0], &[4.0]);
        assert_eq!(summarize(&slow).pass, Some(false));
        let mut wrong = measured(0, &[8.0], &[4.0]);
        wrong.rounds.get_mut(&Who::Forebay).unwrap()[0].errors = 1;
        assert_eq!(summarize(&wrong).pass, Some(false));
        let idle = ROWS.iter().position(|row| row.load == Load::Idle).unwrap();
        let idle = measured(idle, &[550.0], &[1000.0]);
        assert_eq!(summarize(&idle).pass, Some(true));
    }

    #[test]
    fn a_proxy_is_held_to_both() {
        let index = ROWS.iter().position(|row| row.name == "proxy-small").unwrap();
        let mut measured = measured(index, &[14.0], &[10.0]);
        assert_eq!(summarize(&measured).pass, None, "without HAProxy nothing is said");
        for (haproxy, pass) in [(16.0, true), (14.0, false)] {
            measured.rounds.insert(Who::Haproxy, vec![round(haproxy)]);
            let summary = summarize(&measured);
            assert_eq!(
                (summary.pass, summary.haproxy.unwrap().median),
                (Some(pass), haproxy / 10.0)
            );
        }
    }

    #[test]
    fn page_and_json_hold_every_row() {
        let rows: Vec<Measured> = (0..ROWS.len()).map(|i| measured(i, &[6.0], &[4.0])).collect();
        let summaries: Vec<Summary> = rows.iter().map(summarize).collect();
        let about = json!({ "machine": "<this>" });
        let page = to_html(&summaries, &about);
        assert_eq!(page.matches("<rect").count(), ROWS.len());
        assert!(page.contains("machine: &lt;this&gt;"));
        let value = to_json(&summaries, &about);
        assert_eq!(value["rows"].as_array().map(Vec::len), Some(ROWS.len()));
        assert_eq!(value["rows"][0]["ratio"]["median"], 1.5);
    }
}
