/*
 * Memory that comes and goes with every message. Freed pieces are used again last in, first out,
 * while they are still in the processor's cache; only so many are kept.
 */
#include "ngx_megapipe.h"

/* 64 of the large ones are 4 MiB; a burst of slow readers gives back what is above. */
#define NGX_MP_SMALL_KEPT_MAX 1024
#define NGX_MP_LARGE_KEPT_MAX 64
#define NGX_MP_RECEIVED_KEPT_MAX 1024

typedef struct {
    ngx_mp_block_t *first;
    ngx_uint_t count;
} ngx_mp_free_t;

static ngx_mp_free_t ngx_mp_small;
static ngx_mp_free_t ngx_mp_large;
static ngx_mp_received_t *ngx_mp_free_received;
static ngx_uint_t ngx_mp_free_received_count;

/* A block with room for so many bytes, at most what may be in flight; NULL if there is no memory */
ngx_mp_block_t *
ngx_mp_take_block(size_t bytes, ngx_log_t *log)
{
    ngx_uint_t small = bytes <= NGX_MP_SMALL_BLOCK_BYTES;
    ngx_mp_free_t *list = small ? &ngx_mp_small : &ngx_mp_large;
    ngx_mp_block_t *block = list->first;

    if (block != NULL) {
        list->first = block->next;
        list->count--;
    } else {
        size_t room = small ? NGX_MP_SMALL_BLOCK_BYTES : NGX_MP_IN_FLIGHT_BYTES_MAX;
        block = ngx_alloc(sizeof(ngx_mp_block_t) + room, log);
        if (block == NULL) {
            return NULL;
        }
        block->room_bytes = room;
    }

    block->next = NULL;
    block->used_bytes = 0;
    return block;
}

void
ngx_mp_give_block(ngx_mp_block_t *block)
{
    ngx_uint_t small = block->room_bytes == NGX_MP_SMALL_BLOCK_BYTES;
    ngx_mp_free_t *list = small ? &ngx_mp_small : &ngx_mp_large;

    if (list->count == (small ? NGX_MP_SMALL_KEPT_MAX : NGX_MP_LARGE_KEPT_MAX)) {
        ngx_free(block);
        return;
    }
    block->next = list->first;
    list->first = block;
    list->count++;
}

ngx_mp_received_t *
ngx_mp_take_received(ngx_log_t *log)
{
    ngx_mp_received_t *received = ngx_mp_free_received;

    if (received == NULL) {
        return ngx_alloc(sizeof(ngx_mp_received_t), log);
    }
    ngx_mp_free_received = received->next;
    ngx_mp_free_received_count--;
    return received;
}

void
ngx_mp_give_received(ngx_mp_received_t *received)
{
    if (ngx_mp_free_received_count == NGX_MP_RECEIVED_KEPT_MAX) {
        ngx_free(received);
        return;
    }
    received->next = ngx_mp_free_received;
    ngx_mp_free_received = received;
    ngx_mp_free_received_count++;
}
