/* Declarations that the files of the adaptation share, and memcached's own sources do not use. */
#ifndef MEGAPIPE_INSIDE_H
#define MEGAPIPE_INSIDE_H

#include "memcached.h"
#include "queue.h"

#include <megapipe.h>
#include <stdatomic.h>

/* Maximum number of completions taken at a time. */
#define MEGAPIPE_BATCH 64

/* Number of requests between looking up a bucket, looking up its item, and answering: enough to
 * cover an access to memory, and few enough for the CPU to have all accesses in flight. */
#define MEGAPIPE_AHEAD 6

/* Maximum number of addresses on which a server can listen through the channel. */
#define MEGAPIPE_LISTENERS_MAX 64

/* Maximum size of messages that are copied and that memcached then treats as sent: running the
 * state machine a second time costs more than the copy. */
#ifndef MEGAPIPE_COPY_MAX_BYTES
#define MEGAPIPE_COPY_MAX_BYTES (16 * 1024)
#endif

/* Maximum number of copied bytes that wait for the end of the write in flight. A client that does
 * not read makes a worker hold these two, and memcached does not read its next requests. */
#define MEGAPIPE_COLLECTED_MAX_BYTES (8 * 1024)

/* Receives in a row whose requests memcached handled at once until the connection receives
 * repeatedly. Before, it receives one buffer at a time: a repeated receive takes all that a client
 * has sent, which a worker would keep for a client that does not read the answers. */
#define MEGAPIPE_CALM_MAX 7

/* Size of the channel's large buffers, one of which a client may leave unread. */
#define MEGAPIPE_LARGE_BUFFER_BYTES (32 * 1024)

/* How long the peer of a connection that memcached has closed may take none of the last answers. */
#define MEGAPIPE_LAST_WORDS_MS 20000

/* How long the end of the process waits for the workers to stop accepting. */
#define MEGAPIPE_STOP_MAX_MS 500

/* How long bind waits for an address: the kernel releases that of a killed server within 0.2 s. */
#define MEGAPIPE_BIND_MAX_MS 1000

struct megapipe_piece;

/* Maximum number of connections of a worker that wait for the ends of others, and of turns that
 * they wait. Turns are counted instead of time, which would also pass while the worker has no
 * CPU. */
#define MEGAPIPE_POSTPONED_MAX 1024
#define MEGAPIPE_POSTPONED_TURNS 64

/* Every cookie begins with its kind. */
enum megapipe_kind { MEGAPIPE_NOTIFY, MEGAPIPE_LISTENER, MEGAPIPE_STREAM, MEGAPIPE_READINESS };

struct megapipe_worker;

/* Descriptors by which other threads wake a worker: its queues of connections and of reads from
 * disk. */
#define MEGAPIPE_NOTIFIERS_MAX 2

struct megapipe_notifier {
    enum megapipe_kind kind;
    struct event *event;
    mp_handle handle;
};

/* State that only a connection with data to read or to send has, so idle ones take little
 * memory. */
struct megapipe_flow {
    SLIST_ENTRY(megapipe_flow) free_link;
    /* Bytes in a buffer of the channel, only while its completion is handled. */
    const char *leased;
    size_t leased_bytes;
    char *backlog; /* received and not yet read; NULL if there is none */
    size_t backlog_start, backlog_end, backlog_size;
    /* Writing. */
    struct megapipe_piece *sending;    /* the copied messages in flight */
    struct megapipe_piece *collecting; /* those that are sent next */
    bool collected_in_flight; /* they are in flight, too */
    bool borrows;          /* a request in flight sends from memcached's memory */
    bool borrowed_sent;    /* that request has completed, and memcached does not know it yet */
    size_t borrowed_bytes; /* its size */
    int64_t left_bytes;    /* after the close: what the peer has not acknowledged */
    int64_t progress_at_ms; /* when that was last seen to change */
};

struct megapipe_connection {
    enum megapipe_kind kind;
    int fd;
    struct megapipe_worker *worker;
    conn *c; /* NULL: memcached has closed it */
    mp_handle handle;
    struct megapipe_flow *flow; /* NULL while nothing is to be read or sent */
    int receive_error, send_error;
    union {
        TAILQ_ENTRY(megapipe_connection) ready_link;
        TAILQ_ENTRY(megapipe_connection) closing_link;
    };
    short poll_events;     /* requested readiness, for UDP and TLS */
    bool polling : 1;
    bool added : 1;        /* memcached wants its events */
    bool scheduled : 1;    /* in the worker's ready list */
    bool receiving : 1;    /* a receive is filed */
    bool stopping : 1;     /* that receive has been cancelled */
    bool ended : 1;        /* no more data will come: end of stream, or receive_error */
    bool repeats : 1;      /* the filed receive is a repeated one */
    unsigned calm : 3;     /* receives in a row whose requests were handled at once */
    bool nonblocking : 1;
    atomic_bool close_asked; /* a side thread that borrowed it wants it closed */
};

/* Limits the size, because a server may have very many idle connections. */
_Static_assert(sizeof(struct megapipe_connection) <= 72, "a record has become larger");

TAILQ_HEAD(megapipe_connections, megapipe_connection);

/* A worker's share of a listening socket. */
struct megapipe_share {
    enum megapipe_kind kind;
    struct megapipe_worker *worker;
    conn *listener; /* NULL: not seen yet */
    mp_handle handle; /* -1: none */
    bool accepting;
};

/* An accepted connection for which there seems to be no descriptor. */
struct megapipe_postponed {
    struct megapipe_share *share;
    int fd;
};

struct megapipe_worker {
    LIBEVENT_THREAD *thread;
    mp_channel *channel;
    char driver[32]; /* the channel's driver, for the statistics */
    int index;
    struct megapipe_notifier notifiers[MEGAPIPE_NOTIFIERS_MAX];
    int notifiers_count;
    bool stop;
    unsigned listeners_seen; /* the last seen generation of the table of listeners */
    struct megapipe_share shares[MEGAPIPE_LISTENERS_MAX];
    struct megapipe_connections ready;
    unsigned ready_count;
    struct megapipe_connections closing;
    int64_t closing_checked_at_ms;
    struct megapipe_postponed postponed[MEGAPIPE_POSTPONED_MAX];
    unsigned postponed_count;
    unsigned postponed_turns; /* turns since the first of them */
    SLIST_HEAD(, megapipe_piece) pieces; /* free ones, the most recently used first */
    unsigned pieces_free;
    SLIST_HEAD(, megapipe_flow) flows; /* free ones, too */
    unsigned flows_free;
    /* Written only by the worker, read by any thread's `stats megapipe`. */
    atomic_ulong accepted, sent_copied, sent_in_place, held_bytes;
};

static inline void megapipe_add(atomic_ulong *count, unsigned long more) {
    const unsigned long value = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, value + more, memory_order_relaxed);
}

static inline void megapipe_count(atomic_ulong *count) {
    megapipe_add(count, 1);
}

/* megapipe_workers.c */
/* Returns the worker of an event base, or NULL for a base of libevent. */
struct megapipe_worker *megapipe_worker_of(const struct event_base *base);

/* Makes the calling thread the worker's thread. */
void megapipe_worker_enter(struct megapipe_worker *worker);

/* Returns the worker that runs in the calling thread, or NULL. */
struct megapipe_worker *megapipe_worker_here(void);

/* Returns the number of workers, all of which are created before the first one runs. */
int megapipe_workers(void);
void megapipe_notify_workers(void);

/* Returns the time of a monotonic clock, to a few milliseconds. */
int64_t megapipe_now_ms(void);

/* Prints what failed, with the library's error text. */
void megapipe_complain(const char *what);

/* megapipe_worker.c */
int megapipe_watch_notifier(struct megapipe_worker *worker, struct event *event);

/* megapipe_listen.c */
void megapipe_listeners_sync(struct megapipe_worker *worker);
bool megapipe_listeners_changed(const struct megapipe_worker *worker);
void megapipe_accepted(struct megapipe_share *share, const struct mp_event *event);
void megapipe_decide_postponed(struct megapipe_worker *worker);
void megapipe_listener_event(const struct event *event, bool accepting);

/* megapipe_connection.c */
void megapipe_run_ready(struct megapipe_worker *worker);
void megapipe_readiness(struct megapipe_connection *connection, const struct mp_event *event);
void megapipe_received(struct megapipe_connection *connection, const struct mp_event *event);
void megapipe_wrote(struct megapipe_connection *connection, const struct mp_event *event);
void megapipe_finish(struct megapipe_connection *connection);
void megapipe_free(struct megapipe_connection *connection);
void megapipe_reap(struct megapipe_worker *worker);

/* megapipe_prefetch.c */
const void *megapipe_prefetch_bucket(const struct mp_event *event);
void megapipe_prefetch_item(const void *bucket);

/* megapipe_stream.c */
int megapipe_receive(struct megapipe_connection *connection);
bool megapipe_take_received(struct megapipe_connection *connection, const struct mp_event *event);
void megapipe_keep_received(struct megapipe_connection *connection);
void megapipe_balance_received(struct megapipe_connection *connection);
void megapipe_send_collected(struct megapipe_connection *connection);
void megapipe_take_written(struct megapipe_connection *connection, const struct mp_event *event);
bool megapipe_pending(const struct megapipe_connection *connection);
bool megapipe_writes(const struct megapipe_connection *connection);
void megapipe_flow_free(struct megapipe_connection *connection);
void megapipe_memory_free(struct megapipe_worker *worker);

#endif
