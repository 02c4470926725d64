/*
 * An HTTP/1.1 server that says hello, with coroutines: keep-alive, pipelined requests, bounded
 * heads, time limits, and a graceful end at SIGINT or SIGTERM.
 *
 *   c++ -std=c++20 http_hello.cpp $(pkg-config --cflags --libs megapipe) -o /tmp/http_hello
 *   /tmp/http_hello 8080 & curl http://127.0.0.1:8080/
 */
#include <megapipe.hpp>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <sys/signalfd.h>

using namespace std::chrono_literals;
using std::string_view;

constexpr std::size_t head_max = 4096;   /* bytes of a request's head; more are refused with 431 */
constexpr std::size_t drain_max = 65536; /* bytes read after the last answer */
constexpr auto head_time = 30s;          /* for the next head to be whole */
constexpr auto answer_time = 5s;         /* for the client to take answers */

#define TEXT "text/plain\r\nContent-Length: "
#define HELLO "HTTP/1.1 200 OK\r\nContent-Type: " TEXT "7\r\n"
#define EMPTY "Content-Length: 0\r\n"
#define CLOSE "Connection: close\r\n\r\n"

constexpr string_view bad = "HTTP/1.1 400 Bad Request\r\n" EMPTY CLOSE;
constexpr string_view not_allowed =
    "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\n" EMPTY CLOSE;
constexpr string_view too_large = "HTTP/1.1 431 Request Header Fields Too Large\r\n" EMPTY CLOSE;

struct answer {
    string_view text;
    bool is_last;
};

static bool begins_with(string_view text, string_view start)
{
    const auto same = [](unsigned char a, unsigned char b) {
        return std::tolower(a) == std::tolower(b);
    };
    return text.size() >= start.size()
           && std::equal(start.begin(), start.end(), text.begin(), same);
}

/* Whether a head has a field of this name whose value begins with this text. */
static bool has_field(string_view head, string_view name, string_view value)
{
    for (auto at = head.find('\n'); at != head.npos; at = head.find('\n', at)) {
        const string_view line = head.substr(++at);
        if (!begins_with(line, name))
            continue;
        const auto start = line.find_first_not_of(" \t", name.size());
        if (start != line.npos && begins_with(line.substr(start), value))
            return true;
    }
    return false;
}

/* The answer to a head; is_last if nothing can follow it, or the connection shall end. */
static answer answer_to(string_view head, bool is_last)
{
    const string_view request = head.substr(0, head.find('\r'));
    const bool is_head = request.starts_with("HEAD ");
    const bool is_old = request.ends_with(" HTTP/1.0");

    if (!is_old && !request.ends_with(" HTTP/1.1"))
        return {bad, true};
    if (!is_head && !request.starts_with("GET "))
        return {not_allowed, true};
    /* The bytes of a body would be taken for the next head. */
    if (is_last || is_old || has_field(head, "connection:", "close")
        || has_field(head, "content-length:", "") || has_field(head, "transfer-encoding:", ""))
        return {is_head ? HELLO CLOSE : HELLO CLOSE "hello!\n", true};
    return {is_head ? HELLO "\r\n" : HELLO "\r\nhello!\n", false};
}

/* Moves the whole heads out of the text; returns their answers. */
static std::string answers_to(std::string &heads, bool stops, bool &is_last)
{
    std::string answers;
    std::size_t done = 0;

    while (!is_last) {
        const auto end = heads.find("\r\n\r\n", done);
        answer next{too_large, true};
        if (end == heads.npos && heads.size() - done < head_max)
            break;
        if (end != heads.npos && end - done < head_max)
            next = answer_to(string_view(heads).substr(done, end + 2 - done), stops);
        answers += next.text;
        is_last = next.is_last;
        done = end == heads.npos ? heads.size() : end + 4;
    }
    heads.erase(0, done);
    return answers;
}

/* Reads what still comes: a connection that is closed with unread bytes is reset, and its last
 * answer may be lost. */
static megapipe::task<> drain(megapipe::socket &peer)
{
    const auto deadline = std::chrono::steady_clock::now() + answer_time;
    co_await peer.shutdown(SHUT_WR).by(deadline);
    for (std::size_t drained = 0; drained < drain_max;) {
        const auto bytes = co_await peer.receive().by(deadline);
        if (!bytes)
            break;
        drained += bytes.size();
    }
}

static megapipe::task<> answer_all(megapipe::socket &peer, std::stop_token stop)
{
    std::string heads; /* bytes of heads that are not whole */
    auto deadline = std::chrono::steady_clock::now() + head_time;

    for (bool is_last = false; !is_last;) {
        auto bytes = co_await peer.receive().by(deadline).until(stop);
        if (!bytes)
            co_return;
        heads += bytes.text();
        bytes = {};
        const auto answers = answers_to(heads, stop.stop_requested(), is_last);
        if (answers.empty())
            continue;
        co_await peer.write(answers).within(answer_time);
        deadline = std::chrono::steady_clock::now() + head_time;
    }
    co_await drain(peer);
}

static megapipe::task<> serve(megapipe::socket peer, std::stop_token stop)
{
    try {
        co_await answer_all(peer, stop);
    } catch (const std::system_error &error) {
        const auto code = error.code();
        if (code != std::errc::connection_reset && code != std::errc::broken_pipe
            && code != std::errc::timed_out && code != std::errc::operation_canceled)
            std::cerr << "http_hello: " << error.what() << '\n';
    }
}

static megapipe::task<> accept_all(megapipe::channel &channel, megapipe::listener listener,
                                   std::stop_token stop)
{
    try {
        for (;;)
            channel.spawn(serve(co_await listener.accept().until(stop), stop));
    } catch (const std::system_error &error) {
        if (error.code() != std::errc::operation_canceled)
            throw;
    }
}

/* Ends the waits of all connections at a signal; answers that are being written are completed. */
static megapipe::task<> stop_at_signal(megapipe::handle signals, std::stop_source stop)
{
    signalfd_siginfo signal;
    co_await signals.read(std::as_writable_bytes(std::span(&signal, 1)));
    stop.request_stop();
}

static int blocked_signals()
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

int main(int argc, char **argv)
{
    const auto port = static_cast<std::uint16_t>(argc > 1 ? std::atoi(argv[1]) : 8080);
    try {
        mp_options options{};
        options.close_timeout_ms = 5000;
        megapipe::channel channel(options);
        std::stop_source stop;
        megapipe::handle signals(channel, blocked_signals());
        megapipe::listener listener(channel, {"127.0.0.1", port});
        std::cout << "listening on 127.0.0.1:" << listener.local().port() << std::endl;
        channel.spawn(stop_at_signal(std::move(signals), stop));
        channel.spawn(accept_all(channel, std::move(listener), stop.get_token()));
        channel.run();
    } catch (const std::exception &error) {
        std::cerr << "http_hello: " << error.what() << '\n';
        return EXIT_FAILURE;
    }
}
