/* Prefetches items. Completions come in batches, so the keys of the next requests are known
 * while the current one is handled, and their items can be loaded from memory meanwhile. In a
 * store that is larger than the CPU's cache, waiting for an item is the largest cost of a get. */
#include "megapipe_inside.h"

#include <string.h>

/* The commands worth a prefetch ("get", "mg", "incr", ...) have short names. */
#define COMMAND_MAX_BYTES 8

/* The item's head and a long key. The CPU's own prefetcher loads the bytes after them. */
#define ITEM_HEAD_BYTES 192
#define CACHE_LINE_BYTES 64

static bool ends_key(char byte) {
    return byte == ' ' || byte == '\r' || byte == '\n';
}

/* Finds the first key of a text request; 0 bytes if there is none. The guess may be wrong,
 * because memcached itself parses the request. */
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

/* The item may have been freed by now; a prefetch of its address does no harm. */
void megapipe_prefetch_item(const void *bucket) {
    if (bucket == NULL)
        return;
    const item *found = __atomic_load_n((item *const *)bucket, __ATOMIC_RELAXED);
    for (size_t at = 0; found != NULL && at < ITEM_HEAD_BYTES; at += CACHE_LINE_BYTES)
        __builtin_prefetch((const char *)found + at);
}
