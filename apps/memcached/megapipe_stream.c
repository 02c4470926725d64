/* The bytes of a connection: received ahead of memcached's reads, and sent behind its writes. */
#include "megapipe_inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A copied message on its way, or a free one in the worker's list. */
struct megapipe_piece {
    union {
        STAILQ_ENTRY(megapipe_piece) unsent_link;
        SLIST_ENTRY(megapipe_piece) free_link;
    };
    size_t bytes;
    char data[];
};

/* Free pieces hold this much; longer messages get memory of their own. */
#define PIECE_BYTES (4 * 1024 - sizeof(struct megapipe_piece))
#define PIECES_KEPT 256

static struct megapipe_piece *piece_new(struct megapipe_worker *worker, size_t bytes) {
    struct megapipe_piece *piece = SLIST_FIRST(&worker->pieces);
    if (bytes > PIECE_BYTES || piece == NULL) {
        piece = malloc(sizeof(*piece) + (bytes > PIECE_BYTES ? bytes : PIECE_BYTES));
        if (piece == NULL)
            return NULL;
    } else {
        SLIST_REMOVE_HEAD(&worker->pieces, free_link);
        worker->pieces_free--;
    }
    piece->bytes = bytes;
    return piece;
}

static void piece_free(struct megapipe_worker *worker, struct megapipe_piece *piece) {
    if (piece->bytes > PIECE_BYTES || worker->pieces_free == PIECES_KEPT) {
        free(piece);
        return;
    }
    SLIST_INSERT_HEAD(&worker->pieces, piece, free_link);
    worker->pieces_free++;
}

/* Of a connection that ends before they are sent. */
void megapipe_unsent_free(struct megapipe_connection *connection) {
    struct megapipe_piece *piece;
    while ((piece = STAILQ_FIRST(&connection->unsent)) != NULL) {
        STAILQ_REMOVE_HEAD(&connection->unsent, unsent_link);
        piece_free(connection->worker, piece);
    }
}

void megapipe_pieces_free(struct megapipe_worker *worker) {
    while (!SLIST_EMPTY(&worker->pieces)) {
        struct megapipe_piece *piece = SLIST_FIRST(&worker->pieces);
        SLIST_REMOVE_HEAD(&worker->pieces, free_link);
        free(piece);
    }
}

static size_t backlog_bytes(const struct megapipe_connection *connection) {
    return connection->backlog_end - connection->backlog_start;
}

/* Whether a read would give something, be it the end. */
bool megapipe_pending(const struct megapipe_connection *connection) {
    return connection->leased_bytes != 0 || backlog_bytes(connection) != 0 || connection->ended;
}

int megapipe_receive(struct megapipe_connection *connection) {
    if (mp_recv(connection->handle, MP_REPEAT) == -1)
        return -1;
    connection->receiving = true;
    connection->stopping = false;
    return 0;
}

/* Keeps what memcached has not read from the channel's buffer, which others need. */
static bool keep(struct megapipe_connection *connection) {
    const size_t kept = backlog_bytes(connection);
    const size_t needed = kept + connection->leased_bytes;
    if (connection->backlog_start != 0 && kept != 0)
        memmove(connection->backlog, connection->backlog + connection->backlog_start, kept);
    connection->backlog_start = 0;
    connection->backlog_end = kept;
    if (needed > connection->backlog_size) {
        const size_t size = needed > 4096 ? needed * 2 : 4096;
        char *longer = realloc(connection->backlog, size);
        if (longer == NULL)
            return false;
        connection->backlog = longer;
        connection->backlog_size = size;
    }
    memcpy(connection->backlog + kept, connection->leased, connection->leased_bytes);
    connection->backlog_end = needed;
    return true;
}

static void drop_backlog(struct megapipe_connection *connection) {
    free(connection->backlog);
    connection->backlog = NULL;
    connection->backlog_start = connection->backlog_end = connection->backlog_size = 0;
}

static void take_end(struct megapipe_connection *connection, const struct mp_event *event) {
    connection->receiving = false;
    if (event->error == ECANCELED && connection->stopping) {
        connection->stopping = false;
    } else if (event->error != 0 || event->size == 0) {
        connection->ended = true;
        connection->receive_error = event->error;
    }
}

void megapipe_received(struct megapipe_connection *connection, const struct mp_event *event) {
    const bool data = event->error == 0 && event->size != 0;
    if (data && connection->c != NULL) {
        connection->leased = event->data;
        connection->leased_bytes = event->size;
    }
    if ((event->flags & MP_MORE) == 0 || !data)
        take_end(connection, event);
    if (connection->c == NULL)
        return;
    const bool wanted = connection->added && (connection->c->ev_flags & EV_READ) != 0;
    /* What came before is read first. */
    if (wanted && data && backlog_bytes(connection) == 0)
        megapipe_drive(connection, EV_READ);
    if (connection->c != NULL && connection->leased_bytes != 0 && !keep(connection)) {
        connection->ended = true;
        connection->receive_error = ENOMEM;
    }
    connection->leased_bytes = 0;
    if (connection->c == NULL)
        return;
    if (megapipe_pending(connection)) {
        if ((connection->c->ev_flags & EV_READ) != 0)
            megapipe_schedule(connection);
    } else if (!connection->receiving && megapipe_receive(connection) == -1) {
        megapipe_complain("cannot receive");
    }
    if (backlog_bytes(connection) > MEGAPIPE_BACKLOG_MAX_BYTES && connection->receiving
        && !connection->stopping)
        connection->stopping = mp_cancel(connection->handle, MP_IN) == 0;
}

ssize_t megapipe_read(conn *c, void *buffer, size_t size) {
    struct megapipe_connection *connection = c->channel;
    /* A side thread that has borrowed the connection looks whether the peer is still there. */
    if (connection == NULL || !connection->added)
        return recv(c->sfd, buffer, size, MSG_DONTWAIT);
    const size_t kept = backlog_bytes(connection);
    size_t taken = kept != 0 ? kept : connection->leased_bytes;
    if (taken > size)
        taken = size;
    if (kept != 0) {
        memcpy(buffer, connection->backlog + connection->backlog_start, taken);
        connection->backlog_start += taken;
        if (backlog_bytes(connection) == 0)
            drop_backlog(connection);
    } else if (taken != 0) {
        memcpy(buffer, connection->leased, taken);
        connection->leased += taken;
        connection->leased_bytes -= taken;
    }
    if (!megapipe_pending(connection) && !connection->receiving
        && megapipe_receive(connection) == -1) {
        connection->ended = true;
        connection->receive_error = errno;
    }
    if (taken != 0)
        return taken;
    errno = connection->ended ? connection->receive_error : EAGAIN;
    return errno == 0 ? 0 : -1;
}

static size_t length(const struct msghdr *message) {
    size_t bytes = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        bytes += message->msg_iov[i].iov_len;
    return bytes;
}

/* Files a copy; memcached is done with the message. */
static ssize_t send_copy(struct megapipe_connection *connection, const struct msghdr *message,
                         size_t bytes) {
    struct megapipe_piece *piece = piece_new(connection->worker, bytes);
    if (piece == NULL) {
        errno = ENOMEM;
        return -1;
    }
    char *end = piece->data;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        memcpy(end, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
        end += message->msg_iov[i].iov_len;
    }
    if (mp_write(connection->handle, piece->data, bytes) == -1) {
        piece_free(connection->worker, piece);
        return -1;
    }
    megapipe_count(&connection->worker->sent_copied);
    connection->writes++;
    STAILQ_INSERT_TAIL(&connection->unsent, piece, unsent_link);
    connection->unsent_bytes += bytes;
    return bytes;
}

/* Files the message where it lies: the responses keep their items until it is sent. */
static ssize_t send_borrowed(struct megapipe_connection *connection, const struct msghdr *message,
                             size_t bytes) {
    if (mp_writev(connection->handle, message->msg_iov, message->msg_iovlen) == -1)
        return -1;
    megapipe_count(&connection->worker->sent_in_place);
    connection->writes++;
    connection->borrowed_bytes = bytes;
    connection->borrowed_sent = false;
    errno = EAGAIN;
    return -1;
}

ssize_t megapipe_sendmsg(conn *c, struct msghdr *message, int flags) {
    struct megapipe_connection *connection = c->channel;
    if (connection == NULL || connection->send_error != 0) {
        errno = connection == NULL ? ENOTCONN : connection->send_error;
        return -1;
    }
    if (connection->borrowed_bytes != 0) {
        const size_t bytes = connection->borrowed_bytes;
        if (!connection->borrowed_sent) {
            errno = EAGAIN;
            return -1;
        }
        connection->borrowed_bytes = 0;
        return bytes;
    }
    const size_t bytes = length(message);
    if (bytes > MEGAPIPE_COPY_MAX_BYTES)
        return send_borrowed(connection, message, bytes);
    if (connection->unsent_bytes + bytes > MEGAPIPE_UNSENT_MAX_BYTES) {
        errno = EAGAIN;
        return -1;
    }
    return send_copy(connection, message, bytes);
}

void megapipe_wrote(struct megapipe_connection *connection, const struct mp_event *event) {
    struct megapipe_worker *worker = connection->worker;
    connection->writes--;
    if (event->cmd == MP_WRITE) {
        /* They complete in the order in which they were filed. */
        struct megapipe_piece *piece = STAILQ_FIRST(&connection->unsent);
        STAILQ_REMOVE_HEAD(&connection->unsent, unsent_link);
        connection->unsent_bytes -= piece->bytes;
        piece_free(worker, piece);
    } else {
        connection->borrowed_sent = true;
    }
    if (event->error != 0)
        connection->send_error = event->error;
    if (connection->c == NULL) {
        if (connection->writes == 0) {
            TAILQ_REMOVE(&worker->closing, connection, closing_link);
            megapipe_finish(connection);
        }
    } else if (connection->added && (connection->c->ev_flags & EV_WRITE) != 0) {
        megapipe_drive(connection, EV_WRITE);
    }
}
