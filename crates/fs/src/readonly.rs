//! A layer that refuses what would change the file system below it.

use crate::layer::Layer;
use crate::{Answer, Call, Context, Errno, FileSystem, Request, Source, WriteAt, Written};

/// Answers EROFS to whatever writes, and passes the rest on.
#[derive(Debug)]
pub struct ReadOnly<F>(pub F);

impl<F: FileSystem> Layer for ReadOnly<F> {
    type Below = F;

    fn below(&self) -> &F {
        &self.0
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        if request.writes() { Call::ready(Ok(Err(Errno::EROFS).into())) } else { self.0.ask(context, request) }
    }

    fn write<'a>(&'a self, _context: &'a Context, _write: WriteAt, _source: Source) -> Call<'a, Written> {
        Call::ready(Err(Errno::EROFS))
    }
}
