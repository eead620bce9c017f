//! What stands before bodies, and the bodies of what says who serves what, which links are used
//! and where they lead. The first byte says which.

use aqueduct_wire::{
    Committed, CommittedWrite, DataServer, Extensions, GiveUp, Lane, Map, NetworkName, Notice, Ordinal, Route,
    RouteHeld, RouteHeldReply, RouteNotice, RouteReply, RouteStatus, ServerId, Target, Times, VolumeMode, WriteNumber,
    decode_retire, encode_retire,
};

/// What has one form is written down as the same bytes.
pub fn run(data: &[u8]) {
    let Some((which, body)) = data.split_first() else { return };
    let mut out = Vec::new();
    match which % 11 {
        0 => return extensions(body),
        1 => {
            let Ok(map) = Map::decode(body) else { return };
            map.encode(&mut out);
        }
        2 => {
            let Ok(notice) = Notice::decode(body) else { return };
            if notice == Notice::Unknown {
                return;
            }
            notice.encode(&mut out);
        }
        3 => {
            let Ok(give_up) = GiveUp::decode(body) else { return };
            give_up.encode(&mut out);
            give_up.ends(7);
        }
        4 => {
            let Ok(link) = decode_retire(body) else { return };
            encode_retire(link, &mut out);
        }
        6 => {
            // What a later version adds is left out.
            let Ok(route) = Route::decode(body) else { return };
            route.encode(&mut out);
            assert_eq!(Route::decode(&out), Ok(route));
            return assert!(body.starts_with(&out));
        }
        7 => {
            let Ok(reply) = RouteReply::decode(body) else { return };
            reply.encode(&mut out);
            return assert!(body.starts_with(&out));
        }
        8 => {
            let Ok(notice) = RouteNotice::decode(body) else { return };
            notice.encode(&mut out);
        }
        9 => {
            let Ok(held) = RouteHeld::decode(body) else { return };
            held.encode(&mut out);
        }
        10 => {
            let Ok(reply) = RouteHeldReply::decode(body) else { return };
            reply.encode(&mut out);
        }
        _ => {
            let Ok(committed) = Committed::decode(body) else { return };
            committed.encode(&mut out);
        }
    }
    assert_eq!(out, body);
}

/// What is not known is skipped, so that only what is understood is written down again.
fn extensions(body: &[u8]) {
    let Ok((extensions, rest)) = Extensions::take(body) else { return };
    assert!(body.ends_with(rest));
    let mut out = Vec::new();
    extensions.encode(&mut out);
    assert!(out.len() + rest.len() <= body.len());
    out.extend_from_slice(rest);
    assert_eq!(Extensions::take(&out), Ok((extensions, rest)));
}

/// One of each.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = (0..11).map(|which| vec![which]).collect();
    let all = Extensions {
        job: Some("slurm-4711".into()),
        trace: Some([7; 16]),
        asks_queue_time: true,
        queue_time: Some(123),
        times: Some(Times { lease_us: 4, served_us: 567 }),
        right: Some([9; 40].into()),
        ordinal: Some(Ordinal { number: 7, settled: 5 }),
        staged: Some(aqueduct_fs::Staged { id: [6; 16], length: 4096 }),
    };
    all.encode(&mut seeds[0]);
    seeds[0].extend_from_slice(b"fields");
    let map = Map {
        volume: [3; 16],
        epoch: 4,
        mode: VolumeMode::Cluster,
        stripe_size: 1 << 20,
        width: 2,
        is_atomic: true,
        names: vec!["10.0.0.1:7170".into(), "[fe80::1]:7170".into()],
        data: vec![DataServer { place: 3, share_epoch: 1, share: 2, addresses: vec!["unix:/run/aqueduct".into()] }],
    };
    map.encode(&mut seeds[1]);
    Notice::Map(map).encode(&mut seeds[2]);
    GiveUp { link: 3, floor: 4, surviving: vec![1, 2] }.encode(&mut seeds[3]);
    encode_retire(3, &mut seeds[4]);
    let number = WriteNumber { share_epoch: 1, start: 2, count: 3 };
    let write = CommittedWrite { slot: 1, sequence: 2, count: 3, offset: 4, number, ..CommittedWrite::default() };
    let committed = Committed { handle: b"handle".to_vec(), up_to: number, status: 0, writes: vec![write; 2] };
    committed.encode(&mut seeds[5]);
    let network = NetworkName::new("net1").expect("a name");
    let target = Target::Address { network, address: ([10, 1, 0, 1], 7170).into() };
    let route = Route { target, hops_left: 3, time_left_ms: 2500, lane: Lane::Bulk, initiator: [5; 16], flow: 77 };
    route.encode(&mut seeds[6]);
    let hop = Target::Hop { network: NetworkName::new("net2").expect("a name"), behind: 2 };
    for target in [Target::Router, Target::Server(ServerId([4; 16])), hop] {
        let mut seed = vec![6];
        Route { target, ..route.clone() }.encode(&mut seed);
        seeds.push(seed);
    }
    RouteReply { status: RouteStatus::Full, hop: 1, text: "r1: full".into() }.encode(&mut seeds[7]);
    RouteNotice { stopping_seconds: 30, flows: vec![77, 78] }.encode(&mut seeds[8]);
    RouteHeld { flow: 77, from_us: 20_000, to_us: 16 }.encode(&mut seeds[9]);
    RouteHeldReply { looked_us: 20_000, held_us: 18, unread_us: 16 }.encode(&mut seeds[10]);
    let mut stopping = vec![2];
    Notice::Stopping(30).encode(&mut stopping);
    seeds.push(stopping);
    seeds
}
