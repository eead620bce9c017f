//! Slurm's lists of nodes: `login,node[01-04,7]-ib,rack[1-2]n[3-4]`. Pure.

/// The first node of a list.
pub(super) fn first_node(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list.trim();
    loop {
        let at = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..at]);
        if !rest[at..].starts_with('[') {
            break;
        }
        let (range, after) = rest[at + 1..].split_once(']')?;
        let first = range.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        name.push_str(first);
        rest = after;
    }
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_node_is_found() {
        let first = |list| first_node(list).unwrap_or_default();
        assert_eq!(first("n1"), "n1");
        assert_eq!(first("n1,n2"), "n1");
        assert_eq!(first("node[01-04,7],x"), "node01");
        assert_eq!(first("node[7,9-12]-ib"), "node7-ib");
        assert_eq!(first("rack[1-2]n[003-4]"), "rack1n003");
        assert_eq!([first(""), first(","), first("n[-2]"), first("n[1"), first("n[]")], [""; 5]);
    }

    proptest! {
        #[test]
        fn no_list_is_too_strange(list in "[a-c0-3\\[\\],\\-]{0,12}") {
            if let Some(name) = first_node(&list) {
                prop_assert!(!name.contains(['[', ']', ',']) || list.contains(']'));
            }
        }
    }
}
