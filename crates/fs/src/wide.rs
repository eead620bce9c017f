//! A layer by which a directory says over how many servers the blocks of the files are spread that
//! come to be in it: its **width**, an attribute that new files and directories inherit. A file
//! keeps the one that it was made with, and each open tells it, so that all clients spread a file
//! alike.

use crate::layer::{Layer, names_without};
use crate::{Answer, Call, Context, Credential, Entry, Errno, FileSystem, Reply, Request, XATTR_SIZE_MAX, XattrMode};

/// What programs call the attribute: a number of servers, in decimal; 0: as the volume says.
pub const WIDTH: &[u8] = b"aqueduct.width";

/// Where it is kept. No program sees or changes it past this layer: who copies all attributes of a
/// file would give its width to one that has content.
pub const KEPT: &[u8] = b"trusted.aqueduct.width";

/// More servers no volume has.
pub const WIDTH_MAX: u16 = 256;

/// Digits of the attribute.
pub const LENGTH_MAX: u32 = 8;

/// See the module.
#[derive(Debug)]
pub struct Wide<F> {
    /// What it stands over.
    pub below: F,
}

/// What a value of it says.
pub fn width_of(value: &[u8]) -> Option<u16> {
    let width = std::str::from_utf8(value).ok()?.parse().ok()?;
    (width <= WIDTH_MAX).then_some(width)
}

fn as_root(context: &Context) -> Context {
    Context { credential: Credential::root(), ..context.clone() }
}

impl<F: FileSystem> Wide<F> {
    /// That of an inode; 0: it has none.
    async fn width(&self, context: &Context, handle: &[u8]) -> u16 {
        let request = Request::GetXattr { handle, name: KEPT, size: LENGTH_MAX };
        match self.below.call(&as_root(context), request).await {
            Ok(Reply::Bytes(value)) => width_of(&value).unwrap_or(0),
            _ => 0,
        }
    }

    async fn set(&self, context: &Context, handle: &[u8], width: u16) -> Result<Reply, Errno> {
        let value = width.to_string();
        let request = Request::SetXattr { handle, name: KEPT, value: value.as_bytes(), mode: XattrMode::Any };
        self.below.call(&as_root(context), request).await
    }

    /// What has come to be in a directory has its width from now on, which is returned. One that
    /// cannot be written down is none.
    async fn inherit(&self, context: &Context, parent: &[u8], entry: &mut Entry) -> u16 {
        let handle = entry.handle.bytes();
        let own = self.width(context, handle).await;
        if own > 0 {
            return own; // it was there
        }
        let width = self.width(context, parent).await;
        if width == 0 || self.set(context, handle, width).await.is_err() {
            return 0;
        }
        // That was a change of it, of which its time tells.
        if let Ok(Reply::Attr(attr)) = self.below.call(context, Request::GetAttr { handle, open: None }).await {
            entry.attr = attr;
        }
        width
    }

    /// The names of extended attributes without where the width is kept.
    async fn list(&self, context: &Context, handle: &[u8], size: u32) -> Result<Reply, Errno> {
        let all = Request::ListXattr { handle, size: XATTR_SIZE_MAX as u32 };
        let names = self.below.call(context, all).await?.bytes()?;
        names_without(KEPT, &names, size)
    }

    /// Only who owns a directory says how wide it is.
    async fn check(&self, context: &Context, handle: &[u8]) -> Result<(), Errno> {
        let reply = self.below.call(context, Request::GetAttr { handle, open: None }).await?;
        let Reply::Attr(attr) = reply else { return Err(Errno::EIO) };
        match context.credential.uid {
            _ if !attr.is_directory() => Err(Errno::ENOTDIR),
            0 => Ok(()),
            uid if uid == attr.uid => Ok(()),
            _ => Err(Errno::EPERM),
        }
    }

    async fn change(&self, context: &Context, handle: &[u8], value: &[u8]) -> Result<Reply, Errno> {
        self.check(context, handle).await?;
        self.set(context, handle, width_of(value).ok_or(Errno::EINVAL)?).await
    }

    async fn told(&self, context: &Context, request: Request<'_>) -> Result<Answer, Errno> {
        let (opens, parent) = match request {
            Request::Open { handle, .. } => (Some(handle), None),
            Request::Create { parent, .. }
            | Request::CreateUnnamed { parent, .. }
            | Request::MakeDirectory { parent, .. }
            | Request::MakeNode { parent, .. }
            | Request::PutFiles { parent, .. } => (None, Some(parent)),
            _ => (None, None),
        };
        let mut answer = self.below.ask(context, request).await?;
        match (&mut answer.result, opens, parent) {
            (Ok(Reply::Opened(opened)), Some(handle), _) => opened.width = self.width(context, handle).await,
            (Ok(Reply::Created(entry, opened)), _, Some(parent)) => {
                // What has content was there before, and stays as it is.
                opened.width = match entry.attr.size {
                    0 => self.inherit(context, parent, entry).await,
                    _ => self.width(context, entry.handle.bytes()).await,
                };
            }
            (Ok(Reply::Entry(entry)), _, Some(parent)) if entry.attr.is_directory() || entry.attr.is_regular() => {
                self.inherit(context, parent, entry).await;
            }
            (Ok(Reply::Put(entries)), _, Some(parent)) if self.width(context, parent).await > 0 => {
                for entry in entries.iter_mut().flatten() {
                    self.inherit(context, parent, entry).await;
                }
            }
            _ => {}
        }
        Ok(answer)
    }
}

impl<F: FileSystem> Layer for Wide<F> {
    type Below = F;

    fn below(&self) -> &F {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        use Request::*;
        match request {
            Open { .. }
            | Create { .. }
            | CreateUnnamed { .. }
            | MakeDirectory { .. }
            | MakeNode { .. }
            | PutFiles { .. } => Call::waiting(self.told(context, request)),
            SetXattr { handle, name: WIDTH, value, .. } => {
                Call::waiting(async move { Ok(self.change(context, handle, value).await.into()) })
            }
            RemoveXattr { handle, name: WIDTH } => {
                Call::waiting(async move { Ok(self.change(context, handle, b"0").await.into()) })
            }
            GetXattr { name: KEPT, .. } | RemoveXattr { name: KEPT, .. } => Call::ready(Err(Errno::ENODATA)),
            SetXattr { name: KEPT, .. } => Call::ready(Err(Errno::EPERM)),
            ListXattr { handle, size } => {
                Call::waiting(async move { Ok(self.list(context, handle, size).await.into()) })
            }
            GetXattr { handle, name: WIDTH, size } => Call::waiting(async move {
                let context = as_root(context);
                self.below.ask(&context, GetXattr { handle, name: KEPT, size }).await
            }),
            request => self.below.ask(context, request),
        }
    }
}
