/* Declares all functions that redis' own sources call: the interface between redis and the
 * channel. */
#ifndef MEGAPIPE_SEAM_H
#define MEGAPIPE_SEAM_H

struct connection;

/* Creates the channel if the configuration has `megapipe yes`, after the event loop and before
 * clients are served. Ends the process if that is not possible. */
void megapipeStart(void);

/* Returns a connection for an accepted client: through the channel if there is one, else as
 * connCreateAcceptedSocket(). */
struct connection *megapipeAccepted(int fd);

#endif
