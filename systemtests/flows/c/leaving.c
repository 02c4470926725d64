/* An end returns to TCP with bytes unread, and the other end is killed, stopped or closes before
   it has noticed. No byte may be lost that TCP would have delivered: every byte arrives, in
   order, or the connection is reset. Usage: leaving NAME SEED, or: leaving drain SEED FROM TO */
#include "pair.h"

#define UNREAD 50000

/* Reads standard input, as an executed program does. Returns 0 for the exact stream and its end,
   3 for a reset. The beginning of the stream with a proper end must never happen. */
static int drain(uint64_t seed, uint64_t from, uint64_t to) {
    static unsigned char buffer[7000];
    for (;;) {
        ssize_t moved = recv(0, buffer, sizeof buffer, 0);
        if (moved < 0) {
            CHECK(errno == ECONNRESET || errno == ENOTCONN || errno == EPIPE);
            return 3;
        }
        if (moved == 0) {
            CHECK(from == to);
            return 0;
        }
        verify(buffer, moved, seed, from);
        from += moved;
    }
}

static pid_t execute_drain(int fd, uint64_t seed, uint64_t from, uint64_t to) {
    char texts[3][24];
    snprintf(texts[0], 24, "%llu", (unsigned long long)seed);
    snprintf(texts[1], 24, "%llu", (unsigned long long)from);
    snprintf(texts[2], 24, "%llu", (unsigned long long)to);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd, 0);
        close(fd);
        if (seed & 1) unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", "leaving", "drain", texts[0], texts[1], texts[2], (char *)NULL);
        _exit(127);
    }
    return child;
}

static int status_of(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void await_stop(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
}

static void end_killed(pid_t child) {
    int status;
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &status, 0) == child);
}

/* The peer has written, and sleeps for ever. */
static struct pair make_stopped_pair(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, UNREAD);
        raise(SIGSTOP);
        exit(0);
    }
    await_stop(pair.peer);
    return pair;
}

static void expect_then_end(int fd, uint64_t seed) {
    char byte;
    expect(fd, seed, 0, UNREAD);
    ssize_t moved = read(fd, &byte, 1);
    CHECK(moved == 0 || (moved < 0 && errno == ECONNRESET));
}

/* An option that is set late does not affect bytes written before. */
static void option(uint64_t seed) {
    struct pair pair = make_stopped_pair(seed);
    int one = 1;
    CHECK(setsockopt(pair.fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one) == 0);
    end_killed(pair.peer);
    struct pollfd entry = {.fd = pair.fd, .events = POLLIN};
    CHECK(poll(&entry, 1, 20000) == 1 && entry.revents & POLLIN);
    expect_then_end(pair.fd, seed);
}

static void urgent(uint64_t seed) {
    struct pair pair = make_stopped_pair(seed);
    CHECK(send(pair.fd, "!", 1, MSG_OOB) == 1);
    end_killed(pair.peer);
    expect_then_end(pair.fd, seed);
}

static void killed_before(uint64_t seed) {
    struct pair pair = make_stopped_pair(seed);
    end_killed(pair.peer);
    int result = status_of(execute_drain(pair.fd, seed, 0, UNREAD));
    CHECK(result == 0 || result == 3);
}

static void killed_after(uint64_t seed) {
    struct pair pair = make_stopped_pair(seed);
    pid_t child = execute_drain(pair.fd, seed, 0, UNREAD);
    usleep(1500000);
    end_killed(pair.peer);
    int result = status_of(child);
    CHECK(result == 0 || result == 3);
}

/* This end does not wait for a stopped peer, and the order is right when the peer continues. */
static void stopped(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, UNREAD);
        raise(SIGSTOP);
        send_all(pair.fd, seed, UNREAD, 8 * UNREAD);
        expect(pair.fd, seed + 1, 0, 2 * UNREAD);
        CHECK(shutdown(pair.fd, SHUT_WR) == 0);
        expect_end(pair.fd);
        exit(0);
    }
    await_stop(pair.peer);
    send_all(pair.fd, seed + 1, 0, UNREAD);
    pid_t child = execute_drain(pair.fd, seed, 0, 8 * UNREAD);
    usleep(3000000);
    /* The child's descriptor is plain TCP by now, and so is this one. */
    send_all(pair.fd, seed + 1, UNREAD, 2 * UNREAD);
    CHECK(kill(pair.peer, SIGCONT) == 0);
    CHECK(status_of(child) == 0);
    close(pair.fd);
    part(pair);
}

/* More bytes than the socket takes at once still have to be sent again when the peer closes. */
static void closed(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, 250000);
        raise(SIGSTOP);
        if (seed & 2) CHECK(close(pair.fd) == 0);
        exit(0);
    }
    await_stop(pair.peer);
    pid_t child = fork();
    if (child == 0) {
        /* The peer notices only after this end has returned to TCP, and then nothing reads. */
        FILE *stream = fdopen(pair.fd, "r");
        CHECK(stream);
        CHECK(kill(pair.peer, SIGCONT) == 0);
        usleep(300000);
        dup2(pair.fd, 0);
        int result = drain(seed, 0, 250000);
        _exit(result);
    }
    close(pair.fd);
    CHECK(status_of(child) == 0);
    part(pair);
}

/* Once the stream has ended, no byte can be sent again. */
static void half_closed(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, UNREAD);
        CHECK(shutdown(pair.fd, SHUT_WR) == 0);
        raise(SIGSTOP);
        exit(0);
    }
    await_stop(pair.peer);
    int result = status_of(execute_drain(pair.fd, seed, 0, UNREAD));
    CHECK(result == 0 || result == 3);
    end_killed(pair.peer);
}

static const struct {
    const char *name;
    void (*run)(uint64_t seed);
} scenarios[] = {
    {"option", option},
    {"urgent", urgent},
    {"killed-before", killed_before},
    {"killed-after", killed_after},
    {"stopped", stopped},
    {"closed", closed},
    {"half-closed", half_closed},
};

int main(int count, char **arguments) {
    CHECK(count >= 3);
    uint64_t seed = strtoull(arguments[2], NULL, 10);
    alarm(600);
    if (strcmp(arguments[1], "drain") == 0) {
        CHECK(count == 5);
        return drain(seed, strtoull(arguments[3], NULL, 10), strtoull(arguments[4], NULL, 10));
    }
    for (size_t index = 0; index < sizeof scenarios / sizeof *scenarios; index++) {
        if (strcmp(arguments[1], scenarios[index].name) == 0) {
            scenarios[index].run(seed);
            return 0;
        }
    }
    dprintf(2, "no such scenario\n");
    return 2;
}
