/* A preload library with faults for the fuzzer to find: FABLE_STATISTICS selects the fault. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static int is_wrong(const char *fault)
{
    const char *chosen = getenv("FABLE_STATISTICS");
    return chosen != NULL && strcmp(chosen, fault) == 0;
}

/* Loses a byte, repeats one, or reports a normal end where there is none. */
ssize_t recv(int fd, void *buffer, size_t size, int flags)
{
    ssize_t (*next)(int, void *, size_t, int) = dlsym(RTLD_NEXT, "recv");
    ssize_t count = next(fd, buffer, size, flags);
    if (count > 8 && !(flags & (MSG_PEEK | MSG_TRUNC))) {
        char *bytes = buffer;
        if (is_wrong("lose")) {
            return count - 1;
        }
        if (is_wrong("repeat")) {
            bytes[1] = bytes[0];
        }
        if (is_wrong("end")) {
            return 0;
        }
    }
    if (count == -1 && errno == EAGAIN && is_wrong("errno")) {
        errno = ENOTCONN;
    }
    return count;
}

/* Does not report room. */
int poll(struct pollfd *entries, nfds_t count, int timeout)
{
    int (*next)(struct pollfd *, nfds_t, int) = dlsym(RTLD_NEXT, "poll");
    int result = next(entries, count, timeout);
    for (nfds_t at = 0; at < count && is_wrong("poll"); at++) {
        entries[at].revents &= ~POLLOUT;
    }
    return result;
}
