/* Tests datagrams with addresses: mp_sendto() and mp_recvfrom(). */
#define _GNU_SOURCE
#include "check.h"

#include <sys/un.h>

enum { MANY = 200 };

static mp_handle bound(mp_channel *channel, struct sockaddr_in *address)
{
    socklen_t size = sizeof *address;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)address, size) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)address, &size) == 0);
    return mp_register(channel, fd, NULL, NULL);
}

static int send_to(mp_handle from, const void *bytes, size_t size, const struct sockaddr_in *to)
{
    return mp_sendto(from, bytes, size, (const struct sockaddr *)to, sizeof *to);
}

/* Closes handles, which closes their descriptors, and ends the channel. */
static void end(mp_channel *channel, const mp_handle *handles, int count)
{
    for (int at = 0; at < count; at++) {
        CHECK(mp_close(handles[at]) == 0);
        CHECK(expect(channel, MP_CLOSE).error == 0);
    }
    CHECK(mp_destroy(channel) == 0);
}

/* Each answer goes to the sender of its question. */
static void answers_go_to_the_senders(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in at[3], sender;
    mp_handle sockets[3];
    struct mp_event event;

    for (int who = 0; who < 3; who++)
        sockets[who] = bound(channel, &at[who]);
    for (int who = 1; who < 3; who++) {
        char question[] = { (char)('0' + who) };

        CHECK(send_to(sockets[who], question, 1, &at[0]) == 0);
        event = expect(channel, MP_SENDTO);
        CHECK(event.error == 0 && event.size == 1 && event.data == question);
        CHECK(event.address == (struct sockaddr *)&at[0] && event.address_size == 0);
        CHECK(mp_recvfrom(sockets[0], 0) == 0);
        event = expect(channel, MP_RECVFROM);
        CHECK(event.error == 0 && !(event.flags & MP_MORE) && event.size == 1);
        CHECK(event.address_size == sizeof sender && event.handle == sockets[0]);
        memcpy(&sender, event.address, sizeof sender);
        CHECK(sender.sin_port == at[who].sin_port);
        CHECK(*(char *)event.data == '0' + who);
        CHECK(send_to(sockets[0], event.data, 1, &sender) == 0);
        CHECK(expect(channel, MP_SENDTO).error == 0);
        CHECK(mp_release(channel, event.buffer) == 0);
        FAILS(mp_release(channel, event.buffer), EINVAL);
        CHECK(mp_recvfrom(sockets[who], 0) == 0);
        event = expect(channel, MP_RECVFROM);
        CHECK(event.size == 1 && *(char *)event.data == '0' + who);
        CHECK(mp_release(channel, event.buffer) == 0);
    }
    /* An empty datagram is no end, and its event has the pointers that were given. */
    CHECK(send_to(sockets[1], NULL, 0, &at[0]) == 0);
    event = expect(channel, MP_SENDTO);
    CHECK(event.error == 0 && event.data == NULL && event.address == (struct sockaddr *)&at[0]);
    CHECK(mp_recvfrom(sockets[0], 0) == 0);
    event = expect(channel, MP_RECVFROM);
    CHECK(event.error == 0 && event.size == 0 && event.buffer >= 0 && event.address);
    CHECK(mp_release(channel, event.buffer) == 0);
    end(channel, sockets, 3);
}

/* The events of one buffer for many receivers tell whose each is, also of those that fail. */
static void one_buffer_for_many_receivers(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in at[3];
    mp_handle sockets[3];
    struct mp_event event;

    for (int who = 0; who < 3; who++)
        sockets[who] = bound(channel, &at[who]);
    /* The kernel refuses port 0. */
    at[1].sin_port = 0;
    for (int who = 0; who < 3; who++)
        CHECK(send_to(sockets[0], at, who, &at[who]) == 0);
    for (int who = 0; who < 3; who++) {
        event = expect(channel, MP_SENDTO);
        CHECK(event.data == at && event.address == (struct sockaddr *)&at[who]);
        CHECK(event.error == (who == 1 ? EINVAL : 0));
        CHECK(event.size == (who == 1 ? 0 : (size_t)who));
    }
    end(channel, sockets, 3);
}

/* Datagrams that wait are taken with few calls, each with its sender; the channel has fewer buffers
 * than there are datagrams. */
static void many_arrive_in_batches(void)
{
    struct mp_options options = { .large_buffers = 64 };
    mp_channel *channel = channel_with(&options);
    struct sockaddr_in at, from;
    mp_handle receiver = bound(channel, &at), sender = bound(channel, &from);
    int fd = mp_to_fd(sender), calls = 0;
    struct mp_event events[MANY], last;

    for (uint32_t number = 0; number < MANY; number++)
        CHECK(sendto(fd, &number, 4, 0, (struct sockaddr *)&at, sizeof at) == 4);
    CHECK(mp_recvfrom(receiver, MP_REPEAT) == 0);
    for (uint32_t received = 0; received < MANY; calls++) {
        int count = mp_dispatch_batch(channel, events, MANY, 10000);

        CHECK(count > 0);
        for (int which = 0; which < count; which++) {
            const struct mp_event *event = &events[which];

            CHECK(event->cmd == MP_RECVFROM && !event->error && event->flags & MP_MORE);
            CHECK(event->size == 4 && !memcmp(event->data, &received, 4));
            CHECK(event->address_size == sizeof from);
            CHECK(!memcmp(event->address, &from, sizeof from));
            CHECK(mp_release(channel, event->buffer) == 0);
            received++;
        }
    }
    CHECK(calls < MANY / 4);
    CHECK(mp_cancel(receiver, MP_IN) == 0);
    last = expect(channel, MP_RECVFROM);
    CHECK(last.error == ECANCELED && !(last.flags & MP_MORE));
    CHECK(last.address == NULL && last.buffer == -1);
    CHECK(close(fd) == 0);
    end(channel, (mp_handle[]){ receiver, sender }, 2);
}

static void what_does_not_fit_is_an_error(void)
{
    struct mp_options options = { .large_buffer_bytes = 1024 };
    mp_channel *channel = channel_with(&options);
    static char big[70000];
    struct sockaddr_in at[2];
    mp_handle sockets[2];
    struct mp_event event;
    int received = 0;

    for (int who = 0; who < 2; who++)
        sockets[who] = bound(channel, &at[who]);
    CHECK(mp_recvfrom(sockets[0], MP_REPEAT) == 0);
    CHECK(send_to(sockets[1], big, 2000, &at[0]) == 0);
    CHECK(send_to(sockets[1], big, 500, &at[0]) == 0);
    for (int which = 0; which < 4; which++) {
        CHECK(mp_dispatch(channel, &event, 10000) == 1);
        if (event.cmd == MP_SENDTO)
            continue;
        CHECK(event.cmd == MP_RECVFROM && event.flags & MP_MORE);
        if (received++ == 0) {
            CHECK(event.flags & MP_TRUNCATED && event.size > 500 && event.size < 2000);
        } else {
            CHECK(!(event.flags & MP_TRUNCATED) && event.size == 500);
        }
        CHECK(event.error == 0 && !memcmp(event.data, big, event.size));
        CHECK(event.address_size == sizeof at[1]);
        CHECK(mp_release(channel, event.buffer) == 0);
    }
    CHECK(send_to(sockets[1], big, sizeof big, &at[0]) == 0);
    event = expect(channel, MP_SENDTO);
    CHECK(event.error == EMSGSIZE);
    CHECK(mp_cancel(sockets[0], 0) == 0);
    CHECK(expect(channel, MP_RECVFROM).error == ECANCELED);
    end(channel, sockets, 2);
}

/* A UNIX socket without a name sends from an address of its family alone. */
static void senders_may_have_no_name(void)
{
    mp_channel *channel = channel_new();
    mp_handle sockets[2];
    struct mp_event event;
    int fds[2];

    CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, fds) == 0);
    for (int which = 0; which < 2; which++)
        sockets[which] = mp_register(channel, fds[which], NULL, NULL);
    CHECK(mp_write(sockets[1], "hello", 5) == 0 && mp_recvfrom(sockets[0], 0) == 0);
    CHECK(expect(channel, MP_WRITE).size == 5);
    event = expect(channel, MP_RECVFROM);
    CHECK(event.size == 5 && event.address && event.address->sa_family == AF_UNIX);
    CHECK(event.address_size == sizeof(sa_family_t));
    /* The buffer returns to the peer without a copy, in part. */
    CHECK(mp_write_buffer(sockets[0], event.buffer, 1, 3) == 0);
    CHECK(expect(channel, MP_WRITE).size == 3);
    CHECK(mp_recvfrom(sockets[1], 0) == 0);
    event = expect(channel, MP_RECVFROM);
    CHECK(event.size == 3 && !memcmp(event.data, "ell", 3));
    CHECK(mp_release(channel, event.buffer) == 0);
    end(channel, sockets, 2);
}

static void what_cannot_be_is_refused(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in at, to;
    mp_handle socket = bound(channel, &at), streams[2];
    struct mp_event event;
    int fds[2];

    pair(fds);
    for (int which = 0; which < 2; which++)
        streams[which] = mp_register(channel, fds[which], NULL, NULL);
    to = at;
    FAILS(send_to(streams[0], "x", 1, &at), EOPNOTSUPP);
    FAILS(mp_recvfrom(streams[0], 0), EOPNOTSUPP);
    FAILS(mp_recvfrom(socket, 2), EINVAL);
    FAILS(mp_recvfrom(-1, 0), EBADF);
    FAILS(send_to(-1, "x", 1, &at), EBADF);
    FAILS(send_to(socket, NULL, 1, &at), EFAULT);
    FAILS(send_to(socket, "x", SIZE_MAX, &at), EINVAL);
    FAILS(send_to(socket, "x", 1, NULL), EFAULT);
    FAILS(mp_sendto(socket, "x", 1, (struct sockaddr *)&at, 3), EINVAL);
    to.sin_family = AF_NETLINK;
    FAILS(send_to(socket, "x", 1, &to), EAFNOSUPPORT);
    FAILS(mp_fsync(socket), EOPNOTSUPP);
    FAILS(mp_fdatasync(streams[0]), EOPNOTSUPP);
    CHECK(mp_dispatch(channel, &event, 0) == 0);
    end(channel, (mp_handle[]){ socket, streams[0], streams[1] }, 3);
}

static void a_file_is_synced(void)
{
    mp_channel *channel = channel_new();
    FILE *file = tmpfile();
    mp_handle handle;

    CHECK(file);
    handle = mp_register(channel, dup(fileno(file)), NULL, NULL);
    CHECK(mp_pwrite(handle, "hello", 5, 100) == 0);
    CHECK(expect(channel, MP_PWRITE).size == 5);
    for (int which = 0; which < 2; which++) {
        struct mp_event event;

        CHECK((which ? mp_fsync(handle) : mp_fdatasync(handle)) == 0);
        event = expect(channel, MP_FSYNC);
        CHECK(event.error == 0 && event.handle == handle && event.size == 0);
    }
    end(channel, &handle, 1);
    fclose(file);
}

int main(void)
{
    int before = open_files();

    answers_go_to_the_senders();
    one_buffer_for_many_receivers();
    many_arrive_in_batches();
    what_does_not_fit_is_an_error();
    senders_may_have_no_name();
    what_cannot_be_is_refused();
    a_file_is_synced();
    CHECK(open_files() == before);
    puts("datagrams: all is well");
    return 0;
}
