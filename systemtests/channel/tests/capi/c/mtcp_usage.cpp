// Tests that the header of contexts is valid C++17: all of it compiles, and a pipe wakes an epoll.
#include <mtcp.h>

#include <cstdio>
#include <cstring>
#include <memory>

struct Destroy {
    void operator()(mtcp_context *context) const { mtcp_destroy_context(context); }
};

int main(int argc, char **argv)
{
    mtcp_conf conf{};
    conf.max_concurrency = 1000;
    if (argc < 2 || mtcp_setconf(&conf) != 0 || mtcp_init(argv[1]) != 0)
        return std::fprintf(stderr, "%s\n", mp_error()), 1;
    std::unique_ptr<mtcp_context, Destroy> context(mtcp_create_context(0));
    const mctx_t mctx = context.get();
    int ends[2];
    if (!mctx || mtcp_pipe(mctx, ends) != 0)
        return std::fprintf(stderr, "%s\n", mp_error()), 1;
    const int epoll = mtcp_epoll_create(mctx, 1);
    mtcp_epoll_event event{MTCP_EPOLLIN | MTCP_EPOLLET, {}};
    event.data.sockid = ends[0];
    char room[8];
    if (mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_ADD, ends[0], &event) != 0
        || mtcp_write(mctx, ends[1], "hello", 5) != 5
        || mtcp_epoll_wait(mctx, epoll, &event, 1, 10000) != 1 || event.data.sockid != ends[0]
        || mtcp_read(mctx, ends[0], room, sizeof room) != 5 || std::memcmp(room, "hello", 5) != 0)
        return std::fprintf(stderr, "%s\n", mp_error()), 1;
    return mtcp_getconf(&conf) != 0 || conf.max_concurrency != 1000;
}
