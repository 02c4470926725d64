/* Manages listening sockets, of which every worker has a share. */
#include "megapipe_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Written by the main thread before the count grows; later only `accepting` changes. */
static struct {
    conn *c;
    atomic_bool accepting;
} listeners[MEGAPIPE_LISTENERS_MAX];
static atomic_int listeners_count;
static atomic_uint generation;

/* Accepts of all workers that the kernel has. */
static atomic_int accepts_filed;

/* The limit of descriptor numbers; 0 until the server listens on its first address. */
static atomic_int descriptors_limit;

/* Wakes the main thread, which alone may stop accepting in all workers. */
static int exhausted_fd = -1;
static struct event exhausted_event;

static void announce(void) {
    atomic_fetch_add(&generation, 1);
    megapipe_notify_workers();
}

static void exhausted(evutil_socket_t fd, short which, void *argument) {
    uint64_t count;
    if (read(fd, &count, sizeof(count)) != sizeof(count))
        return;
    STATS_LOCK();
    const bool accepting = stats_state.accepting_conns;
    STATS_UNLOCK();
    if (accepting)
        accept_new_conns(false);
}

/* Returns the number of descriptors that the channels need in addition to libevent's. For each
 * address: two for each thread's accept queue, and two for the original listener, which one of the
 * threads accepts from, too. */
static rlim_t descriptors_for(int addresses) {
    return 1 + (rlim_t)addresses * (2 + 2 * settings.num_threads);
}

rlim_t megapipe_hard_limit(rlim_t possible) {
    const rlim_t limit = settings.maxconns;
    const rlim_t wanted = limit + descriptors_for(MEGAPIPE_LISTENERS_MAX);
    if (possible == RLIM_INFINITY || possible > wanted)
        return wanted;
    return possible > limit ? possible : limit;
}

/* Raises memcached's limit of connections, which is one of descriptors, by those of the
 * channels. */
static void make_room(int addresses) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == -1) {
        perror("megapipe: cannot read the limit of open files (permit getrlimit in the sandbox)");
        exit(EXIT_FAILURE);
    }
    const rlim_t wanted = settings.maxconns + descriptors_for(addresses);
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) == -1)
        perror("megapipe: cannot raise the limit of open files (raise `ulimit -Hn` or lower -c: "
               "channels need descriptors, too)");
    else
        atomic_store(&descriptors_limit, (int)limit.rlim_cur);
}

bool megapipe_is_full(int fd) {
    const int limit = atomic_load_explicit(&descriptors_limit, memory_order_relaxed);
    return fd >= (limit != 0 ? limit : settings.maxconns) - 1;
}

static void watch_exhaustion(struct event_base *base) {
    exhausted_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (exhausted_fd == -1) {
        perror("megapipe: no descriptor is left to wake the main thread (raise -c)");
        exit(EXIT_FAILURE);
    }
    event_assign(&exhausted_event, base, exhausted_fd, EV_READ | EV_PERSIST, exhausted, NULL);
    if (event_add(&exhausted_event, NULL) == -1) {
        fprintf(stderr, "megapipe: libevent cannot watch the main thread's eventfd; update it\n");
        exit(EXIT_FAILURE);
    }
}

/* The main thread continues to watch the socket itself: connections from before the workers
 * took their shares wait there. */
void megapipe_listen(conn *c) {
    const int index = atomic_load(&listeners_count);
    if (megapipe_workers() == 0)
        return;
#ifdef TLS
    if (c->ssl_enabled)
        return;
#endif
    if (index == MEGAPIPE_LISTENERS_MAX) {
        fprintf(stderr,
                "megapipe: the workers accept for %d addresses, and the main thread for "
                "further ones; name fewer with -l\n", MEGAPIPE_LISTENERS_MAX);
        return;
    }
    if (exhausted_fd == -1)
        watch_exhaustion(event_get_base(&c->event));
    make_room(index + 1);
    listeners[index].c = c;
    atomic_store(&listeners[index].accepting, true);
    atomic_store(&listeners_count, index + 1);
    announce();
}

/* memcached stops and resumes accepting through its events. */
void megapipe_listener_event(const struct event *event, bool accepting) {
    const int count = atomic_load(&listeners_count);
    for (int i = 0; i < count; i++) {
        if (&listeners[i].c->event == event && atomic_load(&listeners[i].accepting) != accepting) {
            atomic_store(&listeners[i].accepting, accepting);
            announce();
        }
    }
}

static void pause_ms(long duration_ms) {
    const struct timespec duration = {.tv_nsec = duration_ms * 1000000};
    nanosleep(&duration, NULL);
}

/* A request holds its socket until the kernel has destroyed the ring, which it does after the
 * process has ended. The function does not wait for a worker that hangs. */
void megapipe_stop_accepting(void) {
    const int count = atomic_load(&listeners_count);
    for (int i = 0; i < count; i++)
        atomic_store(&listeners[i].accepting, false);
    announce();
    for (int waited_ms = 0; waited_ms < MEGAPIPE_STOP_MAX_MS && atomic_load(&accepts_filed) > 0;
         waited_ms++)
        pause_ms(1);
}

int megapipe_bind(int fd, const struct sockaddr *address, socklen_t length) {
    for (int waited_ms = 0;; waited_ms += 10) {
        const int result = bind(fd, address, length);
        if (result == 0 || errno != EADDRINUSE || waited_ms >= MEGAPIPE_BIND_MAX_MS)
            return result;
        pause_ms(10);
    }
}

bool megapipe_listeners_changed(const struct megapipe_worker *worker) {
    return atomic_load_explicit(&generation, memory_order_acquire) != worker->listeners_seen;
}

/* Returns the CPUs of a worker. Each CPU belongs to one worker; with more workers than CPUs
 * some have none. */
static int cpus_of(const struct megapipe_worker *worker, cpu_set_t *cpus) {
    const long present = sysconf(_SC_NPROCESSORS_CONF);
    CPU_ZERO(cpus);
    for (long cpu = worker->index; cpu < present && cpu < CPU_SETSIZE; cpu += megapipe_workers())
        CPU_SET(cpu, cpus);
    return CPU_COUNT(cpus);
}

static void join(struct megapipe_share *share, conn *listener) {
    struct megapipe_worker *worker = share->worker;
    cpu_set_t cpus;
    if (cpus_of(worker, &cpus) == 0) {
        if (settings.verbose > 0)
            fprintf(stderr,
                    "megapipe: worker %d accepts no connections: more workers than CPUs; "
                    "lower -t\n",
                    worker->index);
        return;
    }
    share->handle = mp_register(worker->channel, listener->sfd, share, &cpus);
    if (share->handle == -1)
        megapipe_complain("cannot share a listener with a worker (the main thread accepts)");
}

void megapipe_listeners_sync(struct megapipe_worker *worker) {
    worker->listeners_seen = atomic_load(&generation);
    const int count = atomic_load(&listeners_count);
    for (int i = 0; i < count; i++) {
        struct megapipe_share *share = &worker->shares[i];
        const bool wanted = atomic_load(&listeners[i].accepting);
        if (share->listener == NULL) {
            share->listener = listeners[i].c;
            join(share, listeners[i].c);
        }
        if (share->handle == -1 || share->accepting == wanted)
            continue;
        const int result = wanted ? mp_accept(share->handle, 0, 0) : mp_cancel(share->handle, 0);
        if (result == -1)
            megapipe_complain(wanted ? "cannot accept" : "cannot stop accepting");
        else
            share->accepting = wanted;
        if (wanted && result == 0)
            atomic_fetch_add(&accepts_filed, 1);
    }
}

/* Sets up a new connection as memcached's main thread does, without the queue to another
 * thread. */
static void welcome(struct megapipe_share *share, int fd) {
    LIBEVENT_THREAD *thread = share->worker->thread;
    conn *c = conn_new(fd, conn_new_cmd, EV_READ | EV_PERSIST, READ_BUFFER_CACHED,
                       share->listener->transport, thread->base, NULL, share->listener->tag,
                       share->listener->protocol);
    if (c == NULL) {
        close(fd);
        return;
    }
    c->thread = thread;
    conn_io_queue_setup(c);
    /* The first turn of a new connection would only set this state, and the connection would
     * wait for a second one. */
    c->state = conn_read;
}

static void refuse(int fd) {
    static const char full[] = "ERROR Too many open connections\r\n";
    STATS_LOCK();
    stats.rejected_conns++;
    STATS_UNLOCK();
    if (send(fd, full, sizeof(full) - 1, MSG_DONTWAIT | MSG_NOSIGNAL) == -1 && settings.verbose)
        perror("megapipe: cannot send the error message to a refused connection");
    close(fd);
}

/* The kernel accepts while the ends of other connections are still in the completion queue. So
 * a connection above the limit waits until the worker has handled them. */
static void postpone(struct megapipe_share *share, int fd) {
    struct megapipe_worker *worker = share->worker;
    if (worker->postponed_count == MEGAPIPE_POSTPONED_MAX) {
        refuse(fd);
        return;
    }
    if (worker->postponed_count == 0)
        worker->postponed_turns = 0;
    worker->postponed[worker->postponed_count++] = (struct megapipe_postponed){share, fd};
}

/* If others have ended meanwhile, dup(2) finds a lower number. */
void megapipe_decide_postponed(struct megapipe_worker *worker) {
    const unsigned count = worker->postponed_count;
    worker->postponed_count = 0;
    for (unsigned i = 0; i < count; i++) {
        const int fd = worker->postponed[i].fd;
        const int lower = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (lower == -1 || megapipe_is_full(lower)) {
            refuse(fd);
            if (lower != -1)
                close(lower);
        } else {
            close(fd);
            welcome(worker->postponed[i].share, lower);
        }
    }
}

/* Without maxconns_fast no client is refused, and the main thread stops all accepting until a
 * connection ends. With it there is a descriptor for each refusal, but the kernel may need the
 * next one before the last has been closed; the channel then continues by itself. */
static void out_of_descriptors(void) {
    const uint64_t one = 1;
    if (!settings.maxconns_fast && write(exhausted_fd, &one, sizeof(one)) != sizeof(one))
        perror("megapipe: cannot wake the main thread");
}

void megapipe_accepted(struct megapipe_share *share, const struct mp_event *event) {
    if (event->error == 0) {
        megapipe_count(&share->worker->accepted);
        if (settings.maxconns_fast && megapipe_is_full(event->fd))
            postpone(share, event->fd);
        else
            welcome(share, event->fd);
    } else if (event->error == EMFILE || event->error == ENFILE) {
        out_of_descriptors();
    }
    if ((event->flags & MP_MORE) != 0)
        return;
    /* Accepting has ended: on request, or by an error after which it can continue. */
    share->accepting = false;
    atomic_fetch_sub(&accepts_filed, 1);
    megapipe_listeners_sync(share->worker);
}
