/* Tests that written data does not wait for the program's next call, and that every call that does
   not wait sees the data that has arrived. See like.h. */
#include "like.h"

/* Number of repetitions, with pauses, of a call that finds nothing. */
#define TRIES 12
#define PAUSE_MS 60

static void writes(void) {
    struct pair pair = connect_pair();
    CHECK(write(pair.fd, "one", 3) == 3);
    show_received("write", pair.which);
    CHECK(send(pair.fd, "two", 3, MSG_DONTWAIT) == 3);
    show_received("send", pair.which);
    struct iovec parts[2] = {{"thr", 3}, {"ee", 2}};
    CHECK(writev(pair.fd, parts, 2) == 5);
    show_received("writev", pair.which);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    CHECK(sendmsg(pair.fd, &message, 0) == 5);
    show_received("sendmsg", pair.which);
    FILE *file = tmpfile();
    CHECK(fputs("from a file", file) >= 0 && fflush(file) == 0);
    off_t offset = 5;
    CHECK(sendfile(pair.fd, fileno(file), &offset, 100) == 6);
    show_received("sendfile", pair.which);
    CHECK(shutdown(pair.fd, SHUT_WR) == 0);
    show_received("shutdown", pair.which);
    CHECK(close(pair.fd) == 0);
}

static void ends(void) {
    int port = 0, from = open_listener(&port);
    struct pair pair = accept_pair(from, port);
    CHECK(close(pair.fd) == 0);
    show_received("close", pair.which);

    pair = accept_pair(from, port);
    struct linger reset = {1, 0};
    CHECK(setsockopt(pair.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
    CHECK(close(pair.fd) == 0);
    show_received("close with a reset", pair.which);

    pair = accept_pair(from, port);
    int spare = dup(1);
    CHECK(dup2(spare, pair.fd) == pair.fd);
    show_received("dup2", pair.which);

    pair = accept_pair(from, port);
    CHECK(shutdown(pair.fd, SHUT_RDWR) == 0);
    show_received("shutdown", pair.which);

    pair = accept_pair(from, port);
    CHECK(close_range(pair.fd, pair.fd, 0) == 0);
    show_received("close_range", pair.which);
    close(from);
    show("dial", ask(DIAL, 0, port, NULL) < 0 && errno == ECONNREFUSED);
}

static void connects(void) {
    struct sockaddr_in address = address_of(peer_address, ask(LISTEN, 0, 0, NULL));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int outcome = connect(fd, (struct sockaddr *)&address, sizeof address);
    CHECK(outcome == 0 || errno == EINPROGRESS);
    show("accept", ask(ACCEPT, 0, 0, NULL));
    close(fd);
}

/* Tests a program that is killed while it sleeps: its written data was sent before. */
static void ended_by_a_signal(void) {
    pid_t child = fork();
    if (child == 0) {
        struct pair pair = connect_pair();
        CHECK(write(pair.fd, "last", 4) == 4);
        printf("which: %d\n", pair.which);
        show_received("before", pair.which);
        CHECK(write(pair.fd, "words", 5) == 5);
        pause_ms(500);
        kill(getpid(), SIGTERM);
        pause();
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    printf("signal: %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    show_received("after", 0);
}

static struct pair told(void) {
    struct pair pair = connect_pair();
    CHECK(fcntl(pair.fd, F_SETFL, O_NONBLOCK) == 0);
    return pair;
}

static ssize_t by_read(int fd) {
    char room[16];
    return read(fd, room, sizeof room);
}

static ssize_t by_peek(int fd) {
    char room[16];
    return recv(fd, room, sizeof room, MSG_PEEK | MSG_DONTWAIT);
}

static ssize_t by_message(int fd) {
    char room[16];
    struct iovec part = {room, sizeof room};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return recvmsg(fd, &message, MSG_DONTWAIT | MSG_PEEK);
}

static ssize_t by_count(int fd) {
    int count = 0;
    CHECK(ioctl(fd, FIONREAD, &count) == 0);
    return count ? count : -1;
}

static ssize_t by_poll(int fd) {
    struct pollfd entry = {fd, POLLIN, 0};
    return poll(&entry, 1, 0) ? entry.revents : -1;
}

static ssize_t by_select(int fd) {
    fd_set set;
    struct timeval none = {0, 0};
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return select(fd + 1, &set, NULL, NULL, &none) ? 1 : -1;
}

static ssize_t by_epoll(int fd) {
    static int set = -1;
    struct epoll_event event = {EPOLLIN, {.u64 = 1}};
    if (set < 0) {
        set = epoll_create1(0);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    return epoll_wait(set, &event, 1, 0) ? (ssize_t)event.events : -1;
}

static void try_often(const char *what, ssize_t (*attempt)(int), int fd) {
    ssize_t result = -1;
    for (int tries = 0; tries < TRIES && result < 0; tries++) {
        pause_ms(PAUSE_MS);
        result = attempt(fd);
    }
    show(what, result);
}

/* Each case uses only one way of checking. */
#define LOOKS(name, attempt)                                                                       \
    static void name(void) {                                                                       \
        struct pair pair = told();                                                                 \
        CHECK(ask(SEND, pair.which, 0, "data") == 4);                                              \
        try_often(#name, attempt, pair.fd);                                                        \
    }
LOOKS(look_by_read, by_read)
LOOKS(look_by_peek, by_peek)
LOOKS(look_by_message, by_message)
LOOKS(look_by_count, by_count)
LOOKS(look_by_poll, by_poll)
LOOKS(look_by_select, by_select)
LOOKS(look_by_epoll, by_epoll)

static void look_by_accept(void) {
    int port = 0, from = open_listener(&port), fd = -1;
    CHECK(fcntl(from, F_SETFL, O_NONBLOCK) == 0);
    CHECK(ask(DIAL, 0, port, NULL) == 0);
    for (int tries = 0; tries < TRIES && fd < 0; tries++) {
        pause_ms(PAUSE_MS);
        fd = accept(from, NULL, NULL);
    }
    show("accept", fd < 0 ? -1 : 0);
}

/* Tests that a program which only sends detects that the peer has gone. */
static void send_after_the_end(void) {
    signal(SIGPIPE, SIG_IGN);
    for (int way = 0; way < 2; way++) {
        struct pair pair = connect_pair();
        CHECK(ask(way ? RESET : CLOSE, pair.which, 0, NULL) == 0);
        int result = 1;
        for (int tries = 0; tries < TRIES && result == 1; tries++) {
            pause_ms(PAUSE_MS);
            result = write(pair.fd, "x", 1);
        }
        printf("write: %s\n", result < 0 && failed(errno) ? "broken" : "it goes on");
        close(pair.fd);
    }
}

static void error_without_a_call(void) {
    struct pair pair = connect_pair();
    CHECK(ask(RESET, pair.which, 0, NULL) == 0);
    int error = 0;
    for (int tries = 0; tries < TRIES && error == 0; tries++) {
        socklen_t size = sizeof error;
        pause_ms(PAUSE_MS);
        CHECK(getsockopt(pair.fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0);
    }
    printf("SO_ERROR: %s\n", strerrorname_np(error));
}

/* Tests that buffers which were read are room for the peer at once. */
static void room_after_reading(void) {
    struct pair pair = connect_pair();
    static char room[1 << 16];
    int some = 1 << 14;
    CHECK(setsockopt(pair.fd, SOL_SOCKET, SO_RCVBUF, &some, sizeof some) == 0);
    begin(FILL, pair.which, 300, NULL);
    long filled = finish().result;
    CHECK(filled > 0);
    long got = 0;
    for (ssize_t bytes; got < filled && (bytes = read(pair.fd, room, sizeof room)) > 0;)
        got += bytes;
    printf("all came: %d\n", got >= filled);
    show("send", ask(SEND, pair.which, 0, "more"));
}

static const struct test tests[] = {
    {"writes", writes},
    {"ends", ends},
    {"connects", connects},
    {"ended-by-a-signal", ended_by_a_signal},
    {"look-by-read", look_by_read},
    {"look-by-peek", look_by_peek},
    {"look-by-message", look_by_message},
    {"look-by-count", look_by_count},
    {"look-by-poll", look_by_poll},
    {"look-by-select", look_by_select},
    {"look-by-epoll", look_by_epoll},
    {"look-by-accept", look_by_accept},
    {"send-after-the-end", send_after_the_end},
    {"error-without-a-call", error_without_a_call},
    {"room-after-reading", room_after_reading},
};

MAIN(tests)
