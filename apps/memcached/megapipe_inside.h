/* What the files of the adaptation share, and memcached's own sources do not see. */
#ifndef MEGAPIPE_INSIDE_H
#define MEGAPIPE_INSIDE_H

#include "memcached.h"
#include "queue.h"

#include <megapipe.h>
#include <stdatomic.h>

/* Completions taken at a time. */
#define MEGAPIPE_BATCH 64

/* Requests between looking for a bucket, looking for its item, and answering: enough to cover an
 * access to memory, and few enough for the CPU to have all of them under way. */
#define MEGAPIPE_AHEAD 6

/* Addresses that a server can listen on through the channel. */
#define MEGAPIPE_LISTENERS_MAX 64

/* A message up to this size is copied and thereby sent as far as memcached is concerned: running
 * the state machine a second time costs more than the copy. */
#ifndef MEGAPIPE_COPY_MAX_BYTES
#define MEGAPIPE_COPY_MAX_BYTES (16 * 1024)
#endif

/* Copied bytes in flight for each connection; more wait for a completion. */
#define MEGAPIPE_UNSENT_MAX_BYTES (2 * MEGAPIPE_COPY_MAX_BYTES)

/* Received bytes that memcached has not asked for yet; above it receiving stops, and the peer's
 * window closes. */
#define MEGAPIPE_BACKLOG_MAX_BYTES (64 * 1024)

/* How long a connection that memcached has closed may still take its last answers. */
#define MEGAPIPE_LAST_WORDS_MS 10000

/* How long the end of the process waits for the workers to stop accepting. */
#define MEGAPIPE_STOP_MAX_MS 500

/* How long an address is waited for: the kernel gives that of a killed server free within 0.2 s. */
#define MEGAPIPE_BIND_MAX_MS 1000

struct megapipe_piece;

/* Connections of a worker that wait for the ends of others, and for how many of its turns at most:
 * time would also pass while it has no CPU. */
#define MEGAPIPE_POSTPONED_MAX 1024
#define MEGAPIPE_POSTPONED_TURNS 64

/* Every cookie begins with its kind. */
enum megapipe_kind { MEGAPIPE_NOTIFY, MEGAPIPE_LISTENER, MEGAPIPE_STREAM, MEGAPIPE_READINESS };

struct megapipe_worker;

/* What only a connection has that has something to read or to send; so idle ones take little
 * memory. */
struct megapipe_flow {
    SLIST_ENTRY(megapipe_flow) free_link;
    /* Bytes in a buffer of the channel, only while its completion is handled. */
    const char *leased;
    size_t leased_bytes;
    char *backlog; /* received and not yet read; NULL if there is none */
    size_t backlog_start, backlog_end, backlog_size;
    /* Writing. */
    unsigned writes;       /* requests in flight */
    STAILQ_HEAD(, megapipe_piece) unsent; /* of which these are copies, in their order */
    size_t unsent_bytes;
    size_t borrowed_bytes; /* of the one that sends from memcached's memory; 0: none */
    bool borrowed_sent;    /* and it has completed */
    int64_t closed_at_ms;
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
    short poll_events;     /* readiness, for UDP and TLS */
    bool polling : 1;
    bool added : 1;        /* memcached wants its events */
    bool scheduled : 1;    /* in the worker's ready list */
    bool receiving : 1;    /* a receive is filed */
    bool stopping : 1;     /* and it has been cancelled */
    bool ended : 1;        /* no more data will come: end of stream, or receive_error */
    bool nonblocking : 1;
    atomic_bool close_asked; /* by a side thread that has borrowed it */
};

/* A server may have very many connections that do nothing. */
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

/* An accepted connection for which there seems to be no room. */
struct megapipe_postponed {
    struct megapipe_share *share;
    int fd;
};

struct megapipe_worker {
    LIBEVENT_THREAD *thread;
    mp_channel *channel;
    char driver[32]; /* what the channel runs on, for the statistics */
    int index;
    int notify_fd;
    megapipe_notified notified;
    enum megapipe_kind notify_kind;
    mp_handle notify_handle;
    bool stop;
    unsigned listeners_seen; /* the generation of the listeners' table that it knows */
    struct megapipe_share shares[MEGAPIPE_LISTENERS_MAX];
    struct megapipe_connections ready;
    unsigned ready_count;
    struct megapipe_connections closing;
    int64_t closing_checked_at_ms;
    struct megapipe_postponed postponed[MEGAPIPE_POSTPONED_MAX];
    unsigned postponed_count;
    unsigned postponed_turns; /* since the first of them */
    SLIST_HEAD(, megapipe_piece) pieces; /* free ones, the warmest first */
    unsigned pieces_free;
    SLIST_HEAD(, megapipe_flow) flows; /* free ones, too */
    unsigned flows_free;
    /* Written by the worker alone, read by any thread's `stats megapipe`. */
    atomic_ulong accepted, sent_copied, sent_in_place;
};

static inline void megapipe_count(atomic_ulong *count) {
    const unsigned long value = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, value + 1, memory_order_relaxed);
}

/* megapipe_workers.c */
/* NULL for a base of libevent's. */
struct megapipe_worker *megapipe_worker_of(const struct event_base *base);

/* Makes the calling thread the worker's. */
void megapipe_worker_enter(struct megapipe_worker *worker);

/* The worker that runs in the calling thread, or NULL. */
struct megapipe_worker *megapipe_worker_here(void);

/* How many workers there are, all made before the first one runs. */
int megapipe_workers(void);
void megapipe_notify_workers(void);

/* Of a clock that never goes back, to a few milliseconds. */
int64_t megapipe_now_ms(void);

/* Says what failed, with the library's own words. */
void megapipe_complain(const char *what);

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
void megapipe_take_written(struct megapipe_connection *connection, const struct mp_event *event);
bool megapipe_pending(const struct megapipe_connection *connection);
bool megapipe_writes(const struct megapipe_connection *connection);
void megapipe_flow_free(struct megapipe_connection *connection);
void megapipe_memory_free(struct megapipe_worker *worker);

#endif
