//! The bodies of requests and replies, of every operation. The first byte is the operation's code.

use aqueduct_fs::{ClientId, Context, Errno, ReadAt, Reply, WriteAt};
use aqueduct_wire::{
    Attach, AttachReply, Caller, Op, decode_compound, decode_compound_reply, decode_fetch, decode_fetched, decode_list,
    decode_listed, decode_read, decode_reply, decode_request, decode_write, encode_compound, encode_compound_reply,
    encode_fetch, encode_fetched, encode_list, encode_listed, encode_read, encode_reply, encode_request, encode_write,
    substitute_latest,
};

use crate::samples;

fn op_of(data: &[u8]) -> Option<(Op, &[u8])> {
    let (code, body) = data.split_first()?;
    Some((Op::from_code(u16::from(*code))?, body))
}

fn context(caller: &Caller) -> Context {
    Context { pid: caller.pid, ..Context::new(ClientId(1), caller.credential.clone()) }
}

/// A request has one form: what was understood is written down as the same bytes.
pub fn request(data: &[u8]) {
    let Some((op, body)) = op_of(data) else { return };
    let mut out = Vec::new();
    match op {
        Op::Attach => {
            let Ok(attach) = Attach::decode(body) else { return };
            attach.encode(&mut out);
        }
        Op::Read => {
            let Ok((caller, read)) = decode_read(body) else { return };
            encode_read(&context(&caller), &read, &mut out);
        }
        Op::Write => {
            let Ok((caller, write)) = decode_write(body) else { return };
            encode_write(&context(&caller), &write, &mut out);
        }
        Op::Fetch => {
            let Ok((caller, handles, length)) = decode_fetch(body) else { return };
            encode_fetch(&context(&caller), &handles, length, &mut out);
        }
        Op::List => {
            let Ok((caller, handles)) = decode_list(body) else { return };
            encode_list(&context(&caller), &handles, &mut out);
        }
        Op::Compound => {
            let Ok((caller, requests)) = decode_compound(body) else { return };
            encode_compound(&context(&caller), &requests, &mut out);
            for request in requests {
                substitute_latest(request, b"latest", None);
            }
        }
        _ => {
            let Ok((caller, request)) = decode_request(op, body) else { return };
            assert_eq!(encode_request(&context(&caller), &request, &mut out), op);
        }
    }
    assert_eq!(out, body);
}

/// A reply is written down in as many bytes, and understood to be the same; not the same bytes, since those that fill attributes up are not looked at.
pub fn reply(data: &[u8]) {
    let Some((op, body)) = op_of(data) else { return };
    match op {
        Op::Attach => {
            let Ok(reply) = AttachReply::decode(body) else { return };
            let mut out = Vec::new();
            reply.encode(&mut out);
            assert_eq!((out.len(), AttachReply::decode(&out)), (body.len(), Ok(reply)));
        }
        Op::Fetch => {
            let Ok(files) = decode_fetched(body) else { return };
            let mut out = Vec::new();
            encode_fetched(files.iter().copied(), &mut out);
            assert_eq!((out.len(), decode_fetched(&out)), (body.len(), Ok(files)));
        }
        Op::List => {
            let Ok(listings) = decode_listed(body) else { return };
            let mut out = Vec::new();
            encode_listed(&listings, &mut out);
            assert_eq!((out.len(), decode_listed(&out)), (body.len(), Ok(listings)));
        }
        Op::Compound => compound_reply(body),
        _ => {
            let Ok(reply) = decode_reply(op, body) else { return };
            let mut out = Vec::new();
            encode_reply(&reply, &mut out);
            assert_eq!((out.len(), decode_reply(op, &out)), (body.len(), Ok(reply)));
        }
    }
}

/// A count, as many operations that were asked for, and the reply.
fn compound_reply(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else { return };
    let Some((codes, body)) = rest.split_at_checked(usize::from(count % 17)) else { return };
    let Some(ops) = codes.iter().map(|code| Op::from_code(u16::from(*code))).collect::<Option<Vec<_>>>() else {
        return;
    };
    let Ok(results) = decode_compound_reply(&ops, body) else { return };
    let mut out = Vec::new();
    encode_compound_reply(&results, &mut out);
    assert_eq!((out.len(), decode_compound_reply(&ops, &out)), (body.len(), Ok(results)));
}

/// One of each operation, and compounds of all.
pub fn request_seeds() -> Vec<Vec<u8>> {
    let context = samples::context();
    let requests = samples::requests();
    let mut seeds: Vec<_> = requests
        .iter()
        .map(|request| {
            let mut seed = vec![Op::of(request) as u8];
            encode_request(&context, request, &mut seed);
            seed
        })
        .collect();
    let others = [Op::Attach, Op::Read, Op::Write, Op::Fetch, Op::List];
    let mut special = others.map(|op| vec![op as u8]);
    Attach { export: "/srv/data", read_only: true }.encode(&mut special[0]);
    encode_read(&context, &ReadAt { open: samples::OPEN, offset: 4096, length: 1 << 20 }, &mut special[1]);
    let write = WriteAt { open: samples::OPEN, offset: 4096, append: true, stable: false };
    encode_write(&context, &write, &mut special[2]);
    encode_fetch(&context, &[b"one", b"other"], 4096, &mut special[3]);
    encode_list(&context, &[b"one", b"other"], &mut special[4]);
    seeds.extend(special);
    seeds.extend(requests.chunks(6).map(|requests| {
        let mut seed = vec![Op::Compound as u8];
        encode_compound(&context, requests, &mut seed);
        seed
    }));
    seeds
}

/// A reply to each operation, and to compounds of all.
pub fn reply_seeds() -> Vec<Vec<u8>> {
    let replies = samples::replies();
    let mut seeds: Vec<_> = replies
        .iter()
        .map(|(op, reply)| {
            let mut seed = vec![*op as u8];
            encode_reply(reply, &mut seed);
            seed
        })
        .collect();
    let mut attached = vec![Op::Attach as u8];
    AttachReply { root: samples::entry(), export_id: 7, read_only: false, age_max: 0, one_user: false }
        .encode(&mut attached);
    seeds.push(attached);
    let mut fetched = vec![Op::Fetch as u8];
    encode_fetched([Ok((samples::entry().attr, &b"data"[..])), Err(Errno::EACCES)].into_iter(), &mut fetched);
    seeds.push(fetched);
    let pages = replies.iter().filter_map(|(_, reply)| reply.clone().directory().ok()).map(Ok);
    let mut listed = vec![Op::List as u8];
    encode_listed(&pages.chain([Err(Errno::EACCES)]).collect::<Vec<_>>(), &mut listed);
    seeds.push(listed);
    seeds.extend(replies.chunks(4).map(|replies| {
        let mut seed = vec![Op::Compound as u8, replies.len() as u8];
        seed.extend(replies.iter().map(|(op, _)| *op as u8));
        let results: Vec<Result<Reply, _>> = replies.iter().map(|(_, reply)| Ok(reply.clone())).collect();
        encode_compound_reply(&results, &mut seed);
        seed
    }));
    seeds
}
