/*
 * Declares an event module for nginx whose I/O goes through a MegaPipe channel.
 *
 * A worker has one channel. Plain TCP connections of HTTP servers are *channel connections*: they
 * are accepted, received and sent as completions. Everything else (TLS, HTTP/2, upstreams, mail,
 * stream, UDP) is a *readiness connection*: the channel reports when its descriptor is ready, and
 * nginx's own functions do the I/O.
 */
#ifndef NGX_MEGAPIPE_H
#define NGX_MEGAPIPE_H

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#include <megapipe.h>
#include <poll.h>

/*
 * Maximum number of bytes that are copied at once; a larger response goes through the descriptor.
 */
#define NGX_MP_BLOCK_BYTES_MAX 65536

/*
 * Size of the block that collects the output behind the write in flight. A client that does not
 * read makes a worker hold one block of each kind, and nginx stops serving it when both are full.
 */
#define NGX_MP_COLLECTED_BYTES_MAX 16384

/* Handles of a channel, and room for those that nginx does not count, such as queues. */
#define NGX_MP_HANDLES_MAX ((1 << 20) - 1)
#define NGX_MP_OTHER_HANDLES_MAX 1024
#define NGX_MP_CONNECTIONS_MAX (NGX_MP_HANDLES_MAX - NGX_MP_OTHER_HANDLES_MAX)

/* Size from which copying a file costs more than a descriptor and sendfile. */
#define NGX_MP_FILE_COPY_BYTES_MAX 4096

/*
 * Receives in a row that nginx has read at once until the connection receives repeatedly. Before,
 * it receives one buffer at a time: a repeating receive takes all that a client has sent, which a
 * worker would keep for a client that does not read the responses.
 */
#define NGX_MP_CALM_MAX 7

/*
 * Buffers of the channel that unread data may occupy in a worker; further data is copied. The
 * channel has 64 large and 1,024 small ones, which all its connections need to receive.
 */
#define NGX_MP_LEASED_MAX 32

/*
 * Size of the channel's large buffers: nginx reads request bodies in parts of this size, and a
 * client may leave one buffer unread.
 */
#define NGX_MP_LARGE_BUFFER_BYTES 16384

typedef enum {
    NGX_MP_LISTENER,
    NGX_MP_CHANNEL,
    NGX_MP_READINESS,
    NGX_MP_NOTIFIER
} ngx_mp_kind_e;

/* Memory for sending, from free lists. */
typedef struct ngx_mp_block_s {
    struct ngx_mp_block_s *next;
    size_t room_bytes;
    size_t used_bytes;
    u_char data[];
} ngx_mp_block_t;

/* Data that nginx has not read yet, in a buffer of the channel or in a copy. */
typedef struct ngx_mp_received_s {
    struct ngx_mp_received_s *next;
    u_char *position;
    u_char *last;
    int64_t buffer; /* -1 for a copy */
    u_char *copy;
} ngx_mp_received_t;

typedef struct ngx_mp_connection_s ngx_mp_connection_t;

typedef struct {
    ngx_event_t event;
    ngx_mp_connection_t *mc;
} ngx_mp_timer_t;

/*
 * State that only a connection with output or unread input has, so idle ones take little memory.
 */
typedef struct ngx_mp_flow_s {
    ngx_mp_received_t *received;
    ngx_mp_received_t **received_end;

    ngx_mp_block_t *sending;    /* the channel writes it */
    ngx_mp_block_t *collecting; /* the next write sends it */
    ngx_msec_t send_timeout_ms; /* of the location */

    ngx_mp_timer_t timer; /* limits the last writes after nginx has closed the connection */
    int64_t left_bytes;   /* when the timer last expired; at first 0 */
    struct ngx_mp_flow_s *next; /* in the free list */
} ngx_mp_flow_t;

/* State that only a listener has. */
typedef struct {
    ngx_listening_t *listening;
    ngx_mp_connection_t *sibling; /* the next one */
    ngx_queue_t queue;            /* in the list of listeners by completions */
    ngx_mp_timer_t timer;         /* limits a pause or a cancellation */

    unsigned accepting : 1;
    unsigned wanted : 1;
    unsigned stopping : 1;   /* its last completion ends the listener */
    unsigned completion : 1; /* its connections become channel connections */
    unsigned is_sibling : 1;
    unsigned shared : 1; /* other workers accept from its queue, too */
} ngx_mp_listener_t;

/* The module's record of a connection; it outlives nginx's until the last write has ended. */
struct ngx_mp_connection_s {
    ngx_connection_t *connection; /* NULL when nginx has closed it */
    mp_handle handle;
    union {
        ngx_mp_flow_t *flow;         /* of NGX_MP_CHANNEL; NULL while it is idle */
        ngx_mp_listener_t *listener; /* of NGX_MP_LISTENER */
        ngx_mp_connection_t *next;   /* of a free or retired record */
    };
    ngx_socket_t fd; /* closed with the record: the accepted descriptor, else -1 */
    uint32_t receiving_since; /* the batch of completions before the receive was filed */
    uint16_t receive_error;
    uint16_t send_error;

    unsigned kind : 2;   /* ngx_mp_kind_e */
    unsigned unseen : 3; /* edges that nginx did not request: POLLIN, POLLOUT */
    unsigned lightweight : 1;
    unsigned receiving : 1;
    unsigned ended : 1;  /* the stream's end has been received */
    unsigned calm : 3;   /* receives in a row that nginx has read at once */
    unsigned polling : 1;
};

/* Limits the size, because a worker may have very many idle connections. */
_Static_assert(sizeof(ngx_mp_connection_t) <= 40, "a record has become larger");

/* The directives of the events block. */
typedef struct {
    ngx_uint_t driver;
    ngx_int_t batch;
    ngx_int_t completions;
    ngx_flag_t lightweight;
    ngx_flag_t partition;
} ngx_mp_conf_t;

/* The reasons why a connection needed a descriptor, for the counters. */
typedef enum {
    NGX_MP_LARGE,
    NGX_MP_LINGER,
    NGX_MP_UNREAD,
    NGX_MP_RESET,
    NGX_MP_ADDRESS,
    NGX_MP_REASONS
} ngx_mp_reason_e;

/* The counters of a worker; written to the log when it ends. */
typedef struct {
    uint64_t lightweight;
    uint64_t descriptors;
    uint64_t readiness;
    uint64_t upgrades[NGX_MP_REASONS];
} ngx_mp_counts_t;

/* records.c */
extern mp_channel *ngx_mp_channel;
extern ngx_mp_counts_t ngx_mp_counts;
/* Whether there are fewer descriptors than connections. */
extern ngx_uint_t ngx_mp_descriptors_are_few;
/* Whether the configuration permits lightweight sockets. */
extern ngx_uint_t ngx_mp_lightweight;
ngx_mp_connection_t *ngx_mp_new(ngx_connection_t *c, ngx_mp_kind_e kind);
void ngx_mp_retire(ngx_mp_connection_t *mc);
void ngx_mp_reuse_retired(void);
ngx_int_t ngx_mp_register(ngx_mp_connection_t *mc, ngx_log_t *log);
void ngx_mp_deliver(ngx_event_t *ev, ngx_uint_t flags);
void ngx_mp_failed(ngx_log_t *log, ngx_uint_t level, const char *what);
void ngx_mp_add_timer(ngx_mp_connection_t *mc, ngx_mp_timer_t *timer,
    ngx_event_handler_pt handler, ngx_msec_t timeout_ms);
void ngx_mp_del_timer(ngx_mp_timer_t *timer);
ngx_mp_connection_t *ngx_mp_of_timer(ngx_event_t *ev);
ngx_int_t ngx_mp_upgrade(ngx_connection_t *c, ngx_mp_reason_e reason);

/* nginx leaves this field of an event to the event module. */
static ngx_inline ngx_mp_connection_t *
ngx_mp_of(ngx_connection_t *c)
{
    ngx_uint_t index = c->read->index;
    return index == NGX_INVALID_INDEX ? NULL : (ngx_mp_connection_t *) index;
}

static ngx_inline ngx_uint_t
ngx_mp_has_received(const ngx_mp_connection_t *mc)
{
    return mc->flow != NULL && mc->flow->received != NULL;
}

static ngx_inline size_t
ngx_mp_in_flight_bytes(const ngx_mp_connection_t *mc)
{
    const ngx_mp_flow_t *flow = mc->flow;

    if (flow == NULL || flow->sending == NULL) {
        return 0;
    }
    return flow->sending->used_bytes
           + (flow->collecting != NULL ? flow->collecting->used_bytes : 0);
}

/* events.c: the event actions */
struct mp_options ngx_mp_options(ngx_cycle_t *cycle, const ngx_mp_conf_t *conf);
ngx_int_t ngx_mp_open(ngx_cycle_t *cycle, const ngx_mp_conf_t *conf);
void ngx_mp_finish(ngx_cycle_t *cycle);
ngx_int_t ngx_mp_add_event(ngx_event_t *ev, ngx_int_t event, ngx_uint_t flags);
ngx_int_t ngx_mp_del_event(ngx_event_t *ev, ngx_int_t event, ngx_uint_t flags);
ngx_int_t ngx_mp_add_connection(ngx_connection_t *c);
ngx_int_t ngx_mp_del_connection(ngx_connection_t *c, ngx_uint_t flags);
ngx_int_t ngx_mp_process_events(ngx_cycle_t *cycle, ngx_msec_t timer, ngx_uint_t flags);

/* accept.c */
ngx_int_t ngx_mp_listen(ngx_event_t *ev);
void ngx_mp_unlisten(ngx_event_t *ev, ngx_uint_t flags);
void ngx_mp_accept_descriptors(void);
void ngx_mp_accepted(ngx_mp_connection_t *mc, struct mp_event *done, ngx_uint_t flags);

/* connection.c */
void ngx_mp_new_connection(ngx_listening_t *ls, int fd);
ngx_int_t ngx_mp_peer_known(ngx_mp_connection_t *mc, struct mp_event *done);

/* receive.c */
ngx_int_t ngx_mp_start_receiving(ngx_mp_connection_t *mc);
void ngx_mp_received(ngx_mp_connection_t *mc, struct mp_event *done);
void ngx_mp_deliver_received(ngx_uint_t flags);
extern uint32_t ngx_mp_batch_number;
void ngx_mp_drop_received(ngx_mp_connection_t *mc);
ssize_t ngx_mp_recv(ngx_connection_t *c, u_char *buffer, size_t size);
ssize_t ngx_mp_recv_chain(ngx_connection_t *c, ngx_chain_t *in, off_t limit);

/* send.c */
void ngx_mp_written(ngx_mp_connection_t *mc, struct mp_event *done, ngx_uint_t flags);
void ngx_mp_drop_sending(ngx_mp_flow_t *flow);
ssize_t ngx_mp_send(ngx_connection_t *c, u_char *buffer, size_t size);
ngx_chain_t *ngx_mp_send_chain(ngx_connection_t *c, ngx_chain_t *in, off_t limit);

/* blocks.c */
ngx_mp_block_t *ngx_mp_take_block(size_t bytes, ngx_log_t *log);
void ngx_mp_give_block(ngx_mp_block_t *block);
ngx_mp_received_t *ngx_mp_take_received(ngx_log_t *log);
void ngx_mp_give_received(ngx_mp_received_t *received);
ngx_mp_flow_t *ngx_mp_take_flow(ngx_mp_connection_t *mc, ngx_log_t *log);
void ngx_mp_give_empty_flow(ngx_mp_connection_t *mc);

/* close.c */
void ngx_mp_close(ngx_connection_t *c);
void ngx_mp_flushed(ngx_mp_connection_t *mc);
void ngx_mp_closed(ngx_mp_connection_t *mc);
ngx_uint_t ngx_mp_flushing(void);

/* readiness.c */
ngx_int_t ngx_mp_watch(ngx_connection_t *c, ngx_event_t *ev);
ngx_uint_t ngx_mp_is_ready(ngx_socket_t fd, short events);
ngx_int_t ngx_mp_poll(ngx_mp_connection_t *mc, unsigned events);
void ngx_mp_polled(ngx_mp_connection_t *mc, struct mp_event *done, ngx_uint_t flags);
ngx_socket_t ngx_mp_eventfd(int flags, ngx_log_t *log);
ngx_int_t ngx_mp_notify_init(ngx_log_t *log);
ngx_int_t ngx_mp_notify(ngx_event_handler_pt handler);
void ngx_mp_notified(struct mp_event *done, ngx_uint_t flags);
void ngx_mp_notify_done(void);

/* http.c */
ngx_uint_t ngx_mp_takes_completions(ngx_listening_t *ls, ngx_uint_t *needs_descriptors);
ngx_uint_t ngx_mp_ends_connection(ngx_connection_t *c);
ngx_uint_t ngx_mp_may_linger(ngx_connection_t *c);

/* partition.c */
ngx_int_t ngx_mp_partition(ngx_cycle_t *cycle, ngx_uint_t wanted);
ngx_uint_t ngx_mp_serves_original(ngx_socket_t fd);
ngx_uint_t ngx_mp_siblings(ngx_socket_t fd, const int **siblings);
ngx_uint_t ngx_mp_count_descriptors(void);
void ngx_mp_close_other_queues(ngx_cycle_t *cycle);
u_char *ngx_mp_print_groups(u_char *p);
ngx_int_t ngx_mp_add_queue(ngx_socket_t listener, int queue, ngx_log_t *log);
void ngx_mp_dissolve(ngx_log_t *log);

/* takeover.c */
ngx_int_t ngx_mp_share_turns(ngx_uint_t workers, ngx_log_t *log);
ngx_uint_t ngx_mp_watched_worker(const ngx_core_conf_t *ccf);
ngx_int_t ngx_mp_watch_queues(ngx_cycle_t *cycle);
ngx_msec_t ngx_mp_check_worker(ngx_msec_t interval_ms);

/* inherit.c */
void ngx_mp_inherit(ngx_cycle_t *cycle);
ngx_int_t ngx_mp_bequeath(ngx_cycle_t *cycle);
void ngx_mp_leave_queues(ngx_cycle_t *cycle);

#endif
