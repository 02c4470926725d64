/* Tests requests for sockets: peers' addresses, peeking, writes that are followed by others,
 * files, and connections with sockets of the channel. */
#define _GNU_SOURCE
#include "check.h"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { CLIENTS = 5 };

static in_port_t port_of(int fd)
{
    struct sockaddr_in own;
    socklen_t size = sizeof own;

    CHECK(getsockname(fd, (struct sockaddr *)&own, &size) == 0);
    return own.sin_port;
}

/* Binds the thread to one CPU: if it moved, the handshakes would be in the backlogs of two CPUs
 * and enter the accept queue in either order. */
static void connect_in_order(const struct sockaddr_in *address, int clients[CLIENTS])
{
    cpu_set_t before, one;
    int cpu = 0;

    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    while (!CPU_ISSET(cpu, &before))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = connected(address);
    CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

/* Also for several connections in one batch: all addresses are valid until the next dispatch. */
static void connections_bring_their_peers(int kind)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in address;
    struct mp_event events[CLIENTS];
    int fd = listening(&address), clients[CLIENTS], count = 0;
    mp_handle listener = mp_register(channel, fd, NULL, NULL);

    FAILS(mp_accept(listener, 0, 4 | kind), EINVAL);
    CHECK(mp_accept(listener, 0, kind | MP_WITH_PEER) == 0);
    FAILS(mp_accept(listener, 0, kind), EBUSY);
    connect_in_order(&address, clients);
    while (count < CLIENTS) {
        int more = mp_dispatch_batch(channel, events, CLIENTS, 10000);

        CHECK(more >= 1);
        for (int at = 0; at < more; at++, count++) {
            const struct sockaddr_in *peer = events[at].data;

            CHECK(events[at].cmd == MP_ACCEPT && events[at].error == 0);
            CHECK(events[at].size == sizeof *peer && peer->sin_family == AF_INET);
            CHECK(peer->sin_port == port_of(clients[count]));
            CHECK(peer->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
            CHECK((events[at].fd >= MP_LWSOCKET_FIRST) == kind);
            if (!kind)
                close(events[at].fd);
        }
    }
    CHECK(mp_cancel(listener, 0) == 0);
    CHECK(expect(channel, MP_ACCEPT).error == ECANCELED);
    /* Without the flag there is no address. */
    CHECK(mp_accept(listener, 1, kind) == 0);
    close(clients[0]);
    clients[0] = connected(&address);
    events[0] = expect(channel, MP_ACCEPT);
    CHECK(events[0].data == NULL && events[0].size == 0);
    if (!kind)
        close(events[0].fd);
    CHECK(mp_destroy(channel) == 0);
    for (int i = 0; i < CLIENTS; i++)
        close(clients[i]);
    close(fd);
}

/* A UNIX client without a name has a family. */
static void an_unnamed_peer_has_a_family(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof address;
    struct mp_event event;

    /* The kernel chooses a name. */
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address.sun_family) == 0);
    CHECK(listen(fd, 1) == 0 && getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    CHECK(mp_accept(mp_register(channel, fd, NULL, NULL), 1, MP_LWSOCKET | MP_WITH_PEER) == 0);
    CHECK(connect(client, (struct sockaddr *)&address, size) == 0);
    event = expect(channel, MP_ACCEPT);
    CHECK(event.size == sizeof(sa_family_t));
    CHECK(((struct sockaddr *)event.data)->sa_family == AF_UNIX);
    CHECK(mp_destroy(channel) == 0);
    close(client);
    close(fd);
}

static void a_peek_leaves_what_it_sees(void)
{
    mp_channel *channel = channel_new();
    struct mp_event event;
    char room[4], rest[16];
    int fds[2], ends[2];
    mp_handle handle, outlet;

    pair(fds);
    CHECK(pipe(ends) == 0);
    handle = mp_register(channel, fds[0], room, NULL);
    outlet = mp_register(channel, ends[0], NULL, NULL);
    FAILS(mp_peek(handle, NULL, 1), EFAULT);
    FAILS(mp_peek(handle, room, 0), EINVAL);
    FAILS(mp_peek(handle, room, SIZE_MAX), EINVAL);
    FAILS(mp_peek(outlet, room, 4), EOPNOTSUPP);
    FAILS(mp_peek(-1, room, 4), EBADF);
    CHECK(mp_peek(handle, room, sizeof room) == 0);
    CHECK(mp_dispatch(channel, &event, 0) == 0);
    CHECK(write(fds[1], "what waits", 10) == 10);
    event = expect(channel, MP_PEEK);
    CHECK(event.error == 0 && event.size == 4 && event.data == room && event.cookie == room);
    CHECK(!memcmp(room, "what", 4) && event.flags == 0);
    /* After the earlier reads. */
    CHECK(mp_read(handle, rest, 5) == 0 && mp_peek(handle, room, 4) == 0);
    CHECK(mp_recv(handle, 0) == 0);
    CHECK(expect(channel, MP_READ).size == 5 && !memcmp(rest, "what ", 5));
    CHECK(expect(channel, MP_PEEK).size == 4 && !memcmp(room, "wait", 4));
    event = expect(channel, MP_RECV);
    CHECK(event.size == 5 && !memcmp(event.data, "waits", 5));
    CHECK(mp_release(channel, event.buffer) == 0);
    CHECK(mp_peek(handle, room, 4) == 0 && mp_cancel(handle, MP_IN) == 0);
    event = expect(channel, MP_PEEK);
    CHECK(event.error == ECANCELED && event.data == room);
    close(fds[1]);
    CHECK(mp_peek(handle, room, 4) == 0);
    event = expect(channel, MP_PEEK);
    CHECK(event.error == 0 && event.size == 0);
    CHECK(mp_destroy(channel) == 0);
    close(fds[0]);
    close(ends[0]);
    close(ends[1]);
}

static void a_peek_at_a_message_must_fit(void)
{
    mp_channel *channel = channel_new();
    char room[4];
    int fds[2];
    mp_handle handle;

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    handle = mp_register(channel, fds[0], NULL, NULL);
    CHECK(send(fds[1], "longer", 6, 0) == 6);
    CHECK(mp_peek(handle, room, sizeof room) == 0);
    CHECK(expect(channel, MP_PEEK).error == EMSGSIZE && !memcmp(room, "long", 4));
    CHECK(mp_recv(handle, 0) == 0);
    CHECK(expect(channel, MP_RECV).size == 6);
    CHECK(mp_destroy(channel) == 0);
    close(fds[0]);
    close(fds[1]);
}

/* TCP delays the head for 200 ms at most, so a busy machine needs further attempts. */
static void a_head_waits_for_its_body(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in address;
    int fd = listening(&address), near = connected(&address), far = accept(fd, NULL, NULL);
    mp_handle handle = mp_register(channel, near, NULL, NULL);
    int yes = 1, unsent = 0, tries = 0;
    char head[] = "head ", room[9];

    CHECK(far >= 0 && mp_sockopt(handle, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0);
    FAILS(mp_write_more(handle, NULL, 1), EFAULT);
    FAILS(mp_write_more(-1, "x", 1), EBADF);
    while (unsent != 5) {
        struct mp_event event;

        CHECK(tries++ < 1000);
        CHECK(mp_write_more(handle, head, 5) == 0);
        event = expect(channel, MP_WRITE);
        CHECK(event.error == 0 && event.size == 5 && event.data == head);
        CHECK(ioctl(near, SIOCOUTQNSD, &unsent) == 0);
        CHECK(mp_write(handle, "body", 4) == 0);
        CHECK(expect(channel, MP_WRITE).size == 4);
        CHECK(recv(far, room, sizeof room, MSG_WAITALL) == 9 && !memcmp(room, "head body", 9));
    }
    CHECK(mp_write_more(handle, head, 5) == 0 && mp_close(handle) == 0);
    expect(channel, MP_CLOSE);
    CHECK(recv(far, room, sizeof room, MSG_WAITALL) == 5);
    CHECK(mp_destroy(channel) == 0);
    close(far);
    close(fd);
}

static void the_channel_connects_with_its_own_socket(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in address;
    struct sockaddr odd = { .sa_family = AF_APPLETALK };
    const struct sockaddr *there = (struct sockaddr *)&address;
    int fd = listening(&address), peer, copy, cookie, before = open_files();
    struct mp_event event;
    char room[4];
    mp_handle handle;

    FAILS(mp_connect_to(NULL, there, sizeof address, NULL), EFAULT);
    FAILS(mp_connect_to(channel, NULL, sizeof address, NULL), EFAULT);
    FAILS(mp_connect_to(channel, there, 8, NULL), EINVAL);
    FAILS(mp_connect_to(channel, &odd, sizeof odd, NULL), EAFNOSUPPORT);
    CHECK(open_files() == before);
    handle = mp_connect_to(channel, there, sizeof address, &cookie);
    CHECK(handle >= 0 && mp_cookie(handle) == &cookie);
    CHECK(strcmp(mp_driver(channel), "uring") || open_files() == before);
    CHECK(mp_write(handle, "ping", 4) == 0);
    event = expect(channel, MP_CONNECT);
    CHECK(event.error == 0 && event.handle == handle && event.cookie == &cookie);
    CHECK(expect(channel, MP_WRITE).size == 4);
    peer = accept(fd, NULL, NULL);
    CHECK(peer >= 0 && read(peer, room, 4) == 4 && !memcmp(room, "ping", 4));
    copy = mp_to_fd(handle);
    CHECK(copy >= 0 && write(copy, "copy", 4) == 4 && read(peer, room, 4) == 4);
    close(copy);
    /* There is no descriptor to return. */
    CHECK(mp_unregister(handle) == 0 && mp_dispatch(channel, &event, 0) == 0);
    CHECK(read(peer, room, 1) == 0);
    close(peer);
    /* A refused handle can be connected again, and ends with the channel. */
    close(fd);
    handle = mp_connect_to(channel, there, sizeof address, &cookie);
    CHECK(expect(channel, MP_CONNECT).error == ECONNREFUSED);
    fd = mp_listen(there, sizeof address, 1);
    CHECK(fd >= 0 && mp_connect(handle, there, sizeof address) == 0);
    CHECK(expect(channel, MP_CONNECT).error == 0);
    peer = accept(fd, NULL, NULL);
    CHECK(mp_destroy(channel) == 0);
    CHECK(read(peer, room, 1) == 0);
    close(peer);
    close(fd);
}

static void connections_have_their_limits(void)
{
    struct mp_options options = { .max_handles = 2, .max_lwsockets = 1 };
    mp_channel *channel = channel_with(&options);
    struct sockaddr_in address;
    const struct sockaddr *there = (struct sockaddr *)&address;
    int fd = listening(&address);
    mp_handle first = mp_connect_to(channel, there, sizeof address, NULL);

    CHECK(first >= 0);
    if (!strcmp(mp_driver(channel), "uring")) {
        FAILS(mp_connect_to(channel, there, sizeof address, NULL), EUSERS);
    } else {
        CHECK(mp_connect_to(channel, there, sizeof address, NULL) >= 0);
        FAILS(mp_connect_to(channel, there, sizeof address, NULL), ENFILE);
    }
    CHECK(mp_destroy(channel) == 0);
    close(fd);
}

/* Returns a file of BIG bytes, in which every position differs from its neighbours. */
static FILE *file_of_bytes(void)
{
    FILE *file = tmpfile();

    CHECK(file);
    for (int at = 0; at < BIG; at++)
        putc(at % 251, file);
    CHECK(fflush(file) == 0);
    return file;
}

/* Starts a child that reads to the end; its status says whether it got a head and all of the
 * file. */
static pid_t reader_of(int fds[2])
{
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        FILE *stream = fdopen(fds[1], "r");
        int byte, count = -5, wrong = 0;

        close(fds[0]);
        for (; (byte = getc(stream)) != EOF; count++)
            wrong += byte != (count < 0 ? "head "[count + 5] : count % 251);
        _exit(wrong || count != BIG);
    }
    close(fds[1]);
    return child;
}

static void a_file_is_sent_in_its_turn(void)
{
    mp_channel *channel = channel_new();
    FILE *file = file_of_bytes();
    struct mp_event event;
    int fds[2], status, cookie;
    mp_handle source = mp_register(channel, fileno(file), NULL, NULL), handle;
    pid_t child;

    pair(fds);
    child = reader_of(fds);
    handle = mp_register(channel, fds[0], &cookie, NULL);
    CHECK(mp_write_more(handle, "head ", 5) == 0);
    CHECK(mp_send_file(handle, source, 0, BIG / 2) == 0);
    CHECK(mp_queued(handle) == 5 + BIG / 2);
    CHECK(expect(channel, MP_WRITE).size == 5);
    event = expect(channel, MP_SEND_FILE);
    CHECK(event.error == 0 && event.size == BIG / 2 && event.handle == handle);
    CHECK(event.cookie == &cookie && event.data == NULL && event.flags == 0);
    /* A close sends the rest first. */
    CHECK(mp_send_file(handle, source, BIG / 2, BIG / 2) == 0 && mp_close(handle) == 0);
    CHECK(expect(channel, MP_CLOSE).error == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(mp_destroy(channel) == 0);
    fclose(file);
}

static void what_is_no_part_of_a_file_is_not_sent(void)
{
    mp_channel *channel = channel_new(), *other = channel_new();
    FILE *file = file_of_bytes();
    int fds[2], more[2];
    mp_handle source = mp_register(channel, fileno(file), NULL, NULL), handle, elsewhere;
    struct mp_event event;
    char room[4096];

    pair(fds);
    pair(more);
    handle = mp_register(channel, fds[0], NULL, NULL);
    elsewhere = mp_register(other, more[0], NULL, NULL);
    FAILS(mp_send_file(handle, handle, 0, 1), EOPNOTSUPP);
    FAILS(mp_send_file(source, source, 0, 1), EOPNOTSUPP);
    FAILS(mp_send_file(handle, source, UINT64_MAX, 1), EINVAL);
    FAILS(mp_send_file(handle, source, 0, SIZE_MAX), EINVAL);
    FAILS(mp_send_file(handle, -1, 0, 1), EBADF);
    FAILS(mp_send_file(-1, source, 0, 1), EBADF);
    FAILS(mp_send_file(elsewhere, source, 0, 1), EBADF);
    CHECK(strstr(mp_error(), "register it there"));
    /* The bytes that the file has are sent. */
    CHECK(mp_send_file(handle, source, BIG - 2, 3) == 0);
    CHECK(expect(channel, MP_SEND_FILE).error == ENODATA);
    CHECK(read(fds[1], room, sizeof room) == 2);
    /* The peer reads nothing more, and the file's handle ends. */
    CHECK(mp_send_file(handle, source, 0, BIG) == 0);
    CHECK(mp_dispatch(channel, &event, 0) == 0);
    CHECK(mp_unregister(source) == 0);
    do
        while (recv(fds[1], room, sizeof room, MSG_DONTWAIT) > 0)
            ;
    while (mp_dispatch(channel, &event, 0) == 0);
    CHECK(event.cmd == MP_SEND_FILE && event.error == EBADF);
    FAILS(mp_send_file(handle, source, 0, 1), EBADF);
    CHECK(mp_destroy(channel) == 0 && mp_destroy(other) == 0);
    for (int end = 0; end < 2; end++) {
        close(fds[end]);
        close(more[end]);
    }
    fclose(file);
}

int main(void)
{
    connections_bring_their_peers(0);
    connections_bring_their_peers(MP_LWSOCKET);
    an_unnamed_peer_has_a_family();
    a_peek_leaves_what_it_sees();
    a_peek_at_a_message_must_fit();
    a_head_waits_for_its_body();
    the_channel_connects_with_its_own_socket();
    connections_have_their_limits();
    a_file_is_sent_in_its_turn();
    what_is_no_part_of_a_file_is_not_sent();
    puts("sockets: all is well");
    return 0;
}
