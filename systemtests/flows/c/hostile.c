/* A client that speaks the rendezvous itself and then lies in the shared page.
   Usage: hostile PORT SEED
   Runs without the library, against an echo server that runs with it; both must end in order. */
#include "rendezvous.h"

/* Writes a value that the server might believe into a word of the client's half. */
static void write_near_valid(struct hostile *it, uint64_t *chance) {
    struct side *mine = &it->page->client;
    const struct side *server = &it->page->server;
    uint64_t base[] = {0, server->read, server->written, mine->written, mine->read};
    uint64_t near = base[next_random(chance) % COUNT(base)] + next_random(chance) % 4;
    if (next_random(chance) % 4 == 0) near -= next_random(chance) % 8;
    if (next_random(chance) % 4 == 0) near += next_random(chance) % RING_BYTES;
    uint32_t small = next_random(chance) % 5;
    switch (next_random(chance) % 14) {
    case 0: mine->mode = small % 3; break;
    case 1: mine->starved = small % 2; break;
    case 2: mine->switch_at = near; break;
    case 3: mine->written = near; break;
    case 4: mine->returned_at = near; break;
    case 5: mine->doorbells = small; break;
    case 6: mine->recalled = small % 2; break;
    case 7: mine->read = near; break;
    case 8: mine->sleeping = small % 2; break;
    case 9: mine->leaving = small; break;
    case 10: mine->taking = small % 2; break;
    case 11: mine->receive_bytes = next_random(chance) % 8192; break;
    /* The server's half, which the client can write to as well. */
    case 12: it->page->server.read = near; break;
    default: it->page->standing = small % 3; break;
    }
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    alarm(600);
    signal(SIGPIPE, SIG_IGN);
    int port = atoi(arguments[1]);
    uint64_t chance = strtoull(arguments[2], NULL, 10);
    struct hostile it = prepare(port);
    int unsealed = next_random(&chance) % 8 == 0;
    if (!unsealed) seal(&it);
    send_offer(&it, visit(port));
    join(&it);
    if (unsealed) CHECK(ftruncate(it.memory, 0) == 0);

    uint64_t *page = (uint64_t *)it.page;
    int wild = next_random(&chance) % 3 == 0;
    char trash[256] = {0};
    for (int turn = 0; turn < 300; turn++) {
        /* Words of the header with small and large values, and bytes in the stream. */
        size_t word = 16 + next_random(&chance) % 112;
        uint64_t value = next_random(&chance) % 3;
        if (next_random(&chance) % 3 == 0) value = next_random(&chance) % (2 * RING_BYTES);
        if (next_random(&chance) % 6 == 0) value = (uint64_t)next_random(&chance) << 33;
        if (unsealed) {
            /* There is no memory any more. */
        } else if (wild) {
            page[word] = value;
        } else {
            write_near_valid(&it, &chance);
        }
        if (next_random(&chance) % 4 == 0) {
            send(it.fd, trash, next_random(&chance) % sizeof trash, MSG_DONTWAIT);
        }
        recv(it.fd, trash, sizeof trash, MSG_DONTWAIT);
        usleep(next_random(&chance) % 100);
    }
    drop(&it);
    return 0;
}
