/* Tests messages with ancillary data: descriptors over UNIX sockets, the addresses of
 * datagrams. */
#define _GNU_SOURCE
#include "check.h"

/* Room for ancillary data, aligned as its headers are. */
union control {
    struct cmsghdr header;
    char room[CMSG_SPACE(254 * sizeof(int))];
};

static struct msghdr message_of(struct iovec *piece, union control *control, size_t room)
{
    struct msghdr message;

    memset(&message, 0, sizeof message);
    message.msg_iov = piece;
    message.msg_iovlen = piece != NULL;
    message.msg_control = room ? control : NULL;
    message.msg_controllen = room;
    return message;
}

/* Writes ancillary data with these descriptors; returns its size. */
static size_t put(union control *control, const int *fds, int count)
{
    size_t bytes = sizeof *fds * (size_t)count;

    memset(control, 0, sizeof *control);
    control->header.cmsg_level = SOL_SOCKET;
    control->header.cmsg_type = SCM_RIGHTS;
    control->header.cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(&control->header), fds, bytes);
    return CMSG_SPACE(bytes);
}

/* Returns the only descriptor of a message; -1 if it has none. */
static int taken(struct msghdr *message)
{
    struct cmsghdr *entry = CMSG_FIRSTHDR(message);
    int fd;

    if (!entry)
        return -1;
    CHECK(entry->cmsg_level == SOL_SOCKET && entry->cmsg_type == SCM_RIGHTS);
    CHECK(entry->cmsg_len == CMSG_LEN(sizeof fd));
    memcpy(&fd, CMSG_DATA(entry), sizeof fd);
    return fd;
}

/* Returns a file with this text. */
static int file_with(const char *text)
{
    FILE *file = tmpfile();
    int fd;

    CHECK(file && fputs(text, file) >= 0 && fflush(file) == 0);
    fd = fcntl(fileno(file), F_DUPFD_CLOEXEC, 0);
    CHECK(fd >= 0);
    fclose(file);
    return fd;
}

static void file_send(mp_handle from, const void *bytes, size_t size, int fd)
{
    union control *control = malloc(sizeof *control);
    struct iovec *piece = malloc(sizeof *piece);
    struct msghdr *message = malloc(sizeof *message);

    piece->iov_base = (void *)bytes;
    piece->iov_len = size;
    *message = message_of(piece, control, put(control, &fd, 1));
    CHECK(mp_sendmsg(from, message) == 0);
    /* The call has copied everything but the bytes. */
    free(message);
    free(piece);
    free(control);
}

static void descriptors_travel(void)
{
    static char sent[3 << 20], found[sizeof sent];
    mp_channel *channel = channel_new();
    int fds[2], file = file_with("contents"), got = -1, is_sent = 0;
    mp_handle left, right;
    struct mp_event event;
    size_t at = 0;
    char text[8];

    pair(fds);
    left = mp_register(channel, fds[0], NULL, NULL);
    right = mp_register(channel, fds[1], NULL, NULL);
    for (size_t byte = 0; byte < sizeof sent; byte++)
        sent[byte] = (char)(byte % 251);
    file_send(left, sent, sizeof sent, file);
    CHECK(mp_queued(left) == sizeof sent);
    while (at < sizeof sent) {
        union control control;
        struct iovec piece = { found + at, 100000 };
        struct msghdr message = message_of(&piece, &control, sizeof control);

        if (piece.iov_len > sizeof found - at)
            piece.iov_len = sizeof found - at;
        CHECK(mp_recvmsg(right, &message) == 0);
        memset(&piece, 0, sizeof piece);
        do {
            CHECK(mp_dispatch(channel, &event, 10000) == 1 && event.error == 0);
            is_sent += event.cmd == MP_SENDMSG && event.size == sizeof sent;
        } while (event.handle == left);
        CHECK(event.cmd == MP_RECVMSG && event.data == &message && event.size > 0);
        CHECK(message.msg_flags == MSG_CMSG_CLOEXEC || message.msg_flags == 0);
        CHECK((taken(&message) >= 0) == (at == 0));
        if (at == 0)
            got = taken(&message);
        at += event.size;
    }
    if (!is_sent)
        CHECK(expect(channel, MP_SENDMSG).size == sizeof sent);
    CHECK(!memcmp(sent, found, sizeof sent));
    CHECK(got >= 0 && got != file && fcntl(got, F_GETFD) == FD_CLOEXEC);
    CHECK(pread(got, text, sizeof text, 0) == 8 && !memcmp(text, "contents", 8));
    close(got);
    close(file);
    CHECK(mp_close(left) == 0);
    expect(channel, MP_CLOSE);
    mp_destroy(channel);
    close(fds[1]);
}

static void lost_control_data_is_told(void)
{
    mp_channel *channel = channel_new();
    int fds[2], file = file_with("x");
    mp_handle left, right;
    struct mp_event event;
    char room[4];
    struct iovec piece = { room, sizeof room };
    struct msghdr message = message_of(&piece, NULL, 0);

    pair(fds);
    left = mp_register(channel, fds[0], NULL, NULL);
    right = mp_register(channel, fds[1], NULL, NULL);
    file_send(left, "text", 4, file);
    event = expect(channel, MP_SENDMSG);
    CHECK(event.size == 4 && event.error == 0);
    CHECK(mp_recvmsg(right, &message) == 0);
    event = expect(channel, MP_RECVMSG);
    CHECK(event.size == 4 && event.error == 0 && !memcmp(room, "text", 4));
    CHECK(message.msg_flags & MSG_CTRUNC);
    close(file);
    mp_destroy(channel);
    close(fds[0]);
    close(fds[1]);
}

/* Descriptors that arrive for a request whose handle has ended are closed. */
static void withdrawn_descriptors_are_closed(void)
{
    mp_channel *channel = channel_new();
    int fds[2], ends[2];
    mp_handle left, right;
    char room[4];
    union control control;
    struct iovec piece = { room, sizeof room };
    struct msghdr message;
    struct mp_event event;

    for (int closes = 0; closes < 2; closes++) {
        message = message_of(&piece, &control, sizeof control);
        memset(&control, 0xff, sizeof control);
        pair(fds);
        CHECK(pipe2(ends, O_CLOEXEC) == 0);
        left = mp_register(channel, fds[0], NULL, NULL);
        right = mp_register(channel, fds[1], NULL, NULL);
        CHECK(mp_recvmsg(right, &message) == 0);
        CHECK(mp_flush(channel) == 0);
        file_send(left, "x", 1, ends[1]);
        CHECK(mp_flush(channel) == 0);
        CHECK((closes ? mp_close(right) : mp_unregister(right)) == 0);
        CHECK(expect(channel, MP_SENDMSG).size == 1);
        if (closes) {
            expect(channel, MP_CLOSE);
        } else {
            CHECK(mp_dispatch(channel, &event, 10) == 0);
            close(fds[1]);
        }
        close(ends[1]);
        CHECK(mp_unregister(left) == 0);
        close(fds[0]);
        /* The writing end is closed in all processes. */
        CHECK(read(ends[0], room, 1) == 0);
        close(ends[0]);
    }
    mp_destroy(channel);
}

static int datagrams(const char *ip, struct sockaddr_in *address)
{
    socklen_t size = sizeof *address;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    CHECK(fd >= 0 && inet_pton(AF_INET, ip, &address->sin_addr) == 1);
    CHECK(bind(fd, (struct sockaddr *)address, size) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)address, &size) == 0);
    return fd;
}

/* A server on all addresses answers from the address to which the request was sent. */
static void datagrams_have_packet_info(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in at, from, peer;
    int client = datagrams("127.0.0.1", &from), fd = datagrams("0.0.0.0", &at), yes = 1;
    mp_handle server = mp_register(channel, fd, NULL, NULL);
    union control control;
    char room[8];
    struct iovec piece = { room, sizeof room };
    struct msghdr message = message_of(&piece, &control, sizeof control);
    struct mp_event event;
    struct in_pktinfo info;
    socklen_t size = sizeof peer;

    CHECK(mp_sockopt(server, IPPROTO_IP, IP_PKTINFO, &yes, sizeof yes) == 0);
    CHECK(inet_pton(AF_INET, "127.0.0.2", &at.sin_addr) == 1);
    CHECK(sendto(client, "question", 8, 0, (struct sockaddr *)&at, sizeof at) == 8);
    message.msg_name = &peer;
    message.msg_namelen = sizeof peer;
    CHECK(mp_recvmsg(server, &message) == 0);
    event = expect(channel, MP_RECVMSG);
    CHECK(event.size == 8 && message.msg_namelen == sizeof peer);
    CHECK(peer.sin_port == from.sin_port && !memcmp(room, "question", 8));
    CHECK(CMSG_FIRSTHDR(&message)->cmsg_type == IP_PKTINFO);
    memcpy(&info, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof info);
    CHECK(info.ipi_addr.s_addr == at.sin_addr.s_addr && info.ipi_ifindex > 0);
    /* The unchanged message returns to its sender. */
    CHECK(mp_sendmsg(server, &message) == 0);
    CHECK(expect(channel, MP_SENDMSG).size == 8);
    CHECK(recvfrom(client, room, sizeof room, 0, (struct sockaddr *)&peer, &size) == 8);
    CHECK(peer.sin_addr.s_addr == at.sin_addr.s_addr && peer.sin_port == at.sin_port);
    /* A datagram that is longer than the room. */
    CHECK(sendto(client, "too long.", 9, 0, (struct sockaddr *)&at, sizeof at) == 9);
    message = message_of(&piece, &control, sizeof control);
    CHECK(mp_recvmsg(server, &message) == 0);
    event = expect(channel, MP_RECVMSG);
    CHECK(event.error == EMSGSIZE && !memcmp(room, "too long", 8));
    CHECK(message.msg_flags & MSG_TRUNC);
    mp_destroy(channel);
    close(client);
    close(fd);
}

static void what_cannot_be_is_refused(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in address;
    static int many[254];
    int fds[2], listener = listening(&address), client = connected(&address), file = file_with("x");
    mp_handle left, tcp = mp_register(channel, client, NULL, NULL);
    mp_handle pages = mp_register(channel, file, NULL, NULL);
    union control control;
    char room[4];
    struct iovec piece = { room, sizeof room };
    struct msghdr message;
    struct mp_event event;

    pair(fds);
    left = mp_register(channel, fds[0], NULL, NULL);
    message = message_of(&piece, &control, put(&control, fds, 1));
    FAILS(mp_sendmsg(tcp, &message), EINVAL);
    CHECK(strstr(mp_error(), "UNIX"));
    FAILS(mp_sendmsg(pages, &message), EOPNOTSUPP);
    FAILS(mp_recvmsg(pages, &message), EOPNOTSUPP);
    FAILS(mp_sendmsg(-1, &message), EBADF);
    FAILS(mp_sendmsg(left, NULL), EFAULT);
    FAILS(mp_recvmsg(left, NULL), EFAULT);
    piece.iov_len = 0;
    FAILS(mp_sendmsg(left, &message), EINVAL);
    FAILS(mp_recvmsg(left, &message), EINVAL);
    piece.iov_base = NULL;
    piece.iov_len = 1;
    FAILS(mp_sendmsg(left, &message), EFAULT);
    piece.iov_base = room;
    message.msg_iovlen = 1025;
    FAILS(mp_recvmsg(left, &message), EINVAL);
    message.msg_iovlen = 1;
    message.msg_control = NULL;
    FAILS(mp_recvmsg(left, &message), EFAULT);
    message = message_of(&piece, &control, put(&control, many, 254));
    FAILS(mp_sendmsg(left, &message), EINVAL);
    CHECK(strstr(mp_error(), "253"));
    CHECK(mp_dispatch(channel, &event, 0) == 0);
    /* Messages without ancillary data can be sent over TCP. */
    message = message_of(&piece, NULL, 0);
    CHECK(mp_sendmsg(tcp, &message) == 0);
    CHECK(expect(channel, MP_SENDMSG).size == 1);
    CHECK(mp_recvmsg(tcp, &message) == 0 && mp_cancel(tcp, MP_IN) == 0);
    event = expect(channel, MP_RECVMSG);
    CHECK(event.error == ECANCELED && event.data == &message);
    mp_destroy(channel);
    close(client);
    close(listener);
    close(file);
    close(fds[0]);
    close(fds[1]);
}

int main(void)
{
    descriptors_travel();
    lost_control_data_is_told();
    withdrawn_descriptors_are_closed();
    datagrams_have_packet_info();
    what_cannot_be_is_refused();
    puts("messages: all is well");
    return 0;
}
