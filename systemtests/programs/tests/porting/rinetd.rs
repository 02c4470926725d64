//! Tests the port of rinetd beside the original: both do the same for all clients, and the port
//! also after a reload. rinetd has no tests of its own.

use super::clients::{connect, echo, misbehave, reset};
use super::install::{installed, run};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use systemtests_programs::{Port, TIME_LIMIT, root, target_dir};
use tempfile::TempDir;
use testkit::process::Guard;
use testkit::{eventually, within};

/// The directory of both builds, with the installed library.
static BUILD: LazyLock<PathBuf> = LazyLock::new(|| {
    let build = target_dir().join("installed/rinetd");
    let mut make = Command::new("make");
    make.env_remove("MAKEFLAGS").arg("-C").arg(root().join("apps/rinetd"));
    make.arg(format!("BUILD={}", build.display()));
    make.arg(format!("SOURCES={}", target_dir().join("apps/src").display()));
    run(installed(&mut make));
    build
});

/// The builds, with the value of MEGAPIPE_DRIVER.
const BUILDS: [(&str, &str); 3] = [("stock", ""), ("megapipe", "uring"), ("megapipe", "epoll")];

/// A redirector that ends with the test, and its ports.
struct Rinetd {
    program: Guard,
    directory: TempDir,
    ports: [Port; 3],
    _udp: Socket,
}

impl Rinetd {
    /// Starts a build: the first port leads to `backend`, the second refuses everybody, the third
    /// leads to the UDP port `datagrams`.
    fn start(build: &str, driver: &str, backend: SocketAddr, datagrams: SocketAddr) -> Rinetd {
        let directory = tempfile::tempdir().unwrap();
        let ports = [(); 3].map(|()| Port::reserve().unwrap());
        let [tcp, refused, udp] = ports.each_ref().map(Port::number);
        let (to, to_udp) = (backend.port(), datagrams.port());
        // rinetd's own socket is bound to one address, so it gets the datagrams.
        let all = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        all.set_reuse_address(true).unwrap();
        all.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, udp)).into()).unwrap();
        let own = directory.path().display();
        let text = format!(
            "127.0.0.1 {tcp} 127.0.0.1 {to}\n\
             127.0.0.1 {refused} 127.0.0.1 {to}\ndeny 127.0.0.*\n\
             127.0.0.1 {udp}/udp 127.0.0.1 {to_udp}/udp\nlogfile {own}/log\npidlogfile {own}/pid\n"
        );
        fs::write(directory.path().join("conf"), text).unwrap();
        let mut command = Command::new(BUILD.join(build).join("rinetd"));
        command.arg("-f").arg("-c").arg(directory.path().join("conf"));
        installed(&mut command).env("MEGAPIPE_DRIVER", driver).stderr(Stdio::null());
        let program = Guard::spawn(&mut command);
        // It writes the file when it listens.
        let pid = directory.path().join("pid");
        within(TIME_LIMIT, "rinetd listens", || fs::read(&pid).ok().filter(|id| !id.is_empty()));
        Rinetd { program, directory, ports, _udp: all }
    }

    fn address(&self, port: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[port].number()).into()
    }

    /// The log without times.
    fn log(&self) -> String {
        let text = fs::read_to_string(self.directory.path().join("log")).unwrap();
        text.lines().filter_map(|line| Some(line.split_once('\t')?.1.to_owned() + "\n")).collect()
    }
}

/// A backend that echoes until the end of the stream, or after `gift` sends that many bytes.
fn backend() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    address
}

fn serve(mut stream: TcpStream) -> Option<()> {
    let mut buffer = vec![0; 65536];
    loop {
        let size = stream.read(&mut buffer).ok()?;
        if size == 0 {
            return None;
        }
        if buffer.starts_with(b"gift") {
            return stream.write_all(&testkit::content(GIFT)).ok();
        }
        stream.write_all(&buffer[..size]).ok()?;
    }
}

/// More than all buffers on the way hold.
const GIFT: usize = 20_000_000;

/// A UDP backend, which answers each datagram with a longer one.
fn datagram_backend() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2000];
        while let Ok((size, from)) = socket.recv_from(&mut buffer) {
            if size > 0 {
                let answer = [b"answer: ", &buffer[..size]].concat();
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
    address
}

fn ask(address: SocketAddr, client: &UdpSocket, question: &[u8]) -> Vec<u8> {
    let mut buffer = [0; 2000];
    client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    client.send_to(question, address).unwrap();
    let (size, _) = client.recv_from(&mut buffer).unwrap();
    buffer[..size].to_vec()
}

#[test]
fn both_serve_all_clients() {
    for (build, driver) in BUILDS {
        let mut rinetd = Rinetd::start(build, driver, backend(), datagram_backend());
        let address = rinetd.address(0);
        // rinetd ends both directions with the first, so a half-close gets no answer.
        misbehave(address, false);
        let mut half = connect(address);
        half.write_all(b"half").unwrap();
        half.shutdown(Shutdown::Write).unwrap();
        assert_eq!(half.read_to_end(&mut Vec::new()).unwrap(), 0, "{build} {driver}");
        assert_eq!(connect(rinetd.address(1)).read(&mut [0; 1]).unwrap(), 0, "not refused");
        for question in [&b"1"[..], b"22"] {
            let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let answer = ask(rinetd.address(2), &client, question);
            assert_eq!(answer, [b"answer: ", question].concat(), "{build} {driver}");
        }
        assert!(rinetd.program.0.try_wait().unwrap().is_none(), "{build} {driver} has ended");
    }
}

/// A client that pauses gets everything after the backend has closed, and the log counts it.
#[test]
fn both_count_what_a_slow_client_gets() {
    for (build, driver) in BUILDS {
        let rinetd = Rinetd::start(build, driver, backend(), datagram_backend());
        let mut slow = connect(rinetd.address(0));
        slow.write_all(b"gift").unwrap();
        thread::sleep(std::time::Duration::from_millis(100));
        let mut gift = Vec::new();
        slow.read_to_end(&mut gift).unwrap();
        assert!(gift == testkit::content(GIFT), "{build} {driver}: {} bytes", gift.len());
        drop(slow);
        let counted = format!("\t4\t{GIFT}\tdone-local-closed\n");
        assert!(eventually(TIME_LIMIT, || rinetd.log().contains(&counted)), "{}", rinetd.log());
    }
}

/// A reload keeps connections and takes the same addresses and new rules.
#[test]
fn the_port_reloads_on_sighup() {
    for (build, driver) in &BUILDS[1..] {
        let rinetd = Rinetd::start(build, driver, backend(), datagram_backend());
        let mut stays = connect(rinetd.address(0));
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        ask(rinetd.address(2), &client, b"before");
        let conf = rinetd.directory.path().join("conf");
        let text = fs::read_to_string(&conf).unwrap().replace("deny", "allow");
        fs::write(&conf, text).unwrap();
        rinetd.program.signal(libc::SIGHUP);
        let allowed = || {
            let stream = TcpStream::connect(rinetd.address(1));
            stream.is_ok_and(|mut stream| {
                stream.write_all(b"x").is_ok() && stream.read(&mut [0]).is_ok_and(|size| size > 0)
            })
        };
        assert!(eventually(TIME_LIMIT, allowed), "{driver}: the new rule does not hold");
        assert_eq!(echo(rinetd.address(0), b"after", false), b"after");
        ask(rinetd.address(2), &client, b"after");
        stays.write_all(b"still").unwrap();
        let mut answer = [0; 5];
        stays.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"still", "{driver}");
        reset(&stays);
    }
}
