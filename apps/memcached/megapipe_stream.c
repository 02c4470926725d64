/* Handles the bytes of a connection: receives before memcached reads, and sends after it has
 * written. */
#include "megapipe_inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Copied messages, or a free piece in the worker's list. */
struct megapipe_piece {
    SLIST_ENTRY(megapipe_piece) free_link;
    size_t capacity;
    size_t bytes;
    char data[];
};

/* Capacity of pieces in the free list; longer messages get memory of their own. */
#define PIECE_BYTES (4 * 1024 - sizeof(struct megapipe_piece))
#define PIECES_KEPT 256
#define FLOWS_KEPT 256

static struct megapipe_piece *piece_new(struct megapipe_worker *worker, size_t bytes) {
    struct megapipe_piece *piece = SLIST_FIRST(&worker->pieces);
    if (bytes > PIECE_BYTES || piece == NULL) {
        const size_t capacity = bytes > PIECE_BYTES ? bytes : PIECE_BYTES;
        piece = malloc(sizeof(*piece) + capacity);
        if (piece == NULL)
            return NULL;
        piece->capacity = capacity;
    } else {
        SLIST_REMOVE_HEAD(&worker->pieces, free_link);
        worker->pieces_free--;
    }
    piece->bytes = 0;
    megapipe_add(&worker->held_bytes, piece->capacity);
    return piece;
}

static void piece_free(struct megapipe_worker *worker, struct megapipe_piece *piece) {
    if (piece == NULL)
        return;
    megapipe_add(&worker->held_bytes, -piece->capacity);
    if (piece->capacity > PIECE_BYTES || worker->pieces_free == PIECES_KEPT) {
        free(piece);
        return;
    }
    SLIST_INSERT_HEAD(&worker->pieces, piece, free_link);
    worker->pieces_free++;
}

/* Returns the flow of a connection; creates one if it has none. NULL if there is no memory. */
static struct megapipe_flow *flow_of(struct megapipe_connection *connection) {
    struct megapipe_worker *worker = connection->worker;
    struct megapipe_flow *flow = connection->flow;
    if (flow != NULL)
        return flow;
    flow = SLIST_FIRST(&worker->flows);
    if (flow != NULL) {
        SLIST_REMOVE_HEAD(&worker->flows, free_link);
        worker->flows_free--;
    } else {
        flow = calloc(1, sizeof(*flow));
    }
    connection->flow = flow;
    return flow;
}

/* Returns an empty flow to the free list; the next connection gets it unchanged. */
static void give_empty_flow(struct megapipe_connection *connection) {
    struct megapipe_worker *worker = connection->worker;
    struct megapipe_flow *flow = connection->flow;
    if (flow == NULL || flow->leased_bytes != 0 || flow->backlog != NULL
        || megapipe_writes(connection) || flow->borrowed_sent)
        return;
    connection->flow = NULL;
    if (worker->flows_free == FLOWS_KEPT) {
        free(flow);
        return;
    }
    SLIST_INSERT_HEAD(&worker->flows, flow, free_link);
    worker->flows_free++;
}

static void drop_backlog(struct megapipe_worker *worker, struct megapipe_flow *flow) {
    megapipe_add(&worker->held_bytes, -flow->backlog_size);
    free(flow->backlog);
    flow->backlog = NULL;
    flow->backlog_start = flow->backlog_end = flow->backlog_size = 0;
}

/* Frees the flow of a connection that ends, maybe before all is read and sent. */
void megapipe_flow_free(struct megapipe_connection *connection) {
    struct megapipe_flow *flow = connection->flow;
    if (flow == NULL)
        return;
    piece_free(connection->worker, flow->sending);
    piece_free(connection->worker, flow->collecting);
    drop_backlog(connection->worker, flow);
    free(flow);
    connection->flow = NULL;
}

void megapipe_memory_free(struct megapipe_worker *worker) {
    while (!SLIST_EMPTY(&worker->flows)) {
        struct megapipe_flow *flow = SLIST_FIRST(&worker->flows);
        SLIST_REMOVE_HEAD(&worker->flows, free_link);
        free(flow);
    }
    while (!SLIST_EMPTY(&worker->pieces)) {
        struct megapipe_piece *piece = SLIST_FIRST(&worker->pieces);
        SLIST_REMOVE_HEAD(&worker->pieces, free_link);
        free(piece);
    }
}

static size_t backlog_bytes(const struct megapipe_connection *connection) {
    const struct megapipe_flow *flow = connection->flow;
    return flow != NULL ? flow->backlog_end - flow->backlog_start : 0;
}

static size_t leased_bytes(const struct megapipe_connection *connection) {
    return connection->flow != NULL ? connection->flow->leased_bytes : 0;
}

/* Returns whether requests to send are in flight. */
bool megapipe_writes(const struct megapipe_connection *connection) {
    const struct megapipe_flow *flow = connection->flow;
    return flow != NULL && (flow->sending != NULL || flow->borrows);
}

/* Returns whether a read would return bytes, or the end. */
bool megapipe_pending(const struct megapipe_connection *connection) {
    return leased_bytes(connection) != 0 || backlog_bytes(connection) != 0 || connection->ended;
}

int megapipe_receive(struct megapipe_connection *connection) {
    connection->repeats = connection->calm == MEGAPIPE_CALM_MAX;
    if (mp_recv(connection->handle, connection->repeats ? MP_REPEAT : 0) == -1)
        return -1;
    connection->receiving = true;
    connection->stopping = false;
    return 0;
}

/* Copies the bytes that memcached has not read from the channel's buffer, which others need. */
static bool keep(struct megapipe_worker *worker, struct megapipe_flow *flow) {
    const size_t kept = flow->backlog_end - flow->backlog_start;
    const size_t needed = kept + flow->leased_bytes;
    if (flow->backlog_start != 0 && kept != 0)
        memmove(flow->backlog, flow->backlog + flow->backlog_start, kept);
    flow->backlog_start = 0;
    flow->backlog_end = kept;
    if (needed > flow->backlog_size) {
        const size_t size = (needed + 4095) / 4096 * 4096;
        char *longer = realloc(flow->backlog, size);
        if (longer == NULL)
            return false;
        megapipe_add(&worker->held_bytes, size - flow->backlog_size);
        flow->backlog = longer;
        flow->backlog_size = size;
    }
    memcpy(flow->backlog + kept, flow->leased, flow->leased_bytes);
    flow->backlog_end = needed;
    return true;
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

static void fail_to_receive(struct megapipe_connection *connection) {
    connection->ended = true;
    connection->receive_error = ENOMEM;
}

/* Lets memcached read the received bytes in the channel's buffer while the completion is
 * handled. */
static void lend(struct megapipe_connection *connection, const struct mp_event *event) {
    struct megapipe_flow *flow = flow_of(connection);
    if (flow == NULL) {
        fail_to_receive(connection);
        return;
    }
    flow->leased = event->data;
    flow->leased_bytes = event->size;
}

/* Takes the bytes of a completion of mp_recv. Returns whether memcached can read them in the
 * channel's buffer, because no earlier bytes are left. */
bool megapipe_take_received(struct megapipe_connection *connection, const struct mp_event *event) {
    const bool data = event->error == 0 && event->size != 0;
    if ((event->flags & MP_MORE) == 0 || !data)
        take_end(connection, event);
    if (data && connection->c != NULL)
        lend(connection, event);
    return data && backlog_bytes(connection) == 0;
}

/* Copies the bytes that memcached has not read; after this the buffer returns to the channel. */
void megapipe_keep_received(struct megapipe_connection *connection) {
    if (connection->c != NULL && leased_bytes(connection) != 0
        && !keep(connection->worker, connection->flow))
        fail_to_receive(connection);
    if (connection->flow != NULL)
        connection->flow->leased_bytes = 0;
    give_empty_flow(connection);
}

/* Continues to receive unless bytes wait to be read, and stops while some do. */
void megapipe_balance_received(struct megapipe_connection *connection) {
    if (backlog_bytes(connection) != 0 || connection->c->rbytes != 0)
        connection->calm = 0;
    else if (connection->calm < MEGAPIPE_CALM_MAX)
        connection->calm++;
    if (!megapipe_pending(connection) && !connection->receiving
        && megapipe_receive(connection) == -1)
        megapipe_complain("cannot receive");
    if (connection->calm == 0 && connection->receiving && connection->repeats
        && !connection->stopping)
        connection->stopping = mp_cancel(connection->handle, MP_IN) == 0;
}

ssize_t megapipe_read(conn *c, void *buffer, size_t size) {
    struct megapipe_connection *connection = c->channel;
    /* A side thread that has borrowed the connection checks whether the peer is still
     * connected. */
    if (connection == NULL || connection->worker != megapipe_worker_here())
        return recv(c->sfd, buffer, size, MSG_DONTWAIT);
    struct megapipe_flow *flow = connection->flow;
    const size_t kept = backlog_bytes(connection);
    size_t taken = kept != 0 ? kept : leased_bytes(connection);
    if (taken > size)
        taken = size;
    if (kept != 0) {
        memcpy(buffer, flow->backlog + flow->backlog_start, taken);
        flow->backlog_start += taken;
        if (backlog_bytes(connection) == 0) {
            drop_backlog(connection->worker, flow);
            give_empty_flow(connection);
        }
    } else if (taken != 0) {
        memcpy(buffer, flow->leased, taken);
        flow->leased += taken;
        flow->leased_bytes -= taken;
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

/* Appends as much of the message as there is room for; returns how much. */
static size_t append(struct megapipe_piece *piece, const struct msghdr *message) {
    const size_t before = piece->bytes;
    for (size_t i = 0; i < message->msg_iovlen && piece->bytes < piece->capacity; i++) {
        const size_t room = piece->capacity - piece->bytes;
        const struct iovec *part = &message->msg_iov[i];
        const size_t bytes = part->iov_len < room ? part->iov_len : room;
        memcpy(piece->data + piece->bytes, part->iov_base, bytes);
        piece->bytes += bytes;
    }
    return piece->bytes - before;
}

static int submit(struct megapipe_connection *connection, struct megapipe_piece *piece) {
    if (mp_write(connection->handle, piece->data, piece->bytes) == -1)
        return -1;
    connection->flow->sending = piece;
    return 0;
}

/* Submits all output, before a side thread writes to the descriptor. */
void megapipe_send_collected(struct megapipe_connection *connection) {
    struct megapipe_flow *flow = connection->flow;
    if (flow == NULL || flow->collecting == NULL || flow->collected_in_flight)
        return;
    const struct megapipe_piece *piece = flow->collecting;
    flow->collected_in_flight = mp_write(connection->handle, piece->data, piece->bytes) == 0;
}

/* Copies the message and submits it, or collects as much as there is room for while another one
 * is in flight; memcached does not need these bytes any more. */
static ssize_t send_copy(struct megapipe_connection *connection, const struct msghdr *message,
                         size_t bytes) {
    struct megapipe_flow *flow = connection->flow;
    const bool collects = flow->sending != NULL;
    struct megapipe_piece *piece = flow->collecting;
    if (piece == NULL)
        piece = piece_new(connection->worker, collects ? MEGAPIPE_COLLECTED_MAX_BYTES : bytes);
    if (piece == NULL) {
        errno = ENOMEM;
        return -1;
    }
    const size_t taken = append(piece, message);
    if (collects) {
        flow->collecting = piece;
    } else if (submit(connection, piece) == -1) {
        piece_free(connection->worker, piece);
        return -1;
    }
    if (taken == 0) {
        errno = EAGAIN;
        return -1;
    }
    megapipe_count(&connection->worker->sent_copied);
    return taken;
}

/* Submits the message in place: the responses keep their items until it is sent. */
static ssize_t send_borrowed(struct megapipe_connection *connection, const struct msghdr *message,
                             size_t bytes) {
    if (mp_writev(connection->handle, message->msg_iov, message->msg_iovlen) == -1)
        return -1;
    megapipe_count(&connection->worker->sent_in_place);
    connection->flow->borrows = true;
    connection->flow->borrowed_bytes = bytes;
    errno = EAGAIN;
    return -1;
}

ssize_t megapipe_sendmsg(conn *c, struct msghdr *message, int flags) {
    struct megapipe_connection *connection = c->channel;
    if (connection == NULL)
        return sendmsg(c->sfd, message, flags);
    if (connection->send_error != 0) {
        errno = connection->send_error;
        return -1;
    }
    struct megapipe_flow *flow = flow_of(connection);
    if (flow == NULL) {
        errno = ENOMEM;
        return -1;
    }
    if (flow->borrowed_sent) {
        const size_t bytes = flow->borrowed_bytes;
        flow->borrowed_sent = false;
        give_empty_flow(connection);
        return bytes;
    }
    const size_t bytes = length(message);
    const bool is_large = bytes > MEGAPIPE_COPY_MAX_BYTES;
    if (flow->borrows || flow->collected_in_flight || (is_large && flow->collecting != NULL)) {
        errno = EAGAIN;
        return -1;
    }
    return is_large ? send_borrowed(connection, message, bytes)
                    : send_copy(connection, message, bytes);
}

/* Releases the memory from which a completed request was sent, and sends what was collected
 * meanwhile. */
void megapipe_take_written(struct megapipe_connection *connection, const struct mp_event *event) {
    struct megapipe_flow *flow = connection->flow;
    if (event->error != 0)
        connection->send_error = event->error;
    if (event->cmd == MP_WRITEV) {
        flow->borrows = false;
        flow->borrowed_sent = true;
    } else {
        struct megapipe_piece *next = flow->collecting;
        piece_free(connection->worker, flow->sending);
        flow->sending = flow->collected_in_flight ? next : NULL;
        flow->collecting = NULL;
        flow->collected_in_flight = false;
        if (next != NULL && flow->sending == NULL
            && (connection->send_error != 0 || submit(connection, next) == -1)) {
            connection->send_error = connection->send_error != 0 ? connection->send_error : errno;
            piece_free(connection->worker, next);
        }
    }
    give_empty_flow(connection);
}
