# node as server and client: 50 keep_alive clients, a large file, and how long a close takes.
NEEDS="node"
CASES="keep_alive large_file closes"
QUICK_CASES=keep_alive

prepare() { random 100000000 file; }

server() { exec $SERVER node "$SCRIPTS/node-server.js" "$ADDRESS" "$PORT" file; }

client() { $CLIENT node "$SCRIPTS/node-client.js" "$ADDRESS" "$PORT" "$@"; }

keep_alive() { client keep-alive 50 20; }
large_file() { client download got && same got file; }
closes() { client closes 20; }
