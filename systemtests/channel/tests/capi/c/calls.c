/* Tests channels and handles, and which calls are refused with stale ones. */
#define _GNU_SOURCE
#include "check.h"

#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <sys/wait.h>

static void options_are_checked(void)
{
    struct mp_options options = { 0 };
    mp_channel *channel;

    options.driver = 9;
    CHECK(!mp_create(&options) && errno == EINVAL && strstr(mp_error(), "MP_DRIVER"));
    options = (struct mp_options){ .batch = 5000 };
    CHECK(!mp_create(&options) && errno == EINVAL && strstr(mp_error(), "1024"));
    FAILS(mp_check_locked_memory(&options, 1), EINVAL);
    options = (struct mp_options){ .small_buffers = 70000 };
    CHECK(!mp_create(&options) && errno == EINVAL);
    options = (struct mp_options){ .max_handles = 1u << 21 };
    CHECK(!mp_create(&options) && errno == EINVAL);
    options = (struct mp_options){ 0 };
    options.reserved = 1;
    CHECK(!mp_create(&options) && errno == EINVAL && strstr(mp_error(), "zero"));
    options = (struct mp_options){ .keep_steering = 2 };
    CHECK(!mp_create(&options) && errno == EINVAL && strstr(mp_error(), "keep_steering"));
    options = (struct mp_options){ .driver = MP_DRIVER_EPOLL, .linger_us = MP_NEVER,
                                   .keep_steering = 1 };
    channel = mp_create(&options);
    CHECK(channel && !strcmp(mp_driver(channel), "epoll"));
    CHECK(strlen(mp_driver_reason(channel)) > 0);
    CHECK(mp_destroy(channel) == 0);
    CHECK(mp_check_locked_memory(&options, UINT32_MAX) == 0);
    CHECK(mp_check_locked_memory(NULL, 0) == 0);
}

static void pointers_are_checked(void)
{
    mp_channel *channel = channel_new();
    struct mp_event event;
    struct mp_counters counters;
    char odd;

    FAILS(mp_flush(NULL), EFAULT);
    FAILS(mp_flush((mp_channel *)&odd), EBADF);
    FAILS(mp_flush((mp_channel *)((char *)channel + 1)), EBADF);
    FAILS(mp_dispatch(channel, NULL, 0), EFAULT);
    FAILS(mp_dispatch_batch(channel, NULL, 1, 0), EFAULT);
    FAILS(mp_dispatch_batch(channel, &event, 0, 0), EINVAL);
    FAILS(mp_dispatch_batch(channel, &event, -1, 0), EINVAL);
    FAILS(mp_statistics(channel, NULL, sizeof counters), EFAULT);
    FAILS(mp_release(channel, 0), EINVAL);
    FAILS(mp_release(channel, -1), EINVAL);
    CHECK(mp_dispatch(channel, &event, 0) == 0);
    CHECK(mp_dispatch(channel, &event, 1) == 0);
    CHECK(mp_destroy(channel) == 0);
    FAILS(mp_destroy(channel), EBADF);
    FAILS(mp_flush(channel), EBADF);
    CHECK(!mp_driver(channel) && errno == EBADF);
}

static void statistics_fit_any_size(void)
{
    mp_channel *channel = channel_new();
    uint64_t counts[64];
    int fds[2];

    pair(fds);
    CHECK(mp_write(mp_register(channel, fds[0], NULL, NULL), "x", 1) == 0);
    expect(channel, MP_WRITE);
    memset(counts, 0xff, sizeof counts);
    CHECK(mp_statistics(channel, (struct mp_counters *)counts, 8) == 0);
    CHECK(counts[0] == 1 && counts[1] == UINT64_MAX);
    CHECK(mp_statistics(channel, (struct mp_counters *)counts, sizeof counts) == 0);
    CHECK(counts[1] == 1 && counts[63] == 0);
    FAILS(mp_statistics(channel, (struct mp_counters *)counts, SIZE_MAX), EINVAL);
    mp_destroy(channel);
    close(fds[0]);
    close(fds[1]);
}

static void handles_go_stale(void)
{
    mp_channel *channel = channel_new(), *later;
    mp_handle first, second;
    int fds[2], x = 0;

    pair(fds);
    first = mp_register(channel, fds[0], &x, NULL);
    CHECK(first >= 0 && mp_cookie(first) == &x);
    CHECK(mp_set_cookie(first, fds) == 0 && mp_cookie(first) == fds);
    CHECK(mp_unregister(first) == 0);
    CHECK(is_open(fds[0]));
    FAILS(mp_unregister(first), EBADF);
    second = mp_register(channel, fds[0], NULL, NULL);
    CHECK(second >= 0 && second != first);
    FAILS(mp_write(first, "x", 1), EBADF);
    FAILS(mp_write(-1, "x", 1), EBADF);
    FAILS(mp_write(INT64_MAX, "x", 1), EBADF);
    FAILS(mp_write(second + 1, "x", 1), EBADF);
    errno = 0;
    CHECK(!mp_cookie(first) && errno == EBADF);
    CHECK(mp_destroy(channel) == 0);
    CHECK(is_open(fds[0]));
    FAILS(mp_write(second, "x", 1), EBADF);
    /* So many that another channel has certainly reused the entry. */
    for (int round = 0; round < 3000; round++) {
        struct mp_options options = { .driver = MP_DRIVER_EPOLL };

        later = mp_create(&options);
        CHECK(later && mp_register(later, fds[0], NULL, NULL) >= 0);
        FAILS(mp_write(first, "x", 1), EBADF);
        FAILS(mp_write(second, "x", 1), EBADF);
        CHECK(mp_destroy(later) == 0);
    }
    close(fds[0]);
    close(fds[1]);
}

static void descriptors_stay_the_callers(void)
{
    struct mp_options options = { .max_handles = 1 };
    mp_channel *channel = mp_create(&options);
    int fds[2], directory = open("/", O_RDONLY | O_DIRECTORY);
    mp_handle handle;

    CHECK(channel);
    pair(fds);
    FAILS(mp_register(channel, -1, NULL, NULL), EBADF);
    FAILS(mp_register(channel, 9999, NULL, NULL), EBADF);
    FAILS(mp_register(channel, MP_LWSOCKET_FIRST, NULL, NULL), EBADF);
    FAILS(mp_register(channel, INT32_MAX, NULL, NULL), EBADF);
    FAILS(mp_register(channel, directory, NULL, NULL), EISDIR);
    CHECK(is_open(directory));
    handle = mp_register(channel, fds[0], fds, NULL);
    CHECK(handle >= 0);
    FAILS(mp_register(channel, fds[1], NULL, NULL), ENFILE);
    CHECK(is_open(fds[1]));
    CHECK(mp_close(handle) == 0);
    FAILS(mp_close(handle), EBADF);
    struct mp_event event = expect(channel, MP_CLOSE);
    CHECK(event.handle == handle && event.cookie == fds && event.error == 0);
    CHECK(!is_open(fds[0]));
    CHECK(mp_register(channel, fds[1], NULL, NULL) >= 0);
    CHECK(mp_destroy(channel) == 0);
    CHECK(is_open(fds[1]));
    close(fds[1]);
    close(directory);
}

/* A connection that was accepted is closed, and its number means something else when it is
 * registered. */
static void numbers_are_looked_up_anew(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in address, other;
    int fd = listening(&address), client = connected(&address), number, replacement;
    mp_handle listener = mp_register(channel, fd, NULL, NULL), handle;
    char room[4];
    FILE *file = tmpfile();

    CHECK(mp_accept(listener, 0, 0) == 0);
    number = expect(channel, MP_ACCEPT).fd;
    CHECK(file && fputs("disk", file) >= 0 && fflush(file) == 0);
    CHECK(dup2(fileno(file), number) == number);
    handle = mp_register(channel, number, NULL, NULL);
    FAILS(mp_recv(handle, 0), EOPNOTSUPP);
    CHECK(mp_pread(handle, room, sizeof room, 0) == 0);
    CHECK(expect(channel, MP_PREAD).size == 4 && !memcmp(room, "disk", 4));
    CHECK(mp_unregister(handle) == 0);
    fclose(file);

    replacement = listening(&other);
    CHECK(dup2(replacement, number) == number);
    close(replacement);
    handle = mp_register(channel, number, NULL, NULL);
    CHECK(mp_accept(handle, 1, 1) == 0);
    replacement = connected(&other);
    CHECK(expect(channel, MP_ACCEPT).handle == handle);
    CHECK(mp_destroy(channel) == 0);
    close(replacement);
    close(number);
    close(client);
    close(fd);
}

/* Two handles of one descriptor: it is closed with the first one, and nothing else is. */
static void a_descriptor_is_closed_once(void)
{
    mp_channel *channel = channel_new();
    mp_handle first, second;
    int fds[2], reused, room = 0;

    pair(fds);
    first = mp_register(channel, fds[0], &first, NULL);
    second = mp_register(channel, fds[0], &second, NULL);
    CHECK(first >= 0 && second >= 0 && first != second);
    CHECK(mp_close(first) == 0);
    struct mp_event event = expect(channel, MP_CLOSE);
    CHECK(event.error == 0 && event.cookie == &first);
    CHECK(!is_open(fds[0]) && read(fds[1], &room, 1) == 0);
    reused = dup2(fds[1], fds[0]);
    CHECK(reused == fds[0]);
    CHECK(mp_unregister(second) == 0);
    CHECK(is_open(reused));
    CHECK(mp_destroy(channel) == 0);
    CHECK(is_open(reused) && is_open(fds[1]));
    close(reused);
    close(fds[1]);
}

struct elsewhere {
    mp_channel *channel;
    mp_handle handle;
};

static void *in_another_thread(void *argument)
{
    struct elsewhere *elsewhere = argument;

    FAILS(mp_flush(elsewhere->channel), EPERM);
    FAILS(mp_destroy(elsewhere->channel), EPERM);
    FAILS(mp_write(elsewhere->handle, "x", 1), EBADF);
    /* Not destroyed: the end of the thread destroys it. */
    channel_new();
    FAILS(mp_write(elsewhere->handle, "x", 1), EBADF);
    return NULL;
}

static void threads_and_forks_are_told_apart(void)
{
    struct elsewhere elsewhere = { .channel = channel_new() };
    int fds[2], status, before;
    pthread_t thread;
    pid_t child;

    pair(fds);
    elsewhere.handle = mp_register(elsewhere.channel, fds[0], NULL, NULL);
    before = open_files();
    CHECK(pthread_create(&thread, NULL, in_another_thread, &elsewhere) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(open_files() == before);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(mp_write(elsewhere.handle, "x", 1), EPERM);
        FAILS(mp_register(elsewhere.channel, fds[1], NULL, NULL), EPERM);
        CHECK(is_open(fds[1]));
        FAILS(mp_flush(elsewhere.channel), EPERM);
        CHECK(mp_destroy(elsewhere.channel) == 0);
        CHECK(mp_destroy(channel_new()) == 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(mp_write(elsewhere.handle, "x", 1) == 0);
    expect(elsewhere.channel, MP_WRITE);
    CHECK(mp_destroy(elsewhere.channel) == 0);
    close(fds[0]);
    close(fds[1]);
}

static void a_full_queue_says_so(void)
{
    struct mp_options options = { .max_requests = 2 };
    mp_channel *channel = mp_create(&options);
    mp_handle handle;
    int fds[2];

    CHECK(channel);
    pair(fds);
    handle = mp_register(channel, fds[0], NULL, NULL);
    CHECK(mp_write(handle, "a", 1) == 0 && mp_write(handle, "b", 1) == 0);
    FAILS(mp_write(handle, "c", 1), EAGAIN);
    expect(channel, MP_WRITE);
    CHECK(mp_write(handle, "c", 1) == 0);
    mp_destroy(channel);
    close(fds[0]);
    close(fds[1]);
}

static void listening_says_what_is_wrong(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    struct sockaddr_un path = { .sun_family = AF_UNIX, .sun_path = "/tmp/none" };
    const struct sockaddr *there = (struct sockaddr *)&address;
    struct tcp_info info;
    socklen_t size = sizeof address, info_size = sizeof info;
    int fd;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = mp_listen(there, size, 3);
    CHECK(fd >= 0 && getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_size) == 0);
    CHECK(info.tcpi_sacked == 3);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && !(fcntl(fd, F_GETFL) & O_NONBLOCK));
    FAILS(mp_listen(there, size, 0), EADDRINUSE);
    CHECK(strstr(mp_error(), "127.0.0.1:") && strstr(mp_error(), "ss -ltnp"));
    CHECK(close(fd) == 0);
    fd = mp_listen(there, size, 0);
    CHECK(fd >= 0 && close(fd) == 0);
    FAILS(mp_listen(NULL, size, 0), EFAULT);
    FAILS(mp_listen(there, 3, 0), EINVAL);
    FAILS(mp_listen(there, size, -1), EINVAL);
    FAILS(mp_listen((struct sockaddr *)&path, sizeof path, 0), EAFNOSUPPORT);
    address.sin_addr.s_addr = htonl(0xC0000201); /* no host has 192.0.2.1: RFC 5737 */
    FAILS(mp_listen(there, size, 0), EADDRNOTAVAIL);
}

int main(void)
{
    CHECK(strlen(mp_error()) == 0);
    options_are_checked();
    pointers_are_checked();
    statistics_fit_any_size();
    handles_go_stale();
    descriptors_stay_the_callers();
    numbers_are_looked_up_anew();
    a_descriptor_is_closed_once();
    threads_and_forks_are_told_apart();
    a_full_queue_says_so();
    listening_says_what_is_wrong();
    puts("calls: all is well");
    return 0;
}
