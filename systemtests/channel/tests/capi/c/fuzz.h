/* Shared by the programs that make random calls; included after the checks. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdint.h>

/* The state of the generator, or the bytes of a fuzzer, which come first; zeros follow them. */
static uint64_t state;
static const uint8_t *input;
static size_t input_bytes;
static unsigned long done, refused;

/* Returns a number below that one. */
static uint32_t any(uint32_t below)
{
    uint32_t value = 0;

    if (!input) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(state >> 33) % below;
    }
    for (uint32_t most = below - 1; most > 0 && input_bytes > 0; most >>= 8, input_bytes--)
        value = value << 8 | *input++;
    return value % below;
}

/* Counts a call, which must not have panicked, and says why if it failed. */
static void count(long result)
{
    done++;
    refused += result < 0;
    CHECK(result >= 0 || (errno != ENOTRECOVERABLE && strlen(mp_error()) > 10));
}

#endif
