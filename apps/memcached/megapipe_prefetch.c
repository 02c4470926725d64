/* Looking ahead: completions come in batches, so the keys of the requests behind the one at hand
 * are known already, and their items can be on the way from memory while it is answered. In a
 * store that is larger than the CPU's cache, waiting for an item is what a get costs most. */
#include "megapipe_inside.h"

#include <string.h>

/* The commands worth it ("get", "mg", "incr", ...) have short names. */
#define COMMAND_MAX_BYTES 8

/* The item's head and a long key. The CPU itself fetches what is read behind them. */
#define ITEM_HEAD_BYTES 192
#define CACHE_LINE_BYTES 64

static bool ends_key(char byte) {
    return byte == ' ' || byte == '\r' || byte == '\n';
}

/* The first key of a request in text; 0 bytes if there is none. A guess may be wrong: it is for
 * memcached to parse the request. */
static size_t find_key(const char *request, size_t bytes, const char **key) {
    const char *space = memchr(request, ' ', bytes < COMMAND_MAX_BYTES ? bytes : COMMAND_MAX_BYTES);
    if (space == NULL)
        return 0;
    *key = space + 1;
    const size_t left = request + bytes - *key;
    size_t size = 0;
    while (size < left && size <= KEY_MAX_LENGTH && !ends_key((*key)[size]))
        size++;
    return size <= KEY_MAX_LENGTH ? size : 0;
}

static bool is_request(const struct mp_event *event) {
    return event->cmd == MP_RECV && event->error == 0 && event->size != 0;
}

const void *megapipe_prefetch_bucket(const struct mp_event *event) {
    const char *key;
    const size_t size = is_request(event) ? find_key(event->data, event->size, &key) : 0;
    const void *bucket = size != 0 ? megapipe_bucket(hash(key, size)) : NULL;
    if (bucket != NULL)
        __builtin_prefetch(bucket);
    return bucket;
}

/* The item may have gone by now, which a prefetch does not mind. */
void megapipe_prefetch_item(const void *bucket) {
    if (bucket == NULL)
        return;
    const item *found = __atomic_load_n((item *const *)bucket, __ATOMIC_RELAXED);
    for (size_t at = 0; found != NULL && at < ITEM_HEAD_BYTES; at += CACHE_LINE_BYTES)
        __builtin_prefetch((const char *)found + at);
}
