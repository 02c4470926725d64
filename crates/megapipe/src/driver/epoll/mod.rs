//! The driver over epoll(7) and non-blocking calls.
use super::*;
pub(crate) struct EpollDriver;
impl EpollDriver {
    pub(crate) fn new(_: &Config, _: Pools) -> io::Result<EpollDriver> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
}
impl Driver for EpollDriver {
    fn attach(&mut self, _: Endpoint, _: Kind) -> io::Result<Object> {
        unreachable!()
    }
    fn detach(&mut self, _: Object, _: bool) -> Option<OwnedFd> {
        None
    }
    fn close(&mut self, _: u64, _: Object, _: bool) -> Result<(), Full> {
        Ok(())
    }
    fn submit(&mut self, _: u64, _: Object, _: Operation) -> Result<(), Full> {
        Ok(())
    }
    fn cancel(&mut self, _: u64, _: Object) {}
    fn cancel_all(&mut self, _: Object) {}
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn collect(&mut self, _: &mut VecDeque<Outcome>, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
    fn descriptor(&mut self, _: Object) -> io::Result<OwnedFd> {
        unreachable!()
    }
    fn set_option(&mut self, _: Object, _: i32, _: i32, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn get_option(&mut self, _: Object, _: i32, _: i32, _: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }
    fn count(&self, _: &mut Counters) {}
    fn shut_down(&mut self, _: Duration) -> bool {
        true
    }
}
