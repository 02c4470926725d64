/* Prints what a program sees of its connections: the same with and without `fable run`.
   Usage: like CASE [WAY] */
#include "like.h"

static volatile sig_atomic_t caught;

static void note(int number) {
    (void)number;
    caught++;
}

/* A signal arrives while a send waits for room. */
static void interrupt(int flags, int fresh) {
    struct pair pair = connect_pair(1);
    if (pair.peer == 0) {
        say(0);
        await(1);
        usleep(300000);
        CHECK(kill(getppid(), SIGUSR1) == 0);
        if (!(flags & SA_RESTART) && fresh) await(1);
        static char buffer[70000];
        while (read(pair.fd, buffer, sizeof buffer) > 0) continue;
        exit(0);
    }
    struct sigaction action = {.sa_handler = note, .sa_flags = flags};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    await(0);
    action.sa_flags ^= SA_RESTART;
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    char *large = calloc(1, LARGE);
    if (fresh) {
        /* On a busy machine the kernel moves bytes to the peer late, and has room again. */
        while (send(pair.fd, large, 1000, MSG_DONTWAIT) > 0) {
            while (send(pair.fd, large, 1000, MSG_DONTWAIT) > 0) continue;
            usleep(500000);
        }
        say(1);
        tell("send", send(pair.fd, large, 1000, 0));
        if (!(flags & SA_RESTART)) say(1);
    } else {
        say(1);
        ssize_t moved = send(pair.fd, large, LARGE, 0);
        printf("send: %s\n", moved == LARGE ? "all" : moved > 0 ? "a part" : "nothing");
    }
    printf("signals: %d\n", (int)caught);
    close(pair.fd);
    part(pair);
}

static void interrupted_send(void) {
    interrupt(0, 1);
}
static void restarted_send(void) {
    interrupt(SA_RESTART, 1);
}
static void interrupted_part(void) {
    interrupt(0, 0);
}

/* Prints the descriptors of a listening process, as far as system calls show them. */
static void open_descriptors(void) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    int client = dial(&address);
    int server = accept(listener, NULL, NULL);
    CHECK(server >= 0);
    int set = epoll_create1(0);
    int null = open("/dev/null", O_WRONLY);
    for (int fd = 5; fd < 70000; fd++) {
        if (fd == listener || fd == client || fd == server || fd == set || fd == null) continue;
        struct epoll_event event = {.events = EPOLLIN};
        struct pollfd entry = {.fd = fd, .events = POLLOUT};
        int one = 1, copy = -1;
        socklen_t size = sizeof one;
        if (fcntl(fd, F_GETFD) >= 0) printf("%d: fcntl\n", fd);
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0) printf("%d: epoll_ctl\n", fd);
        if (poll(&entry, 1, 0) != 1 || entry.revents != POLLNVAL) printf("%d: poll\n", fd);
        if ((copy = dup(fd)) >= 0) printf("%d: dup\n", fd);
        if (dup2(fd, 4) >= 0) printf("%d: dup2\n", fd);
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &one, &size) == 0) printf("%d: option\n", fd);
        if (send(fd, "", 0, MSG_DONTWAIT) >= 0 || errno != EBADF) printf("%d: send\n", fd);
        if (recv(fd, &one, 1, MSG_DONTWAIT) >= 0 || errno != EBADF) printf("%d: recv\n", fd);
        if (close(fd) == 0) printf("%d: close\n", fd);
    }
    /* A program may use any number for a descriptor. */
    int highest = dup2(null, 9999) == 9999 && dup2(null, 10000) == 10000 &&
                  dup2(null, 10001) == 10001 && dup2(null, 10002) == 10002;
    printf("high numbers: %d\n", highest);
    int other = dial(&address);
    CHECK(accept(listener, NULL, NULL) >= 0);
    CHECK(write(other, "x", 1) == 1);
    for (int fd = 9999; fd < 10003; fd++) CHECK(write(fd, "x", 1) == 1 && close(fd) == 0);
}

/* The edges of a connection that connects while it is watched. */
static void edges_of_a_connect(void) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int late = getenv("LATE") != NULL;
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    int result = connect(fd, (struct sockaddr *)&address, sizeof address);
    printf("connect: %s\n", result == 0 ? "0" : strerrorname_np(errno));
    if (!late) CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    int server = accept(listener, NULL, NULL);
    CHECK(server >= 0);
    if (late) CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (int turn = 0; turn < 4; turn++) {
        int count = epoll_wait(set, &event, 1, turn == 0 ? 1000 : 50);
        printf("edge: %d, %#x\n", count, count == 1 ? event.events : 0);
        if (turn == 1) CHECK(write(fd, "x", 1) == 1);
    }
    char byte;
    CHECK(read(server, &byte, 1) == 1 && write(server, "y", 1) == 1);
    int count = epoll_wait(set, &event, 1, 1000);
    printf("edge: %d, %#x\n", count, count == 1 ? event.events : 0);
    count = epoll_wait(set, &event, 1, 50);
    printf("edge: %d, %#x\n", count, count == 1 ? event.events : 0);
}

/* The edge of a connection that has been used since it was added. */
static void edge_of_a_used_connection(void) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    int fd = dial(&address);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(accept(listener, NULL, NULL) >= 0);
    char byte;
    CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    for (int turn = 0; turn < 2; turn++) {
        int count = epoll_wait(set, &event, 1, turn == 0 ? 1000 : 50);
        printf("edge: %d, %#x\n", count, count == 1 ? event.events : 0);
    }
}

/* One epoll_wait reports everything that is ready: a connection to accept, and one that has
   connected. */
static void connect_and_accept(void) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) < 0 && errno == EINPROGRESS);
    struct pollfd entry = {.fd = listener, .events = POLLIN};
    CHECK(poll(&entry, 1, 10000) == 1);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
    event = (struct epoll_event){.events = EPOLLOUT, .data.u64 = 6};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    struct epoll_event events[4];
    printf("both: %d\n", epoll_wait(set, events, 4, 1000));
    /* Its own set reports at once what is ready. */
    int own = epoll_create1(0);
    CHECK(epoll_ctl(own, EPOLL_CTL_ADD, fd, &event) == 0);
    int count = epoll_wait(own, events, 4, 50);
    printf("one: %d, %d\n", count, (int)events[0].data.u64);
    int server = accept(listener, NULL, NULL);
    char byte;
    CHECK(write(fd, "x", 1) == 1 && read(server, &byte, 1) == 1);
    count = epoll_wait(own, events, 4, 50);
    printf("one: %d, %d\n", count, (int)events[0].data.u64);
}

/* Buffer sizes limit a writer whose peer does not read. */
static void bounded_buffers(void) {
    struct pair pair = connect_pair(1);
    int bytes = 4096;
    CHECK(setsockopt(pair.fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) == 0);
    CHECK(setsockopt(pair.fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0);
    if (pair.peer == 0) {
        say(0);
        await(1);
        go(pair.fd);
    }
    await(0);
    char *large = calloc(1, LARGE);
    size_t sent = 0;
    ssize_t moved;
    while ((moved = send(pair.fd, large, LARGE, MSG_DONTWAIT)) > 0) sent += moved;
    tell("send", moved);
    printf("much: %d\n", sent > 150000);
    say(1);
    await_gone(pair);
    release(pair);
}

/* libuv adds a descriptor again that it has not removed. */
static void added_twice(void) {
    struct pair pair = connect_pair(1);
    if (pair.peer == 0) {
        await(1);
        go(pair.fd);
    }
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5};
    tell("add", epoll_ctl(set, EPOLL_CTL_ADD, pair.fd, &event));
    tell("add", epoll_ctl(set, EPOLL_CTL_ADD, pair.fd, &event));
    event.data.u64 = 6;
    tell("change", epoll_ctl(set, EPOLL_CTL_MOD, pair.fd, &event));
    say(1);
    await_gone(pair);
    int count = epoll_wait(set, &event, 1, 1000);
    printf("epoll: %d, %#x, %d\n", count, event.events, (int)event.data.u64);
    tell("remove", epoll_ctl(set, EPOLL_CTL_DEL, pair.fd, NULL));
    tell("remove", epoll_ctl(set, EPOLL_CTL_DEL, pair.fd, NULL));
    release(pair);
}

static void show_scattered(int fd, int flags) {
    char parts[3][14];
    struct iovec list[] = {{parts[0], 4}, {parts[1], 7}, {parts[2], sizeof parts[2]}};
    struct msghdr message = {.msg_iov = list, .msg_iovlen = 3};
    ssize_t moved = recvmsg(fd, &message, flags);
    printf("received: %zd, %.4s %.7s %.11s\n", moved, parts[0], parts[1], parts[2]);
}

/* One call fills several buffers, whether the bytes were sent before the connection was accepted
   or later. */
static void scattered_reads(void) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    int client = dial(&address);
    CHECK(write(client, "Mary had a little lamb", 22) == 22);
    int server = accept(listener, NULL, NULL);
    CHECK(server >= 0);
    for (int turn = 0; turn < 3; turn++) {
        show_scattered(server, MSG_PEEK);
        show_scattered(server, 0);
        CHECK(write(server, "x", 1) == 1 && read(client, &(char){0}, 1) == 1);
        CHECK(write(client, "Mary had a little lamb", 22) == 22);
    }
}

int __poll_chk(struct pollfd *list, nfds_t count, int timeout_ms, size_t room);
int __ppoll_chk(struct pollfd *list, nfds_t count, const struct timespec *timeout,
                const sigset_t *mask, size_t room);
ssize_t __read_chk(int fd, void *to, size_t length, size_t room);
ssize_t __recv_chk(int fd, void *to, size_t length, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void *to, size_t length, size_t room, int flags,
                       struct sockaddr *address, socklen_t *size);

/* What a function that checks its buffer (_FORTIFY_SOURCE) does if the buffer is too small. */
static long call_checked(int which, int fd) {
    struct pollfd list[] = {{fd, POLLIN, 0}, {fd, POLLIN, 0}};
    char room[16];
    switch (which) {
    case 0: return __poll_chk(list, 2, 0, sizeof *list);
    case 1: return __ppoll_chk(list, 2, &(struct timespec){0, 0}, NULL, sizeof *list);
    case 2: return __read_chk(fd, room, 9, 8);
    case 3: return __recv_chk(fd, room, 9, 8, MSG_DONTWAIT);
    case 4: return __recvfrom_chk(fd, room, 9, 8, MSG_DONTWAIT, NULL, NULL);
    }
    return -1;
}

static void checked(void) {
    struct pair pair = connect_pair(1);
    if (pair.peer == 0) {
        await(1);
        go(pair.fd);
    }
    struct pollfd list[] = {{pair.fd, POLLOUT, 0}, {pair.fd, POLLOUT, 0}};
    tell("fits", __poll_chk(list, 2, 0, sizeof list));
    for (int which = 0; which < 5; which++) {
        int status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}) == 0);
            _exit(call_checked(which, pair.fd) < 0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        const char *how = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "it returned";
        printf("%d: %s\n", which, how);
    }
    say(1);
    await_gone(pair);
    release(pair);
}

/* Urgent data arrive while a read waits for all bytes that it has room for. */
static void urgent_data(void) {
    struct pair pair = connect_pair(1);
    if (pair.peer == 0) {
        for (int turn = 0; turn < 2; turn++) {
            usleep(100000);
            CHECK(send(pair.fd, "bytes", 5, 0) == 5);
            usleep(100000);
            if (turn == 0) CHECK(send(pair.fd, "!", 1, MSG_OOB) == 1);
        }
        close(pair.fd);
        exit(0);
    }
    char room[100];
    for (int turn = 0; turn < 3; turn++) {
        printf("all: %zd\n", recv(pair.fd, room, sizeof room, MSG_WAITALL));
    }
    close(pair.fd);
    part(pair);
}

/* Returns the processor time that this process has used, in microseconds. */
static long processor_us(void) {
    struct rusage used;
    CHECK(getrusage(RUSAGE_SELF, &used) == 0);
    struct timeval user = used.ru_utime, system = used.ru_stime;
    return (user.tv_sec + system.tv_sec) * 1000000 + user.tv_usec + system.tv_usec;
}

/* Waits for the peer's end only, while bytes are unread before it: first in vain, then until it
   comes. */
static void waits_for_an_end_only(void) {
    struct pair pair = connect_pair(1);
    if (pair.peer == 0) {
        send_all(pair.fd, 3, 0, 1000);
        say(0);
        await(1);
        CHECK(shutdown(pair.fd, SHUT_WR) == 0);
        expect_end(pair.fd);
        exit(0);
    }
    await(0);
    uint32_t edge = strcmp(leave_by, "edge") == 0 ? EPOLLET : 0;
    struct epoll_event event = {.events = EPOLLRDHUP | edge};
    struct pollfd entry = {.fd = pair.fd, .events = POLLRDHUP};
    int set = epoll_create1(0), is_poll = strcmp(leave_by, "poll") == 0;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair.fd, &event) == 0);
    for (int turn = 0; turn < 2; turn++) {
        int limit_ms = turn == 0 ? 500 : 10000;
        long before_us = processor_us();
        int count = is_poll ? poll(&entry, 1, limit_ms) : epoll_wait(set, &event, 1, limit_ms);
        const char *how = processor_us() - before_us < 50000 ? "idle" : "busy";
        uint32_t events = is_poll ? (uint32_t)entry.revents : event.events;
        printf("%s: %d, %#x\n", how, count, count == 1 ? events : 0);
        if (turn == 0) say(1);
    }
    expect(pair.fd, 3, 0, 1000);
    expect_end(pair.fd);
    close(pair.fd);
    part(pair);
}

/* Returns how many clients wait at a rendezvous of the library at this port, at most. */
static int waiting_visitors(in_port_t port) {
    char name[32], line[512];
    int most = 0, count;
    snprintf(name, sizeof name, "@fable-preload-3/%04x", port);
    FILE *sockets = popen("ss -xlH", "r");
    CHECK(sockets != NULL);
    while (fgets(line, sizeof line, sockets) != NULL) {
        if (strstr(line, name) == NULL) continue;
        CHECK(sscanf(line, "%*s %*s %d", &count) == 1);
        if (count > most) most = count;
    }
    CHECK(pclose(sockets) == 0);
    return most;
}

/* Listens at one port for both versions, as many servers do. Clients use only one of them. */
static void idle_listener(void) {
    struct sockaddr_in four;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int one = 1, listeners[2] = {-1, socket(AF_INET6, SOCK_STREAM, 0)};
    CHECK(setsockopt(listeners[1], IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) == 0);
    do {
        close(listeners[0]);
        listeners[0] = listen_anywhere(&four);
        six.sin6_port = four.sin_port;
    } while (bind(listeners[1], (struct sockaddr *)&six, sizeof six) != 0);
    CHECK(listen(listeners[1], 512) == 0);
    int uses_six = strcmp(leave_by, "6") == 0;
    struct pair pair = {.peer = fork()};
    CHECK(pair.peer >= 0);
    for (int turn = 0; turn < 300; turn++) {
        if (pair.peer == 0) {
            pair.fd = socket(uses_six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
            const void *address = uses_six ? (void *)&six : (void *)&four;
            CHECK(connect(pair.fd, address, uses_six ? sizeof six : sizeof four) == 0);
        } else {
            CHECK((pair.fd = accept(listeners[uses_six], NULL, NULL)) >= 0);
        }
        greet(pair.fd);
        close(pair.fd);
    }
    part(pair);
    printf("waiting: %s\n", waiting_visitors(ntohs(four.sin_port)) < 100 ? "few" : "many");
}

static const struct test_case CASES[] = {
    {"interrupted", interrupted_send},
    {"restarted", restarted_send},
    {"interrupted-part", interrupted_part},
    {"descriptors", open_descriptors},
    {"edges", edges_of_a_connect},
    {"used", edge_of_a_used_connection},
    {"connect-and-accept", connect_and_accept},
    {"added-twice", added_twice},
    {"bounded", bounded_buffers},
    {"scattered", scattered_reads},
    {"checked", checked},
    {"idle-listener", idle_listener},
    {"end-only", waits_for_an_end_only},
    {"urgent", urgent_data},
};

int main(int count, char **arguments) {
    CHECK(count >= 2);
    leave_by = count > 2 ? arguments[2] : "close";
    alarm(600);
    return run_case(arguments[1], CASES, COUNT(CASES));
}
