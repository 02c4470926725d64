#!/bin/bash
# Compares the channel with epoll servers for a short time; no connection may fail. Takes the path
# of iobench. Where the channel does not choose io_uring, the channel over epoll is compared.
set -u
server=megapipe
[ -e /run/no-ring ] && server=megapipe-epoll
# With many CPUs a quarter of them serve.
cores=$((($(nproc) + 3) / 4))
"$1" compare --servers epoll,epoll-partitioned,$server --baseline epoll-partitioned --rounds 3 \
    --duration 300ms --connections 32 --transactions 8,0 --cores $cores --json "$TMPDIR/json" \
    2>&1 | tee "$TMPDIR/text"
[ "${PIPESTATUS[0]}" = 0 ] || { echo "FAILED: iobench compare ends with an error"; exit 1; }
if grep -q 'the server or its connections failed' "$TMPDIR/text"; then
    echo "FAILED: connections failed"
    exit 1
fi
[ -s "$TMPDIR/json" ] || { echo "FAILED: no JSON"; exit 1; }
if grep -E '"server_errors": [1-9]' "$TMPDIR/json"; then
    echo "FAILED: servers met errors"
    exit 1
fi
exit 0
