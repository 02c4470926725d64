/*
 * Runs the first example of megapipe.h as printed, with few connections at a time. The compiler's
 * command names the file of the example.
 */
#define _GNU_SOURCE
#include "check.h"

static void print_address(const void *address, size_t size)
{
    CHECK(address && size == sizeof(struct sockaddr_in));
}

int main(void)
{
    struct mp_options options = { .max_lwsockets = 24, .max_handles = 26 };
    mp_channel *channel = channel_with(&options);
    const char head[] = "HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\n";
    const size_t head_size = sizeof head - 1, file_size = 7;
    struct sockaddr_in address;
    mp_handle listener = mp_register(channel, listening(&address), NULL, NULL), file;
    FILE *content = tmpfile();

    CHECK(content && fputs("hello!\n", content) >= 0 && fflush(content) == 0);
    file = mp_register(channel, fileno(content), NULL, NULL);
    CHECK(listener != MP_NONE && file != MP_NONE);
    printf("listening on 127.0.0.1:%u\n", ntohs(address.sin_port));
    fflush(stdout);
    {
#include EXAMPLE
    }
    return 1;
}
