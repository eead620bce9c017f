//! Places of exports, as people and files write them. The first byte says which networks are known.

use aqueduct_node::{Place, place};

/// A place that is understood and written down is read as the same; so is the list of its
/// server's addresses.
pub fn run(data: &[u8]) {
    let Some((known, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let is_network = |name: &str| known % 2 == 1 && name.starts_with("net");
    if let Ok(found) = Place::parse(text, is_network) {
        assert_eq!(Place::parse(&found.to_string(), is_network).as_ref(), Ok(&found));
        let server = found.server(None);
        assert_eq!(place::addresses(&server, is_network).as_ref(), Ok(&server));
        assert!(found.addresses.len() <= place::ADDRESSES_MAX && !found.export.is_empty());
    }
    place::server_address(text);
}

/// Each form of an address.
pub fn seeds() -> Vec<Vec<u8>> {
    let texts = ["host:/x", "v@10.1.0.1:7@net1,[fe80::1%eth0]:8,unix:/run/s,b@net2:/x,y@z:1", "::1", "h@net:e"];
    texts.into_iter().flat_map(|text| [0, 1].map(|known| [&[known], text.as_bytes()].concat())).collect()
}
