/* Declarations that the files of the adaptation share, and redis' own sources do not use. */
#ifndef MEGAPIPE_INSIDE_H
#define MEGAPIPE_INSIDE_H

#include "server.h"

#include <megapipe.h>
#include <sys/queue.h>

/* Maximum number of completions taken at a time, and turned over to redis before it writes its
 * answers. */
#define MEGAPIPE_BATCH 256

/* Longest message that is copied and written through the channel. A longer one is written by a
 * system call from where it lies if nothing is in flight before it: its copy would cost more than
 * the call. */
#define MEGAPIPE_COPY_MAX_BYTES (8 * 1024)

/* Maximum number of bytes of a client that are written and not yet sent, with their overhead. More
 * stays in redis' own output buffers, whose limits apply. */
#define MEGAPIPE_IN_FLIGHT_MAX_BYTES (16 * 1024)

/* Bytes that redis does not read, from which on the connection receives no more. */
#define MEGAPIPE_BACKLOG_MAX_BYTES (64 * 1024)

/* Large buffers of the channel: as long as one read of redis (PROTO_IOBUF_LEN). */
#define MEGAPIPE_LARGE_BUFFER_BYTES (16 * 1024)
#define MEGAPIPE_LARGE_BUFFERS 256

/* How long the peer of a connection that redis has closed may take none of the last bytes. */
#define MEGAPIPE_LAST_WORDS_MS 20000

/* A client's connection. redis sees and uses the first member only. */
struct megapipe_stream {
    connection conn; /* its fd is -1 after the close */
    mp_handle handle;
    TAILQ_ENTRY(megapipe_stream) ready_link;
    /* Bytes in a buffer of the channel, only while their completion is handled. */
    const char *leased;
    size_t leased_bytes;
    sds backlog; /* received and not read; NULL if there is none */
    size_t backlog_start;
    size_t in_flight; /* bytes that are being written, with their overhead */
    int receive_error, send_error;
    unsigned read_turn; /* the turn of the event loop in which redis last read */
    unsigned running;   /* calls of handlers that have not returned */
    unsigned scheduled : 1; /* in the list of those that get a turn without a completion */
    unsigned receiving : 1;
    unsigned stopping : 1; /* that receive has been cancelled */
    unsigned ended : 1;    /* nothing more will come: end of stream, or receive_error */
    unsigned released : 1; /* redis does not use the connection any more */
    unsigned closed : 1;   /* nor does the channel */
};

/* redis' own, in ae.c and connection.c. */
extern int (*aePoll)(aeEventLoop *loop, struct timeval *timeout);
extern ConnectionType CT_Socket;

/* megapipe_channel.c */
/* The channel, NULL without one; the turn of the event loop. */
extern mp_channel *megapipe_channel;
extern unsigned megapipe_turn;

/* Gives the stream a turn in the next round of the event loop, or removes it from the list. */
void megapipeSchedule(struct megapipe_stream *stream);
void megapipeUnschedule(struct megapipe_stream *stream);

/* Waits for one completion and stores what it brings, without a call of redis. */
void megapipeWait(void);

/* megapipe_stream.c */
/* Handles a completion. With `may_run` redis is called at once, else in the next round. */
void megapipeHandle(const struct mp_event *event, bool may_run);

/* Calls redis for what the stream has: bytes, the end, or room to write. */
void megapipeRun(struct megapipe_stream *stream);

#endif
