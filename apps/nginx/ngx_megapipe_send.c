/*
 * Sends on channel connections. Copies the output of nginx, files and memory alike, into a block
 * that the channel writes, so that a header and its small file are one send. What follows before
 * the write has ended is collected in a second block; when that is full, the connection is not
 * writable. Responses that may be larger go through the descriptor with nginx's own functions, so
 * that nginx sees the room of the socket's buffer, a file after a header that waits for it.
 */
#include "ngx_megapipe.h"

/* A response has its header, and seldom more, in memory before a file. */
#define NGX_MP_HEADER_PIECES_MAX 8

static ngx_int_t ngx_mp_send_failed(ngx_connection_t *c, ngx_mp_connection_t *mc);
static size_t ngx_mp_room(const ngx_mp_connection_t *mc);
static ngx_int_t ngx_mp_copy(ngx_connection_t *c, ngx_mp_connection_t *mc, ngx_chain_t *in,
    size_t bytes);
static ngx_int_t ngx_mp_write(ngx_mp_connection_t *mc, ngx_mp_block_t *block);
static ngx_uint_t ngx_mp_goes_direct(ngx_connection_t *c, ngx_chain_t *in, off_t limit,
    ngx_mp_reason_e *reason);
static ngx_uint_t ngx_mp_response_goes_on(ngx_chain_t *in);
static ngx_uint_t ngx_mp_is_short(ngx_connection_t *c);
static ngx_chain_t *ngx_mp_send_direct(ngx_connection_t *c, ngx_mp_connection_t *mc,
    ngx_chain_t *in, off_t limit, ngx_mp_reason_e reason);
static ngx_chain_t *ngx_mp_send_header(ngx_connection_t *c, ngx_chain_t *in, off_t *limit);
static size_t ngx_mp_chain_bytes(ngx_chain_t *in, size_t limit);
static ngx_int_t ngx_mp_fill(ngx_mp_block_t *block, ngx_chain_t *in, size_t bytes,
    ngx_log_t *log);
static ngx_int_t ngx_mp_read_file(ngx_mp_block_t *block, ngx_buf_t *buf, size_t bytes,
    ngx_log_t *log);

/* Handles a completion of mp_write: what was collected meanwhile is the next write. */
void
ngx_mp_written(ngx_mp_connection_t *mc, struct mp_event *done, ngx_uint_t flags)
{
    ngx_connection_t *c = mc->connection;
    ngx_mp_flow_t *flow = mc->flow;
    ngx_mp_block_t *block;

    if (flow == NULL || flow->sending == NULL) {
        return;
    }
    ngx_mp_give_block(flow->sending);
    flow->sending = NULL;
    block = flow->collecting;
    flow->collecting = NULL;
    if (done->error) {
        mc->send_error = done->error;
    }
    if (block != NULL && (mc->send_error || ngx_mp_write(mc, block) != NGX_OK)) {
        ngx_mp_give_block(block);
    }

    if (c == NULL) {
        ngx_mp_flushed(mc);
        return;
    }
    ngx_mp_give_empty_flow(mc);
    ngx_log_debug3(NGX_LOG_DEBUG_EVENT, c->log, 0, "megapipe: written fd:%d, error %d, left %uz",
                   c->fd, done->error, ngx_mp_in_flight_bytes(mc));

    if (c->buffered & NGX_LOWLEVEL_BUFFERED) {
        /* nginx waits for the last write, or its error. */
        if (ngx_mp_in_flight_bytes(mc) > 0) {
            return;
        }
        c->buffered &= ~NGX_LOWLEVEL_BUFFERED;
    } else if (c->write->ready && !mc->send_error) {
        return;
    }
    if (!c->write->active) {
        mc->unseen |= POLLOUT;
        return;
    }
    c->write->ready = 1;
    ngx_mp_deliver(c->write, flags);
}

static ngx_int_t
ngx_mp_send_failed(ngx_connection_t *c, ngx_mp_connection_t *mc)
{
    c->write->error = 1;
    c->write->ready = 0;
    (void) ngx_connection_error(c, mc->send_error, "send() failed");
    return NGX_ERROR;
}

/* Returns how many bytes can be copied; none if the connection is not writable. */
static size_t
ngx_mp_room(const ngx_mp_connection_t *mc)
{
    const ngx_mp_flow_t *flow = mc->flow;

    if (flow == NULL || flow->sending == NULL) {
        return NGX_MP_BLOCK_BYTES_MAX;
    }
    if (flow->collecting == NULL) {
        return NGX_MP_COLLECTED_BYTES_MAX;
    }
    return flow->collecting->room_bytes - flow->collecting->used_bytes;
}

ssize_t
ngx_mp_send(ngx_connection_t *c, u_char *buffer, size_t size)
{
    ngx_mp_connection_t *mc = ngx_mp_of(c);
    ngx_buf_t buf;
    ngx_chain_t in = { &buf, NULL };

    if (mc->send_error) {
        return ngx_mp_send_failed(c, mc);
    }
    ngx_memzero(&buf, sizeof(buf));
    buf.memory = 1;
    buf.pos = buffer;
    buf.last = buffer + size;
    if (size == 0) {
        return 0;
    }
    size = ngx_min(size, ngx_mp_room(mc));
    if (size > 0 && ngx_mp_copy(c, mc, &in, size) != NGX_OK) {
        return NGX_ERROR;
    }
    /* The completion makes the connection writable again. */
    c->write->ready = ngx_mp_room(mc) > 0;
    return size > 0 ? (ssize_t) size : NGX_AGAIN;
}

ngx_chain_t *
ngx_mp_send_chain(ngx_connection_t *c, ngx_chain_t *in, off_t limit)
{
    ngx_mp_connection_t *mc = ngx_mp_of(c);
    ngx_mp_reason_e reason;
    size_t bytes, room;

    if (mc->send_error) {
        (void) ngx_mp_send_failed(c, mc);
        return NGX_CHAIN_ERROR;
    }
    if (!c->write->ready) {
        return in;
    }
    if (ngx_mp_goes_direct(c, in, limit, &reason)) {
        return ngx_mp_send_direct(c, mc, in, limit, reason);
    }

    room = ngx_mp_room(mc);
    if (limit > 0 && (off_t) room > limit) {
        room = (size_t) limit;
    }
    bytes = ngx_mp_chain_bytes(in, room);
    if (bytes > 0 && ngx_mp_copy(c, mc, in, bytes) != NGX_OK) {
        return NGX_CHAIN_ERROR;
    }
    if (ngx_mp_response_goes_on(in) && ngx_mp_ends_connection(c)) {
        /*
         * The end of the response may come without a byte to send: nginx would shut the descriptor
         * down before the channel has sent the bytes in flight.
         */
        c->buffered |= ngx_mp_in_flight_bytes(mc) > 0 ? NGX_LOWLEVEL_BUFFERED : 0;
    }
    in = ngx_chain_update_sent(in, bytes);
    /* The completion makes the connection writable again. */
    c->write->ready = ngx_mp_room(mc) > 0;
    return in;
}

/*
 * Returns whether nginx's own functions send this: a response that may be large, a file that
 * threads read, or the last of a request after which nginx may shut the descriptor down.
 */
static ngx_uint_t
ngx_mp_goes_direct(ngx_connection_t *c, ngx_chain_t *in, off_t limit, ngx_mp_reason_e *reason)
{
    off_t bytes = 0, file_bytes = 0;
    ngx_chain_t *cl;

    *reason = NGX_MP_LARGE;
    for (cl = in; cl != NULL; cl = cl->next) {
        bytes += ngx_buf_size(cl->buf);
        file_bytes += ngx_buf_in_memory(cl->buf) ? 0 : ngx_buf_size(cl->buf);
#if (NGX_THREADS || NGX_COMPAT)
        if (cl->buf->in_file && cl->buf->file->thread_handler) {
            return 1;
        }
#endif
    }
    if (file_bytes > NGX_MP_FILE_COPY_BYTES_MAX) {
        return 1;
    }
    if (bytes > NGX_MP_BLOCK_BYTES_MAX && (limit == 0 || limit > NGX_MP_BLOCK_BYTES_MAX)) {
        return 1;
    }
    if (ngx_mp_response_goes_on(in) && !ngx_mp_is_short(c)) {
        return 1;
    }
    *reason = NGX_MP_LINGER;
    return ngx_mp_may_linger(c);
}

/* Returns whether a response that comes in parts has room behind its first part. */
static ngx_uint_t
ngx_mp_is_short(ngx_connection_t *c)
{
    ngx_http_request_t *r = ((ngx_http_request_t *) c->data)->main;
    off_t length = r->headers_out.content_length_n;

    return length >= 0 && length <= NGX_MP_COLLECTED_BYTES_MAX;
}

/* Returns whether the chain lacks the end of its response. */
static ngx_uint_t
ngx_mp_response_goes_on(ngx_chain_t *in)
{
    while (in != NULL && !in->buf->last_buf) {
        in = in->next;
    }
    return in == NULL;
}

static ngx_chain_t *
ngx_mp_send_direct(ngx_connection_t *c, ngx_mp_connection_t *mc, ngx_chain_t *in, off_t limit,
    ngx_mp_reason_e reason)
{
    /* Keeps the order of the bytes: the channel sends its bytes first. */
    if (ngx_mp_in_flight_bytes(mc) > 0) {
        c->write->ready = 0;
        return in;
    }
    if (ngx_mp_upgrade(c, reason) != NGX_OK) {
        return NGX_CHAIN_ERROR;
    }
    in = ngx_mp_send_header(c, in, &limit);
    if (in != NULL && in != NGX_CHAIN_ERROR && c->write->ready) {
        in = ngx_os_io.send_chain(c, in, limit);
    }
    /* A poll first reports the present state, so it can begin when the socket is full. */
    if (in != NGX_CHAIN_ERROR && !c->write->ready && !mc->polling
        && ngx_mp_poll(mc, POLLOUT) != NGX_OK)
    {
        return NGX_CHAIN_ERROR;
    }
    return in;
}

/*
 * Sends the memory that precedes a file with MSG_MORE, so that both leave together as if the socket
 * were corked.
 */
static ngx_chain_t *
ngx_mp_send_header(ngx_connection_t *c, ngx_chain_t *in, off_t *limit)
{
    struct iovec vector[NGX_MP_HEADER_PIECES_MAX];
    struct msghdr message;
    ngx_uint_t count = 0;
    ngx_chain_t *cl;
    off_t bytes = 0;
    ssize_t n;

    for (cl = in; cl != NULL && count < NGX_MP_HEADER_PIECES_MAX; cl = cl->next) {
        if (ngx_buf_special(cl->buf)) {
            continue;
        }
        if (!ngx_buf_in_memory(cl->buf)) {
            break;
        }
        vector[count].iov_base = cl->buf->pos;
        vector[count].iov_len = cl->buf->last - cl->buf->pos;
        bytes += ngx_buf_size(cl->buf);
        count++;
    }
    if (cl == NULL || count == 0 || ngx_buf_in_memory(cl->buf) || (*limit && bytes >= *limit)) {
        return in;
    }
    ngx_memzero(&message, sizeof(message));
    message.msg_iov = vector;
    message.msg_iovlen = count;
    do {
        n = sendmsg(c->fd, &message, MSG_MORE | MSG_NOSIGNAL);
    } while (n == -1 && ngx_socket_errno == NGX_EINTR);
    if (n == -1) {
        c->write->ready = 0;
        if (ngx_socket_errno == NGX_EAGAIN) {
            return in;
        }
        c->write->error = 1;
        (void) ngx_connection_error(c, ngx_socket_errno, "sendmsg() failed");
        return NGX_CHAIN_ERROR;
    }
    c->sent += n;
    c->write->ready = n == bytes;
    *limit -= *limit ? n : 0;
    return ngx_chain_update_sent(in, n);
}

/* Returns the number of bytes of a chain, up to the limit. */
static size_t
ngx_mp_chain_bytes(ngx_chain_t *in, size_t limit)
{
    off_t bytes = 0;

    for (; in != NULL && bytes < (off_t) limit; in = in->next) {
        if (!ngx_buf_special(in->buf)) {
            bytes += ngx_buf_size(in->buf);
        }
    }
    return (size_t) ngx_min(bytes, (off_t) limit);
}

/* Appends `bytes` bytes of a file to the block. */
static ngx_int_t
ngx_mp_read_file(ngx_mp_block_t *block, ngx_buf_t *buf, size_t bytes, ngx_log_t *log)
{
    off_t position = buf->file_pos;
    ssize_t n;

    while (bytes > 0) {
        n = pread(buf->file->fd, block->data + block->used_bytes, bytes, position);
        if (n == -1 && ngx_errno == NGX_EINTR) {
            continue;
        }
        if (n <= 0) {
            ngx_log_error(NGX_LOG_ALERT, log, n == 0 ? 0 : ngx_errno,
                          "\"%V\" cannot be read to its end; was it truncated while being sent?",
                          &buf->file->name);
            return NGX_ERROR;
        }
        block->used_bytes += n;
        position += n;
        bytes -= n;
    }
    return NGX_OK;
}

/* Appends the first `bytes` bytes of the chain to the block. */
static ngx_int_t
ngx_mp_fill(ngx_mp_block_t *block, ngx_chain_t *in, size_t bytes, ngx_log_t *log)
{
    ngx_buf_t *buf;
    size_t part;

    for (; bytes > 0; in = in->next, bytes -= part) {
        buf = in->buf;
        part = 0;
        if (ngx_buf_special(buf)) {
            continue;
        }
        part = (size_t) ngx_min((off_t) bytes, ngx_buf_size(buf));
        if (ngx_buf_in_memory(buf)) {
            ngx_memcpy(block->data + block->used_bytes, buf->pos, part);
            block->used_bytes += part;
        } else if (ngx_mp_read_file(block, buf, part, log) != NGX_OK) {
            return NGX_ERROR;
        }
    }
    return NGX_OK;
}

/* Copies `bytes` bytes of the chain, for which there is room, and writes them when it is their
 * turn. */
static ngx_int_t
ngx_mp_copy(ngx_connection_t *c, ngx_mp_connection_t *mc, ngx_chain_t *in, size_t bytes)
{
    ngx_http_request_t *r = c->data;
    ngx_http_core_loc_conf_t *clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    ngx_mp_flow_t *flow = ngx_mp_take_flow(mc, c->log);
    ngx_mp_block_t *block = flow != NULL ? flow->collecting : NULL;
    size_t before = block != NULL ? block->used_bytes : 0;

    if (flow != NULL && block == NULL) {
        block = ngx_mp_take_block(
            flow->sending != NULL ? NGX_MP_COLLECTED_BYTES_MAX : bytes, c->log);
    }
    if (block == NULL || ngx_mp_fill(block, in, bytes, c->log) != NGX_OK
        || (flow->sending == NULL && ngx_mp_write(mc, block) != NGX_OK))
    {
        if (block != NULL) {
            block->used_bytes = before;
        }
        if (block != NULL && block != flow->collecting) {
            ngx_mp_give_block(block);
        }
        ngx_mp_give_empty_flow(mc);
        c->write->error = 1;
        return NGX_ERROR;
    }
    if (block != flow->sending) {
        flow->collecting = block;
    }
    flow->send_timeout_ms = clcf->send_timeout;
    c->sent += bytes;
    return NGX_OK;
}

/* Writes the block, while no other is written. */
static ngx_int_t
ngx_mp_write(ngx_mp_connection_t *mc, ngx_mp_block_t *block)
{
    if (mp_write(mc->handle, block->data, block->used_bytes) == -1) {
        mc->send_error = (uint16_t) ngx_errno;
        ngx_mp_failed(ngx_cycle->log, NGX_LOG_ALERT, "mp_write()");
        return NGX_ERROR;
    }
    mc->flow->sending = block;
    return NGX_OK;
}

/* Frees the output that was not sent; the channel does not use it any more. */
void
ngx_mp_drop_sending(ngx_mp_flow_t *flow)
{
    ngx_mp_block_t *blocks[] = { flow->sending, flow->collecting };
    ngx_uint_t i;

    flow->sending = flow->collecting = NULL;
    for (i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
        if (blocks[i] != NULL) {
            ngx_mp_give_block(blocks[i]);
        }
    }
}
