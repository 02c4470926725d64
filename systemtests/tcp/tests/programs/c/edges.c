/* Prints the events of edge-triggered epolls: the output is the same on the kernel and on the
   stack. Usage: edges CASE OWN PEER NETWORK */
#include "sockets.h"

static int set;

/* Prints the events that the epoll has now. */
static void look(const char *when) {
    struct epoll_event got[4];
    int count = epoll_wait(set, got, 4, 0);
    CHECK(count >= 0);
    printf(" %s:%d", when, count);
    for (int index = 0; index < count; index++)
        name_events("", got[index].events);
}

/* Prints the first events of the epoll, after a wait. */
static void wait_for(const char *when) {
    struct epoll_event got[4];
    int count = epoll_wait(set, got, 4, LIMIT_MS);
    printf(" %s:%d", when, count);
    for (int index = 0; index < count; index++)
        name_events("", got[index].events);
    look("again");
}

static void control_watch(int fd, int operation, unsigned events) {
    struct epoll_event event = {.events = events};
    CHECK(epoll_ctl(set, operation, fd, &event) == 0);
}

/* Waits until all written data is acknowledged, without calling the epoll. */
static void await_sent(int fd) {
    long end = now_ms() + LIMIT_MS;
    int count = 1;
    while (ioctl(fd, SIOCOUTQ, &count) == 0 && count > 0) {
        CHECK(now_ms() < end);
        events_of(fd);
        usleep(50);
    }
}

/* States of tcpi_state (linux/net/tcp_states.h): the FIN is acknowledged, and nothing is left of a
   connection. */
enum { FIN_WAIT2 = 5, CLOSED = 7 };

/* Waits until the connection has this state, without calling the epoll. */
static void await_state(int fd, int state) {
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    long end = now_ms() + LIMIT_MS;
    while (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state != state) {
        CHECK(now_ms() < end);
        events_of(fd);
        usleep(50);
    }
}

/* Waits until this number of connections can be accepted, without calling the epoll. */
static void await_queue(int fd, unsigned count) {
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    long end = now_ms() + LIMIT_MS;
    while (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_unacked < count) {
        CHECK(now_ms() < end);
        events_of(fd);
        usleep(50);
    }
}

static const unsigned WANTED[] = {EPOLLIN | EPOLLOUT | EPOLLRDHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP,
                                  EPOLLIN | EPOLLPRI, 0};
static const unsigned MODES[] = {EPOLLET, 0, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};

/* Tests a connection from its beginning to this end, watched for these events. */
static void life(unsigned events, enum order last) {
    char room[64];
    int fd = dial();
    set = epoll_create1(0);
    set_nonblocking(fd, 1);
    printf("events %x last %d:", events, last);
    control_watch(fd, EPOLL_CTL_ADD, events);
    look("added");
    look("again");
    peer(SEND, 5);
    await_bytes(fd, 5);
    look("data");
    look("again");
    peer(SEND, 5);
    await_bytes(fd, 10);
    look("more");
    look("again");
    CHECK(read(fd, room, 3) == 3);
    look("read");
    CHECK(write(fd, "hello", 5) == 5);
    await_sent(fd);
    peer(RECEIVE, 5);
    look("sent");
    CHECK(recv(fd, room, 20, MSG_PEEK) == 7);
    look("peeked");
    CHECK(read(fd, room, 20) == 7 && read(fd, room, 20) == -1);
    look("all");
    control_watch(fd, EPOLL_CTL_MOD, events);
    look("modified");
    look("again");
    peer(URGENT, 1);
    await(fd, POLLPRI);
    look("urgent");
    look("again");
    peer(last, 0);
    await(fd, last == RESET ? POLLERR : POLLRDHUP);
    look("end");
    look("again");
    if (last == SHUT) {
        CHECK(read(fd, room, 20) == 0);
        look("read");
        CHECK(shutdown(fd, SHUT_WR) == 0);
        CHECK(peer(AWAIT_END, 0) == 0);
        /* The peer's acknowledgement is a separate edge. */
        await_state(fd, CLOSED);
        look("shut");
        look("again");
    }
    /* Nothing is left to shut down, but watching epolls get an event. */
    await_state(fd, CLOSED);
    CHECK(shutdown(fd, SHUT_WR) == -1 && errno == ENOTCONN);
    look("shut again");
    look("again");
    putchar('\n');
    close(fd);
    close(set);
}

static void lives(void) {
    static const enum order ENDS[] = {SHUT, RESET};
    for (int mode = 0; mode < COUNT(MODES); mode++)
        for (int wanted = 0; wanted < COUNT(WANTED); wanted++)
            for (int end = 0; end < COUNT(ENDS); end++)
                life(WANTED[wanted] | MODES[mode], ENDS[end]);
}

/* Tests the program's own shutdowns. */
static void shutdowns(void) {
    static const int HOW[][2] = {{SHUT_RD, SHUT_WR}, {SHUT_WR, SHUT_RD}, {SHUT_RDWR, SHUT_WR}};
    for (int mode = 0; mode < COUNT(MODES); mode++)
        for (int wanted = 0; wanted < COUNT(WANTED); wanted++)
            for (int order = 0; order < COUNT(HOW); order++) {
                int fd = dial();
                set = epoll_create1(0);
                printf("mode %x wanted %x:", MODES[mode], WANTED[wanted]);
                control_watch(fd, EPOLL_CTL_ADD, WANTED[wanted] | MODES[mode]);
                look("added");
                for (int which = 0; which < 2; which++) {
                    CHECK(shutdown(fd, HOW[order][which]) == 0);
                    /* The peer's acknowledgement is an edge too, and both are one edge here. */
                    if (HOW[order][which] != SHUT_RD) await_state(fd, FIN_WAIT2);
                    look("shut");
                    look("again");
                }
                putchar('\n');
                close(fd);
                close(set);
            }
}

/* Tests a full buffer that has room again. */
static void room(void) {
    static char much[1 << 16];
    for (int wanted = 0; wanted < COUNT(WANTED); wanted++) {
        int fd = dial();
        long sent = 0;
        set = epoll_create1(0);
        set_nonblocking(fd, 1);
        printf("wanted %x:", WANTED[wanted]);
        control_watch(fd, EPOLL_CTL_ADD, WANTED[wanted] | EPOLLET);
        look("added");
        /* Writes until there is no more room, while the peer does not read. */
        for (long still = now_ms(); now_ms() < still + 300;) {
            ssize_t bytes = write(fd, much, sizeof much);
            if (bytes > 0) {
                sent += bytes;
                still = now_ms();
            } else {
                events_of(fd);
                usleep(500);
            }
        }
        while (epoll_wait(set, &(struct epoll_event){0}, 1, 0) > 0)
            continue;
        look("full");
        peer(RECEIVE, sent);
        await_sent(fd);
        if (WANTED[wanted] & EPOLLOUT) wait_for("room");
        look("again");
        putchar('\n');
        close(fd);
        close(set);
    }
}

/* Tests connections to a listener. */
static void listeners(void) {
    for (int mode = 0; mode < COUNT(MODES); mode++) {
        int fd = listen_at(at(own, 0)), port = port_of(fd);
        set = epoll_create1(0);
        set_nonblocking(fd, 1);
        moving = fd;
        printf("mode %x:", MODES[mode]);
        control_watch(fd, EPOLL_CTL_ADD, EPOLLIN | MODES[mode]);
        look("added");
        peer(CONNECT, port);
        wait_for("one");
        peer(CONNECT, port);
        if (MODES[mode] & EPOLLONESHOT)
            look("two");
        else
            wait_for("two");
        await_queue(fd, 2);
        /* The listener continues to listen. */
        CHECK(shutdown(fd, SHUT_WR) == 0);
        look("shut");
        close(accept(fd, NULL, NULL));
        look("accepted");
        while (events_of(fd) & POLLIN)
            close(accept(fd, NULL, NULL));
        look("all");
        CHECK(accept(fd, NULL, NULL) == -1 && errno == EAGAIN);
        putchar('\n');
        close(fd);
        close(set);
    }
}

/* Tests attempts to connect that are watched before they begin. */
static void attempts(void) {
    for (int mode = 0; mode < COUNT(MODES); mode++)
        for (int wanted = 0; wanted < COUNT(WANTED); wanted++)
            for (int refused = 0; refused < 2; refused++) {
                int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
                struct sockaddr_in to = at(far, peer(refused ? REFUSE : LISTEN, 0));
                set = epoll_create1(0);
                printf("mode %x wanted %x refused %d:", MODES[mode], WANTED[wanted], refused);
                control_watch(fd, EPOLL_CTL_ADD, WANTED[wanted] | MODES[mode]);
                look("added");
                CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == -1);
                moving = fd;
                if (!refused) peer(ACCEPT, 0);
                await(fd, refused ? POLLERR : POLLOUT);
                look("known");
                look("again");
                putchar('\n');
                close(fd);
                close(set);
            }
}

int main(int count, char **arguments) {
    static const struct test_case CASES[] = {
        {"lives", lives},         {"shutdowns", shutdowns}, {"room", room},
        {"listeners", listeners}, {"attempts", attempts},
    };
    prepare(count, arguments);
    return run_case(arguments[1], CASES, COUNT(CASES));
}
