/* Declares all functions that memcached's own sources call: the interface between memcached and
 * the channel.
 *
 * The functions named megapipe_event_* take the arguments of libevent's functions of the same
 * name. An event whose base belongs to a worker thread goes to that worker's channel; the main
 * thread's timers and listeners stay with libevent, which then handles no data. */
#ifndef MEGAPIPE_SEAM_H
#define MEGAPIPE_SEAM_H

#include <event.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>

struct conn;

/* The channel's state of a connection; NULL in a connection that is not in a channel. */
struct megapipe_connection;

/* Replaces a worker's event base, which it frees; with the proxy, whose events are libevent's, it
 * returns that base, and the worker has no channel. Ends the process if memory is short, as the
 * start of memcached's threads does. */
struct event_base *megapipe_worker_new(void *worker_thread, struct event_base *base);

/* Serves the worker's channel once in the calling thread, which waits until there is something to
 * do; returns false after megapipe_worker_stop. All requests have ended by then, so closing
 * connections afterwards frees no memory that is being sent. */
bool megapipe_turn(struct event_base *base);
void megapipe_worker_stop(struct event_base *base);
void megapipe_worker_free(struct event_base *base);

int megapipe_event_base_set(struct event_base *base, struct event *event);
int megapipe_event_add(struct event *event, const struct timeval *timeout);
int megapipe_event_del(struct event *event);

/* Calls the event's function from the worker's loop. */
void megapipe_event_active(struct event *event);

/* Reads, as read(2) on a non-blocking socket, from the bytes that the channel has received. */
ssize_t megapipe_read(struct conn *c, void *buffer, size_t size);

/* Sends, as sendmsg(2) on a non-blocking socket. A small message is copied and submitted at
 * once. A large one is submitted in place and fails with EAGAIN; the repeated call after its
 * completion succeeds. */
ssize_t megapipe_sendmsg(struct conn *c, struct msghdr *message, int flags);

/* Closes the socket, after the pending output is sent. */
void megapipe_close(struct conn *c);

/* Prepares a connection that a side thread borrows: submitted output is sent before what the
 * side thread writes to the descriptor, which never blocks from now on. */
void megapipe_lend(struct conn *c);

/* Called by the side thread: the connection is closed as soon as it is returned to its worker. */
void megapipe_close_lent(struct conn *c);

/* Called by the worker to which it is returned: sets its state if it is to be closed. */
void megapipe_returned(struct conn *c);

/* Binds as bind(2), but tries again for a second while the address is in use: the kernel
 * destroys the rings of a stopped process, and with them its listening sockets, shortly after
 * the process. */
int megapipe_bind(int fd, const struct sockaddr *address, socklen_t length);

/* Passes a listening TCP socket to the workers, each of which accepts on its CPUs. */
void megapipe_listen(struct conn *c);

/* Stops all accepting before the process ends; otherwise the kernel would release the address
 * later. */
void megapipe_stop_accepting(void);

/* Returns the hard limit of descriptors for memcached's limit of connections, with room for
 * those of the channels as far as possible. */
rlim_t megapipe_hard_limit(rlim_t possible);

/* Returns whether a connection with this descriptor exceeds the limit. */
bool megapipe_is_full(int fd);

/* Returns the first item of a hash value's bucket, in memcached's own table; the only function
 * here that memcached defines. The result is valid in a worker until it returns to its loop,
 * because the table is replaced by a larger one only while the workers pause. */
const void *megapipe_bucket(uint32_t hash_value);

/* Returns the bytes that the connections of a worker hold in copies: received and not yet read, or
 * written and not yet sent. */
uint64_t megapipe_held_bytes(int worker);

/* Reports the counters of `stats megapipe`; the function is memcached's ADD_STAT. */
void megapipe_stats(void (*add_stats)(const char *key, const uint16_t key_bytes, const char *value,
                                      const uint32_t value_bytes, const void *cookie),
                    void *c);

#endif
