/*
 * Receives on channel connections: completions queue the channel's buffers, nginx reads from them.
 * The flags of the read event change as with edges of epoll.
 */
#include "ngx_megapipe.h"

/* Number of the channel's buffers with unread data. */
static ngx_uint_t ngx_mp_leased;

/* Batches within which an end came at once: a busy channel files a receive some batches later. */
#define NGX_MP_END_BATCHES_MAX 16

uint32_t ngx_mp_batch_number;

/* Read events of this batch of completions. */
static ngx_queue_t ngx_mp_readable = { &ngx_mp_readable, &ngx_mp_readable };

/* The record whose read event is delivered: it receives again behind that, unless it is closed. */
static const ngx_mp_connection_t *ngx_mp_delivered;

static ngx_uint_t ngx_mp_ended_with_request(ngx_connection_t *c, ngx_mp_connection_t *mc);
static void ngx_mp_after_reading(ngx_connection_t *c, ngx_mp_connection_t *mc,
    ngx_uint_t flags);
static ngx_int_t ngx_mp_hold(ngx_mp_received_t *received, struct mp_event *done, ngx_log_t *log);
static void ngx_mp_drop_first(ngx_mp_flow_t *flow);
static void ngx_mp_queue(ngx_mp_connection_t *mc, struct mp_event *done, ngx_log_t *log);
static ssize_t ngx_mp_at_end(ngx_connection_t *c, ngx_mp_connection_t *mc);

ngx_int_t
ngx_mp_start_receiving(ngx_mp_connection_t *mc)
{
    if (mc->receiving || mc->ended || mc->receive_error || mc == ngx_mp_delivered) {
        return NGX_OK;
    }
    if (mp_recv(mc->handle, mc->calm == NGX_MP_CALM_MAX ? MP_REPEAT : 0) == -1) {
        ngx_mp_failed(mc->connection->log, NGX_LOG_ALERT, "mp_recv()");
        return NGX_ERROR;
    }
    mc->receiving = 1;
    mc->receiving_since = ngx_mp_batch_number;
    return NGX_OK;
}

/* Handles a completion of mp_recv. All of a batch are one read event, as one report of epoll. */
void
ngx_mp_received(ngx_mp_connection_t *mc, struct mp_event *done)
{
    ngx_connection_t *c = mc->connection;

    if (!(done->flags & MP_MORE)) {
        mc->receiving = 0;
    }

    if (c == NULL) {
        if (done->buffer != -1) {
            mp_release(ngx_mp_channel, done->buffer);
        }
        return;
    }

    if (done->error == 0 && done->size > 0) {
        ngx_mp_queue(mc, done, c->log);
    } else if (done->error == 0) {
        mc->ended = 1;
    } else if (done->error == ECANCELED) {
        /* Receiving had stopped because too much was unread; by now it may all have been read. */
        if (ngx_mp_has_received(mc) || ngx_mp_start_receiving(mc) == NGX_OK) {
            return;
        }
        mc->receive_error = ENOMEM;
    } else {
        mc->receive_error = done->error;
    }

    ngx_log_debug3(NGX_LOG_DEBUG_EVENT, c->log, 0, "megapipe: received %uz on fd:%d, error %d",
                   done->size, c->fd, done->error);

    if (mc->ended && ngx_mp_ended_with_request(c, mc)) {
        c->read->pending_eof = 1;
        c->read->ready = 1;
        return;
    }
    if (mc->ended || mc->receive_error) {
        c->read->pending_eof = 1;
        /* nginx asks the descriptor for the reason when this ends a request. */
        if (!c->idle && c->requests > 0) {
            (void) ngx_mp_upgrade(c, NGX_MP_UNREAD);
        }
    }

    if (!c->read->active) {
        mc->unseen |= POLLIN;
        return;
    }
    c->read->ready = 1;
    c->read->available = -1;
    ngx_post_event(c->read, &ngx_mp_readable);
}

/*
 * Returns whether the end came at once behind a request that nginx is answering. epoll reports both
 * at once, so that nginx goes on; after a later report of the end it would abandon the request.
 */
static ngx_uint_t
ngx_mp_ended_with_request(ngx_connection_t *c, ngx_mp_connection_t *mc)
{
    ngx_http_request_t *r = c->data;

    /* Only while nginx processes a request both events have the same handler. */
    return ngx_mp_batch_number - mc->receiving_since <= NGX_MP_END_BATCHES_MAX
           && c->read->handler == c->write->handler
           && r->read_event_handler == ngx_http_test_reading;
}

/* Delivers the read events of a batch of completions. */
void
ngx_mp_deliver_received(ngx_uint_t flags)
{
    ngx_mp_connection_t *mc;
    ngx_connection_t *c;
    ngx_event_t *ev;

    while (!ngx_queue_empty(&ngx_mp_readable)) {
        ev = ngx_queue_data(ngx_queue_head(&ngx_mp_readable), ngx_event_t, queue);
        ngx_delete_posted_event(ev);
        c = ev->data;
        mc = ngx_mp_of(c);
        ngx_mp_delivered = flags & NGX_POST_EVENTS ? NULL : mc;
        ngx_mp_deliver(ev, flags);
        ngx_mp_delivered = NULL;
        /* The handler may have closed it. */
        if (mc->connection == c) {
            ngx_mp_after_reading(c, mc, flags);
        }
    }
}

/* Receives again, but not while bytes are unread, which make nginx linger when it closes. */
static void
ngx_mp_after_reading(ngx_connection_t *c, ngx_mp_connection_t *mc, ngx_uint_t flags)
{
    if (!ngx_mp_has_received(mc)) {
        mc->calm += mc->calm < NGX_MP_CALM_MAX;
        if (ngx_mp_start_receiving(mc) != NGX_OK) {
            mc->receive_error = ENOMEM;
            c->read->ready = 1;
            ngx_post_event(c->read, &ngx_posted_events);
        }
        return;
    }
    mc->calm = 0;
    if (mc->receiving) {
        (void) mp_cancel(mc->handle, MP_IN);
    }
    if (mc->lightweight && !c->idle && c->requests > 0 && !(flags & NGX_POST_EVENTS)) {
        (void) ngx_mp_upgrade(c, NGX_MP_UNREAD);
    }
}

static void
ngx_mp_queue(ngx_mp_connection_t *mc, struct mp_event *done, ngx_log_t *log)
{
    ngx_mp_flow_t *flow = ngx_mp_take_flow(mc, log);
    ngx_mp_received_t *received = flow != NULL ? ngx_mp_take_received(log) : NULL;

    if (received == NULL || ngx_mp_hold(received, done, log) != NGX_OK) {
        if (received != NULL) {
            ngx_mp_give_received(received);
        }
        mp_release(ngx_mp_channel, done->buffer);
        mc->receive_error = ENOMEM;
        return;
    }
    received->next = NULL;
    *flow->received_end = received;
    flow->received_end = &received->next;
}

/*
 * Keeps the data of a completion: in the channel's buffer, which costs no copy, or in a copy if
 * many buffers are held. Clients that send requests and do not read the responses would otherwise
 * take all buffers, and no connection could receive before the first of these clients timed out.
 */
static ngx_int_t
ngx_mp_hold(ngx_mp_received_t *received, struct mp_event *done, ngx_log_t *log)
{
    received->copy = NULL;
    received->buffer = done->buffer;
    received->position = done->data;
    if (ngx_mp_leased < NGX_MP_LEASED_MAX) {
        ngx_mp_leased++;
    } else {
        received->copy = ngx_alloc(done->size, log);
        if (received->copy == NULL) {
            return NGX_ERROR;
        }
        ngx_memcpy(received->copy, done->data, done->size);
        mp_release(ngx_mp_channel, done->buffer);
        received->buffer = -1;
        received->position = received->copy;
    }
    received->last = received->position + done->size;
    return NGX_OK;
}

/* Returns the unread buffers to the channel. */
void
ngx_mp_drop_received(ngx_mp_connection_t *mc)
{
    while (ngx_mp_has_received(mc)) {
        ngx_mp_drop_first(mc->flow);
    }
    ngx_mp_give_empty_flow(mc);
}

static void
ngx_mp_drop_first(ngx_mp_flow_t *flow)
{
    ngx_mp_received_t *received = flow->received;

    flow->received = received->next;
    if (flow->received == NULL) {
        flow->received_end = &flow->received;
    }
    if (received->copy != NULL) {
        ngx_free(received->copy);
    } else {
        mp_release(ngx_mp_channel, received->buffer);
        ngx_mp_leased--;
    }
    ngx_mp_give_received(received);
}

ssize_t
ngx_mp_recv(ngx_connection_t *c, u_char *buffer, size_t size)
{
    ngx_mp_connection_t *mc = ngx_mp_of(c);
    ngx_mp_received_t *received;
    size_t copied = 0, part;

    while (copied < size && ngx_mp_has_received(mc)) {
        received = mc->flow->received;
        part = ngx_min(size - copied, (size_t) (received->last - received->position));
        ngx_memcpy(buffer + copied, received->position, part);
        received->position += part;
        copied += part;
        if (received->position < received->last) {
            break;
        }
        ngx_mp_drop_first(mc->flow);
    }
    ngx_mp_give_empty_flow(mc);

    ngx_log_debug3(NGX_LOG_DEBUG_EVENT, c->log, 0, "megapipe: recv fd:%d %uz of %uz", c->fd,
                   copied, size);

    if (ngx_mp_has_received(mc)) {
        return copied;
    }
    if (copied == 0) {
        return ngx_mp_at_end(c, mc);
    }
    if (!mc->ended && !mc->receive_error) {
        c->read->ready = 0;
        if (ngx_mp_start_receiving(mc) != NGX_OK) {
            mc->receive_error = ENOMEM;
        }
    }
    c->read->available = 0;
    return copied;
}

/* No bytes wait: the end, an error, or none yet. */
static ssize_t
ngx_mp_at_end(ngx_connection_t *c, ngx_mp_connection_t *mc)
{
    ngx_event_t *rev = c->read;

    rev->ready = 0;
    if (mc->receive_error) {
        if (ngx_connection_error(c, mc->receive_error, "recv() failed") == 0) {
            rev->eof = 1;
            return 0;
        }
        rev->error = 1;
        return NGX_ERROR;
    }
    if (mc->ended) {
        rev->eof = 1;
        ngx_set_socket_errno(0);
        return 0;
    }
    if (ngx_mp_start_receiving(mc) != NGX_OK) {
        rev->error = 1;
        return NGX_ERROR;
    }
    return NGX_AGAIN;
}

ssize_t
ngx_mp_recv_chain(ngx_connection_t *c, ngx_chain_t *in, off_t limit)
{
    ssize_t total = 0, n;
    size_t size;

    for (; in != NULL; in = in->next) {
        size = in->buf->end - in->buf->last;
        if (limit && (off_t) size > limit - total) {
            size = (size_t) (limit - total);
        }
        if (size == 0) {
            if (limit && total >= limit) {
                break;
            }
            continue;
        }
        n = ngx_mp_recv(c, in->buf->last, size);
        if (n <= 0) {
            return total > 0 ? total : n;
        }
        total += n;
        if ((size_t) n < size || !c->read->ready) {
            break;
        }
    }
    return total;
}
