/* Adds connections to a worker's channel and removes them, and implements libevent's calls for
 * them. */
#include "megapipe_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* memcached itself reads datagrams and TLS records, and needs to know when they are there. */
static bool is_stream(const conn *c) {
#ifdef TLS
    if (c->ssl != NULL)
        return false;
#endif
    return !IS_UDP(c->transport);
}

static struct megapipe_connection *attach(struct megapipe_worker *worker, conn *c) {
    struct megapipe_connection *connection = calloc(1, sizeof(*connection));
    if (connection == NULL)
        return NULL;
    connection->kind = is_stream(c) ? MEGAPIPE_STREAM : MEGAPIPE_READINESS;
    connection->worker = worker;
    connection->c = c;
    connection->fd = c->sfd;
    connection->handle = mp_register(worker->channel, c->sfd, connection, NULL);
    if (connection->handle == -1) {
        free(connection);
        return NULL;
    }
    c->channel = connection;
    return connection;
}

static void schedule(struct megapipe_connection *connection) {
    if (connection->scheduled || !connection->added)
        return;
    connection->scheduled = true;
    TAILQ_INSERT_TAIL(&connection->worker->ready, connection, ready_link);
    connection->worker->ready_count++;
}

static void unschedule(struct megapipe_connection *connection) {
    if (!connection->scheduled)
        return;
    connection->scheduled = false;
    TAILQ_REMOVE(&connection->worker->ready, connection, ready_link);
    connection->worker->ready_count--;
}

/* libevent reports a wanted event repeatedly while it is there; a completion comes once. So a
 * connection gets another turn if bytes or an end were not read, or if it wants to write and no
 * request in flight will report that it can. */
static void schedule_what_is_left(struct megapipe_connection *connection) {
    if (connection->kind != MEGAPIPE_STREAM || !connection->added)
        return;
    const short flags = connection->c->ev_flags;
    if (((flags & EV_READ) != 0 && megapipe_pending(connection))
        || ((flags & EV_WRITE) != 0 && !megapipe_writes(connection)))
        schedule(connection);
}

static void drive(struct megapipe_connection *connection, short which) {
    conn *c = connection->c;
    event_get_callback(&c->event)(c->sfd, which, c);
    schedule_what_is_left(connection);
}

/* Gives each connection that is ready now one turn. Those that become ready meanwhile wait
 * until the worker has polled the channel, as they would with libevent. */
void megapipe_run_ready(struct megapipe_worker *worker) {
    for (unsigned turns = worker->ready_count; turns > 0; turns--) {
        struct megapipe_connection *connection = TAILQ_FIRST(&worker->ready);
        if (connection == NULL)
            break;
        unschedule(connection);
        drive(connection, connection->c->ev_flags & (EV_READ | EV_WRITE));
    }
}

/* Files one poll at a time: its completion, or that of its cancellation, files the next. */
static int poll_again(struct megapipe_connection *connection) {
    const short flags = connection->c->ev_flags;
    const short events = (flags & EV_READ ? POLLIN : 0) | (flags & EV_WRITE ? POLLOUT : 0);
    if (connection->polling) {
        if (events == connection->poll_events)
            return 0;
        return mp_cancel(connection->handle, 0);
    }
    if (mp_poll(connection->handle, events, 0) == -1)
        return -1;
    connection->polling = true;
    connection->poll_events = events;
    return 0;
}

void megapipe_readiness(struct megapipe_connection *connection, const struct mp_event *event) {
    connection->polling = false;
    if (connection->c == NULL || !connection->added)
        return;
    if (event->error != ECANCELED) {
        const short which = (event->revents & POLLOUT ? EV_WRITE : 0)
                            | (event->revents & ~(unsigned)POLLOUT ? EV_READ : 0);
        drive(connection, which);
    }
    if (connection->c != NULL && connection->added && poll_again(connection) == -1)
        megapipe_complain("cannot watch a connection");
}

int megapipe_event_base_set(struct event_base *base, struct event *event) {
    if (megapipe_worker_of(base) == NULL)
        return event_base_set(base, event);
    event->ev_base = base;
    return 0;
}

int megapipe_event_add(struct event *event, const struct timeval *timeout) {
    struct megapipe_worker *worker = megapipe_worker_of(event->ev_base);
    if (worker == NULL) {
        megapipe_listener_event(event, (event->ev_events & EV_READ) != 0);
        return event_add(event, timeout);
    }
    if (event_get_callback_arg(event) == worker->thread)
        return megapipe_watch_notifier(worker, event);
    conn *c = event_get_callback_arg(event);
    struct megapipe_connection *connection = c->channel != NULL ? c->channel : attach(worker, c);
    if (connection == NULL)
        return -1;
    connection->added = true;
    if (connection->kind == MEGAPIPE_READINESS)
        return poll_again(connection);
    schedule_what_is_left(connection);
    /* As long as bytes wait to be read, as those of a client that does not read its answers, no
     * further ones are received. */
    if (connection->receiving || megapipe_pending(connection))
        return 0;
    return megapipe_receive(connection);
}

int megapipe_event_del(struct event *event) {
    if (megapipe_worker_of(event->ev_base) == NULL)
        return event_del(event);
    conn *c = event_get_callback_arg(event);
    struct megapipe_connection *connection = c->channel;
    /* The channel of a worker that has stopped no longer exists, and neither do its requests. */
    if (connection == NULL || connection->worker->channel == NULL)
        return 0;
    connection->added = false;
    unschedule(connection);
    if (connection->kind == MEGAPIPE_READINESS && connection->polling)
        return mp_cancel(connection->handle, 0);
    return 0;
}

void megapipe_event_active(struct event *event) {
    const conn *c = event_get_callback_arg(event);
    if (megapipe_worker_of(event->ev_base) == NULL)
        event_active(event, 0, 0);
    else
        schedule(c->channel);
}

void megapipe_lend(conn *c) {
    struct megapipe_connection *connection = c->channel;
    if (connection == NULL)
        return;
    megapipe_send_collected(connection);
    if (megapipe_writes(connection))
        mp_flush(connection->worker->channel);
    if (!connection->nonblocking) {
        const int flags = fcntl(connection->fd, F_GETFL);
        connection->nonblocking =
            flags != -1 && fcntl(connection->fd, F_SETFL, flags | O_NONBLOCK) == 0;
    }
}

/* memcached sets the state here. The worker may not have returned from the command that lent
 * the connection: it would see the state, close the connection, and close it again when it is
 * returned. */
void megapipe_close_lent(conn *c) {
    if (c->channel != NULL)
        atomic_store(&c->channel->close_asked, true);
    else
        c->state = conn_closing;
}

void megapipe_returned(conn *c) {
    if (c->channel != NULL && atomic_load(&c->channel->close_asked))
        c->state = conn_closing;
}

void megapipe_free(struct megapipe_connection *connection) {
    megapipe_flow_free(connection);
    free(connection);
}

/* Ends a connection: discards what is in flight and resets it. Its memory is free when the
 * channel reports the close. */
void megapipe_finish(struct megapipe_connection *connection) {
    struct megapipe_worker *worker = connection->worker;
    const bool is_whole = !megapipe_writes(connection) && connection->send_error == 0;
    if (worker->channel == NULL) {
        close(connection->fd);
        megapipe_free(connection);
    } else if ((is_whole ? mp_close(connection->handle) : mp_abort(connection->handle)) == -1) {
        megapipe_complain("cannot close a connection");
    }
}

void megapipe_close(conn *c) {
    struct megapipe_connection *connection = c->channel;
    c->channel = NULL;
    if (connection == NULL) {
        close(c->sfd);
        return;
    }
    connection->c = NULL;
    connection->added = false;
    unschedule(connection);
    if (connection->flow != NULL)
        connection->flow->leased_bytes = 0;
    if (!megapipe_writes(connection) || connection->worker->channel == NULL) {
        megapipe_finish(connection);
        return;
    }
    connection->flow->left_bytes = 0;
    TAILQ_INSERT_TAIL(&connection->worker->closing, connection, closing_link);
}

/* Handles a completion of mp_recv. */
void megapipe_received(struct megapipe_connection *connection, const struct mp_event *event) {
    const bool reads = megapipe_take_received(connection, event);
    if (connection->c == NULL)
        return;
    if (reads && connection->added && (connection->c->ev_flags & EV_READ) != 0)
        drive(connection, EV_READ);
    megapipe_keep_received(connection);
    if (connection->c == NULL)
        return;
    if (megapipe_pending(connection) && (connection->c->ev_flags & EV_READ) != 0)
        schedule(connection);
    megapipe_balance_received(connection);
}

/* Handles a completion of mp_write or mp_writev. */
void megapipe_wrote(struct megapipe_connection *connection, const struct mp_event *event) {
    megapipe_take_written(connection, event);
    if (connection->c == NULL) {
        if (!megapipe_writes(connection)) {
            TAILQ_REMOVE(&connection->worker->closing, connection, closing_link);
            megapipe_finish(connection);
        }
    } else if (connection->added && (connection->c->ev_flags & EV_WRITE) != 0) {
        drive(connection, EV_WRITE);
    }
}

/* Returns the number of bytes that the peer has not acknowledged. A write makes progress only when
 * a third of the socket's buffer is free, which takes a slow peer long. */
static int64_t left_bytes(const struct megapipe_connection *connection) {
    int unacknowledged = 0;
    ioctl(connection->fd, TIOCOUTQ, &unacknowledged);
    return mp_queued(connection->handle) + unacknowledged;
}

/* Closes connections whose peers take none of their last answers; checks once a second. */
void megapipe_reap(struct megapipe_worker *worker) {
    struct megapipe_connection *connection, *next;
    const int64_t now_ms = megapipe_now_ms();
    if (now_ms - worker->closing_checked_at_ms < 1000)
        return;
    worker->closing_checked_at_ms = now_ms;
    TAILQ_FOREACH_SAFE(connection, &worker->closing, closing_link, next) {
        struct megapipe_flow *flow = connection->flow;
        const int64_t left = left_bytes(connection);
        if (left != flow->left_bytes) {
            flow->left_bytes = left;
            flow->progress_at_ms = now_ms;
        }
        if (now_ms - flow->progress_at_ms < MEGAPIPE_LAST_WORDS_MS)
            continue;
        TAILQ_REMOVE(&worker->closing, connection, closing_link);
        megapipe_finish(connection);
    }
}
