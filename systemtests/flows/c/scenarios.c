/* Typical uses of a connection. Usage: scenarios NAME SEED */
#include "pair.h"
#include <sys/mman.h>

#define MEBIBYTE (1 << 20)

static void blocking(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, 3 * MEBIBYTE);
        expect(pair.fd, seed + 1, 0, 3 * MEBIBYTE);
        expect_end(pair.fd);
    } else {
        expect(pair.fd, seed, 0, 3 * MEBIBYTE);
        send_all(pair.fd, seed + 1, 0, 3 * MEBIBYTE);
        close(pair.fd);
    }
    part(pair);
}

static void half_close(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, 1000);
        CHECK(shutdown(pair.fd, SHUT_WR) == 0);
        signal(SIGPIPE, SIG_IGN);
        CHECK(write(pair.fd, "x", 1) == -1 && errno == EPIPE);
        expect(pair.fd, seed + 1, 0, MEBIBYTE);
        expect_end(pair.fd);
    } else {
        expect(pair.fd, seed, 0, 1000);
        expect_end(pair.fd);
        send_all(pair.fd, seed + 1, 0, MEBIBYTE);
        close(pair.fd);
    }
    part(pair);
}

static void peer_death(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, 100000);
        kill(getpid(), SIGKILL);
    }
    int status;
    CHECK(waitpid(pair.peer, &status, 0) == pair.peer && WIFSIGNALED(status));
    expect(pair.fd, seed, 0, 100000);
    char byte;
    ssize_t moved = read(pair.fd, &byte, 1);
    CHECK(moved == 0 || (moved < 0 && errno == ECONNRESET));
    signal(SIGPIPE, SIG_IGN);
    int failed = 0;
    for (int turn = 0; turn < 1000 && !failed; turn++) {
        failed = write(pair.fd, &byte, 1) < 0;
        usleep(1000);
    }
    CHECK(failed && (errno == EPIPE || errno == ECONNRESET));
}

static void forked(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, 300000);
        expect(pair.fd, seed + 1, 0, 300000);
        expect_end(pair.fd);
    } else {
        /* Another process handles each third; all share the connection. */
        for (int third = 0; third < 3; third++) {
            pid_t child = fork();
            if (child == 0) {
                expect(pair.fd, seed, third * 100000, third * 100000 + 100000);
                send_all(pair.fd, seed + 1, third * 100000, third * 100000 + 100000);
                _exit(0);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
        close(pair.fd);
    }
    part(pair);
}

static int in_handler[2];

static void sleep_in_handler(int signal) {
    (void)signal;
    CHECK(write(in_handler[1], "h", 1) == 1);
    for (;;) pause();
}

/* A process is killed in the middle of a write, and its parent has not waited for it: others that
   share the connection go on. */
static void dead_owner(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        expect(pair.fd, seed, 0, 1000);
        send_all(pair.fd, seed + 1, 0, 1000);
        expect_end(pair.fd);
    } else {
        CHECK(pipe(in_handler) == 0);
        pid_t writer = fork();
        CHECK(writer >= 0);
        if (writer == 0) {
            signal(SIGSEGV, sleep_in_handler);
            void *bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(bad != MAP_FAILED);
            (void)!write(pair.fd, bad, 100);
            _exit(1);
        }
        char byte;
        CHECK(read(in_handler[0], &byte, 1) == 1);
        siginfo_t information;
        CHECK(kill(writer, SIGKILL) == 0);
        CHECK(waitid(P_PID, writer, &information, WEXITED | WNOWAIT) == 0);
        send_all(pair.fd, seed, 0, 1000);
        expect(pair.fd, seed + 1, 0, 1000);
        CHECK(waitpid(writer, NULL, 0) == writer);
        /* The killed process still counts as one that has the connection. */
        CHECK(shutdown(pair.fd, SHUT_WR) == 0);
    }
    part(pair);
}

static void executed(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        /* Bytes that are in the ring when the other end executes cat must reach cat. */
        send_all(pair.fd, seed, 0, 50000);
        expect(pair.fd, seed, 0, 50000);
        send_all(pair.fd, seed, 50000, 400000);
        CHECK(shutdown(pair.fd, SHUT_WR) == 0);
        expect(pair.fd, seed, 50000, 400000);
        expect_end(pair.fd);
    } else {
        usleep(20000);
        pid_t child = fork();
        if (child == 0) {
            dup2(pair.fd, 0);
            dup2(pair.fd, 1);
            close(pair.fd);
            if (seed & 1) unsetenv("LD_PRELOAD");
            execlp("cat", "cat", "-u", (char *)NULL);
            _exit(127);
        }
        close(pair.fd);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    part(pair);
}

static void passed(uint64_t seed) {
    int way[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, way) == 0);
    pid_t helper = fork();
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    char byte = 'p';
    struct iovec entry = {&byte, 1};
    struct msghdr message = {.msg_iov = &entry,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    if (helper == 0) {
        CHECK(recvmsg(way[1], &message, 0) == 1);
        int fd;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        expect(fd, seed, 1000, MEBIBYTE);
        send_all(fd, seed + 1, 1000, MEBIBYTE);
        exit(0);
    }
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, 20000);
        expect(pair.fd, seed + 1, 0, 1000);
        send_all(pair.fd, seed, 20000, MEBIBYTE);
        expect(pair.fd, seed + 1, 1000, MEBIBYTE);
    } else {
        expect(pair.fd, seed, 0, 1000);
        send_all(pair.fd, seed + 1, 0, 1000);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &pair.fd, sizeof(int));
        CHECK(sendmsg(way[0], &message, 0) == 1);
        close(pair.fd);
        int status;
        CHECK(waitpid(helper, &status, 0) == helper && status == 0);
    }
    part(pair);
}

static void urgent(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, 30000);
        CHECK(send(pair.fd, "!", 1, MSG_OOB) == 1);
        send_all(pair.fd, seed, 30000, 60000);
        expect(pair.fd, seed + 1, 0, 60000);
    } else {
        expect(pair.fd, seed, 0, 30000);
        char byte = 0;
        struct pollfd entry = {.fd = pair.fd, .events = POLLPRI};
        CHECK(poll(&entry, 1, 20000) == 1 && entry.revents & POLLPRI);
        CHECK(recv(pair.fd, &byte, 1, MSG_OOB) == 1 && byte == '!');
        expect(pair.fd, seed, 30000, 60000);
        send_all(pair.fd, seed + 1, 0, 60000);
    }
    part(pair);
}

static void file(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        expect(pair.fd, seed, 0, 2 * MEBIBYTE);
        expect_end(pair.fd);
    } else {
        FILE *content = tmpfile();
        CHECK(content);
        static unsigned char bytes[2 * MEBIBYTE];
        fill(bytes, sizeof bytes, seed, 0);
        CHECK(fwrite(bytes, 1, sizeof bytes, content) == sizeof bytes && fflush(content) == 0);
        if (seed & 1) set_nonblocking(pair.fd);
        off_t offset = 0;
        while (offset < (off_t)sizeof bytes) {
            ssize_t moved = sendfile(pair.fd, fileno(content), &offset, sizeof bytes - offset);
            if (moved < 0 && errno == EAGAIN) {
                struct pollfd entry = {.fd = pair.fd, .events = POLLOUT};
                CHECK(poll(&entry, 1, 20000) == 1);
                continue;
            }
            CHECK(moved > 0);
        }
        close(pair.fd);
    }
    part(pair);
}

struct work {
    int fd;
    uint64_t seed;
};

static void *send_in_thread(void *argument) {
    struct work *work = argument;
    static __thread unsigned char buffer[5000];
    for (uint64_t at = 0; at < 2 * MEBIBYTE;) {
        size_t length = sizeof buffer;
        if (at + length > 2 * MEBIBYTE) length = 2 * MEBIBYTE - at;
        fill(buffer, length, work->seed, at);
        ssize_t moved = write(work->fd, buffer, length);
        CHECK(moved > 0);
        at += moved;
    }
    return NULL;
}

static void threads(uint64_t seed) {
    struct pair pair = make_pair();
    struct work work = {pair.fd, seed + (pair.peer == 0)};
    pthread_t writer;
    CHECK(pthread_create(&writer, NULL, send_in_thread, &work) == 0);
    expect(pair.fd, seed + (pair.peer != 0), 0, 2 * MEBIBYTE);
    CHECK(pthread_join(writer, NULL) == 0);
    part(pair);
}

static void duplicates(uint64_t seed) {
    struct pair pair = make_pair();
    int second = dup(pair.fd);
    int third = fcntl(pair.fd, F_DUPFD_CLOEXEC, 100);
    CHECK(dup2(pair.fd, 90) == 90 && dup3(pair.fd, 91, O_CLOEXEC) == 91);
    close(pair.fd);
    if (pair.peer == 0) {
        send_all(second, seed, 0, 1000);
        send_all(third, seed, 1000, 200000);
        send_all(90, seed, 200000, 300000);
        close(second);
        close(third);
        close(90);
        expect(91, seed + 1, 0, 100);
    } else {
        expect(third, seed, 0, 100);
        expect(91, seed, 100, 150000);
        expect(second, seed, 150000, 300000);
        send_all(90, seed + 1, 0, 100);
    }
    part(pair);
}

static void ways_of_reading(uint64_t seed) {
    struct pair pair = make_pair();
    unsigned char buffer[4096];
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, 10000);
        CHECK(read(pair.fd, buffer, 1) == 1);
        struct timeval limit = {.tv_usec = 20000};
        CHECK(setsockopt(pair.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
        CHECK(read(pair.fd, buffer, 1) == -1 && errno == EAGAIN);
        CHECK(recv(pair.fd, buffer, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        CHECK(write(pair.fd, "y", 1) == 1);
        expect_end(pair.fd);
    } else {
        CHECK(recv(pair.fd, buffer, 100, MSG_PEEK) > 0);
        CHECK(recv(pair.fd, buffer, 4096, MSG_WAITALL) == 4096);
        verify(buffer, 4096, seed, 0);
        int waiting = 0;
        while (waiting < 5904) CHECK(ioctl(pair.fd, FIONREAD, &waiting) == 0);
        CHECK(waiting == 5904);
        struct iovec list[3] = {{buffer, 10}, {buffer + 10, 0}, {buffer + 10, 1000}};
        CHECK(readv(pair.fd, list, 3) == 1010);
        verify(buffer, 1010, seed, 4096);
        struct msghdr message = {.msg_iov = list, .msg_iovlen = 3};
        CHECK(recvmsg(pair.fd, &message, 0) == 1010);
        verify(buffer, 1010, seed, 5106);
        CHECK(recv(pair.fd, NULL, 3884, MSG_TRUNC) == 3884);
        CHECK(write(pair.fd, "x", 1) == 1);
        CHECK(recvfrom(pair.fd, buffer, 1, 0, NULL, NULL) == 1 && buffer[0] == 'y');
        close(pair.fd);
    }
    part(pair);
}

/* A full ring is not writable, and becomes so. The writer waits with poll(2) and epoll in turn,
   whose triggering the seed chooses; the reader starts after a write was refused. */
static void full(uint64_t seed) {
    int refusal[2];
    CHECK(pipe(refusal) == 0);
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        char byte;
        CHECK(read(refusal[0], &byte, 1) == 1);
        expect(pair.fd, seed, 0, 3 * MEBIBYTE);
        expect_end(pair.fd);
    } else {
        set_nonblocking(pair.fd);
        int set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLOUT, .data.fd = pair.fd};
        if (seed & 1) event.events |= EPOLLET;
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair.fd, &event) == 0);
        CHECK(epoll_wait(set, &event, 1, 20000) == 1 && event.events == EPOLLOUT);
        static unsigned char buffer[30000];
        uint64_t at = 0;
        int refused = 0;
        while (at < 3 * MEBIBYTE) {
            size_t length = sizeof buffer;
            if (at + length > 3 * MEBIBYTE) length = 3 * MEBIBYTE - at;
            fill(buffer, length, seed, at);
            ssize_t moved = write(pair.fd, buffer, length);
            if (moved > 0) {
                at += moved;
                continue;
            }
            CHECK(errno == EAGAIN);
            struct pollfd entry = {.fd = pair.fd, .events = POLLOUT};
            if (refused++ == 0) {
                CHECK(poll(&entry, 1, 0) == 0);
                CHECK(write(refusal[1], "r", 1) == 1);
            }
            if (refused & 1) {
                CHECK(poll(&entry, 1, 20000) == 1 && entry.revents == POLLOUT);
            } else {
                CHECK(epoll_wait(set, &event, 1, 20000) == 1 && event.events & EPOLLOUT);
            }
        }
        CHECK(refused > 0);
        close(pair.fd);
    }
    part(pair);
}

static const struct {
    const char *name;
    void (*run)(uint64_t seed);
} scenarios[] = {
    {"blocking", blocking}, {"half-close", half_close}, {"peer-death", peer_death},
    {"forked", forked},     {"executed", executed},     {"passed", passed},
    {"urgent", urgent},     {"file", file},             {"threads", threads},
    {"duplicates", duplicates}, {"reading", ways_of_reading}, {"full", full},
    {"dead-owner", dead_owner},
};

int main(int count, char **arguments) {
    CHECK(count == 3);
    alarm(600);
    for (size_t index = 0; index < sizeof scenarios / sizeof *scenarios; index++) {
        if (strcmp(arguments[1], scenarios[index].name) == 0) {
            scenarios[index].run(strtoull(arguments[2], NULL, 10));
            return 0;
        }
    }
    dprintf(2, "no such scenario\n");
    return 2;
}
