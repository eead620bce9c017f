use super::*;

const HEAD: &str = "name = 'x'
[matrix]
transfer = ['4k', '64k', '1m']
clients = [1, 2]
[run]
bench = 'command'
[run.steps]
go = 'true'
[[system]]
name = 'native'
[[system]]
name = 'ours'
[[expect]]
op = 'read'
";

fn expectation(text: &str) -> Result<Expectation, Failure> {
    let source = Source { path: "a.toml".into(), text: format!("{HEAD}{text}") };
    let file = source.parse(false)?;
    let points = super::super::plan::points(&source, &file)?;
    Expectation::all(&source, &file, &points, false).map(|mut all| all.remove(0))
}

/// Native reads 100, 200, 300 by transfer; ours what is given; with two clients twice that.
fn measured(ours: [f64; 3]) -> Vec<Group> {
    let group = |system: &str, transfer: u64, clients: u64, middle: f64| Group {
        system: system.to_owned(),
        op: "read".to_owned(),
        parameters: [("transfer", transfer), ("clients", clients)]
            .map(|(name, value)| (name.to_owned(), Value::from(value)))
            .into(),
        unit: "MiB/s".to_owned(),
        values: [0.99, 1.0, 1.01].map(|factor| factor * middle * clients as f64).to_vec(),
    };
    let all = [("native", [100.0, 200.0, 300.0]), ("ours", ours)];
    let transfers = [4096, 65536, 1 << 20];
    let points =
        [1u64, 2].into_iter().flat_map(|clients| transfers.into_iter().enumerate().map(move |at| (clients, at)));
    let points: Vec<_> = points.collect();
    all.iter()
        .flat_map(|(system, middles)| {
            points.iter().map(|&(clients, (at, transfer))| group(system, transfer, clients, middles[at]))
        })
        .collect()
}

fn judge(text: &str, ours: [f64; 3]) -> Outcome {
    expectation(text).unwrap().judge(&measured(ours))
}

#[track_caller]
fn differs(outcome: Outcome) -> String {
    match outcome {
        Outcome::Differs(places) => places.join("\n"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_share_of_a_reference() {
    let text = "system = 'ours'\nwhere = { transfer = '>= 64k' }\nreference = { system = 'native' }\nat_least = '0.98 * reference'";
    assert_eq!(judge(text, [1.0, 199.0, 310.0]), Outcome::Pass(4));
    let found = differs(judge(text, [1.0, 190.0, 310.0]));
    assert!(found.contains("ours read clients=1 transfer=64k: 190.0 MiB/s is less than 196.0 by -3.1 %"), "{found}");
    assert_eq!(found.lines().count(), 2, "both numbers of clients");
}

#[test]
fn a_reference_may_be_another_point() {
    let text = "system = 'ours'\nwhere = { transfer = '1m' }\nreference = { where = { clients = 1 } }\nclose_to = '2 * reference'\n";
    let found = differs(judge(text, [1.0, 2.0, 3.0]));
    assert!(found.contains("clients=1") && !found.contains("clients=2"), "{found}");
}

#[test]
fn a_figure_with_a_unit() {
    let at_least =
        |bound: &str| format!("system = 'native'\nwhere = {{ transfer = '1m', clients = 1 }}\nat_least = {bound}");
    assert_eq!(judge(&at_least("300"), [1.0; 3]), Outcome::Pass(1));
    assert_eq!(judge(&at_least("'314.5 MB/s'"), [1.0; 3]), Outcome::Pass(1));
    assert!(matches!(judge(&at_least("'314.6 MB/s'"), [1.0; 3]), Outcome::Differs(_)));
    assert!(matches!(judge(&at_least("'3 us'"), [1.0; 3]), Outcome::NoData(_)), "a rate is no time");
}

#[test]
fn at_most_and_close_to() {
    assert_eq!(judge("at_most = 600", [1.0; 3]), Outcome::Pass(12));
    assert!(matches!(judge("at_most = 599", [1.0; 3]), Outcome::Differs(_)));
    let close = "system = 'native'\nwhere = { transfer = '4k', clients = 1 }\nclose_to = 104\ntolerance = '4%'";
    assert_eq!(judge(close, [1.0; 3]), Outcome::Pass(1));
    assert!(matches!(judge(&close.replace("4%", "3%"), [1.0; 3]), Outcome::Differs(_)));
}

#[test]
fn a_flat_line() {
    let text = "system = 'ours'\nflat = 'transfer'\ntolerance = '5%'";
    assert_eq!(judge(text, [160.0, 158.0, 163.0]), Outcome::Pass(6));
    let found = differs(judge(text, [160.0, 140.0, 161.0]));
    assert!(found.contains("transfer=64k: 140.0 MiB/s is -12.5 % from the middle, 160.0"), "{found}");
}

#[test]
fn a_line_that_rises_or_falls() {
    assert_eq!(judge("system = 'native'\nrising = 'transfer'", [1.0; 3]), Outcome::Pass(6));
    assert!(matches!(judge("system = 'native'\nfalling = 'transfer'", [1.0; 3]), Outcome::Differs(_)));
    assert_eq!(judge("system = 'ours'\nrising = 'transfer'", [100.0, 97.0, 200.0]), Outcome::Pass(6), "tolerance");
    assert!(matches!(judge("system = 'ours'\nrising = 'transfer'", [100.0, 94.0, 200.0]), Outcome::Differs(_)));
    // Small steps back add up.
    assert!(matches!(judge("system = 'ours'\nrising = 'transfer'", [100.0, 96.0, 94.0]), Outcome::Differs(_)));
    assert_eq!(judge("system = 'ours'\nfalling = 'transfer'", [3.0, 2.0, 1.0]), Outcome::Pass(6));
}

#[test]
fn what_was_not_measured_is_no_pass() {
    let outcome = expectation("system = 'ours'\nat_least = 1").unwrap().judge(&measured([1.0; 3])[..6]);
    assert!(matches!(outcome, Outcome::NoData(_)), "{outcome:?}");
    let outcome = judge("system = 'ours'\nreference = { op = 'write' }\nat_least = 'reference'", [1.0; 3]);
    assert!(
        outcome.to_string().contains("the reference, ours write clients=1 transfer=4k, was not measured"),
        "{outcome}"
    );
    let outcome = judge("system = 'ours'\nwhere = { transfer = '4k' }\nflat = 'transfer'", [1.0; 3]);
    assert!(matches!(outcome, Outcome::NoData(_)), "{outcome:?}");
}

#[test]
fn a_point_that_is_missing_is_no_pass() {
    let mut groups = measured([1.0; 3]);
    groups.remove(8); // ours, 1m, one client
    let of = |text: &str| expectation(text).unwrap().judge(&groups).to_string();
    let missing = "NO DATA: ours read clients=1 transfer=1m was not measured";
    assert_eq!(of("at_least = 0"), missing);
    assert_eq!(of("system = 'ours'\nat_least = 0"), missing);
    assert_eq!(of("system = 'ours'\nflat = 'clients'\ntolerance = '900%'"), missing);
    // What is not meant is not missed.
    assert_eq!(of("system = 'native'\nat_least = 0"), "PASS (6 compared)");
    assert_eq!(of("where = { transfer = '< 1m' }\nat_least = 0"), "PASS (8 compared)");
}

#[test]
fn other_statistics() {
    let cv = |bound: &str| format!("system = 'native'\nstatistic = 'cv'\nat_most = {bound}");
    assert_eq!(judge(&cv("0.011"), [1.0; 3]), Outcome::Pass(6));
    assert_eq!(judge(&cv("'1.1%'"), [1.0; 3]), Outcome::Pass(6));
    let found = differs(judge(&cv("'0.5%'"), [1.0; 3]));
    assert!(found.contains("1.00 % is more than 0.5000 %"), "{found}");
    assert!(matches!(judge("system = 'native'\nstatistic = 'min'\nat_least = 100", [1.0; 3]), Outcome::Differs(_)));
}

#[test]
fn what_makes_no_sense_is_refused_with_its_place() {
    let cases = [
        ("", "it says nothing"),
        ("at_least = 'reference'", "does not say which"),
        ("at_least = 5\nreference = { system = 'native' }", "compares with none"),
        ("system = 'other'\nat_least = 5", "native, ours"),
        ("at_least = 'half of it'", "is no bound"),
        ("at_least = '2 * 3'", "not a number times reference"),
        ("at_least = [5]", "is no bound"),
        ("where = { transfer = '8k' }\nat_least = 1", "no point of the matrix"),
        ("flat = 'size'", "size is no parameter"),
        ("where = { size = 5 }\nat_least = 5", "size is no parameter"),
        ("where = { transfer = '> x' }\nat_least = 5", "takes a number"),
        ("close_to = 5\ntolerance = 'wide'", "no share"),
        ("statistic = 'cv'\nat_most = 2", "no bound of a coefficient of variation"),
        ("statistic = 'cv'\nat_most = '200%'", "no bound of a coefficient of variation"),
        ("rising = 'transfer'\ntolerance = '100%'", "every line rises"),
    ];
    for (text, why) in cases {
        let failure = expectation(text).unwrap_err();
        assert!(failure.why.contains(why), "{text}: {failure}");
        assert!(failure.what.starts_with("a.toml:"), "{failure}");
    }
}

#[test]
fn an_expectation_is_said_in_words() {
    let text = "system = 'ours'\nwhere = { transfer = '>= 64k', clients = 2 }\nreference = { system = 'native' }\nat_least = '0.98 * reference'\nflat = 'clients'";
    assert_eq!(
        expectation(text).unwrap().text,
        "median of read of ours where clients = 2, transfer >= 64k: at least 0.98 * reference and flat over clients (reference: system native), give or take 5%"
    );
}
