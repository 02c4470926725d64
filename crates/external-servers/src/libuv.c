/* The echo server on libuv: one loop, one listening socket, called from libuv.rs.
 *
 * What is to be sent is tried at once, as a careful user would; only what the socket does not take
 * becomes a write request, and then reading stops until it is out, which bounds the memory. */

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <uv.h>

#define BUFFER_BYTES (16 * 1024)

/* Has the layout of `RawService` in on_libuv.rs. */
struct service {
    size_t request_bytes; /* 0: every byte goes back as it comes */
    const char *response;
    size_t response_bytes;
};

struct connection {
    uv_tcp_t stream; /* first, so that a pointer to it is one to the connection */
    uv_write_t write;
    const struct service *service;
    size_t partial_bytes; /* received of a request that is not complete */
    size_t answers_due;
    char buffer[BUFFER_BYTES];
};

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *unused);
static void on_written(uv_write_t *request, int status);

static void on_closed(uv_handle_t *handle) { free(handle); }

static void close_connection(struct connection *connection) {
    if (!uv_is_closing((uv_handle_t *)connection)) {
        uv_close((uv_handle_t *)connection, on_closed);
    }
}

static void give_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    (void)suggested;
    *buffer = uv_buf_init(((struct connection *)handle)->buffer, BUFFER_BYTES);
}

/* Returns true if everything is sent; otherwise the rest is queued, or the connection is closed. */
static bool sent(struct connection *connection, const char *bytes, size_t length) {
    uv_stream_t *stream = (uv_stream_t *)connection;
    uv_buf_t rest = uv_buf_init((char *)bytes, (unsigned int)length);
    int count = uv_try_write(stream, &rest, 1);
    if (count == (int)length) {
        return true;
    }
    if (count < 0 && count != UV_EAGAIN) {
        close_connection(connection);
        return false;
    }
    if (count > 0) {
        rest = uv_buf_init((char *)bytes + count, (unsigned int)(length - (size_t)count));
    }
    uv_read_stop(stream);
    if (uv_write(&connection->write, stream, &rest, 1, on_written) != 0) {
        close_connection(connection);
    }
    return false;
}

/* Sends the outstanding answers. Returns true if all have been sent. */
static bool answer(struct connection *connection) {
    const struct service *service = connection->service;
    while (connection->answers_due > 0) {
        connection->answers_due--;
        if (!sent(connection, service->response, service->response_bytes)) {
            return false;
        }
    }
    return true;
}

static void on_written(uv_write_t *request, int status) {
    struct connection *connection = (struct connection *)request->handle;
    if (status < 0) {
        close_connection(connection);
    } else if (answer(connection) &&
               uv_read_start((uv_stream_t *)connection, give_buffer, on_read) != 0) {
        close_connection(connection);
    }
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *unused) {
    struct connection *connection = (struct connection *)stream;
    size_t request_bytes = connection->service->request_bytes;
    (void)unused;
    if (count < 0) {
        close_connection(connection);
    } else if (request_bytes == 0) {
        /* A read may be empty (EAGAIN). */
        if (count > 0) {
            sent(connection, connection->buffer, (size_t)count);
        }
    } else {
        connection->partial_bytes += (size_t)count;
        connection->answers_due = connection->partial_bytes / request_bytes;
        connection->partial_bytes %= request_bytes;
        answer(connection);
    }
}

static void on_connection(uv_stream_t *listener, int status) {
    struct connection *connection;
    if (status < 0) {
        return; /* a peer that has gone away again */
    }
    connection = calloc(1, sizeof *connection);
    if (connection == NULL) {
        abort();
    }
    connection->service = listener->data;
    uv_tcp_init(listener->loop, &connection->stream);
    if (uv_accept(listener, (uv_stream_t *)connection) != 0 ||
        uv_read_start((uv_stream_t *)connection, give_buffer, on_read) != 0) {
        close_connection(connection);
    }
}

/* Serves until the process ends; returns libuv's error number if that fails at the start. The
   descriptor is bound. */
int iobench_external_libuv_serve(int descriptor, int backlog, const struct service *service) {
    uv_loop_t loop;
    uv_tcp_t listener;
    int error = uv_loop_init(&loop);
    if (error == 0) {
        error = uv_tcp_init(&loop, &listener);
    }
    if (error == 0) {
        error = uv_tcp_open(&listener, descriptor);
    }
    if (error == 0) {
        listener.data = (void *)service;
        error = uv_listen((uv_stream_t *)&listener, backlog, on_connection);
    }
    if (error == 0) {
        uv_run(&loop, UV_RUN_DEFAULT);
    }
    return error;
}
