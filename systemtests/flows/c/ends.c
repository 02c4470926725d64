/* Prints what a program sees of the end of a connection: the same with and without `fable run`.
   Usage: ends CASE [WAY] */
#include "like.h"

/* Prints one of the two results that a peer's end can have, depending on the moment. */
static void tell_broken(const char *what, ssize_t result) {
    int broken = result < 0 && (errno == EPIPE || errno == ECONNRESET);
    printf("%s: %s\n", what, broken ? "broken" : result < 0 ? strerrorname_np(errno) : "good");
}

/* A write waits for room, and the peer ends without reading. */
static void blocked_write(int whole, int early) {
    struct pair pair = connect_pair(whole);
    char byte;
    if (pair.peer == 0) {
        CHECK(recv(pair.fd, &byte, 1, 0) == 1);
        if (!early) usleep(200000);
        go(pair.fd);
    }
    char *large = calloc(1, LARGE);
    size_t sent = 0;
    ssize_t moved = 0;
    signal(SIGPIPE, SIG_IGN);
    while (sent < LARGE && (moved = send(pair.fd, large, LARGE - sent, 0)) > 0) sent += moved;
    tell_broken("send", moved);
    release(pair);
}

static void write_to_leaver(void) {
    blocked_write(0, 0);
}
static void write_to_leaver_inside(void) {
    blocked_write(1, 0);
}
static void write_to_leaver_early(void) {
    blocked_write(1, 1);
}

/* Prints what poll, select, epoll, send and read return after the peer has read all and ended. */
static void show_poll(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    int count = poll(&entry, 1, 0);
    printf("poll: %d, %#x\n", count, entry.revents);
    if (is_killed()) return;
    struct pollfd output = {.fd = fd, .events = POLLOUT};
    count = poll(&output, 1, 0);
    printf("poll for output: %d, %#x\n", count, output.revents);
}

static void show_select(int fd) {
    fd_set readable, writable;
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_SET(fd, &readable);
    FD_SET(fd, &writable);
    struct timeval none = {0};
    int count = select(fd + 1, &readable, &writable, NULL, &none);
    printf("select: %d, %d %d\n", count, !!FD_ISSET(fd, &readable), !!FD_ISSET(fd, &writable));
}

static void show_epoll(int fd, uint32_t events) {
    int set = epoll_create1(0);
    struct epoll_event event = {.events = events, .data.fd = fd};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    int count = epoll_wait(set, &event, 1, 0);
    printf("epoll: %d, %#x\n", count, count == 1 ? event.events : 0);
    count = epoll_wait(set, &event, 1, 0);
    printf("epoll again: %d, %#x\n", count, count == 1 ? event.events : 0);
    close(set);
}

static void readiness_of_an_end(void) {
    struct pair pair = connect_pair(1);
    if (pair.peer == 0) {
        await(1);
        go(pair.fd);
    }
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair.fd, &event) == 0);
    int count = epoll_wait(set, &event, 1, 0);
    printf("epoll before: %d, %#x\n", count, count == 1 ? event.events : 0);
    say(1);
    await_gone(pair);
    count = epoll_wait(set, &event, 1, 0);
    printf("epoll of a member: %d, %#x\n", count, count == 1 ? event.events : 0);
    show_poll(pair.fd);
    show_select(pair.fd);
    show_epoll(pair.fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    show_epoll(pair.fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
    char byte;
    tell("peek", recv(pair.fd, &byte, 1, MSG_PEEK));
    tell("read", recv(pair.fd, &byte, 1, 0));
    tell("read again", recv(pair.fd, &byte, 1, 0));
    release(pair);
}

/* The peer sends and ends while this end waits, in each way of waiting. */
static void wait_for_an_end(void) {
    for (int way = 0; way < 4; way++) {
        struct pair pair = connect_pair(1);
        if (pair.peer == 0) {
            usleep(100000);
            send_all(pair.fd, 4, 0, 100);
            await(1);
            usleep(100000);
            go(pair.fd);
        }
        expect(pair.fd, 4, 0, 100);
        struct timeval limit = {.tv_sec = 4};
        CHECK(setsockopt(pair.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
        int set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair.fd, &event) == 0);
        struct pollfd entry = {.fd = pair.fd, .events = POLLIN};
        say(1);
        int count = 0;
        if (way == 1) {
            count = poll(&entry, 1, 4000);
            printf("poll: %d, %#x\n", count, entry.revents);
        } else if (way == 2) {
            count = epoll_wait(set, &event, 1, 4000);
            printf("epoll: %d, %#x\n", count, count == 1 ? event.events : 0);
        } else if (way == 3) {
            await_gone(pair);
        }
        char byte;
        tell("read", recv(pair.fd, &byte, 1, 0));
        tell("read again", recv(pair.fd, &byte, 1, 0));
        if (way != 3) await_gone(pair);
        if (!is_killed()) show_poll(pair.fd);
        signal(SIGPIPE, SIG_IGN);
        if (strcmp(leave_by, "abort") == 0) tell("send", send(pair.fd, "abc", 3, 0));
        release(pair);
        close(set);
    }
}

/* Sends several times after the peer has ended. */
static void sends_after_an_end(void) {
    struct pair pair = connect_pair(1);
    if (pair.peer == 0) {
        await(1);
        go(pair.fd);
    }
    say(1);
    await_gone(pair);
    signal(SIGPIPE, SIG_IGN);
    if (is_killed()) {
        /* Writers check at each tick of the kernel's clock whether the peer lives. */
        usleep(20000);
        for (int turn = 0; turn < 3; turn++) {
            tell_broken("send", send(pair.fd, "abc", 3, 0));
            usleep(20000);
        }
        return;
    }
    for (int turn = 0; turn < 3; turn++) tell("send", send(pair.fd, "abc", 3, 0));
    char byte;
    tell("read", recv(pair.fd, &byte, 1, 0));
    int error = 0;
    socklen_t size = sizeof error;
    CHECK(getsockopt(pair.fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0);
    printf("SO_ERROR: %d\n", error);
    show_poll(pair.fd);
    release(pair);
}

/* The peer sends, ends, and this end reads afterwards. */
static void bytes_before_an_end(void) {
    struct pair pair = connect_pair(1);
    if (pair.peer == 0) {
        send_all(pair.fd, 5, 0, 50000);
        go(pair.fd);
    }
    await_gone(pair);
    show_poll(pair.fd);
    show_select(pair.fd);
    show_epoll(pair.fd, EPOLLIN | EPOLLRDHUP);
    expect(pair.fd, 5, 0, 50000);
    show_poll(pair.fd);
    char byte;
    tell("read", recv(pair.fd, &byte, 1, 0));
    release(pair);
}

/* The peer ends and leaves bytes of this end unread. */
static void end_with_unread_bytes(void) {
    struct pair pair = connect_pair(1);
    if (pair.peer == 0) {
        send_all(pair.fd, 6, 0, 3000);
        await(1);
        go(pair.fd);
    }
    send_all(pair.fd, 7, 0, 3000);
    say(1);
    await_gone(pair);
    show_poll(pair.fd);
    expect(pair.fd, 6, 0, 3000);
    char byte;
    tell("read", recv(pair.fd, &byte, 1, 0));
    tell("read again", recv(pair.fd, &byte, 1, 0));
    release(pair);
}

/* The connection is ended by an administrator, from a third process, after the peer has read
   everything. Before that the peer slept, so that it may have been woken by more than that. */
static void destroyed(void) {
    int orders[2], done[2];
    char byte = 'x';
    CHECK(pipe(orders) == 0 && pipe(done) == 0);
    pid_t administrator = fork();
    CHECK(administrator >= 0);
    if (administrator == 0) {
        in_port_t port;
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        CHECK(read(orders[0], &port, sizeof port) == sizeof port);
        destroy(port);
        CHECK(write(done[1], &byte, 1) == 1);
        _exit(0);
    }
    struct pair pair = connect_pair(1);
    struct pollfd entry = {.fd = pair.fd, .events = POLLIN | POLLRDHUP};
    if (pair.peer == 0) {
        CHECK(poll(&entry, 1, 10000) == 1);
        CHECK(recv(pair.fd, &byte, 1, 0) == 1);
        in_port_t port = own_port(pair.fd);
        CHECK(write(orders[1], &port, sizeof port) == sizeof port);
        CHECK(read(done[0], &byte, 1) == 1);
        say(0);
        await(1);
        tell("read of the peer", recv(pair.fd, &byte, 1, 0));
        exit(0);
    }
    usleep(200000);
    CHECK(send(pair.fd, &byte, 1, 0) == 1);
    if (strcmp(leave_by, "poll") == 0) {
        int count = poll(&entry, 1, 10000);
        printf("poll: %d, %#x\n", count, entry.revents);
    } else if (strcmp(leave_by, "read") == 0) {
        tell("waiting read", recv(pair.fd, &byte, 1, 0));
    }
    await(0);
    show_poll(pair.fd);
    tell("read", recv(pair.fd, &byte, 1, 0));
    tell("read again", recv(pair.fd, &byte, 1, 0));
    signal(SIGPIPE, SIG_IGN);
    tell("send", send(pair.fd, "abc", 3, 0));
    say(1);
    part(pair);
    CHECK(waitpid(administrator, NULL, 0) == administrator);
}

/* A server passes the connection to a program after the client has sent all and ended. */
static void executed_after_an_end(void) {
    struct pair pair = connect_pair(1);
    if (pair.peer == 0) {
        send_all(pair.fd, 8, 0, 30000);
        CHECK(shutdown(pair.fd, SHUT_WR) == 0);
        say(0);
        if (strcmp(leave_by, "shutdown") != 0) go(pair.fd);
        expect(pair.fd, 8, 0, 30000);
        expect_end(pair.fd);
        exit(0);
    }
    await(0);
    if (strcmp(leave_by, "shutdown") != 0) await_gone(pair);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(dup2(pair.fd, 0) == 0);
        if (strcmp(leave_by, "shutdown") == 0) {
            CHECK(dup2(pair.fd, 1) == 1);
            close(pair.fd);
            execlp("cat", "cat", (char *)NULL);
        }
        execlp("md5sum", "md5sum", (char *)NULL);
        _exit(9);
    }
    close(pair.fd);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    printf("program: %d\n", status);
    if (strcmp(leave_by, "shutdown") == 0) {
        part(pair);
    } else {
        release(pair);
    }
}

/* A connection is passed to another process by SCM_RIGHTS after the client has sent all and
   ended. */
static void passed_after_an_end(void) {
    struct pair pair = connect_pair(1);
    if (pair.peer == 0) {
        send_all(pair.fd, 9, 0, 30000);
        go(pair.fd);
    }
    await_gone(pair);
    int both[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char byte = 'x';
    struct iovec content = {&byte, 1};
    struct msghdr message = {.msg_iov = &content,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &pair.fd, sizeof(int));
    CHECK(sendmsg(both[0], &message, 0) == 1);
    close(pair.fd);
    CHECK(recvmsg(both[1], &message, 0) == 1);
    int passed;
    memcpy(&passed, CMSG_DATA(&control.header), sizeof(int));
    expect(passed, 9, 0, 30000);
    tell("read", recv(passed, &byte, 1, 0));
    release(pair);
}

static const struct test_case CASES[] = {
    {"write-to-leaver", write_to_leaver},
    {"write-to-leaver-inside", write_to_leaver_inside},
    {"write-to-leaver-early", write_to_leaver_early},
    {"readiness", readiness_of_an_end},
    {"waits", wait_for_an_end},
    {"sends", sends_after_an_end},
    {"bytes", bytes_before_an_end},
    {"unread", end_with_unread_bytes},
    {"destroyed", destroyed},
    {"executed", executed_after_an_end},
    {"passed", passed_after_an_end},
};

int main(int count, char **arguments) {
    CHECK(count >= 2);
    leave_by = count > 2 ? arguments[2] : "close";
    alarm(600);
    return run_case(arguments[1], CASES, COUNT(CASES));
}
