/*
 * Manages memory that is used for every message. Freed pieces are reused last in, first out, while
 * they are still in the CPU's cache; a limited number is kept.
 */
#include "ngx_megapipe.h"
#include <malloc.h>

#define NGX_MP_RECEIVED_KEPT_MAX 1024
#define NGX_MP_FLOWS_KEPT_MAX 1024

typedef struct {
    size_t room_bytes;
    ngx_uint_t kept_max;
    ngx_mp_block_t *first;
    ngx_uint_t count;
} ngx_mp_free_t;

/* 1 MiB of each size is kept. */
static ngx_mp_free_t ngx_mp_sizes[] = {
    { 4096, 256, NULL, 0 },
    { NGX_MP_COLLECTED_BYTES_MAX, 64, NULL, 0 },
    { NGX_MP_BLOCK_BYTES_MAX, 16, NULL, 0 },
};

/* Memory of blocks above which it is given back to the kernel whenever half of it was freed. */
#define NGX_MP_TRIMMED_BYTES_MIN (4 << 20)

static size_t ngx_mp_blocks_bytes;
static size_t ngx_mp_blocks_bytes_before; /* the most since memory was given back */


static ngx_mp_received_t *ngx_mp_free_received;
static ngx_uint_t ngx_mp_free_received_count;

static ngx_mp_flow_t *ngx_mp_free_flows;
static ngx_uint_t ngx_mp_free_flows_count;

/* Returns the free list of the smallest size with that much room. */
static ngx_mp_free_t *
ngx_mp_blocks_for(size_t bytes)
{
    ngx_mp_free_t *size = ngx_mp_sizes;

    while (size->room_bytes < bytes) {
        size++;
    }
    return size;
}

/*
 * Returns a block with room for `bytes`, at most NGX_MP_BLOCK_BYTES_MAX; NULL if there is no
 * memory.
 */
ngx_mp_block_t *
ngx_mp_take_block(size_t bytes, ngx_log_t *log)
{
    ngx_mp_free_t *size = ngx_mp_blocks_for(bytes);
    ngx_mp_block_t *block = size->first;

    if (block != NULL) {
        size->first = block->next;
        size->count--;
    } else {
        block = ngx_alloc(sizeof(ngx_mp_block_t) + size->room_bytes, log);
        if (block == NULL) {
            return NULL;
        }
        block->room_bytes = size->room_bytes;
        ngx_mp_blocks_bytes += block->room_bytes;
        ngx_mp_blocks_bytes_before = ngx_max(ngx_mp_blocks_bytes_before, ngx_mp_blocks_bytes);
    }

    block->next = NULL;
    block->used_bytes = 0;
    return block;
}

/*
 * Frees a block, or keeps it. After a burst of slow readers the C library would keep the memory,
 * because some of the connections have theirs behind it.
 */
void
ngx_mp_give_block(ngx_mp_block_t *block)
{
    ngx_mp_free_t *size = ngx_mp_blocks_for(block->room_bytes);

    if (size->count == size->kept_max) {
        ngx_mp_blocks_bytes -= block->room_bytes;
        ngx_free(block);
        if (ngx_mp_blocks_bytes_before > NGX_MP_TRIMMED_BYTES_MIN
            && ngx_mp_blocks_bytes < ngx_mp_blocks_bytes_before / 2)
        {
            (void) malloc_trim(0);
            ngx_mp_blocks_bytes_before = ngx_mp_blocks_bytes;
        }
        return;
    }
    block->next = size->first;
    size->first = block;
    size->count++;
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

/* Returns the flow of a connection; creates one if it was idle. NULL if there is no memory. */
ngx_mp_flow_t *
ngx_mp_take_flow(ngx_mp_connection_t *mc, ngx_log_t *log)
{
    ngx_mp_flow_t *flow = mc->flow;

    if (flow != NULL) {
        return flow;
    }
    flow = ngx_mp_free_flows;
    if (flow != NULL) {
        ngx_mp_free_flows = flow->next;
        ngx_mp_free_flows_count--;
    } else {
        flow = ngx_calloc(sizeof(ngx_mp_flow_t), log);
        if (flow == NULL) {
            return NULL;
        }
        flow->received_end = &flow->received;
    }
    mc->flow = flow;
    return flow;
}

/* Returns an empty flow to the free list; the next connection gets it unchanged. */
void
ngx_mp_give_empty_flow(ngx_mp_connection_t *mc)
{
    ngx_mp_flow_t *flow = mc->flow;

    if (flow == NULL || flow->received != NULL || flow->sending != NULL) {
        return;
    }
    mc->flow = NULL;
    if (ngx_mp_free_flows_count == NGX_MP_FLOWS_KEPT_MAX) {
        ngx_free(flow);
        return;
    }
    flow->next = ngx_mp_free_flows;
    ngx_mp_free_flows = flow;
    ngx_mp_free_flows_count++;
}
