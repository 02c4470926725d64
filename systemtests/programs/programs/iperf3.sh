# iperf3 in both directions and with several streams; a control connection beside the data.
NEEDS="iperf3"
CASES="there back streams bounded"
QUICK_CASES=bounded
STOP=INT

prepare() { :; }

server() { exec $SERVER iperf3 -s -B "$ADDRESS" -p "$PORT" --forceflush; }

client() { $CLIENT iperf3 -c "$ADDRESS" -p "$PORT" -J "$@" > report && ! grep '"error"' report; }

there() { client -t 1; }
back() { client -t 1 -R; }
streams() { client -t 1 -P 8; }
bounded() { client -n 20M; }
