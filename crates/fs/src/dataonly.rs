//! A layer that moves the bytes of what is opened by token, and answers nothing else: what a
//! server has that serves data of a volume and no names.

use crate::layer::Layer;
use crate::{Answer, Call, Context, Errno, FileSystem, Request, Source, WriteAt, Written};

/// Reads what was opened elsewhere, and writes it where that is allowed. EREMOTE: another server
/// answers the rest.
#[derive(Debug)]
pub struct DataOnly<F> {
    /// What it stands over.
    pub below: F,
    /// Bytes are written, too.
    pub writes: bool,
}

impl<F: FileSystem> Layer for DataOnly<F> {
    type Below = F;

    fn below(&self) -> &F {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        match request {
            Request::Root | Request::Reopen { .. } | Request::Release { .. } => self.below.ask(context, request),
            Request::Commit { .. } if self.writes => self.below.ask(context, request),
            _ => Call::ready(Ok(Err(Errno::EREMOTE).into())),
        }
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        match self.writes && !write.append {
            true => self.below.write(context, write, source),
            false => Call::ready(Err(Errno::EREMOTE)),
        }
    }
}
