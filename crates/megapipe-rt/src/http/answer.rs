//! The service as hyper calls it: requests wait for room, and bodies of answers are counted.

use super::BoxError;
use super::account::Account;
use super::request::{Answered, RequestBody};
use ::hyper::body::{Body, Buf, Bytes, Frame, Incoming, SizeHint};
use ::hyper::{Request, Response, service};
use hyper_util::service::{TowerToHyperService, TowerToHyperServiceFuture};
use pin_project_lite::pin_project;
use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tower_service::Service;

/// The service of one connection.
pub(super) struct Limited<S> {
    service: TowerToHyperService<S>,
    account: Rc<Account>,
    body: Option<Duration>,
}

impl<S> Limited<S> {
    pub(super) fn new(service: S, account: Rc<Account>, body: Option<Duration>) -> Limited<S> {
        Limited { service: TowerToHyperService::new(service), account, body }
    }
}

impl<S, B> service::Service<Request<Incoming>> for Limited<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone,
{
    type Response = Response<Output<B>>;
    type Error = S::Error;
    type Future = Answer<S>;

    fn call(&self, request: Request<Incoming>) -> Answer<S> {
        let mut answered = None;
        let request = request.map(|incoming| {
            let (body, flag) = RequestBody::new(incoming, self.body);
            answered = flag;
            body
        });
        let future = self.service.call(request);
        Answer { future, account: Rc::clone(&self.account), answered, is_begun: false }
    }
}

pin_project! {
    /// The future of an answer. The service is called by its first poll.
    pub(super) struct Answer<S>
    where
        S: Service<Request<RequestBody>>,
    {
        #[pin]
        future: TowerToHyperServiceFuture<S, Request<RequestBody>>,
        account: Rc<Account>,
        answered: Option<Answered>,
        is_begun: bool,
    }
}

impl<S, B> Future for Answer<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
{
    type Output = Result<Response<Output<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if !*this.is_begun {
            ready!(this.account.poll_room(context));
            *this.is_begun = true;
        }
        let response = ready!(this.future.poll(context));
        if let Some(answered) = this.answered {
            answered.set();
        }
        let account = Rc::clone(this.account);
        Poll::Ready(response.map(|response| response.map(|body| Output { body, account })))
    }
}

pin_project! {
    /// The body of an answer.
    pub(super) struct Output<B> {
        #[pin]
        body: B,
        account: Rc<Account>,
    }
}

impl<B> Body for Output<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = Held<B::Data>;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Held<B::Data>>, BoxError>>> {
        let this = self.project();
        let Some(frame) = ready!(this.body.poll_frame(context)) else { return Poll::Ready(None) };
        let frame = frame.map_err(Into::into)?;
        if let Some(data) = frame.data_ref() {
            this.account.hold(data.remaining())?;
        }
        Poll::Ready(Some(Ok(frame.map_data(|data| {
            let bytes = data.remaining();
            Held { data, bytes, account: Rc::clone(this.account) }
        }))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes of an answer, which are counted until they are dropped.
pub(super) struct Held<D> {
    data: D,
    bytes: usize,
    account: Rc<Account>,
}

impl<D: Buf> Buf for Held<D> {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.data.chunks_vectored(slices)
    }

    fn advance(&mut self, count: usize) {
        if count > 0 {
            self.account.note_movement();
        }
        self.data.advance(count);
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        self.account.note_movement();
        self.data.copy_to_bytes(count)
    }
}

impl<D> Drop for Held<D> {
    fn drop(&mut self) {
        self.account.release(self.bytes);
    }
}
