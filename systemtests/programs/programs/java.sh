# Java: jdk.httpserver and its client, and a selector with many channels.
NEEDS="java javac"
CASES="http echoed large"
QUICK_CASES=http

prepare() { javac -d . "$SCRIPTS/Peer.java"; }

server() { exec $SERVER java -Xshare:auto -cp . Peer serve "$ADDRESS" "$PORT"; }

client() { $CLIENT java -Xshare:auto -cp . Peer "$1" "$ADDRESS" "$PORT"; }

http() { client http; }
echoed() { client echo; }
large() { client large; }
