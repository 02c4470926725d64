/* A second client takes the port of one whose connection has ended before the server accepted it:
   prints what it is answered, the same with and without `fable run`.
   Usage: takeover CASE END-SECOND, where END tells how the first client ends (kill: after it is
   connected; pending: while it waits in connect; disconnect: it lives on), and SECOND whether the
   library may upgrade the second one (shared) or not (plain). */
#include "pair.h"

static struct sockaddr_in here, there;

/* Makes a socket with the port that all clients share. */
static int bound(void) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(fd, (struct sockaddr *)&here, sizeof here) == 0);
    socklen_t size = sizeof here;
    CHECK(getsockname(fd, (struct sockaddr *)&here, &size) == 0);
    return fd;
}

static void reset_at_end(int fd) {
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
}

/* In a child: the first client, until its connection has ended. Returns the pipe whose end ends
   the child. */
static int run_first(const char *end) {
    int ready[2], over[2];
    char byte = 0;
    CHECK(pipe(ready) == 0 && pipe(over) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(over[1]);
        int fd = bound();
        if (strcmp(end, "pending") == 0) {
            set_nonblocking(fd);
            CHECK(connect(fd, (struct sockaddr *)&there, sizeof there) < 0 && errno == EINPROGRESS);
            raise(SIGKILL);
        }
        CHECK(connect(fd, (struct sockaddr *)&there, sizeof there) == 0);
        reset_at_end(fd);
        if (strcmp(end, "kill") == 0) raise(SIGKILL);
        struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
        CHECK(connect(fd, &nowhere, sizeof nowhere) == 0);
        CHECK(write(ready[1], &byte, 1) == 1);
        _exit(read(over[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(ready[1]);
    close(over[0]);
    /* Its byte, or the end of its process. */
    CHECK(read(ready[0], &byte, 1) >= 0);
    close(ready[0]);
    return over[1];
}

/* Accepts connections and echoes, until one has been answered. */
static void serve(int listener) {
    char room[64];
    for (int answers = 0; answers == 0;) {
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        ssize_t moved;
        while ((moved = read(fd, room, sizeof room)) > 0) {
            CHECK(write(fd, room, moved) == moved);
            answers++;
        }
        close(fd);
    }
}

/* Sends words and prints the answers. */
static void ask(int fd) {
    for (int turn = 0; turn < 3; turn++) {
        char word[16], room[16];
        int length = sprintf(word, "hello %d", turn);
        CHECK(write(fd, word, length) == length);
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        CHECK(poll(&entry, 1, 10000) == 1);
        ssize_t moved = read(fd, room, sizeof room);
        CHECK(moved == length);
        printf("%.*s\n", (int)moved, room);
    }
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    alarm(600);
    char *second = strchr(arguments[2], '-');
    CHECK(second != NULL);
    *second++ = 0;
    int listener = listen_anywhere(&there);
    CHECK(listen(listener, strcmp(arguments[2], "pending") == 0 ? 0 : 16) == 0);
    here = there;
    here.sin_port = 0;
    /* Keeps the port. */
    bound();
    int queued = -1;
    if (strcmp(arguments[2], "pending") == 0) queued = dial(&there);
    int over = run_first(arguments[2]);
    if (queued >= 0) {
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        close(fd);
        close(queued);
    }
    pid_t client = fork();
    CHECK(client >= 0);
    if (client == 0) {
        close(listener);
        int fd = bound(), least = 1;
        if (strcmp(second, "plain") == 0) {
            CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0);
        }
        CHECK(connect(fd, (struct sockaddr *)&there, sizeof there) == 0);
        ask(fd);
        close(fd);
        exit(0);
    }
    serve(listener);
    int status;
    CHECK(waitpid(client, &status, 0) == client && status == 0);
    /* The server still upgrades. */
    client = fork();
    CHECK(client >= 0);
    if (client == 0) {
        int fd = dial(&there);
        ask(fd);
        close(fd);
        exit(0);
    }
    serve(listener);
    CHECK(waitpid(client, &status, 0) == client && status == 0);
    close(over);
    return 0;
}
