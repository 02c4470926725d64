/* Prints what vfork(2) does to connections: the same with and without `fable run`.
   Usage: borrowed CASE HOW-THE-CHILD-GOES */
#include "pair.h"
#include <stdatomic.h>

#define ROUNDS 20000

static const char *how;

static int is_how(const char *name) {
    return strcmp(how, name) == 0;
}

/* The last action of a child. */
static void go(void) {
    if (is_how("exec")) execlp("true", "true", (char *)NULL);
    if (is_how("fails")) execl("/nonexistent", "nonexistent", (char *)NULL);
    if (is_how("kill")) kill(getpid(), SIGKILL);
    _exit(0);
}

static void await_child(pid_t child) {
    int status = 0;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    printf("child: %#x\n", status);
}

/* Sends a byte each way from both processes, so that both see the state of the connection. */
static void exchange(struct pair pair) {
    if (pair.peer == 0) {
        expect(pair.fd, 3, 0, 40000);
        send_all(pair.fd, 4, 0, 40000);
    } else {
        send_all(pair.fd, 3, 0, 40000);
        expect(pair.fd, 4, 0, 40000);
    }
}

static void set_cloexec(int fd) {
    CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
}

/* The child uses its parent's memory. */
static void memory(void) {
    struct pair pair = make_pair();
    volatile int told = 0;
    if (pair.peer != 0) {
        set_cloexec(pair.fd);
        pid_t child = vfork();
        if (child == 0) {
            told = 1;
            go();
        }
        await_child(child);
        printf("told: %d\n", told);
    }
    exchange(pair);
    part(pair);
}

/* The child closes all its descriptors. */
static void closes(int one_by_one) {
    struct pair pair = make_pair();
    if (pair.peer != 0) {
        pid_t child = vfork();
        if (child == 0) {
            if (one_by_one) {
                for (int fd = 3; fd < 1024; fd++) close(fd);
            } else {
                close_range(3, ~0U, 0);
            }
            if (write(pair.fd, "x", 1) >= 0 || errno != EBADF) _exit(3);
            go();
        }
        await_child(child);
    }
    exchange(pair);
    part(pair);
}

static void closes_one_by_one(void) {
    closes(1);
}
static void closes_a_row(void) {
    closes(0);
}

/* The child replaces the connection's descriptor by another file. */
static void replaces(void) {
    struct pair pair = make_pair();
    if (pair.peer != 0) {
        int both[2];
        CHECK(pipe(both) == 0);
        pid_t child = vfork();
        if (child == 0) {
            if (dup2(both[1], pair.fd) != pair.fd || write(pair.fd, "x", 1) != 1) _exit(3);
            close(both[1]);
            go();
        }
        char byte;
        await_child(child);
        CHECK(read(both[0], &byte, 1) == 1 && byte == 'x');
    }
    exchange(pair);
    part(pair);
}

/* The child's program uses the connection, and so does the parent afterwards, which waits for it
   in an epoll set. */
static void passes(int standard) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        char text[6];
        CHECK(recv(pair.fd, text, sizeof text, MSG_WAITALL) == sizeof text);
        CHECK(memcmp(text, "hello\n", sizeof text) == 0);
        exchange(pair);
        part(pair);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5};
    int set = epoll_create1(EPOLL_CLOEXEC);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair.fd, &event) == 0);
    set_cloexec(pair.fd);
    pid_t child = vfork();
    if (child == 0) {
        char words[64] = "echo hello";
        if (standard) {
            dup2(pair.fd, 1);
        } else {
            fcntl(pair.fd, F_SETFD, 0);
            snprintf(words, sizeof words, "echo hello >&%d", pair.fd);
        }
        for (int fd = 3; fd < 1024; fd++) {
            if (standard || fd != pair.fd) close(fd);
        }
        execlp("sh", "sh", "-c", words, (char *)NULL);
        _exit(4);
    }
    await_child(child);
    send_all(pair.fd, 3, 0, 40000);
    int count = epoll_wait(set, &event, 1, 5000);
    printf("epoll: %d, %#x, %d\n", count, event.events, (int)event.data.u64);
    expect(pair.fd, 4, 0, 40000);
    part(pair);
}

static void passes_as_output(void) {
    passes(1);
}
static void passes_as_it_is(void) {
    passes(0);
}

static atomic_int is_done;

static void *go_round(void *argument) {
    int fd = *(int *)argument;
    for (int turn = 0; turn < ROUNDS; turn++) {
        send_all(fd, 3, turn * 100, turn * 100 + 100);
        expect(fd, 4, turn * 100, turn * 100 + 100);
    }
    is_done = 1;
    return NULL;
}

/* Another thread of the parent uses the connection while the child changes its own descriptor. */
static void busy(void) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        for (int turn = 0; turn < ROUNDS; turn++) {
            expect(pair.fd, 3, turn * 100, turn * 100 + 100);
            send_all(pair.fd, 4, turn * 100, turn * 100 + 100);
        }
        part(pair);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, go_round, &pair.fd) == 0);
    for (volatile int turn = 0; turn < 200 || !is_done; turn++) {
        pid_t child = vfork();
        if (child == 0) {
            dup2(2, pair.fd);
            close_range(3, ~0U, 0);
            go();
        }
        CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    part(pair);
}

static const struct test_case CASES[] = {
    {"memory", memory},       {"closes", closes_one_by_one}, {"closes-row", closes_a_row},
    {"replaces", replaces},   {"output", passes_as_output},  {"passed", passes_as_it_is},
    {"busy", busy},
};

int main(int count, char **arguments) {
    CHECK(count >= 3);
    how = arguments[2];
    alarm(600);
    return run_case(arguments[1], CASES, COUNT(CASES));
}
