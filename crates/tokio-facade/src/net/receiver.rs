//! Datagram sockets with a receive for the methods that poll.

use megapipe_rt::{Datagram, DatagramSocket, FamilyAddress};
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// A receive that goes on between two polls: it keeps its place among those that wait.
type Receive<A> = Pin<Box<dyn Future<Output = io::Result<Datagram<A>>>>>;

/// A socket and the receive of the methods that poll.
pub(super) struct Receiver<A: FamilyAddress> {
    pub(super) socket: Rc<DatagramSocket<A>>,
    polled: RefCell<Option<Receive<A>>>,
}

impl<A: FamilyAddress> Receiver<A> {
    pub(super) fn new(socket: DatagramSocket<A>) -> Receiver<A> {
        Receiver { socket: Rc::new(socket), polled: RefCell::default() }
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<Datagram<A>>> {
        let mut polled = self.polled.borrow_mut();
        let receive = polled.get_or_insert_with(|| {
            let socket = Rc::clone(&self.socket);
            Box::pin(async move { socket.recv_from().await })
        });
        let result = ready!(receive.as_mut().poll(context));
        *polled = None;
        Poll::Ready(result)
    }
}

impl<A: FamilyAddress> fmt::Debug for Receiver<A> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(out)
    }
}
