//! Tests of all releases that are adapted, each beside the unmodified one: what a release has by
//! itself, such as TLS, storage on disk, warm restarts and its proxy.

use crate::server::{Client, Server, TIME_LIMIT, pattern};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;
use systemtests_programs::memcached::{Build, Memcached, releases};
use tempfile::TempDir;
use testkit::eventually;

/// Returns all builds: each release unmodified and over both drivers.
fn builds() -> impl Iterator<Item = Build> {
    releases().flat_map(|release| {
        [None, Some("uring"), Some("epoll")].map(|driver| Build::Release(release, driver))
    })
}

#[test]
fn every_release_has_its_version_and_keeps_values() {
    for build in builds() {
        let Build::Release(release, driver) = build else { unreachable!() };
        let server = Server::start_release(build, &["-t", "2"]);
        let mut client = server.client();
        assert_eq!(client.ask("version\r\n"), format!("VERSION {release}"));
        if let Some(driver) = driver {
            assert_eq!(client.figure("megapipe", "driver"), driver);
        }
        for bytes in [0, 10, 3_000, 100_000, 1_000_000] {
            let value = pattern(bytes, bytes);
            client.set("key", &value);
            assert!(client.get("key") == Some(value), "{build:?}: {bytes}");
        }
        client.send("get key\r\n".repeat(20).as_bytes());
        for _ in 0..20 {
            assert!(client.answer("key") == Some(pattern(1_000_000, 1_000_000)), "{build:?}");
        }
        client.send(b"mg key v\r\n");
        assert_eq!(client.line(), "VA 1000000", "{build:?}");
        for command in ["lru_crawler metadump all\r\n", "lru_crawler mgdump all\r\n"] {
            let mut other = server.client();
            let mut line = other.ask(command);
            // 1.6.18 has no mgdump.
            while !["END", "EN", "ERROR"].contains(&line.as_str()) {
                assert!(line.contains("key"), "{build:?}: {line}");
                line = other.line();
            }
        }
    }
}

/// A client over TLS. Unmodified memcached forgets requests that come in one record with a value.
struct Secure(Child);

impl Secure {
    fn connect(port: u16) -> Secure {
        let mut client = Command::new("timeout");
        client.args(["300", "openssl", "s_client", "-quiet", "-connect"]);
        client.arg(format!("127.0.0.1:{port}"));
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Secure(client.spawn().unwrap())
    }

    /// Sends a request, and reads as many bytes as the expected answer has.
    fn ask(&mut self, request: &str, expected: &str) {
        self.0.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        let mut answer = vec![0; expected.len()];
        self.0.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
        assert!(
            answer == expected.as_bytes(),
            "{}",
            String::from_utf8_lossy(&answer[..expected.len().min(40)])
        );
    }
}

impl Drop for Secure {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tls_works_as_unmodified() {
    let keys = TempDir::new().unwrap();
    let certified = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let path = |name: &str| keys.path().join(name).to_string_lossy().into_owned();
    fs::write(path("certificate.pem"), certified.cert.pem()).unwrap();
    fs::write(path("key.pem"), certified.signing_key.serialize_pem()).unwrap();
    let certificate = format!("ssl_chain_cert={}", path("certificate.pem"));
    let options = format!("{certificate},ssl_key={}", path("key.pem"));
    for build in builds() {
        let server = Server::start_release(build, &["-t", "2", "-Z", "-o", &options]);
        let value = "v".repeat(200_000);
        let mut clients: Vec<_> = (0..3).map(|_| Secure::connect(server.port())).collect();
        for client in &mut clients {
            client.ask(&format!("set key 0 0 200000\r\n{value}\r\n"), "STORED\r\n");
        }
        let answer = format!("VALUE key 0 200000\r\n{value}\r\nEND\r\n");
        for client in &mut clients {
            client.ask("get key\r\n", &answer);
            client.ask(&"get key\r\n".repeat(4), &answer.repeat(4));
        }
    }
}

/// Values that the tests of storage put on disk, and others keep in memory.
static ITEMS: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| (0..200).map(|index| pattern(index, 20_000)).collect());

/// Starts a server with all items but few on disk.
fn with_storage(build: Build, directory: &TempDir) -> Server {
    let path = directory.path().join("storage");
    let options = format!(
        "ext_page_size=8,ext_wbuf_size=2,ext_threads=1,ext_io_depth=2,ext_item_size=512,\
         ext_item_age=1,ext_recache_rate=10000,ext_max_frag=0.9,slab_automove=0,\
         ext_compact_under=1,ext_path={}:64m",
        path.display()
    );
    let server = Server::start_release(build, &["-t", "2", "-m", "64", "-U", "0", "-o", &options]);
    let mut client = server.client();
    for (index, item) in ITEMS.iter().enumerate() {
        client.set(&format!("k{index}"), item);
    }
    let written = || client.number("", "extstore_objects_written") >= ITEMS.len() as u64 / 2;
    assert!(eventually(2 * TIME_LIMIT, written), "{build:?}: nothing goes to the disk");
    server
}

/// Reads the answer to a get of all items; returns how many it has. A cache may lack an item, as
/// the unmodified one does when it has moved it since.
fn expect_items(client: &mut Client<TcpStream>, build: Build) -> usize {
    let (mut items, mut count) = (ITEMS.iter().enumerate(), 0);
    loop {
        let line = client.line();
        if line == "END" {
            return count;
        }
        let found = items.find(|(index, _)| line == format!("VALUE k{index} 0 20000"));
        let (index, item) = found.unwrap_or_else(|| panic!("{build:?}: {line}"));
        assert!(client.bytes(20_002)[..20_000] == item[..], "{build:?}: k{index}");
        count += 1;
    }
}

/// Clients ask for all items at once, several times; some leave before the disk has answered.
#[test]
fn items_on_disk_come_back_although_clients_leave() {
    let keys: String = (0..ITEMS.len()).map(|index| format!(" k{index}")).collect();
    let request = format!("get{keys}\r\n");
    for build in builds() {
        let directory = TempDir::new().unwrap();
        let server = with_storage(build, &directory);
        for _ in 0..2 {
            let ask = || {
                let mut client = server.client();
                client.send(request.repeat(2).as_bytes());
                client
            };
            let mut clients: Vec<_> = (0..8).map(|_| ask()).collect();
            clients.truncate(4);
            for client in &mut clients {
                for _ in 0..2 {
                    let count = expect_items(client, build);
                    assert!(count >= ITEMS.len() * 9 / 10, "{build:?}: {count}");
                }
            }
        }
        let mut client = server.client();
        assert!(client.number("", "get_extstore") > 0, "{build:?}");
        client.send(request.as_bytes());
        assert!(expect_items(&mut client, build) > 0, "{build:?}");
    }
}

#[test]
fn a_warm_restart_keeps_the_items() {
    for build in builds() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("memory").to_string_lossy().into_owned();
        let options = ["-t", "2", "-m", "64", "-e", &path];
        let mut server = Server::start_release(build, &options);
        for (index, item) in ITEMS.iter().enumerate().take(50) {
            server.client().set(&format!("k{index}"), item);
        }
        server.process.signal(libc::SIGUSR1).unwrap();
        assert!(server.process.wait(TIME_LIMIT).unwrap().success(), "{build:?}: {}", server.log());
        // memcached takes the memory of a server that ended in an earlier second.
        thread::sleep(Duration::from_millis(1_100));
        let server = Server::start_release(build, &options);
        for (index, item) in ITEMS.iter().enumerate().take(50) {
            let value = server.client().get(&format!("k{index}"));
            assert!(value.as_ref() == Some(item), "{build:?}: k{index}: {}", server.log());
        }
    }
}

/// Routes everything to one server.
const ROUTES: &str = r#"
function mcp_config_pools()
    return mcp.pool({ mcp.backend("b", "127.0.0.1", PORT) })
end
function mcp_config_routes(pool)
    local routes = mcp.funcgen_new()
    local handle = routes:new_handle(pool)
    routes:ready({ n = "all", f = function(context)
        return function(request) return context:enqueue_and_wait(request, handle) end
    end })
    mcp.attach(mcp.CMD_ANY_STORAGE, routes)
end
"#;

/// Debian builds the proxy in since 1.6.38; its workers run on libevent as unmodified.
#[test]
fn the_proxy_works_as_unmodified() {
    for build in builds().filter(|build| !matches!(build, Build::Release("1.6.18", _))) {
        let behind = Server::start_release(build, &["-t", "2"]);
        let directory = TempDir::new().unwrap();
        let routes = directory.path().join("routes.lua");
        fs::write(&routes, ROUTES.replace("PORT", &behind.port().to_string())).unwrap();
        let config = format!("proxy_config={}", routes.display());
        let proxy = Memcached::start(build, None, &["-t", "2", "-o", &config]).unwrap();
        let mut clients: Vec<_> = (0..10).map(|_| proxy.client(TIME_LIMIT).unwrap()).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            client.set(&format!("k{index}"), &ITEMS[index]).unwrap();
        }
        for client in &mut clients {
            for (index, item) in ITEMS.iter().enumerate().take(10) {
                let value = client.get(&format!("k{index}")).unwrap();
                assert!(value.as_ref() == Some(item), "{build:?}: {}", proxy.log());
            }
        }
        assert!(behind.client().get("k9").as_ref() == Some(&ITEMS[9]), "{build:?}");
    }
}
