/* Prints the results of all ways to transfer bytes: the output is the same on the kernel and on the
   stack. Usage: transfers CASE OWN PEER NETWORK */
#include "sockets.h"

static void print_bytes(const char *what, const char *bytes, ssize_t count) {
    tell(what, count);
    if (count > 0) printf(":%.*s", (int)count, bytes);
}

static ssize_t receive_parts(int fd, char *room) {
    struct iovec parts[2] = {{room, 2}, {room + 2, 30}};
    return readv(fd, parts, 2);
}

static ssize_t peek_parts(int fd, char *room) {
    struct iovec parts[3] = {{room, 2}, {room + 2, 1}, {room + 3, 30}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    return recvmsg(fd, &message, MSG_PEEK);
}

/* Tests peeking into several buffers, repeatedly at the same bytes. */
static void peeks(void) {
    int fd = dial();
    peer(SEND, 20);
    await_bytes(fd, 20);
    for (int first = 0; first < 24; first += 3) {
        char room[3][16] = {"", "", ""};
        struct iovec parts[4] = {{room[0], first % 16}, {NULL, 0}, {room[1], 7}, {room[2], 16}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 4};
        printf("first %d:", first);
        tell("peek", recvmsg(fd, &message, MSG_PEEK | (first > 12 ? MSG_DONTWAIT : 0)));
        printf(" %.16s %.16s %.16s\n", room[0], room[1], room[2]);
    }
    char room[64];
    print_bytes("read", room, read(fd, room, 5));
    print_bytes("peek", room, recv(fd, room, sizeof room, MSG_PEEK));
    ask(SEND, 10);
    print_bytes("all", room, recv(fd, room, 20, MSG_PEEK | MSG_WAITALL));
    answered();
    putchar('\n');
    close(fd);
}

/* Tests null buffers. */
static void nulls(void) {
    char one[8] = "abcdefg", two[8] = "hijklmn";
    struct iovec lists[][3] = {
        {{NULL, 0}, {one, 3}, {NULL, 0}}, {{NULL, 5}, {one, 3}, {two, 2}},
        {{one, 3}, {NULL, 5}, {two, 2}},  {{NULL, 0}, {NULL, 0}, {NULL, 0}},
        {{one, 3}, {two, (size_t)-1}, {two, 2}},
    };
    /* Volatile, because the compiler refuses calls that it knows to be wrong. */
    void *volatile none = NULL;
    volatile int negative = -1, many = 1025;
    for (int index = 0; index < COUNT(lists); index++) {
        struct iovec *volatile list = lists[index];
        struct msghdr message = {.msg_iov = list, .msg_iovlen = 3};
        for (int amount = 0; amount < 9; amount += 4) {
            int fd = dial();
            set_nonblocking(fd, 1);
            if (amount > 0) peer(SEND, amount);
            await_bytes(fd, amount);
            printf("list %d amount %d:", index, amount);
            tell("writev", writev(fd, list, 3));
            tell("sendmsg", sendmsg(fd, &message, MSG_NOSIGNAL));
            tell("peek", recvmsg(fd, &message, MSG_PEEK));
            tell("readv", readv(fd, list, 3));
            tell("recvmsg", recvmsg(fd, &message, 0));
            tell("read", read(fd, none, 1));
            tell("none", read(fd, none, 0));
            tell("write", write(fd, none, 1));
            tell("none", write(fd, none, 0));
            tell("count", readv(fd, list, 0));
            tell("count", readv(fd, list, negative));
            tell("count", readv(fd, list, many));
            tell("count", writev(fd, list, many));
            tell("count", writev(fd, none, 2));
            message.msg_iovlen = 1025;
            tell("count", sendmsg(fd, &message, 0));
            message.msg_iovlen = 3;
            putchar('\n');
            reset(fd);
        }
    }
}

/* Tests many small writes that do not wait. */
static void small_writes(void) {
    for (int bytes = 1; bytes < 100; bytes *= 7) {
        int fd = dial(), done = 0, count = 0;
        char data[100];
        set_nonblocking(fd, 1);
        memset(data, 'z', sizeof data);
        for (; done < 1000; done++)
            if (write(fd, data, bytes) != bytes) break;
        printf("bytes %d:", bytes);
        tell("done", done);
        tell("queue", ioctl(fd, TIOCOUTQ, &count) == 0 && count <= 1000 * bytes);
        tell("peer", peer(RECEIVE, done * bytes));
        putchar('\n');
        close(fd);
    }
}

static int queued(int fd) {
    int count = -1;
    CHECK(ioctl(fd, FIONREAD, &count) == 0);
    return count;
}

static void tell_urgent(int fd) {
    fd_set readable, exceptional;
    FD_ZERO(&readable);
    FD_ZERO(&exceptional);
    FD_SET(fd, &readable);
    FD_SET(fd, &exceptional);
    struct timeval none = {0, 0};
    CHECK(select(fd + 1, &readable, NULL, &exceptional, &none) >= 0);
    printf(" selected=%d%d", FD_ISSET(fd, &readable), FD_ISSET(fd, &exceptional));
    tell_events(fd);
    tell("count", queued(fd));
    tell("mark", sockatmark(fd));
}

/* Tests urgent bytes of the peer, read in different ways. */
static void urgent_reads(int in_line, int amount, int way) {
    char room[64];
    int fd = way == 0 ? answer() : dial(), on = in_line;
    socklen_t size = sizeof on;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, &size) == 0 && on == in_line);
    set_nonblocking(fd, 1);
    printf("inline %d amount %d way %d:", in_line, amount, way);
    tell("early", recv(fd, room, 1, MSG_OOB));
    peer(URGENT, amount);
    await(fd, POLLPRI);
    tell_urgent(fd);
    if (way == 1) print_bytes("urgent", room, recv(fd, room, 8, MSG_OOB | MSG_PEEK));
    if (way <= 2) print_bytes("urgent", room, recv(fd, room, 8, MSG_OOB));
    if (way == 2) print_bytes("urgent", room, recv(fd, room, 8, MSG_OOB));
    tell_urgent(fd);
    peer(SEND, 4);
    long end = now_ms() + LIMIT_MS;
    struct tcp_info info = {0};
    while (info.tcpi_bytes_received < (unsigned)amount + 4) {
        size = sizeof info;
        CHECK(now_ms() < end && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
        events_of(fd);
    }
    for (int times = 0; times < 4; times++) {
        print_bytes("peek", room, recv(fd, room, sizeof room, MSG_PEEK));
        print_bytes("parts", room, peek_parts(fd, room));
        print_bytes("read", room, way == 3 ? receive_parts(fd, room) : read(fd, room, 32));
        tell_urgent(fd);
    }
    print_bytes("late", room, recv(fd, room, 1, MSG_OOB));
    putchar('\n');
    close(fd);
}

static void urgent(void) {
    for (int in_line = 0; in_line < 2; in_line++)
        for (int amount = 1; amount < 6; amount += 2)
            for (int way = 0; way < 4; way++)
                urgent_reads(in_line, amount, way);
}

/* Tests urgent bytes that arrive before the connection is accepted. */
static void urgent_early(void) {
    int listener = listen_at(at(own, 0));
    char room[64];
    moving = listener;
    peer(CONNECT, port_of(listener));
    peer(SEND, 2);
    peer(URGENT, 3);
    peer(SEND, 2);
    await(listener, POLLIN);
    int fd = accept(listener, NULL, NULL);
    printf("early:");
    await(fd, POLLPRI);
    print_bytes("read", room, recv(fd, room, 20, MSG_WAITALL));
    print_bytes("urgent", room, recv(fd, room, 20, MSG_OOB));
    print_bytes("read", room, recv(fd, room, 2, MSG_WAITALL));
    putchar('\n');
    close(fd);
    close(listener);
}

/* Tests two urgent bytes, and waiting for all data around them. */
static void urgent_twice(void) {
    for (int in_line = 0; in_line < 2; in_line++) {
        char room[64];
        int fd = dial();
        CHECK(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &in_line, sizeof in_line) == 0);
        printf("inline %d:", in_line);
        peer(URGENT, 3);
        peer(URGENT, 4);
        peer(SEND, 2);
        peer(SHUT, 0);
        await(fd, POLLRDHUP);
        for (int times = 0; times < 4; times++) {
            print_bytes("all", room, recv(fd, room, 20, MSG_WAITALL));
            tell("mark", sockatmark(fd));
        }
        putchar('\n');
        close(fd);
    }
}

/* Tests urgent bytes that the peer receives. */
static void urgent_writes(void) {
    int fd = dial();
    printf("writes:");
    tell("send", send(fd, "ab", 2, 0));
    tell("send", send(fd, "cde", 3, MSG_OOB));
    tell("urgent", peer(OUT_OF_BAND, 0));
    tell("peer", peer(RECEIVE, 4));
    tell("mark", peer(AT_MARK, 0));
    tell("send", send(fd, "f", 1, MSG_OOB | MSG_DONTWAIT));
    tell("urgent", peer(OUT_OF_BAND, 0));
    tell("send", send(fd, "gh", 2, 0));
    tell("peer", peer(RECEIVE, 2));
    putchar('\n');
    close(fd);
}

/* Tests writes that are joined into one segment, or wait only for a limited time. */
static void joined(void) {
    for (int way = 0; way < 6; way++) {
        int fd = dial(), on = 1, off = 0;
        socklen_t size = sizeof on;
        char data[100] = "", page[2000] = "";
        CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
        if (way >= 2) CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on) == 0);
        CHECK(getsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, &size) == 0);
        int flags = way == 1 ? MSG_MORE : 0, sum = 0;
        struct iovec parts[2] = {{data, 40}, {data, 60}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        sum += send(fd, data, 100, flags);
        sum += way == 4 ? writev(fd, parts, 2) : sendmsg(fd, &message, flags);
        if (way == 5) sum += send(fd, page, sizeof page, 0);
        sum += send(fd, data, 100, 0);
        if (way == 2 || way >= 4)
            CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off) == 0);
        if (way == 3) CHECK(shutdown(fd, SHUT_WR) == 0);
        printf("way %d: on=%d", way, on);
        tell("sent", sum);
        tell("peer", peer(RECEIVE, sum));
        /* Separate writes may be joined on the way. */
        tell("segments", way == 0 ? 0 : peer(SEGMENTS, 0));
        putchar('\n');
        close(fd);
    }
    /* Delayed data arrives nevertheless. */
    int fd = dial();
    tell("held", send(fd, "x", 1, MSG_MORE));
    tell("peer", peer(RECEIVE, 1));
    putchar('\n');
    close(fd);
}

/* Tests that data written before a reset was sent before it. */
static void written_then_reset(void) {
    int still = listen_at(at(own, 0));
    for (int round = 0; round < 40; round++) {
        int fd = round % 2 ? answer() : dial();
        tell("sent", send(fd, "hello", 5, 0));
        reset(fd);
        moving = still;
        tell("received", peer(RECEIVE, 5));
        int end = peer(AWAIT_END, 0);
        printf(" end=%s\n", end == 0 ? "0" : strerrorname_np(end));
        peer(CLOSE, 0);
    }
}

int main(int count, char **arguments) {
    static const struct test_case CASES[] = {
        {"peeks", peeks},   {"nulls", nulls},
        {"urgent", urgent}, {"small-writes", small_writes},
        {"joined", joined}, {"urgent-twice", urgent_twice},
        {"urgent-writes", urgent_writes}, {"urgent-early", urgent_early},
        {"written-then-reset", written_then_reset},
    };
    prepare(count, arguments);
    return run_case(arguments[1], CASES, COUNT(CASES));
}
