/* An echo server. Prints its port; ends when its standard input ends. */
#include "pair.h"

int main(void) {
    alarm(600);
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
    event.data.fd = 0;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, 0, &event) == 0);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        CHECK(epoll_wait(set, &event, 1, 60000) == 1);
        int fd = event.data.fd;
        if (fd == 0) return 0;
        if (fd == listener) {
            fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
            CHECK(fd >= 0);
            event.events = EPOLLIN;
            event.data.fd = fd;
            CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
            continue;
        }
        char buffer[4096];
        ssize_t length = read(fd, buffer, sizeof buffer);
        if (length < 0 && errno == EAGAIN) continue;
        if (length <= 0 || write(fd, buffer, length) < 0) close(fd);
    }
}
