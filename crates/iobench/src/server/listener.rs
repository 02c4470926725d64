//! Creates listening sockets, one for all threads or one per CPU.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::sockopt;

use crate::error::{Context, Error, Result};
use crate::stack::with_port;
use crate::sys::limits::listen_backlog;
use crate::sys::socket::{self, CongestionControl};

const BIND_REMEDY: &str = "choose another address with --bind, or --bind 0 for a free port; if the \
                           address is in use, `ss -ltnp` names the process that listens there";

/// The kind of listening sockets of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listening {
    /// One socket for all threads. A server may partition it itself.
    Shared,
    /// One socket per thread, selected by the CPU that handles the SYN.
    PerCpu,
    /// No kernel socket: the server uses user-level TCP, whose address has all ports free.
    Own,
}

/// The sockets of one server, and the port that they share.
pub(crate) struct Listeners {
    sockets: Vec<OwnedFd>,
    pub(crate) port: u16,
}

impl Listeners {
    /// Creates the sockets; thread i will run on `cpus[i]`. Accepted connections inherit
    /// TCP_NODELAY and the congestion control from the listening sockets, which saves two calls for
    /// each.
    pub(crate) fn create(
        listening: Listening,
        address: SocketAddr,
        cpus: &[usize],
    ) -> Result<Listeners> {
        let control = CongestionControl::pick();
        match listening {
            Listening::Shared => {
                let socket = listen(address, &control, false)?;
                let port = port_of(&socket)?;
                Ok(Listeners { sockets: vec![socket], port })
            }
            Listening::PerCpu => {
                let first = listen(address, &control, true)?;
                let port = port_of(&first)?;
                let mut sockets = vec![first];
                for _ in 1..cpus.len() {
                    // The kernel numbers the group's sockets in the order in which they listen.
                    sockets.push(listen(SocketAddr::new(address.ip(), port), &control, true)?);
                }
                steer_by_cpu(&sockets[0], cpus)?;
                Ok(Listeners { sockets, port })
            }
            Listening::Own => {
                Ok(Listeners { sockets: Vec::new(), port: with_port(address).port() })
            }
        }
    }

    /// Returns the socket on which a thread accepts, if it is a kernel socket.
    pub(crate) fn of_thread(&self, thread: usize) -> Option<&OwnedFd> {
        self.sockets.get(thread).or(self.sockets.first())
    }
}

fn port_of(socket: &OwnedFd) -> Result<u16> {
    socket::local_port(socket).context("read the bound port", "report this as a bug")
}

fn listen(address: SocketAddr, control: &CongestionControl, in_group: bool) -> Result<OwnedFd> {
    // An io_uring server that ended just before may still have the address.
    let listener = megapipe::listen_with(address, listen_backlog() as i32, |socket| {
        if in_group {
            sockopt::set_socket_reuseport(socket, true)?;
        }
        Ok(())
    });
    let socket = listener.context(format!("listen on {address}"), BIND_REMEDY)?;
    let fd = socket.as_raw_fd();
    let prepared = socket
        .set_nonblocking(true)
        .and_then(|()| socket::set_no_delay(fd))
        .and_then(|()| socket::set_congestion_control(fd, control));
    prepared.context(
        format!("prepare the listening socket (congestion control {})", control.name),
        "load that congestion control (modprobe) or allow it in tcp_allowed_congestion_control",
    )?;
    Ok(socket.into())
}

/// Attaches the BPF program that selects the group's socket by the CPU that handles the SYN.
fn steer_by_cpu(socket: &OwnedFd, cpus: &[usize]) -> Result<()> {
    let mut program = steering_program(cpus);
    let length = u16::try_from(program.len()).map_err(|_| {
        Error::setup(format!("{} threads are too many to steer", cpus.len()), "use fewer --cores")
    })?;
    let attached = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF);
    // The kernel copies the program during the call, so the vector may go afterwards.
    socket::set_option(socket.as_raw_fd(), level, option, &attached).context(
        "steer connections by CPU",
        "the kernel needs SO_ATTACH_REUSEPORT_CBPF (4.5) and at most 2046 threads",
    )
}

/// Returns the program: `cpu == cpus[i]` selects socket i; a CPU without a thread selects `cpu mod
/// threads`.
fn steering_program(cpus: &[usize]) -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let cpu_number = (libc::SKF_AD_OFF + libc::SKF_AD_CPU) as u32;
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, cpu_number)];
    for (index, &cpu) in cpus.iter().enumerate() {
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        program.push(libc::sock_filter { code, jt: 0, jf: 1, k: cpu as u32 });
        program.push(statement(libc::BPF_RET | libc::BPF_K, index as u32));
    }
    let threads = cpus.len() as u32;
    program.push(statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, threads));
    program.push(statement(libc::BPF_RET | libc::BPF_A, 0));
    program
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;
    use crate::sys::affinity;

    /// Interprets the four kinds of instruction that the program uses.
    fn steer(program: &[libc::sock_filter], cpu: u32) -> u32 {
        let mut accumulator = 0;
        let mut position = 0;
        loop {
            let instruction = &program[position];
            position += 1;
            match u32::from(instruction.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => accumulator = cpu,
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    let taken = accumulator == instruction.k;
                    position += usize::from(if taken { instruction.jt } else { instruction.jf });
                }
                code if code == libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K => {
                    accumulator %= instruction.k;
                }
                code if code == libc::BPF_RET | libc::BPF_K => return instruction.k,
                code if code == libc::BPF_RET | libc::BPF_A => return accumulator,
                code => panic!("unexpected instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn every_cpu_finds_its_thread() {
        let program = steering_program(&[4, 0, 9]);
        assert_eq!([4, 0, 9].map(|cpu| steer(&program, cpu)), [0, 1, 2]);
        assert_eq!([1, 2, 3, 5].map(|cpu| steer(&program, cpu)), [1, 2, 0, 2]);
    }

    #[test]
    fn the_kernel_steers_by_the_connecting_cpu() {
        let cpus = affinity::allowed_cpus().unwrap();
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listeners = Listeners::create(Listening::PerCpu, anywhere, &cpus).unwrap();
        for (thread, &cpu) in cpus.iter().enumerate() {
            let port = listeners.port;
            std::thread::spawn(move || {
                affinity::pin_to(cpu).unwrap();
                drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
            })
            .join()
            .unwrap();
            for other in 0..cpus.len() {
                let accepted = rustix::net::accept(listeners.of_thread(other).unwrap());
                assert_eq!(accepted.is_ok(), other == thread, "CPU {cpu}, listener {other}");
            }
        }
    }
}
