/* A type of connection whose bytes go through the channel: received before redis reads, and sent
 * after it has written. */
#include "megapipe_inside.h"

#include "connhelpers.h"

#include <fcntl.h>

static ConnectionType type;

/* A copied message. */
struct piece {
    size_t bytes;
    char data[];
};

/* What a piece counts beside its bytes, so that the number of pieces is limited, too. */
#define PIECE_OVERHEAD 64

static bool is_open(const struct megapipe_stream *s) {
    return s->conn.fd != -1;
}

static size_t backlog_bytes(const struct megapipe_stream *s) {
    return s->backlog == NULL ? 0 : sdslen(s->backlog) - s->backlog_start;
}

static size_t unread_bytes(const struct megapipe_stream *s) {
    return backlog_bytes(s) + s->leased_bytes;
}

static void drop_backlog(struct megapipe_stream *s) {
    sdsfree(s->backlog);
    s->backlog = NULL;
    s->backlog_start = 0;
}

/* Schedules the stream if redis wants an event that no completion will bring. */
static void schedule_what_is_left(struct megapipe_stream *s) {
    if (!is_open(s)) return;
    if ((s->conn.read_handler && (unread_bytes(s) != 0 || s->ended))
        || (s->conn.write_handler && s->in_flight == 0))
        megapipeSchedule(s);
}

static void free_unused(struct megapipe_stream *s) {
    if (s->released && s->closed && s->running == 0) zfree(s);
}

/* Receives more unless bytes wait to be read, or an earlier receive has not ended. */
static int receive(struct megapipe_stream *s) {
    if (s->receiving || s->ended || unread_bytes(s) != 0 || !is_open(s)) return C_OK;
    if (mp_recv(s->handle, MP_REPEAT) == -1) {
        s->conn.last_errno = errno;
        return C_ERR;
    }
    s->receiving = 1;
    return C_OK;
}

static void fail(struct megapipe_stream *s, int error) {
    s->ended = 1;
    s->receive_error = error;
}

/* Stores received bytes behind those that redis has not read. */
static void append(struct megapipe_stream *s, const char *bytes, size_t count) {
    if (s->backlog == NULL) {
        s->backlog = sdsempty();
    } else if (s->backlog_start != 0) {
        sdsrange(s->backlog, s->backlog_start, -1);
        s->backlog_start = 0;
    }
    s->backlog = sdscatlen(s->backlog, bytes, count);
    if (sdslen(s->backlog) >= MEGAPIPE_BACKLOG_MAX_BYTES && s->receiving && !s->stopping)
        s->stopping = mp_cancel(s->handle, MP_IN) == 0;
}

/* Stores what redis has not read of the channel's buffer, which others need. */
static void keep(struct megapipe_stream *s) {
    const size_t count = s->leased_bytes;
    s->leased_bytes = 0;
    if (count != 0 && is_open(s)) append(s, s->leased, count);
}

/* Calls redis' handlers, for reading until all bytes are read. */
static void run(struct megapipe_stream *s, int mask) {
    s->running++;
    size_t before, unread = unread_bytes(s);
    do {
        before = unread;
        type.ae_handler(server.el, s->conn.fd, &s->conn, mask);
        mask = AE_READABLE;
        unread = unread_bytes(s);
    } while (is_open(s) && s->conn.read_handler && unread != 0 && unread < before);
    s->running--;
}

/* Runs what the stream is ready for. Bytes and the end come in different turns, and so do reading
 * and writing with the flag of a barrier: redis answers between them. */
static void run_ready(struct megapipe_stream *s) {
    const bool has_read = s->read_turn == megapipe_turn;
    int mask = 0;
    if (s->conn.write_handler && s->in_flight == 0
        && !(has_read && (s->conn.flags & CONN_FLAG_WRITE_BARRIER)))
        mask |= AE_WRITABLE;
    if (s->conn.read_handler && (unread_bytes(s) != 0 || (s->ended && !has_read)))
        mask |= AE_READABLE;
    if (mask != 0) run(s, mask);
    schedule_what_is_left(s);
}

void megapipeRun(struct megapipe_stream *s) {
    s->running++;
    run_ready(s);
    s->running--;
    free_unused(s);
}

static void received(struct megapipe_stream *s, const struct mp_event *event, bool may_run) {
    if ((event->flags & MP_MORE) == 0) s->receiving = s->stopping = 0;
    if (event->error == ECANCELED) {
        if (receive(s) == C_ERR) fail(s, s->conn.last_errno);
    } else if (event->error != 0 || event->size == 0) {
        fail(s, event->error);
    } else if (is_open(s)) {
        /* Of a completion that is handled in an outer loop. */
        keep(s);
        if (may_run && s->backlog == NULL && s->conn.read_handler) {
            s->leased = event->data;
            s->leased_bytes = event->size;
            run_ready(s);
            keep(s);
        } else {
            append(s, event->data, event->size);
        }
    }
    if (event->buffer != -1) mp_release(megapipe_channel, event->buffer);
}

static void wrote(struct megapipe_stream *s, const struct mp_event *event) {
    struct piece *piece = (struct piece *)((char *)event->data - offsetof(struct piece, data));
    s->in_flight -= piece->bytes + PIECE_OVERHEAD;
    zfree(piece);
    if (event->error != 0 && s->send_error == 0) {
        s->send_error = event->error;
        fail(s, event->error);
    }
}

void megapipeHandle(const struct mp_event *event, bool may_run) {
    struct megapipe_stream *s = event->cookie;
    s->running++;
    if (event->cmd == MP_RECV)
        received(s, event, may_run);
    else if (event->cmd == MP_WRITE)
        wrote(s, event);
    else if (event->cmd == MP_CLOSE)
        s->closed = 1;
    if (may_run && is_open(s) && !s->scheduled)
        run_ready(s);
    else
        schedule_what_is_left(s);
    s->running--;
    free_unused(s);
}

static int stream_read(connection *conn, void *buffer, size_t size) {
    struct megapipe_stream *s = (struct megapipe_stream *)conn;
    if (server.in_fork_child) return CT_Socket.read(conn, buffer, size);
    /* The debugger of scripts reads in blocking mode. */
    while (unread_bytes(s) == 0 && !s->ended && !(fcntl(conn->fd, F_GETFL) & O_NONBLOCK))
        megapipeWait();
    const size_t kept = backlog_bytes(s);
    size_t count = kept != 0 ? kept : s->leased_bytes;
    if (count > size) count = size;
    s->read_turn = megapipe_turn;
    if (kept != 0) {
        memcpy(buffer, s->backlog + s->backlog_start, count);
        s->backlog_start += count;
        if (count == kept) drop_backlog(s);
    } else if (count != 0) {
        memcpy(buffer, s->leased, count);
        s->leased += count;
        s->leased_bytes -= count;
    }
    if (receive(s) == C_ERR) fail(s, conn->last_errno);
    if (count != 0) return count;
    if (!s->ended) {
        errno = EAGAIN;
        return -1;
    }
    if (s->receive_error == 0) {
        conn->state = CONN_STATE_CLOSED;
        return 0;
    }
    errno = conn->last_errno = s->receive_error;
    if (conn->state == CONN_STATE_CONNECTED) conn->state = CONN_STATE_ERROR;
    return -1;
}

static int stream_writev(connection *conn, const struct iovec *parts, int count) {
    struct megapipe_stream *s = (struct megapipe_stream *)conn;
    if (server.in_fork_child) return CT_Socket.writev(conn, parts, count);
    if (s->send_error != 0) {
        errno = conn->last_errno = s->send_error;
        if (conn->state == CONN_STATE_CONNECTED) conn->state = CONN_STATE_ERROR;
        return -1;
    }
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += parts[i].iov_len;
    if (bytes > MEGAPIPE_COPY_MAX_BYTES && s->in_flight == 0) {
        const int written = CT_Socket.writev(conn, parts, count);
        if (written != -1 || errno != EAGAIN) return written;
    }
    const size_t used = s->in_flight + PIECE_OVERHEAD, most = MEGAPIPE_IN_FLIGHT_MAX_BYTES;
    if (used + bytes > most) bytes = used < most ? most - used : 0;
    errno = EAGAIN;
    if (bytes == 0) return -1;
    struct piece *piece = zmalloc(sizeof(*piece) + bytes);
    piece->bytes = 0;
    for (int i = 0; piece->bytes < bytes; i++) {
        const size_t left = bytes - piece->bytes;
        const size_t part = parts[i].iov_len < left ? parts[i].iov_len : left;
        memcpy(piece->data + piece->bytes, parts[i].iov_base, part);
        piece->bytes += part;
    }
    /* If the channel's queue is full, redis tries again in the next round. */
    if (mp_write(s->handle, piece->data, bytes) == -1) {
        zfree(piece);
        errno = EAGAIN;
        return -1;
    }
    s->in_flight += bytes + PIECE_OVERHEAD;
    return bytes;
}

static int stream_write(connection *conn, const void *data, size_t size) {
    const struct iovec part = {.iov_base = (void *)data, .iov_len = size};
    return stream_writev(conn, &part, 1);
}

static int stream_set_write_handler(connection *conn, ConnectionCallbackFunc handler, int barrier) {
    if (handler == conn->write_handler) return C_OK;
    conn->write_handler = handler;
    conn->flags &= ~CONN_FLAG_WRITE_BARRIER;
    if (barrier) conn->flags |= CONN_FLAG_WRITE_BARRIER;
    schedule_what_is_left((struct megapipe_stream *)conn);
    return C_OK;
}

static int stream_set_read_handler(connection *conn, ConnectionCallbackFunc handler) {
    if (handler == conn->read_handler) return C_OK;
    conn->read_handler = handler;
    schedule_what_is_left((struct megapipe_stream *)conn);
    return handler == NULL ? C_OK : receive((struct megapipe_stream *)conn);
}

/* Closes the connection behind what is in flight. Its memory is free when the channel reports the
 * close. */
static void stream_close(connection *conn) {
    struct megapipe_stream *s = (struct megapipe_stream *)conn;
    if (server.in_fork_child) {
        CT_Socket.close(conn);
        return;
    }
    if (is_open(s)) {
        megapipeUnschedule(s);
        drop_backlog(s);
        s->leased_bytes = 0;
        if (mp_close(s->handle) == -1)
            serverLog(LL_WARNING, "megapipe: cannot close a connection: %s", mp_error());
        conn->fd = -1;
    }
    if (connHasRefs(conn)) {
        conn->flags |= CONN_FLAG_CLOSE_SCHEDULED;
        return;
    }
    s->released = 1;
    free_unused(s);
}

connection *megapipeAccepted(int fd) {
    if (megapipe_channel == NULL) return connCreateAcceptedSocket(fd);
    if (type.read == NULL) {
        type = CT_Socket;
        type.read = stream_read;
        type.write = stream_write;
        type.writev = stream_writev;
        type.close = stream_close;
        type.set_read_handler = stream_set_read_handler;
        type.set_write_handler = stream_set_write_handler;
    }
    struct megapipe_stream *s = zcalloc(sizeof(*s));
    s->handle = mp_register(megapipe_channel, fd, s, NULL);
    if (s->handle == -1) {
        serverLog(LL_WARNING, "megapipe: a client is served without the channel: %s", mp_error());
        zfree(s);
        return connCreateAcceptedSocket(fd);
    }
    s->conn.type = &type;
    s->conn.fd = fd;
    s->conn.state = CONN_STATE_ACCEPTING;
    return &s->conn;
}
