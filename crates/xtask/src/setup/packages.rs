//! The packages that tests and commands need.

/// A package of Debian and derived distributions, and how to detect that it, or another
/// distribution's equivalent, is installed.
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) why: &'static str,
    pub(super) probe: Probe,
}

/// How to detect an installed package.
pub(super) enum Probe {
    /// A program on the PATH.
    Program(&'static str),
    /// A file at a fixed path.
    File(&'static str),
    /// A command that succeeds, if neither of the others is sufficient.
    Command(&'static [&'static str]),
}

/// All packages that the set-up can install.
pub(super) const PACKAGES: &[Package] = &[
    Package { name: "gcc", why: "rustc links with cc", probe: Probe::Program("cc") },
    Package {
        name: "libc6-dev",
        why: "linking needs the C library's start files and headers",
        probe: Probe::File("/usr/include/stdio.h"),
    },
    Package {
        name: "strace",
        why: "a test compares the channel's system-call counter with the kernel's view",
        probe: Probe::Program("strace"),
    },
    Package {
        name: "socat",
        why: "tests of the README's server use it as a client",
        probe: Probe::Program("socat"),
    },
    Package {
        name: "ncat",
        why: "tests of the README's server use it as a client",
        probe: Probe::Program("ncat"),
    },
    Package {
        name: "iproute2",
        why: "network namespaces stand in for hosts in a test",
        probe: Probe::Program("ip"),
    },
    Package {
        name: "nftables",
        why: "tests lose packets of user-level TCP with it",
        probe: Probe::Program("nft"),
    },
    Package {
        name: "openmpi-bin",
        why: "iobench runs over several hosts under mpirun",
        probe: Probe::Program("mpirun"),
    },
    Package {
        name: "libopenmpi-dev",
        why: "iobench's feature `mpi` is compiled against it",
        probe: Probe::Command(&["mpicc", "-fsyntax-only", "-include", "mpi.h", "-xc", "/dev/null"]),
    },
    Package {
        name: "clang",
        why: "tests compile C and C++ with it, and the crate `mpi` reads the MPI headers",
        probe: Probe::Program("clang"),
    },
    Package {
        name: "libuv1-dev",
        why: "iobench-external serves on libuv, too, where it is built with that feature",
        probe: Probe::File("/usr/include/uv.h"),
    },
    Package {
        name: "libzmq3-dev",
        why: "iobench-external measures ZeroMQ for iobench ipc where it is built with that feature",
        probe: Probe::File("/usr/include/zmq.h"),
    },
    Package {
        name: "pkg-config",
        why: "the build finds ZeroMQ with it",
        probe: Probe::Program("pkg-config"),
    },
    Package {
        name: "g++",
        why: "tests compile the C++ headers with it, and libFuzzer is C++",
        probe: Probe::Program("g++"),
    },
    Package {
        name: "valgrind",
        why: "tests run C programs beneath it",
        probe: Probe::Program("valgrind"),
    },
    Package {
        name: "chromium",
        why: "tests open the page of iobench report as a reader would",
        probe: Probe::Program("chromium"),
    },
    Package {
        name: "groff-base",
        why: "a test formats the manual pages",
        probe: Probe::Program("groff"),
    },
    Package {
        name: "mandoc",
        why: "cargo xtask doc and tests check the manual pages with it",
        probe: Probe::Program("mandoc"),
    },
    Package {
        name: "dpkg-dev",
        why: "the sources of nginx and memcached are unpacked with dpkg-source",
        probe: Probe::Program("dpkg-source"),
    },
    Package { name: "make", why: "nginx is built with make", probe: Probe::Program("make") },
    Package {
        name: "nginx",
        why: "the event module is built for it and tested with it",
        probe: Probe::Program("nginx"),
    },
    Package {
        name: "libnginx-mod-stream",
        why: "tests serve UDP and TCP streams with it, beside the event module",
        probe: Probe::File("/usr/lib/nginx/modules/ngx_stream_module.so"),
    },
    Package {
        name: "libpcre2-dev",
        why: "nginx's modules are compiled against it",
        probe: Probe::File("/usr/include/pcre2.h"),
    },
    Package {
        name: "zlib1g-dev",
        why: "nginx's modules are compiled against it",
        probe: Probe::File("/usr/include/zlib.h"),
    },
    Package {
        name: "libssl-dev",
        why: "nginx's modules are compiled against it",
        probe: Probe::File("/usr/include/openssl/ssl.h"),
    },
    Package {
        name: "libevent-dev",
        why: "memcached is compiled against it",
        probe: Probe::File("/usr/include/event.h"),
    },
    Package {
        name: "libsasl2-dev",
        why: "memcached is compiled against it",
        probe: Probe::File("/usr/include/sasl/sasl.h"),
    },
    Package {
        name: "libio-socket-ssl-perl",
        why: "memcached's own tests of TLS are written with it",
        probe: Probe::Command(&["perl", "-MIO::Socket::SSL", "-e", "1"]),
    },
    Package {
        name: "perl",
        why: "memcached's own tests are run with prove",
        probe: Probe::Program("prove"),
    },
    Package {
        name: "lighttpd",
        why: "a test runs it on the user-level stack; its own service is left alone",
        probe: Probe::Program("lighttpd"),
    },
    Package {
        name: "apache2-utils",
        why: "tests of the user-level stack load lighttpd with ab",
        probe: Probe::Program("ab"),
    },
    Package {
        name: "iperf3",
        why: "a test runs it on the user-level stack and against it",
        probe: Probe::Program("iperf3"),
    },
    Package { name: "curl", why: "tests talk to nginx with it", probe: Probe::Program("curl") },
    Package {
        name: "openssl",
        why: "a test makes a certificate for nginx with it",
        probe: Probe::Program("openssl"),
    },
    Package {
        name: "memcached",
        why: "a test loads it with iobench apps; its own service, if it is started, is left alone",
        probe: Probe::Program("memcached"),
    },
    Package {
        name: "wrk",
        why: "a test loads nginx with it while it is reloaded",
        probe: Probe::Program("wrk"),
    },
    Package {
        name: "etcd-server",
        why: "hosts share their names through it in a test; its own service is left alone",
        probe: Probe::Program("etcd"),
    },
    Package {
        name: "etcd-client",
        why: "a test compacts etcd's history with etcdctl",
        probe: Probe::Program("etcdctl"),
    },
    Package {
        name: "redis-server",
        why: "a test runs it, unmodified, over flows; its own service is left alone",
        probe: Probe::Program("redis-server"),
    },
    Package {
        name: "redis-tools",
        why: "a test loads redis with redis-benchmark",
        probe: Probe::Program("redis-benchmark"),
    },
    Package {
        name: "libmemcached-tools",
        why: "a test loads memcached with memcslap",
        probe: Probe::Program("memcslap"),
    },
    Package {
        name: "postgresql",
        why: "a test runs it and pgbench, unmodified, over flows; no cluster of its own is used",
        probe: Probe::Command(&["sh", "-c", "ls /usr/lib/postgresql/*/bin/postgres"]),
    },
    Package {
        name: "nghttp2-client",
        why: "iobench http and tests speak HTTP/2 with h2load",
        probe: Probe::Program("h2load"),
    },
    Package {
        name: "libpython3.11-testsuite",
        why: "its tests run under the preload libraries",
        // A newer version may differ, and its package has another name.
        probe: Probe::Command(&[
            "/usr/bin/python3",
            "-c",
            "import sys; sys.version_info[:2] != (3, 11) or __import__('test.test_socket')",
        ]),
    },
    Package {
        name: "nodejs",
        why: "a test runs it as server and client under the preload libraries",
        probe: Probe::Program("node"),
    },
    Package {
        name: "default-jdk-headless",
        why: "a test runs a server and a client in Java under the preload libraries",
        probe: Probe::Program("javac"),
    },
    Package {
        name: "uvicorn",
        why: "a test runs it under the preload libraries",
        probe: Probe::Command(&["/usr/bin/python3", "-c", "import uvicorn"]),
    },
    Package {
        name: "python3-websockets",
        why: "a test of megapipe-rt uses it as a client",
        probe: Probe::Command(&["/usr/bin/python3", "-c", "import websockets"]),
    },
    Package {
        name: "apache2-bin",
        why: "a test runs it under the preload libraries",
        probe: Probe::Program("apache2"),
    },
    Package {
        name: "haproxy",
        why: "a test runs it under the preload libraries; its own service is left alone",
        probe: Probe::Program("haproxy"),
    },
    Package {
        name: "rsync",
        why: "a test runs it under the preload libraries; its own service is left alone",
        probe: Probe::Program("rsync"),
    },
    Package {
        name: "git",
        why: "a test runs its daemon under the preload libraries",
        probe: Probe::Program("git"),
    },
    Package {
        name: "openssh-client",
        why: "a test runs it under the preload libraries",
        probe: Probe::Program("ssh"),
    },
    Package {
        name: "openssh-server",
        why: "a test runs sshd under the preload libraries; its own service is left alone",
        probe: Probe::Program("sshd"),
    },
    Package {
        name: "qemu-system-x86",
        why: "other kernels are booted in it",
        probe: Probe::Program("qemu-system-x86_64"),
    },
    Package {
        name: "qemu-system-common",
        why: "guests get files through its virtiofsd; since Debian 13 that is a package of its own",
        probe: Probe::Command(&[
            "sh",
            "-c",
            "test -x /usr/lib/qemu/virtiofsd || test -x /usr/libexec/virtiofsd",
        ]),
    },
    Package {
        name: "busybox-static",
        why: "it is the program of a guest's initramfs, which has no library",
        probe: Probe::Command(&["sh", "-c", "test -x /bin/busybox && ! ldd /bin/busybox"]),
    },
    Package {
        name: "kmod",
        why: "guests load modules, and their order is asked of modprobe",
        probe: Probe::Program("modprobe"),
    },
    Package {
        name: "cpio",
        why: "a guest's initramfs is packed with it",
        probe: Probe::Program("cpio"),
    },
    Package {
        name: "e2fsprogs",
        why: "a guest writes to a file system that mkfs.ext4 makes",
        probe: Probe::Program("mkfs.ext4"),
    },
    Package {
        name: "xz-utils",
        why: "modules of kernels are compressed with it",
        probe: Probe::Program("xz"),
    },
    Package {
        name: "zstd",
        why: "modules of kernels are compressed with it",
        probe: Probe::Program("zstd"),
    },
];

/// Packages for booting other kernels.
pub(crate) const KERNELS: &[&str] = &[
    "qemu-system-x86",
    "qemu-system-common",
    "busybox-static",
    "kmod",
    "cpio",
    "e2fsprogs",
    "xz-utils",
    "zstd",
];
/// Packages for building nginx's module.
pub(crate) const NGINX: &[&str] =
    &["gcc", "libc6-dev", "dpkg-dev", "make", "nginx", "libpcre2-dev", "zlib1g-dev", "libssl-dev"];
/// Clients of nginx that scenarios and tests use, and a module that they load.
pub(crate) const NGINX_CLIENTS: &[&str] =
    &["curl", "openssl", "nghttp2-client", "libnginx-mod-stream"];
/// Packages for building memcached.
pub(crate) const MEMCACHED: &[&str] =
    &["gcc", "libc6-dev", "dpkg-dev", "make", "libevent-dev", "libsasl2-dev"];
/// Packages for memcached's own tests.
pub(crate) const MEMCACHED_SUITE: &[&str] = &["perl", "libio-socket-ssl-perl"];
/// Programs that `cargo xtask programs` runs under a preload library.
pub(crate) const PROGRAMS: &[&str] = &[
    "iproute2",
    "libpython3.11-testsuite",
    "nginx",
    "wrk",
    "redis-server",
    "redis-tools",
    "memcached",
    "libmemcached-tools",
    "postgresql",
    "nodejs",
    "socat",
    "ncat",
    "curl",
    "openssl",
    "iperf3",
    "rsync",
    "git",
    "haproxy",
    "apache2-bin",
    "apache2-utils",
    "default-jdk-headless",
    "etcd-server",
    "uvicorn",
    "openssh-client",
    "openssh-server",
];
