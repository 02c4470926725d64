/* Tests every request and its event. */
#define _GNU_SOURCE
#include "check.h"

#include <netinet/tcp.h>

static void memory_is_read_and_written(void)
{
    mp_channel *channel = channel_new();
    char a[4], b[8], one[3], two[5];
    struct iovec in[2] = { { one, 3 }, { two, 5 } };
    struct iovec out[2] = { { "con", 3 }, { "nect", 4 } };
    mp_handle left, right;
    struct mp_event event;
    int fds[2];

    pair(fds);
    left = mp_register(channel, fds[0], a, NULL);
    right = mp_register(channel, fds[1], b, NULL);
    CHECK(mp_write(left, "ping", 4) == 0);
    event = expect(channel, MP_WRITE);
    CHECK(event.size == 4 && event.cookie == a && event.handle == left && !event.flags);
    CHECK(mp_read(right, b, sizeof b) == 0);
    event = expect(channel, MP_READ);
    CHECK(event.size == 4 && event.data == b && !memcmp(b, "ping", 4) && event.cookie == b);
    CHECK(mp_writev(left, out, 2) == 0);
    event = expect(channel, MP_WRITEV);
    CHECK(event.size == 7);
    CHECK(mp_readv(right, in, 2) == 0);
    memset(in, 0, sizeof in);
    event = expect(channel, MP_READV);
    CHECK(event.size == 7 && !memcmp(one, "con", 3) && !memcmp(two, "nect", 4));
    FAILS(mp_read(left, NULL, 1), EFAULT);
    FAILS(mp_read(left, a, 0), EINVAL);
    FAILS(mp_read(left, a, (size_t)-5), EINVAL);
    FAILS(mp_write(left, NULL, 1), EFAULT);
    FAILS(mp_readv(left, in, -1), EINVAL);
    FAILS(mp_readv(left, in, 1025), EINVAL);
    FAILS(mp_writev(left, NULL, 1), EFAULT);
    FAILS(mp_pread(left, a, 1, 0), EOPNOTSUPP);
    FAILS(mp_accept(left, 0, 0), EOPNOTSUPP);
    close(fds[1]);
    CHECK(mp_unregister(right) == 0);
    mp_destroy(channel);
    close(fds[0]);
}

static void files_have_offsets(void)
{
    mp_channel *channel = channel_new();
    FILE *file = tmpfile();
    mp_handle handle = mp_register(channel, fileno(file), NULL, NULL);
    struct mp_event event;
    char room[8];

    CHECK(mp_pwrite(handle, "0123456789", 10, 100) == 0);
    event = expect(channel, MP_PWRITE);
    CHECK(event.size == 10 && event.offset == 100);
    CHECK(mp_pread(handle, room, sizeof room, 105) == 0);
    event = expect(channel, MP_PREAD);
    CHECK(event.size == 5 && event.offset == 105 && !memcmp(room, "56789", 5));
    CHECK(event.data == room);
    FAILS(mp_pread(handle, room, 1, UINT64_MAX), EINVAL);
    FAILS(mp_recv(handle, 0), EOPNOTSUPP);
    mp_destroy(channel);
    fclose(file);
}

static void buffers_are_lent(void)
{
    mp_channel *channel = channel_new();
    struct mp_event event;
    mp_handle left, right;
    int64_t buffer;
    char room[8];
    int fds[2];

    pair(fds);
    left = mp_register(channel, fds[0], NULL, NULL);
    right = mp_register(channel, fds[1], NULL, NULL);
    FAILS(mp_recv(right, 2), EINVAL);
    CHECK(mp_recv(right, MP_REPEAT) == 0);
    for (int round = 0; round < 5000; round++) {
        CHECK(write(fds[0], "message", 7) == 7);
        event = expect(channel, MP_RECV);
        CHECK(event.size == 7 && !memcmp(event.data, "message", 7) && event.flags == MP_MORE);
        buffer = event.buffer;
        FAILS(mp_write_buffer(right, buffer, 4, 4), EINVAL);
        FAILS(mp_write_buffer(right, buffer, SIZE_MAX, 2), EINVAL);
        FAILS(mp_write_buffer(-1, buffer, 0, 7), EBADF);
        if (round % 2) {
            CHECK(mp_release(channel, buffer) == 0);
        } else {
            CHECK(mp_write_buffer(right, buffer, 1, 4) == 0);
            event = expect(channel, MP_WRITE);
            CHECK(event.size == 4 && event.buffer == -1);
            CHECK(read(fds[0], room, sizeof room) == 4 && !memcmp(room, "essa", 4));
        }
        FAILS(mp_release(channel, buffer), EINVAL);
        FAILS(mp_write_buffer(right, buffer, 0, 1), EINVAL);
    }
    CHECK(mp_unregister(left) == 0 && shutdown(fds[0], SHUT_WR) == 0);
    event = expect(channel, MP_RECV);
    CHECK(event.size == 0 && event.buffer == -1 && event.flags == 0 && event.error == 0);
    mp_destroy(channel);
    close(fds[0]);
    close(fds[1]);
}

static mp_handle accepted(mp_channel *channel, mp_handle listener)
{
    struct mp_event event = expect(channel, MP_ACCEPT);
    mp_handle handle;

    CHECK(event.error == 0 && event.handle == listener && event.fd >= 0);
    CHECK(!strcmp(mp_driver(channel), "epoll") || event.fd >= MP_LWSOCKET_FIRST);
    handle = mp_register(channel, event.fd, NULL, NULL);
    CHECK(handle >= 0);
    if (event.fd >= MP_LWSOCKET_FIRST)
        FAILS(mp_register(channel, event.fd, NULL, NULL), EBADF);
    return handle;
}

static void connections_are_accepted(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in address, peer, own;
    socklen_t size = sizeof own;
    int fd = listening(&address), client, copy, number = 0;
    mp_handle listener = mp_register(channel, fd, NULL, NULL), handle;
    struct mp_event event;
    char room[4];

    FAILS(mp_accept(listener, -1, 1), EINVAL);
    CHECK(mp_accept(listener, 0, 1) == 0);
    FAILS(mp_accept(listener, 1, 0), EBUSY);
    client = connected(&address);
    handle = accepted(channel, listener);
    CHECK(getsockname(client, (struct sockaddr *)&own, &size) == 0);
    size = sizeof peer;
    CHECK(mp_peer_address(handle, (struct sockaddr *)&peer, &size) == 0);
    CHECK(size == sizeof peer && peer.sin_port == own.sin_port);
    CHECK(mp_request_peer_address(handle) == 0);
    event = expect(channel, MP_PEER_ADDRESS);
    CHECK(event.error == 0 && event.size == sizeof peer);
    CHECK(((struct sockaddr_in *)event.data)->sin_port == own.sin_port);
    number = 1;
    CHECK(mp_sockopt(handle, IPPROTO_TCP, TCP_NODELAY, &number, sizeof number) == 0);
    FAILS(mp_sockopt(handle, IPPROTO_TCP, TCP_NODELAY, NULL, 4), EFAULT);
    size = sizeof number;
    CHECK(mp_sockopt_get(handle, SOL_SOCKET, SO_TYPE, &number, &size) == 0);
    CHECK(size == sizeof number && number == SOCK_STREAM);
    copy = mp_to_fd(handle);
    CHECK(copy >= 0 && copy < MP_LWSOCKET_FIRST && write(copy, "copy", 4) == 4);
    CHECK(read(client, room, 4) == 4 && !memcmp(room, "copy", 4));
    close(copy);
    CHECK(mp_disconnect(handle) == 0);
    event = expect(channel, MP_DISCONNECT);
    CHECK(event.error == 0 && read(client, room, 1) == 0);
    FAILS(mp_shutdown(handle, 7), EINVAL);
    CHECK(mp_close(handle) == 0);
    expect(channel, MP_CLOSE);
    close(client);
    /* A connection that is not registered is closed with the channel. */
    client = connected(&address);
    event = expect(channel, MP_ACCEPT);
    CHECK(mp_cancel(listener, 0) == 0);
    CHECK(mp_destroy(channel) == 0);
    if (event.fd < MP_LWSOCKET_FIRST)
        close(event.fd);
    CHECK(read(client, room, 1) <= 0);
    close(client);
    close(fd);
}

static void sockets_connect(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in address;
    int fd = listening(&address), client = socket(AF_INET, SOCK_STREAM, 0);
    mp_handle handle = mp_register(channel, client, NULL, NULL);
    struct sockaddr odd = { .sa_family = AF_APPLETALK };

    FAILS(mp_connect(handle, NULL, 0), EFAULT);
    FAILS(mp_connect(handle, &odd, sizeof odd), EAFNOSUPPORT);
    FAILS(mp_connect(handle, (struct sockaddr *)&address, 1), EINVAL);
    FAILS(mp_connect(handle, (struct sockaddr *)&address, 8), EINVAL);
    CHECK(mp_connect(handle, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(expect(channel, MP_CONNECT).error == 0);
    mp_destroy(channel);
    close(client);
    close(fd);
}

static void readiness_and_cancelling(void)
{
    mp_channel *channel = channel_new();
    struct mp_event event;
    char room[4];
    int fds[2];
    mp_handle handle;

    pair(fds);
    handle = mp_register(channel, fds[0], NULL, NULL);
    FAILS(mp_poll(handle, 1u << 30, 0), EINVAL);
    CHECK(mp_poll(handle, POLLIN, 0) == 0);
    CHECK(mp_dispatch(channel, &event, 10) == 0);
    CHECK(write(fds[1], "x", 1) == 1);
    event = expect(channel, MP_POLL);
    CHECK(event.revents == POLLIN && event.error == 0);
    CHECK(read(fds[0], room, 1) == 1);
    CHECK(mp_read(handle, room, sizeof room) == 0);
    FAILS(mp_cancel(handle, 8), EINVAL);
    CHECK(mp_cancel(handle, MP_OUT) == 0);
    CHECK(mp_dispatch(channel, &event, 10) == 0);
    CHECK(mp_cancel(handle, MP_IN) == 0);
    event = expect(channel, MP_READ);
    CHECK(event.error == ECANCELED && event.data == room);
    mp_destroy(channel);
    close(fds[0]);
    close(fds[1]);
}

static void listeners_are_partitioned(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in address;
    int fd = listening(&address), fds[2] = { -1, -1 }, client;
    cpu_set_t masks[2], here;
    mp_handle listener;

    CHECK(sched_getaffinity(0, sizeof here, &here) == 0);
    CPU_ZERO(&masks[1]);
    masks[0] = here;
    FAILS(mp_partition(fd, masks, 0, fds), EINVAL);
    FAILS(mp_partition(fd, NULL, 2, fds), EFAULT);
    FAILS(mp_partition(9999, masks, 2, fds), EBADF);
    CHECK(mp_partition(fd, masks, 2, fds) == 0);
    CHECK(fds[0] >= 0 && fds[1] >= 0);
    listener = mp_register(channel, fds[0], NULL, NULL);
    CHECK(mp_accept(listener, 1, 1) == 0);
    client = connected(&address);
    accepted(channel, listener);
    close(client);
    mp_destroy(channel);
    close(fds[0]);
    close(fds[1]);
    close(fd);
}

static void a_batch_brings_many(void)
{
    mp_channel *channel = channel_new();
    struct mp_event events[64];
    int fds[2], count = 0;
    mp_handle handle;

    pair(fds);
    handle = mp_register(channel, fds[0], NULL, NULL);
    for (int request = 0; request < 40; request++)
        CHECK(mp_write(handle, "x", 1) == 0);
    CHECK(mp_flush(channel) == 0);
    while (count < 40) {
        int more = mp_dispatch_batch(channel, events, 16, 10000);

        CHECK(more >= 1 && more <= 16);
        for (int at = 0; at < more; at++)
            CHECK(events[at].cmd == MP_WRITE && events[at].size == 1);
        count += more;
    }
    CHECK(count == 40 && mp_dispatch(channel, events, 0) == 0);
    mp_destroy(channel);
    close(fds[0]);
    close(fds[1]);
}

int main(void)
{
    memory_is_read_and_written();
    files_have_offsets();
    buffers_are_lent();
    connections_are_accepted();
    sockets_connect();
    readiness_and_cancelling();
    listeners_are_partitioned();
    a_batch_brings_many();
    puts("transfers: all is well");
    return 0;
}
