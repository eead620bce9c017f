//! The options by which the ranks of a measurement come to be, and which rank is on which host. Pure.

#![allow(rustdoc::broken_intra_doc_links, reason = "the comments are help texts, where [] means optional")]

use clap::Args;

use crate::Failure;

/// The most ranks of one measurement: each has a connection to rank 0.
pub const RANKS_MAX: usize = 16_384;

/// How the ranks of a measurement come to be.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Ranks")]
pub struct Options {
    /// Start this many ranks, each a process [default: as many as are needed, or one for each slot of --hosts]; under mpiexec or srun, which start them, only the first so many take part
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Start the ranks on these hosts by ssh, with the same program, directory and arguments; AQUEDUCT_BENCH_SSH replaces 'ssh', as in 'ssh -p 2222'
    #[arg(long, value_name = "HOST[:SLOTS],...", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// Start each rank with this shell command, where {rank}, {host} and {command} are replaced: 'ip netns exec c{rank} {command}'. It has to pass stdin and stdout on
    #[arg(long, value_name = "COMMAND")]
    pub launch: Option<String>,
    /// Where the ranks that a launcher starts meet, if they cannot find out by themselves: rank 0's address, or a file that all can reach. AQUEDUCT_BENCH_SECRET keeps strangers out of the former
    #[arg(long, value_name = "HOST:PORT|FILE")]
    pub rendezvous: Option<String>,
    /// How many there are if nothing says it; 0 is 1.
    #[arg(skip)]
    pub usual: usize,
}

/// A host, and how many ranks it may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// As ssh takes it.
    pub(super) host: String,
    /// As many as given; `None`: as many as there are to be spread.
    pub(super) count: Option<usize>,
}

fn wrong(text: &str, why: &str) -> Failure {
    Failure::usage(format!("--hosts {text}"), why, "give hosts as in --hosts node1,node2:4,[2001:db8::1]:2")
}

/// `HOST`, `HOST:SLOTS`, `[IPV6]:SLOTS`.
fn slots(text: &str) -> Result<Slots, Failure> {
    let (host, count) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, rest))) => (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some(""))),
        Some(None) => return Err(wrong(text, "a bracket is not closed")),
        // More than one colon without brackets: an IPv6 address.
        None if text.matches(':').count() > 1 => (text, Some("")),
        None => text.split_once(':').map_or((text, Some("")), |(host, count)| (host, Some(count))),
    };
    let count = match count {
        None => return Err(wrong(text, "something else than ':SLOTS' follows the bracket")),
        Some("") if text.ends_with(':') && !text.ends_with("::") => {
            return Err(wrong(text, "no slots follow the colon"));
        }
        Some("") => None,
        Some(count) => {
            let count = count.parse().ok().filter(|count| (1..=RANKS_MAX).contains(count));
            Some(count.ok_or_else(|| wrong(text, &format!("slots are a number from 1 to {RANKS_MAX}")))?)
        }
    };
    // ssh takes what begins with '-' for an option.
    if host.is_empty() || host.starts_with('-') || host.contains(|letter: char| letter.is_whitespace()) {
        return Err(wrong(text, "this is no name of a host"));
    }
    Ok(Slots { host: host.to_owned(), count })
}

/// The host of each rank as the options say; empty names mean this host, and no ssh.
pub(super) fn placement(options: &Options) -> Result<Vec<String>, Failure> {
    let hosts = options.hosts.iter().map(|text| slots(text)).collect::<Result<Vec<_>, _>>()?;
    let wanted = options.ranks.map(check_ranks).transpose()?;
    if hosts.is_empty() {
        return Ok(vec![String::new(); wanted.unwrap_or(options.usual.max(1))]);
    }
    let given: usize = hosts.iter().map(|slots| slots.count.unwrap_or(1)).sum();
    // Hosts without a number are filled up.
    let all_given = hosts.iter().all(|slots| slots.count.is_some());
    let least = if all_given { given } else { given.max(options.usual) };
    let ranks = check_ranks(wanted.unwrap_or(least))?;
    if ranks > given && all_given {
        return Err(Failure::usage(
            format!("--ranks {ranks} on hosts with {given} slots"),
            "there are more ranks than slots",
            "give the hosts more slots, or no numbers of slots: ranks are spread evenly then",
        ));
    }
    // Hosts without a number share evenly what the others leave, in blocks, as mpiexec does.
    let fixed: usize = hosts.iter().filter_map(|slots| slots.count).sum();
    let open = hosts.iter().filter(|slots| slots.count.is_none()).count();
    let shared = ranks.saturating_sub(fixed);
    let mut placed = Vec::with_capacity(ranks);
    let mut opened = 0;
    for Slots { host, count } in hosts {
        let count = count.unwrap_or_else(|| {
            opened += 1;
            shared / open + usize::from(opened <= shared % open)
        });
        placed.extend(std::iter::repeat_n(host, count.min(ranks - placed.len())));
    }
    Ok(placed)
}

fn check_ranks(ranks: usize) -> Result<usize, Failure> {
    if (1..=RANKS_MAX).contains(&ranks) {
        return Ok(ranks);
    }
    Err(Failure::usage(
        format!("{ranks} ranks"),
        format!("there are at least 1 and at most {RANKS_MAX}"),
        "give another number",
    ))
}

/// A word as a shell takes it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The command line of a rank after the template of `--launch`.
pub(super) fn filled(template: &str, (rank, host): (usize, &str), command: &str) -> String {
    let template = if template.contains("{command}") { template.to_owned() } else { format!("{template} {{command}}") };
    // The command last: what stands in its arguments is not replaced.
    template.replace("{rank}", &rank.to_string()).replace("{host}", &quoted(host)).replace("{command}", command)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options(ranks: Option<usize>, hosts: &[&str]) -> Options {
        Options { ranks, hosts: hosts.iter().map(|host| (*host).to_owned()).collect(), ..Options::default() }
    }

    #[test]
    fn ranks_are_placed_in_blocks() {
        assert_eq!(placement(&options(None, &[])).unwrap(), [""]);
        assert_eq!(placement(&options(Some(3), &[])).unwrap(), ["", "", ""]);
        assert_eq!(placement(&options(None, &["a", "b:2"])).unwrap(), ["a", "b", "b"]);
        assert_eq!(placement(&options(Some(5), &["a", "b"])).unwrap(), ["a", "a", "a", "b", "b"]);
        assert_eq!(placement(&options(Some(5), &["a", "b:1", "c"])).unwrap(), ["a", "a", "b", "c", "c"]);
        assert_eq!(placement(&options(Some(2), &["a:4", "b:4"])).unwrap(), ["a", "a"]);
        assert_eq!(placement(&options(None, &["[::1]:2", "fe80::2"])).unwrap(), ["::1", "::1", "fe80::2"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for hosts in [&["a:0"][..], &["a:x"], &[""], &["-oProxyCommand=x"], &["a b"], &["[::1"], &["[::1]2"], &["a:"]] {
            let failure = placement(&options(None, hosts)).unwrap_err();
            assert!(failure.is_usage && failure.what.contains(hosts[0]), "{hosts:?}: {failure}");
        }
        assert!(placement(&options(Some(0), &[])).unwrap_err().is_usage);
        assert!(placement(&options(Some(RANKS_MAX + 1), &[])).is_err());
        assert!(placement(&options(Some(3), &["a:1", "b:1"])).unwrap_err().why.contains("more ranks than slots"));
    }

    #[test]
    fn templates_are_filled() {
        let filled = |template| filled(template, (3, "n 1"), "exe '{rank}'");
        assert_eq!(filled("ip netns exec c{rank} {command}"), "ip netns exec c3 exe '{rank}'");
        assert_eq!(filled("on {host}"), "on 'n 1' exe '{rank}'");
    }

    proptest! {
        #[test]
        fn each_rank_has_a_host(ranks in 1usize..200, counts in proptest::collection::vec(proptest::option::of(1usize..9), 1..9)) {
            let hosts: Vec<String> = counts.iter().enumerate()
                .map(|(at, count)| count.map_or(format!("h{at}"), |count| format!("h{at}:{count}"))).collect();
            let options = Options { ranks: Some(ranks), hosts, ..Options::default() };
            let fixed: usize = counts.iter().flatten().sum();
            match placement(&options) {
                Err(_) => prop_assert!(counts.iter().all(Option::is_some) && ranks > fixed),
                Ok(placed) => {
                    prop_assert_eq!(placed.len(), ranks);
                    for (at, count) in counts.iter().enumerate() {
                        let name = format!("h{at}");
                        let here = placed.iter().filter(|host| **host == name).count();
                        prop_assert!(count.is_none_or(|count| here <= count));
                    }
                }
            }
        }

        #[test]
        fn a_shell_gives_back_what_was_quoted(word in "[^\0]{0,20}") {
            let output = std::process::Command::new("sh").args(["-c", &format!("printf %s {}", quoted(&word))]).output().unwrap();
            prop_assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}
