/* Processes that print what they see of a connection, and the ways in which a peer ends. */
#pragma once
#include "pair.h"
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define LARGE (64 << 20)

/* Two pipes by which the processes take turns. */
static int turns[2][2];

static void say(int which) {
    CHECK(write(turns[which][1], "!", 1) == 1);
}

static void await(int which) {
    char byte;
    CHECK(read(turns[which][0], &byte, 1) == 1);
}

/* Connects two processes. With `whole`, waits until both directions use memory, if they do so. */
static struct pair connect_pair(int whole) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    struct pair pair;
    CHECK(pipe(turns[0]) == 0 && pipe(turns[1]) == 0);
    pair.peer = fork();
    CHECK(pair.peer >= 0);
    if (pair.peer == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        close(listener);
        pair.fd = dial(&address);
    } else {
        pair.fd = accept(listener, NULL, NULL);
        CHECK(pair.fd >= 0);
        close(listener);
    }
    if (whole) greet(pair.fd);
    return pair;
}

static void tell(const char *what, ssize_t result) {
    int error = errno;
    printf("%s: %s\n", what, result < 0 ? strerrorname_np(error) : result == 0 ? "0" : "some");
}

static const char *leave_by;

static int is_killed(void) {
    return strcmp(leave_by, "kill") == 0 || strcmp(leave_by, "abort") == 0;
}

static int ends_process(void) {
    return strcmp(leave_by, "exit") == 0 || is_killed();
}

static in_port_t own_port(int fd) {
    struct sockaddr_in own;
    socklen_t size = sizeof own;
    CHECK(getsockname(fd, (struct sockaddr *)&own, &size) == 0);
    return ntohs(own.sin_port);
}

/* Ends the connection from a port as an administrator does, by ss(8). */
static void destroy(in_port_t port) {
    char command[64];
    snprintf(command, sizeof command, "ss -KtnH sport = :%d >/dev/null", port);
    CHECK(system(command) == 0);
}

/* How the peer ends: the last call that it makes on a connection. */
static void go(int fd) {
    if (strcmp(leave_by, "close") == 0) {
        close(fd);
    } else if (strcmp(leave_by, "shutdown") == 0) {
        shutdown(fd, SHUT_WR);
    } else if (strcmp(leave_by, "syscall") == 0) {
        CHECK(syscall(SYS_close, fd) == 0);
    } else if (strcmp(leave_by, "exit") == 0) {
        exit(0);
    } else if (strcmp(leave_by, "destroy") == 0) {
        destroy(own_port(fd));
    } else {
        struct linger none = {.l_onoff = 1};
        if (strcmp(leave_by, "abort") == 0) {
            CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0);
        }
        kill(getpid(), SIGKILL);
    }
    say(0);
    await(1);
    exit(0);
}

static void await_gone(struct pair pair) {
    if (ends_process()) {
        CHECK(waitpid(pair.peer, NULL, 0) == pair.peer);
        pair.peer = 0;
    } else {
        await(0);
    }
}

static void release(struct pair pair) {
    if (!ends_process()) {
        say(1);
        part(pair);
    }
}
