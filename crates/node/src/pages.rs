//! A mount's status in pages: the kernel hands on no more than 64 KiB at once, and a mount of a
//! volume tells more of its servers than that.

use aqueduct_metrics::Snapshot;
use aqueduct_metrics::status::{ActivityStatus, BackingStatus, ClientStatus, MountStatus, RailStatus, WayStatus};
use serde::{Deserialize, Serialize};

/// Bytes of a page: the kernel's limit for an extended attribute.
pub(crate) const PAGE_LENGTH_MAX: usize = 64 << 10;

/// The most pages that are read of one mount: a volume of 256 servers with four rails has ten.
pub(crate) const PAGES_MAX: usize = 64;

/// What of a mount's `rails`, `ways` and `activity` did not fit beside the rest, from one place on.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct MountRest {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rails: Vec<RailStatus>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ways: Vec<WayStatus>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    activity: Vec<ActivityStatus>,
    /// From where on there is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rest_from: Option<u64>,
}

/// A part of a list that is the middle one of three, of which all are counted through from 0.
fn cut<T: Clone>(list: &[T], before: usize, [from, to]: [usize; 2]) -> Vec<T> {
    let [from, to] = [from, to].map(|at| at.saturating_sub(before).min(list.len()));
    list[from..to.max(from)].to_vec()
}

/// How many there are of `rails`, `ways` and `activity`.
fn parts(client: &ClientStatus) -> usize {
    client.rails.len() + client.ways.len() + client.activity.len()
}

fn rest(client: &ClientStatus, from: usize, to: usize) -> MountRest {
    let ways = client.rails.len();
    let activity = ways + client.ways.len();
    let to = to.min(parts(client));
    MountRest {
        rails: cut(&client.rails, 0, [from, to]),
        ways: cut(&client.ways, ways, [from, to]),
        activity: cut(&client.activity, activity, [from, to]),
        rest_from: (to < parts(client)).then_some(to as u64),
    }
}

/// Adds what a page has. `false`: it does not go on where the one before ended, or brings nothing.
pub(crate) fn add(client: &mut ClientStatus, rest: MountRest) -> bool {
    let before = parts(client);
    client.rails.extend(rest.rails);
    client.ways.extend(rest.ways);
    client.activity.extend(rest.activity);
    client.rest_from = rest.rest_from;
    parts(client) > before && client.rest_from.is_none_or(|from| from > before as u64)
}

/// As JSON; its keys are strings.
pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The first page of a status, as JSON: what does not fit is left to [`from`], then that is taken
/// out which is largest and least asked for.
pub(crate) fn first(mut status: MountStatus) -> String {
    let mut is_first = true;
    loop {
        let text = json(&status);
        if text.len() <= PAGE_LENGTH_MAX || !shorten(&mut status, std::mem::take(&mut is_first)) {
            return text;
        }
    }
}

/// What comes from one place on, as JSON that fits; see [`ClientStatus::rest_from`].
pub(crate) fn from(status: &MountStatus, from: u64) -> String {
    let BackingStatus::Client(client) = &status.backing else { return json(&MountRest::default()) };
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(parts(client));
    let mut count = parts(client) - from;
    loop {
        let text = json(&rest(client, from, from + count));
        if text.len() <= PAGE_LENGTH_MAX || count <= 1 {
            return text;
        }
        // As many as fit if all are alike, and some less, as they are not.
        count = (count * PAGE_LENGTH_MAX / text.len() * 15 / 16).clamp(1, count - 1);
    }
}

/// Takes something out, once more with each call. False: there is nothing more to take out.
fn shorten(status: &mut MountStatus, is_first: bool) -> bool {
    match &mut status.backing {
        _ if is_first => status.metrics.coarsen(),
        BackingStatus::Client(client) if parts(client) > 0 => {
            let kept = parts(client) / 2;
            let MountRest { rails, ways, activity, rest_from: _ } = rest(client, 0, kept);
            (client.rails, client.ways, client.activity) = (rails, ways, activity);
            client.rest_from = Some(kept as u64);
        }
        _ if !status.metrics.0.is_empty() => status.metrics = Snapshot::default(),
        _ if !status.routes.is_empty() => status.routes.truncate(status.routes.len() / 2),
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use aqueduct_metrics::activity::Station;
    use aqueduct_metrics::status::RouteState;
    use aqueduct_metrics::{Histogram, table};

    use super::*;

    /// A mount of so many servers, each with as many rails, of all classes of requests.
    fn mount(servers: usize, rails: usize) -> MountStatus {
        let server = |at: usize| format!("[fd00::{at}]:7170,10.20.{at}.1:7170");
        let mut client: ClientStatus = serde_json::from_str(
            r#"{"server":"s:7170","export":"/e","connections":1,"operations":1,"bytes_read":1,"bytes_written":1,"reconnects":0,"replay_window":1,"replay_bytes":0}"#,
        )
        .unwrap();
        let of_rails = |at: usize| (0..rails).map(move |rail| format!("{at} 10.20.{at}.2/10.20.{at}.{rail}"));
        for path in (0..servers).flat_map(of_rails) {
            let (ways, rail) = (path.clone(), path);
            client.rails.push(RailStatus {
                path: rail,
                state: "up".into(),
                bytes_read: 1 << 50,
                ..RailStatus::default()
            });
            client.ways.push(WayStatus { path: ways, busy_us: 1 << 50, segments: 1 << 40, ..WayStatus::default() });
        }
        for at in 0..servers {
            for class in ["read", "write", "sync", "locks", "names"] {
                let times = std::array::from_fn(|level| 1_234.567_890_123 + (level * at) as f64);
                let (target, count) = (server(at), at as f64);
                let station =
                    Station { target, time: times, done: times, spent: 98_765.432_1, count, ..Station::default() };
                client.activity.push(ActivityStatus { class: class.into(), station });
            }
        }
        let mut status = MountStatus { backing: BackingStatus::Client(client), ..MountStatus::default() };
        let histogram = Histogram::single();
        (0..40).for_each(|power| histogram.record(9 << power));
        for operation in ["Read", "Write", "Lookup", "GetAttr"] {
            status.metrics.put(&table::SESSION_REQUEST_SECONDS, &[operation], &histogram);
        }
        status.routes = vec![RouteState::default()];
        status
    }

    /// What who reads all pages has, and how many there were.
    fn read(status: &MountStatus) -> (MountStatus, usize) {
        let first = first(status.clone());
        assert!(first.len() <= PAGE_LENGTH_MAX, "{}", first.len());
        let (mut told, mut pages): (MountStatus, usize) = (serde_json::from_str(&first).unwrap(), 1);
        let BackingStatus::Client(client) = &mut told.backing else { panic!("{first}") };
        while let Some(from) = client.rest_from {
            let page = self::from(status, from);
            assert!(page.len() <= PAGE_LENGTH_MAX, "{}", page.len());
            assert!(add(client, serde_json::from_str(&page).unwrap()), "{page}");
            pages += 1;
        }
        (told, pages)
    }

    #[test]
    fn a_mount_of_many_servers_tells_of_all_of_them() {
        for (servers, rails) in [(1, 1), (35, 1), (64, 1), (64, 4), (256, 4)] {
            let status = mount(servers, rails);
            let (told, pages) = read(&status);
            assert_eq!(told.backing, status.backing, "{servers} servers, {rails} rails");
            assert!(pages > 1 || servers == 1, "{servers} servers in one page");
            assert!(pages <= PAGES_MAX / 2, "{servers} servers, {rails} rails: {pages} pages");
            assert!(!told.metrics.0.is_empty() && told.routes.len() == 1, "{servers} servers");
        }
    }

    #[test]
    fn a_page_from_anywhere_ends() {
        let status = mount(64, 2);
        for from in [0, 1, 127, 128, 255, 256, 575, 576, u64::MAX] {
            let page: MountRest = serde_json::from_str(&self::from(&status, from)).unwrap();
            let count = page.rails.len() + page.ways.len() + page.activity.len();
            assert!(count > 0 || from >= 576, "{from}");
            assert!(page.rest_from.is_none_or(|next| next == from + count as u64), "{from}");
        }
        assert_eq!(from(&MountStatus::default(), 7), "{}");
    }
}
