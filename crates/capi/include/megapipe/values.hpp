/*
 * megapipe/values.hpp - addresses and received buffers of megapipe.hpp, which includes this file
 */
#ifndef MEGAPIPE_VALUES_HPP
#define MEGAPIPE_VALUES_HPP

#include <megapipe.h>

#include <arpa/inet.h>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <netinet/in.h>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace megapipe {

namespace detail {

/* The error of the call of megapipe.h that has just failed. */
inline std::system_error failure()
{
    const int number = errno;
    return {number, std::system_category(), mp_error()};
}

} // namespace detail

/* The address of a socket: AF_INET, AF_INET6 or AF_UNIX. */
class address {
public:
    /* host is a numeric IPv4 or IPv6 address. Throws std::invalid_argument if it is neither. */
    address(const char *host, std::uint16_t port)
    {
        sockaddr_in v4{};
        sockaddr_in6 v6{};
        v4.sin_family = AF_INET;
        v6.sin6_family = AF_INET6;
        v4.sin_port = v6.sin6_port = htons(port);
        if (inet_pton(AF_INET, host, &v4.sin_addr) == 1)
            copy(&v4, sizeof v4);
        else if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1)
            copy(&v6, sizeof v6);
        else
            throw std::invalid_argument(std::string(host) + " is no numeric IP address");
    }
    /* Throws std::invalid_argument if size is above that of a sockaddr_storage. */
    address(const sockaddr *bytes, socklen_t size)
    {
        if (size > sizeof storage_)
            throw std::invalid_argument("the address is longer than a sockaddr_storage");
        copy(bytes, size);
    }

    const sockaddr *data() const noexcept { return reinterpret_cast<const sockaddr *>(&storage_); }
    socklen_t size() const noexcept { return size_; }
    /* The port; 0 of an address that has none. */
    std::uint16_t port() const noexcept
    {
        sockaddr_in6 inet; /* the port of a sockaddr_in is at the same place */
        std::memcpy(&inet, &storage_, sizeof inet);
        const bool has_port = inet.sin6_family == AF_INET || inet.sin6_family == AF_INET6;
        return has_port ? ntohs(inet.sin6_port) : std::uint16_t{0};
    }

private:
    void copy(const void *bytes, socklen_t size) noexcept
    {
        std::memcpy(&storage_, bytes, size);
        size_ = size;
    }

    sockaddr_storage storage_{};
    socklen_t size_ = 0;
};

/* Received bytes in a buffer of the channel; false at the end of the stream. Destroying it returns
 * the buffer: hold it only while you handle the message, as megapipe.h explains. */
class lease {
public:
    lease() noexcept = default;
    lease(mp_channel *home, std::int64_t buffer, void *bytes, std::size_t size) noexcept
        : home_(home), buffer_(buffer), start_(static_cast<std::byte *>(bytes)),
          bytes_(start_, size)
    {
    }
    lease(lease &&other) noexcept
        : home_(other.home_), buffer_(std::exchange(other.buffer_, -1)), start_(other.start_),
          bytes_(std::exchange(other.bytes_, {}))
    {
    }
    lease &operator=(lease &&other) noexcept
    {
        lease gone(std::move(*this));
        home_ = other.home_;
        buffer_ = std::exchange(other.buffer_, -1);
        start_ = other.start_;
        bytes_ = std::exchange(other.bytes_, {});
        return *this;
    }
    ~lease()
    {
        if (buffer_ >= 0)
            mp_release(home_, buffer_);
    }

    /* Whether there is a buffer. That of an empty message of a SOCK_SEQPACKET socket is empty. */
    explicit operator bool() const noexcept { return buffer_ >= 0; }
    operator std::span<const std::byte>() const noexcept { return bytes_; }
    std::span<std::byte> bytes() const noexcept { return bytes_; }
    std::string_view text() const noexcept
    {
        return {reinterpret_cast<const char *>(bytes_.data()), bytes_.size()};
    }
    std::size_t size() const noexcept { return bytes_.size(); }
    /* Drops the first bytes, at most size(). */
    void remove_prefix(std::size_t count) noexcept { bytes_ = bytes_.subspan(count); }
    /* Drops all but the first bytes, at most size(). */
    void truncate(std::size_t size) noexcept { bytes_ = bytes_.first(size); }

    /* Submits the bytes with mp_write_buffer(), which then owns the buffer. */
    int write_to(mp_handle handle) noexcept
    {
        const auto offset = static_cast<std::size_t>(bytes_.data() - start_);
        const int status = mp_write_buffer(handle, buffer_, offset, bytes_.size());
        if (status == 0)
            buffer_ = -1;
        return status;
    }

private:
    mp_channel *home_ = nullptr;
    std::int64_t buffer_ = -1;
    std::byte *start_ = nullptr;
    std::span<std::byte> bytes_;
};

} // namespace megapipe

#endif
