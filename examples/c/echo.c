/*
 * The echo server of iobench in C: what `iobench serve --server megapipe` is in Rust. A thread on
 * each CPU has a channel and its share of the one listener, and sends back the channel's buffers.
 *
 *   cc -O2 -pthread echo.c $(pkg-config --cflags --libs megapipe) -o /tmp/echo
 *   iobench compare --peer 'c=/tmp/echo {port} {cpus}' --servers epoll,megapipe
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS_MAX = 64, EVENTS_MAX = 256 };

static int cpus[THREADS_MAX], threads, listener;
static pthread_barrier_t ready;

static void fail(const char *what)
{
    fprintf(stderr, "echo: %s: %s\n", what, mp_error());
    exit(EXIT_FAILURE);
}

/* Each CPU's connections belong to one thread, also those of CPUs without a thread. */
static cpu_set_t share_of(int thread)
{
    cpu_set_t mine;
    /* Numbers of CPUs may have holes; all are below the size of the kernel's sets. */
    long numbers = 8 * syscall(SYS_sched_getaffinity, 0, sizeof mine, &mine);

    CPU_ZERO(&mine);
    for (int cpu = 0; cpu < numbers; cpu++) {
        int owner = cpu % threads;

        for (int other = 0; other < threads; other++)
            if (cpus[other] == cpu)
                owner = other;
        if (owner == thread)
            CPU_SET(cpu, &mine);
    }
    return mine;
}

static void serve(mp_channel *channel, const struct mp_event *ev)
{
    if (ev->cmd == MP_RECV && ev->size > 0) {
        /* Fails if an earlier event of the batch has ended the connection, which an abort then does
         * again in vain, or if the peer does not read. */
        if (mp_write_buffer(ev->handle, ev->buffer, 0, ev->size) < 0) {
            mp_release(channel, ev->buffer);
            mp_abort(ev->handle);
        }
    } else if (ev->cmd == MP_ACCEPT && !ev->error) {
        mp_handle peer = mp_register(channel, ev->fd, NULL, NULL);

        if (mp_recv(peer, MP_REPEAT) < 0)
            fail("receive");
    } else if (ev->cmd == MP_ACCEPT) {
        /* With MP_MORE, as after EMFILE, the channel accepts again by itself. */
        if (!(ev->flags & MP_MORE) && mp_accept(ev->handle, 0, 1) < 0)
            fail("accept");
    } else if (ev->cmd != MP_CLOSE && (ev->cmd == MP_RECV || ev->error)) {
        /* What was received is sent back first. */
        mp_close(ev->handle);
    }
}

static void *run(void *argument)
{
    int thread = (int)(intptr_t)argument;
    struct mp_event events[EVENTS_MAX];
    cpu_set_t mine = share_of(thread), here;
    mp_channel *channel;

    CPU_ZERO(&here);
    CPU_SET(cpus[thread], &here);
    if (sched_setaffinity(0, sizeof here, &here) < 0) {
        perror("echo: pin a thread to its CPU");
        exit(EXIT_FAILURE);
    }
    channel = mp_create(NULL);
    if (!channel || mp_accept(mp_register(channel, listener, NULL, &mine), 0, 1) < 0
        || mp_flush(channel) < 0)
        fail("start");
    pthread_barrier_wait(&ready);
    for (;;) {
        int count = mp_dispatch_batch(channel, events, EVENTS_MAX, -1);

        if (count < 0)
            fail("dispatch");
        for (int i = 0; i < count; i++)
            serve(channel, &events[i]);
    }
    return NULL;
}

/* cubic where the default paces (bbr): pacing would measure its timers instead of the server. */
static int listen_on(unsigned port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    socklen_t size = sizeof address;
    int one = 1, fd;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = mp_listen((struct sockaddr *)&address, size, 0);
    if (fd < 0)
        fail("listen");
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0
        || getsockname(fd, (struct sockaddr *)&address, &size) < 0) {
        perror("echo: listen");
        exit(EXIT_FAILURE);
    }
    printf("listening on 127.0.0.1:%u\n", ntohs(address.sin_port));
    return fd;
}

int main(int argc, char **argv)
{
    char one_cpu[] = "0", *words = argc > 2 ? argv[2] : one_cpu;
    struct rlimit files;

    for (char *word = strtok(words, ","); word && threads < THREADS_MAX; word = strtok(NULL, ","))
        cpus[threads++] = atoi(word);
    if (argc < 2 || threads == 0) {
        fprintf(stderr, "usage: echo PORT [CPU,CPU,...]\n");
        return 2;
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    listener = listen_on((unsigned)atoi(argv[1]));
    pthread_barrier_init(&ready, NULL, (unsigned)threads + 1);
    for (intptr_t thread = 0; thread < threads; thread++) {
        pthread_t id;

        if (pthread_create(&id, NULL, run, (void *)thread)) {
            fprintf(stderr, "echo: no thread: raise `ulimit -u`\n");
            return EXIT_FAILURE;
        }
    }
    pthread_barrier_wait(&ready);
    fflush(stdout);
    pthread_exit(NULL);
}
