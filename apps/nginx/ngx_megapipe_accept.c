/*
 * Listens: by completions for HTTP servers, by polling for everything else. A worker listens on its
 * own queues of a partitioned socket; each has a connection of nginx like a socket's own.
 */
#include "ngx_megapipe.h"
#include <netinet/tcp.h>

/* How long the cancellation of a listener may take. */
#define NGX_MP_STOP_TIMEOUT_MS 1000

/* How often a worker checks for a waiting connection that the kernel did not report to it. */
#define NGX_MP_LOOK_MS 1000

/* Maximum number of connections taken from a queue at once without the channel. */
#define NGX_MP_TAKEN_MAX 64

static void ngx_mp_take_waiting(ngx_mp_connection_t *mc);
static void ngx_mp_look(ngx_event_t *ev);

static ngx_queue_t ngx_mp_listeners;
static ngx_event_t ngx_mp_look_timer;
static ngx_connection_t ngx_mp_look_connection;

static ngx_uint_t ngx_mp_is_served_elsewhere(ngx_listening_t *ls);
static ngx_mp_connection_t *ngx_mp_new_listener(ngx_connection_t *c, ngx_socket_t fd);
static ngx_int_t ngx_mp_add_siblings(ngx_mp_connection_t *first);
static ngx_int_t ngx_mp_accept(ngx_mp_connection_t *mc);
static void ngx_mp_accept_again(ngx_event_t *ev);
static void ngx_mp_accept_failed(ngx_mp_connection_t *mc, struct mp_event *done);
static void ngx_mp_stop(ngx_mp_connection_t *mc);
static void ngx_mp_stop_timed_out(ngx_event_t *ev);
static void ngx_mp_stopped(ngx_mp_connection_t *mc);

/* Starts to listen, on all queues of this worker. */
ngx_int_t
ngx_mp_listen(ngx_event_t *ev)
{
    ngx_connection_t *c = ev->data;
    ngx_core_conf_t *ccf;
    ngx_mp_connection_t *mc = ngx_mp_of(c);
    const int *siblings;
    ngx_uint_t count;

    if (mc == NULL && ngx_mp_is_served_elsewhere(c->listening)) {
        ev->active = 1;
        return NGX_OK;
    }
    if (mc == NULL) {
        count = ngx_mp_siblings(c->listening->fd, &siblings);
        mc = ngx_mp_new_listener(
            c, ngx_mp_serves_original(c->listening->fd) ? c->fd : (ngx_socket_t) -1);
        if (mc == NULL || (count > 0 && ngx_mp_add_siblings(mc) != NGX_OK)) {
            return NGX_ERROR;
        }
        ccf = (ngx_core_conf_t *) ngx_get_conf(ngx_cycle->conf_ctx, ngx_core_module);
        mc->listener->shared = count == 0 && ccf->worker_processes > 1 && !c->listening->reuseport
                               && !ngx_use_accept_mutex;
    }
    ev->active = 1;
    for (; mc != NULL; mc = mc->listener->sibling) {
        mc->listener->wanted = 1;
        if (ngx_mp_accept(mc) != NGX_OK) {
            return NGX_ERROR;
        }
    }
    return NGX_OK;
}

/*
 * nginx keeps a client of UDP in the worker that got its first datagram, so one worker has to get
 * all of them. With `reuseport` the kernel ensures this.
 */
static ngx_uint_t
ngx_mp_is_served_elsewhere(ngx_listening_t *ls)
{
    ngx_core_conf_t *ccf = (ngx_core_conf_t *) ngx_get_conf(ngx_cycle->conf_ctx, ngx_core_module);
    ngx_listening_t *first = ngx_cycle->listening.elts;

    return ls->type == SOCK_DGRAM && !ls->reuseport && !ngx_use_accept_mutex && ccf->master
           && (ngx_uint_t) (ls - first) % ccf->worker_processes != ngx_worker;
}

static ngx_mp_connection_t *
ngx_mp_new_listener(ngx_connection_t *c, ngx_socket_t fd)
{
    ngx_uint_t needs_descriptors = 0;
    ngx_mp_connection_t *mc = ngx_mp_new(c, NGX_MP_LISTENER);
    int on = 1;

    if (mc == NULL) {
        return NULL;
    }
    mc->listener = ngx_calloc(sizeof(ngx_mp_listener_t), c->log);
    if (mc->listener == NULL) {
        return NULL;
    }
    mc->listener->listening = c->listening;
    mc->listener->timer.mc = mc;
    mc->listener->completion = ngx_mp_takes_completions(c->listening, &needs_descriptors);
    mc->lightweight = mc->listener->completion && ngx_mp_lightweight && !needs_descriptors;
    if (mc->listener->completion) {
        /*
         * Connections inherit the option; setting it on a lightweight one would cost a call each.
         */
        if (setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == -1) {
            ngx_log_error(NGX_LOG_WARN, c->log, ngx_socket_errno,
                          "setsockopt(TCP_NODELAY) of %V failed", &c->listening->addr_text);
        }
    }
    if (fd != (ngx_socket_t) -1) {
        /*
         * nginx closes its descriptor before the channel has released the socket, and a new
         * connection may have the number by then. The descriptors of siblings belong to the worker.
         */
        mc->fd = fd == c->listening->fd ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : (ngx_socket_t) -1;
        if (fd == c->listening->fd && mc->fd == (ngx_socket_t) -1) {
            ngx_log_error(NGX_LOG_ALERT, c->log, ngx_errno,
                          "megapipe: cannot duplicate the listening socket of %V; raise "
                          "worker_rlimit_nofile", &c->listening->addr_text);
            return NULL;
        }
        if (ngx_mp_register(mc, c->log) != NGX_OK) {
            return NULL;
        }
    }
    if (ngx_mp_listeners.next == NULL) {
        ngx_queue_init(&ngx_mp_listeners);
    }
    if (mc->listener->completion && mc->handle != -1) {
        ngx_queue_insert_tail(&ngx_mp_listeners, &mc->listener->queue);
    }
    ngx_mp_look(&ngx_mp_look_timer);
    return mc;
}

/*
 * The kernel notifies one of the rings that accept from a socket. If that ring is cancelling its
 * accept, or its process has been killed, no other ring is notified, and the connection would wait
 * for the next one.
 */
static void
ngx_mp_look(ngx_event_t *ev)
{
    ngx_queue_t *q;
    ngx_mp_connection_t *mc;
    ngx_mp_listener_t *listener;

    for (q = ngx_queue_head(&ngx_mp_listeners);
         ev->timedout && q != ngx_queue_sentinel(&ngx_mp_listeners); q = ngx_queue_next(q))
    {
        listener = ngx_queue_data(q, ngx_mp_listener_t, queue);
        mc = listener->timer.mc;
        if (listener->wanted && mc->connection != NULL) {
            ngx_mp_take_waiting(mc);
            /* If a queue of the channel was full, the next check files the request. */
            (void) ngx_mp_accept(mc);
        }
    }
    ev->timedout = 0;
    if (!ev->timer_set && !ngx_exiting) {
        ngx_mp_look_connection.fd = (ngx_socket_t) -1;
        ev->handler = ngx_mp_look;
        ev->data = &ngx_mp_look_connection;
        ev->log = ngx_cycle->log;
        ev->cancelable = 1;
        ngx_add_timer(ev, ngx_mp_check_worker(NGX_MP_LOOK_MS));
    }
}

/* Accepts waiting connections without the channel. */
static void
ngx_mp_take_waiting(ngx_mp_connection_t *mc)
{
    ngx_socket_t fd = mc->fd != (ngx_socket_t) -1 ? mc->fd : mc->connection->fd;
    ngx_uint_t taken;
    int accepted;

    for (taken = 0; taken < NGX_MP_TAKEN_MAX; taken++) {
        accepted = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (accepted == -1) {
            return;
        }
        ngx_mp_new_connection(mc->listener->listening, accepted);
    }
}

/* Finds the queues of a partitioned socket that belong to this worker. */
static ngx_int_t
ngx_mp_add_siblings(ngx_mp_connection_t *first)
{
    ngx_connection_t *original = first->connection, *c;
    ngx_core_conf_t *ccf;
    ngx_mp_connection_t *mc;
    const int *siblings;
    ngx_uint_t i, count;

    ccf = (ngx_core_conf_t *) ngx_get_conf(ngx_cycle->conf_ctx, ngx_core_module);
    count = ngx_mp_siblings(original->listening->fd, &siblings);
    for (i = 0; i < count; i++) {
        if (i % ccf->worker_processes != ngx_worker) {
            continue;
        }
        c = ngx_get_connection(siblings[i], original->log);
        if (c == NULL) {
            return NGX_ERROR;
        }
        c->type = original->type;
        c->listening = original->listening;
        c->read->log = original->log;
        c->read->accept = 1;
        c->read->deferred_accept = original->read->deferred_accept;
        c->read->handler = original->read->handler;
        c->read->active = 1;
        mc = ngx_mp_new_listener(c, siblings[i]);
        if (mc == NULL) {
            return NGX_ERROR;
        }
        mc->listener->is_sibling = 1;
        mc->listener->sibling = first->listener->sibling;
        first->listener->sibling = mc;
    }
    return NGX_OK;
}

/* Files the missing request of a listener. */
static ngx_int_t
ngx_mp_accept(ngx_mp_connection_t *mc)
{
    ngx_mp_listener_t *listener = mc->listener;
    /*
     * All, or one at a time: from a queue that workers share, because one of them would get a whole
     * burst; or if the descriptors are needed for the files of earlier connections.
     */
    int count = listener->shared || (!mc->lightweight && ngx_mp_descriptors_are_few);

    if (mc->handle == -1 || listener->accepting) {
        return NGX_OK;
    }
    if (listener->completion ? mp_accept(mc->handle, count, mc->lightweight) == -1
                             : mp_poll(mc->handle, POLLIN, 0) == -1)
    {
        ngx_mp_failed(mc->connection->log, NGX_LOG_ALERT, "listening");
        return NGX_ERROR;
    }
    listener->accepting = 1;
    return NGX_OK;
}

/*
 * Accepts again after a pause. The timer belongs to the record, because nginx frees the connection
 * of a paused listener, with its timers, without a call to the event module.
 */
static void
ngx_mp_accept_again(ngx_event_t *ev)
{
    ngx_mp_connection_t *mc = ngx_mp_of_timer(ev);

    if (!ngx_exiting) {
        (void) ngx_mp_listen(mc->connection->read);
    }
}

/* Stops listening; connections that the channel has accepted already are still served. */
void
ngx_mp_unlisten(ngx_event_t *ev, ngx_uint_t flags)
{
    ngx_connection_t *c = ev->data;
    ngx_mp_connection_t *first = ngx_mp_of(c), *mc, *next;

    ev->active = 0;
    for (mc = first; mc != NULL; mc = next) {
        next = mc->listener->sibling;
        mc->listener->wanted = 0;
        if (mc->listener->accepting) {
            (void) mp_cancel(mc->handle, 0);
        }
        /* Otherwise it is permanent: nginx closes the socket, or has another connection for it. */
        if (!(flags & NGX_DISABLE_EVENT)) {
            mc->listener->sibling = NULL;
            mc->connection = mc->listener->is_sibling ? mc->connection : NULL;
            ngx_mp_stop(mc);
        }
    }
    if (!(flags & NGX_DISABLE_EVENT) && first != NULL) {
        ev->index = NGX_INVALID_INDEX;
        (void) mp_flush(ngx_mp_channel);
    }
}

/* Without timers a worker would end before the channel has delivered what it had accepted. */
static void
ngx_mp_stop(ngx_mp_connection_t *mc)
{
    ngx_mp_del_timer(&mc->listener->timer);
    if (!mc->listener->accepting) {
        ngx_mp_stopped(mc);
        return;
    }
    mc->listener->stopping = 1;
    ngx_mp_add_timer(mc, &mc->listener->timer, ngx_mp_stop_timed_out, NGX_MP_STOP_TIMEOUT_MS);
}

static void
ngx_mp_stop_timed_out(ngx_event_t *ev)
{
    ngx_mp_stopped(ngx_mp_of_timer(ev));
}

/* Releases a listener whose last completion has arrived, and whose socket nginx has released. */
static void
ngx_mp_stopped(ngx_mp_connection_t *mc)
{
    ngx_connection_t *c = mc->connection;

    ngx_mp_del_timer(&mc->listener->timer);
    if (mc->listener->completion && mc->handle != -1) {
        ngx_queue_remove(&mc->listener->queue);
        if (mc->fd != (ngx_socket_t) -1 || c != NULL) {
            ngx_mp_take_waiting(mc);
        }
    }
    mc->connection = NULL;
    ngx_mp_retire(mc);
    if (c != NULL) {
        c->read->index = NGX_INVALID_INDEX;
        ngx_free_connection(c);
        (void) ngx_close_socket(c->fd);
        c->fd = (ngx_socket_t) -1;
    }
}

/* Stops accepting lightweight sockets, on all listeners. */
void
ngx_mp_accept_descriptors(void)
{
    ngx_queue_t *q;
    ngx_mp_connection_t *mc;

    for (q = ngx_queue_head(&ngx_mp_listeners); q != ngx_queue_sentinel(&ngx_mp_listeners);
         q = ngx_queue_next(q))
    {
        mc = ((ngx_mp_listener_t *) ngx_queue_data(q, ngx_mp_listener_t, queue))->timer.mc;
        if (!mc->lightweight) {
            continue;
        }
        mc->lightweight = 0;
        /* The last completion of the current accept files it again. */
        if (mc->listener->accepting && mp_cancel(mc->handle, 0) == -1) {
            ngx_mp_failed(ngx_cycle->log, NGX_LOG_ALERT, "mp_cancel()");
        }
    }
}

/* Handles a completion of a listener. */
void
ngx_mp_accepted(ngx_mp_connection_t *mc, struct mp_event *done, ngx_uint_t flags)
{
    if (!(done->flags & MP_MORE)) {
        mc->listener->accepting = 0;
    }
    if (done->cmd == MP_POLL) {
        if (done->error == 0 && mc->listener->wanted) {
            mc->connection->read->ready = 1;
            ngx_mp_deliver(mc->connection->read, flags);
        }
    } else if (done->error == 0) {
        ngx_mp_new_connection(mc->listener->listening, done->fd);
    } else if (done->error != ECANCELED && mc->listener->wanted) {
        ngx_mp_accept_failed(mc, done);
    }

    if (mc->handle == -1 || mc->listener->accepting) {
        return;
    }
    if (mc->listener->wanted) {
        (void) ngx_mp_accept(mc);
    } else if (mc->listener->stopping) {
        ngx_mp_stopped(mc);
    }
}

static void
ngx_mp_accept_failed(ngx_mp_connection_t *mc, struct mp_event *done)
{
    int error = done->error;
    ngx_connection_t *c = mc->listener->listening->connection;
    ngx_mp_connection_t *first = ngx_mp_of(c);
    ngx_event_conf_t *ecf = ngx_event_get_conf(ngx_cycle->conf_ctx, ngx_event_core_module);
    ngx_uint_t level = NGX_LOG_ALERT;

    if (error == ECONNABORTED) {
        level = NGX_LOG_ERR;
    } else if (error == EMFILE || error == ENFILE || error == EUSERS) {
        level = NGX_LOG_CRIT;
    }
    if (error == EUSERS) {
        ngx_log_error(level, c->log, 0,
                      "megapipe: all lightweight sockets are in use, so new connections wait; "
                      "raise worker_rlimit_nofile, which limits them, or worker_connections");
    } else {
        ngx_log_error(level, c->log, error, "accept() through the channel failed");
    }
    /* With MP_MORE the channel pauses, and continues by itself after a descriptor is closed. */
    if (error == ECONNABORTED || (done->flags & MP_MORE)) {
        return;
    }
    ngx_mp_unlisten(c->read, NGX_DISABLE_EVENT);
    if (!first->listener->timer.event.timer_set) {
        ngx_mp_add_timer(first, &first->listener->timer, ngx_mp_accept_again,
                         ecf->accept_mutex_delay);
    }
}
