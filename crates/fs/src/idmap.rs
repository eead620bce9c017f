//! Users and groups whose numbers differ between clients and server: the maps, and a layer that translates what passes.
//!
//! The layer translates the owners in requests and replies. As whom an operation is done is the business of whoever makes its [`Context`], by
//! [`IdMaps::credential`]: below and in the layer, contexts have the server's numbers.

use std::sync::Arc;

use crate::layer::Layer;
use crate::{
    Answer, Attr, Call, Context, Credential, Errno, FileSystem, Groups, Reply, Request, SetAttr, XattrMode, acl,
};

/// Ids `client..client + count` of the clients are `server..server + count` on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first at the clients.
    pub client: u32,
    /// The first on the server.
    pub server: u32,
    /// How many.
    pub count: u32,
}

/// A map from clients' to the server's ids and back. It is shared by its copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    /// In the order of the clients' ids.
    to_server: Arc<[IdRange]>,
    /// In the order of the server's ids.
    to_client: Arc<[IdRange]>,
    others: Option<u32>,
}

/// Why ranges are no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdMapError {
    /// It has no ids.
    #[error("{} has a count of 0", shown(.0))]
    Empty(IdRange),
    /// The last 32-bit number is no id: for chown(2) it means that there is none.
    #[error("{} goes beyond the last id, 4294967294", shown(.0))]
    Beyond(IdRange),
    /// Two ranges say something about one id of the clients.
    #[error("{} and {} overlap at the clients", shown(.0), shown(.1))]
    OverlapAtClients(IdRange, IdRange),
    /// Two ranges say something about one id of the server, so that it could not be told to clients.
    #[error("{} and {} overlap on the server", shown(.0), shown(.1))]
    OverlapOnServer(IdRange, IdRange),
}

fn shown(IdRange { client, server, count }: &IdRange) -> String {
    format!("{{ client = {client}, server = {server}, count = {count} }}")
}

/// The end of the ids: one more is `u32::MAX`, which stands for none.
const ID_END: u64 = u32::MAX as u64;

/// Puts ranges into the order of their first ids; two that overlap there.
fn sorted(ranges: &[IdRange], first: impl Fn(&IdRange) -> u32) -> Result<Vec<IdRange>, (IdRange, IdRange)> {
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(&first);
    let overlap = sorted.windows(2).find(|pair| first(&pair[1]) - first(&pair[0]) < pair[0].count);
    match overlap {
        Some(pair) => Err((pair[0], pair[1])),
        None => Ok(sorted),
    }
}

/// The image of an id in ranges that are in the order of `from`.
fn image(ranges: &[IdRange], id: u32, from: impl Fn(&IdRange) -> u32, to: impl Fn(&IdRange) -> u32) -> Option<u32> {
    let range = &ranges[ranges.partition_point(|range| from(range) <= id).checked_sub(1)?];
    let offset = id - from(range);
    (offset < range.count).then(|| to(range) + offset)
}

impl IdMap {
    /// A map of these ranges. All other ids become `others`, or stay as they are.
    pub fn new(ranges: &[IdRange], others: Option<u32>) -> Result<IdMap, IdMapError> {
        for range in ranges {
            if range.count == 0 {
                return Err(IdMapError::Empty(*range));
            }
            if u64::from(range.client.max(range.server)) + u64::from(range.count) > ID_END {
                return Err(IdMapError::Beyond(*range));
            }
        }
        let overlap_at_clients = |(one, other)| IdMapError::OverlapAtClients(one, other);
        let overlap_on_server = |(one, other)| IdMapError::OverlapOnServer(one, other);
        Ok(IdMap {
            to_server: sorted(ranges, |range| range.client).map_err(overlap_at_clients)?.into(),
            to_client: sorted(ranges, |range| range.server).map_err(overlap_on_server)?.into(),
            others,
        })
    }

    /// The server's id for a client's.
    pub fn to_server(&self, id: u32) -> u32 {
        image(&self.to_server, id, |range| range.client, |range| range.server).or(self.others).unwrap_or(id)
    }

    /// What clients are told for an id of the server.
    pub fn to_client(&self, id: u32) -> u32 {
        image(&self.to_client, id, |range| range.server, |range| range.client).or(self.others).unwrap_or(id)
    }

    /// The ranges, in the order of the clients' ids.
    pub fn ranges(&self) -> &[IdRange] {
        &self.to_server
    }
}

/// The maps of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMaps {
    /// Of users.
    pub users: IdMap,
    /// Of groups.
    pub groups: IdMap,
}

impl IdMaps {
    /// A client's credential with the server's ids. Groups that the server is to look up are those of the server's user.
    pub fn credential(&self, credential: Credential) -> Credential {
        let groups = match credential.groups {
            Groups::Known(groups) => Groups::Known(groups.iter().map(|gid| self.groups.to_server(*gid)).collect()),
            resolved => resolved,
        };
        Credential { uid: self.users.to_server(credential.uid), gid: self.groups.to_server(credential.gid), groups }
    }

    fn attr_to_client(&self, attr: &mut Attr) {
        attr.uid = self.users.to_client(attr.uid);
        attr.gid = self.groups.to_client(attr.gid);
    }

    fn set_to_server(&self, set: SetAttr) -> SetAttr {
        let (users, groups) = (&self.users, &self.groups);
        SetAttr { uid: set.uid.map(|id| users.to_server(id)), gid: set.gid.map(|id| groups.to_server(id)), ..set }
    }

    fn acl_to_server(&self, value: &mut [u8]) -> Result<(), Errno> {
        acl::change_ids(value, |id| self.users.to_server(id), |id| self.groups.to_server(id))
    }

    /// The ids of a reply, as clients know them. `is_acl`: it is the value of an access control list.
    fn reply_to_client(&self, mut reply: Reply, is_acl: bool) -> Result<Reply, Errno> {
        match &mut reply {
            Reply::Entry(entry) | Reply::Created(entry, _) => self.attr_to_client(&mut entry.attr),
            Reply::Attr(attr) => self.attr_to_client(attr),
            Reply::Directory(page) => page.change_attrs(|attr| self.attr_to_client(attr)),
            Reply::Bytes(value) if is_acl => {
                acl::change_ids(value, |id| self.users.to_client(id), |id| self.groups.to_client(id))
                    .map_err(|_| Errno::EIO)?; // the file system below gave what is no list
            }
            _ => {}
        }
        Ok(reply)
    }
}

/// A file system whose owners have other numbers at its clients.
#[derive(Debug)]
pub struct Mapped<F> {
    /// With the server's ids.
    pub below: F,
    /// How they are translated.
    pub maps: IdMaps,
}

impl<F: FileSystem> Mapped<F> {
    fn set_acl<'a>(
        &'a self,
        context: &'a Context,
        (handle, name): (&'a [u8], &'a [u8]),
        value: &[u8],
        mode: XattrMode,
    ) -> Call<'a, Answer> {
        let mut value = value.to_vec();
        match self.maps.acl_to_server(&mut value) {
            // The value lives as long as the call.
            Ok(()) => Call::waiting(async move {
                self.below.ask(context, Request::SetXattr { handle, name, value: &value, mode }).await
            }),
            Err(error) => Call::ready(Err(error)),
        }
    }
}

impl<F: FileSystem> Layer for Mapped<F> {
    type Below = F;

    fn below(&self) -> &F {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        let request = match request {
            Request::SetAttr { handle, open, set } => {
                Request::SetAttr { handle, open, set: self.maps.set_to_server(set) }
            }
            Request::SetXattr { handle, name, value, mode } if acl::is_acl(name) => {
                return self.set_acl(context, (handle, name), value, mode);
            }
            // Owners stand in what is packed: who sends it makes its files one by one.
            Request::PutFiles { .. } => return Call::ready(Ok(Err(Errno::EOPNOTSUPP).into())),
            request => request,
        };
        let is_acl = matches!(&request, Request::GetXattr { name, .. } if acl::is_acl(name));
        let translate = move |answer: Answer| {
            let result = answer.result.and_then(|reply| self.maps.reply_to_client(reply, is_acl));
            Answer { result, ..answer }
        };
        match self.below.ask(context, request) {
            Call::Ready(answer) => Call::Ready(answer.map(|answer| answer.map(translate))),
            Call::Waiting(future) => Call::waiting(async move { future.await.map(translate) }),
        }
    }
}

#[cfg(test)]
#[path = "idmap_tests.rs"]
mod tests;
