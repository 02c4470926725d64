"""An echo server in Python: coroutines over a channel. cffi reads the installed megapipe.h, so that
types and constants are the library's, and nothing is compiled.

    python3 echo.py 0        (PORT, 0 for any; package python3-cffi)
"""
import contextlib
import itertools
import os
import re
import socket
import subprocess
import sys
import types

from cffi import FFI

ffi = FFI()


def pkg_config(option):
    return subprocess.check_output(["pkg-config", option, "megapipe"], text=True).strip()


def load():
    """Returns the installed library, with the declarations of its header."""
    with open(pkg_config("--variable=includedir") + "/megapipe.h") as header:
        text = re.sub(r"/\*.*?\*/", "", header.read(), flags=re.S)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    text = re.sub(r"^#(?!define MP_\w+ \d+$).*$", "", text, flags=re.M)
    ffi.cdef("struct sockaddr; struct iovec; struct msghdr; typedef struct cpu_set cpu_set_t;"
             "typedef uint32_t socklen_t;" + text)
    major, minor, _ = pkg_config("--modversion").split(".")
    return ffi.dlopen(f"libmegapipe.so.{major}.{minor}")


def check(result):
    """Raises what a call reports as -1 or NULL."""
    if result == ffi.NULL if isinstance(result, ffi.CData) else result < 0:
        raise OSError(ffi.errno, ffi.string(lib.mp_error()).decode())
    return result


class Loop:
    """A channel, and the coroutines that wait for its events."""

    def __init__(self):
        self.channel = check(lib.mp_create(ffi.NULL))
        self.cookies = itertools.count(1)
        self.waiting = {}  # (cookie, command): the coroutine, and memory that the kernel uses

    def spawn(self, coroutine, event=None):
        """Runs a coroutine until its next request."""
        with contextlib.suppress(StopIteration):
            key, memory = coroutine.send(event)
            self.waiting[key] = coroutine, memory

    def run(self):
        event = ffi.new("struct mp_event *")
        while True:
            count = check(lib.mp_dispatch(self.channel, event, -1))  # 0 after a signal handler
            if count == 0 or event.error and event.flags & lib.MP_MORE:
                continue  # an accept that lacks descriptors goes on by itself
            key = int(ffi.cast("uintptr_t", event.cookie)), event.cmd
            self.spawn(self.waiting.pop(key)[0], event)


class Handle:
    """A member of a channel. Each command may have one coroutine that waits for it."""

    def __init__(self, loop, fd):
        self.loop, self.cookie = loop, next(loop.cookies)
        cookie = ffi.cast("void *", self.cookie)
        self.raw = check(lib.mp_register(loop.channel, fd, cookie, ffi.NULL))

    @types.coroutine
    def request(self, command, call, *arguments):
        check(call(self.raw, *arguments))
        event = yield (self.cookie, command), arguments
        if event.error:
            raise OSError(event.error, os.strerror(event.error))
        return event

    async def accept(self):
        event = await self.request(lib.MP_ACCEPT, lib.mp_accept, 1, lib.MP_LWSOCKET)
        return Handle(self.loop, event.fd)

    async def receive(self):
        event = await self.request(lib.MP_RECV, lib.mp_recv, 0)
        data = bytes(ffi.buffer(event.data, event.size)) if event.size else b""
        if event.buffer >= 0:
            check(lib.mp_release(self.loop.channel, event.buffer))
        return data

    async def send(self, data):
        await self.request(lib.MP_WRITE, lib.mp_write, ffi.from_buffer(data), len(data))

    async def close(self):
        await self.request(lib.MP_CLOSE, lib.mp_close)


async def serve(peer):
    with contextlib.suppress(OSError):  # the peer has reset the connection
        while data := await peer.receive():
            await peer.send(data)
    with contextlib.suppress(OSError):
        await peer.close()


async def accept_all(listener):
    while True:
        listener.loop.spawn(serve(await listener.accept()))


lib = load()
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024)
loop = Loop()
loop.spawn(accept_all(Handle(loop, listening.fileno())))
print("listening on %s:%d" % listening.getsockname(), flush=True)
loop.run()
