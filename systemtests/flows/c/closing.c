/* Proper ends of connections directly after their last bytes. Usage: closing ROUNDS */
#include "pair.h"

#define BYTES 70000

/* The receiver: every byte, an end of stream, and no error then or later. */
static void receive_whole(const struct sockaddr_in *address, int round) {
    int fd = dial(address);
    greet(fd);
    expect(fd, round, 0, BYTES + round % 4096);
    expect_end(fd);
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    CHECK(poll(&entry, 1, 0) == 1 && !(entry.revents & POLLERR));
    close(fd);
}

/* Sends more than the ring holds and ends at once, while the receiver still asks for more: by
   close(2), by the exit of a child that alone has the connection, by execve(2). */
static void sender(int rounds) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    pid_t peer = fork();
    CHECK(peer >= 0);
    for (int round = 0; round < rounds; round++) {
        if (peer == 0) {
            receive_whole(&address, round);
            continue;
        }
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        greet(fd);
        if (round & 1) set_nonblocking(fd);
        pid_t child = round % 16 < 2 ? fork() : 0;
        CHECK(child >= 0);
        if (child == 0) send_all(fd, round, 0, BYTES + round % 4096);
        if (round % 16 == 0 && child == 0) exit(0);
        if (round % 16 == 1 && child == 0) {
            CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        close(fd);
        int status = 0;
        if (child) CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    part((struct pair){.peer = peer});
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    alarm(600);
    sender(atoi(arguments[1]));
    return 0;
}
