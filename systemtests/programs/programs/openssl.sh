# openssl's own server and client.
NEEDS="openssl"
CASES="page file"
QUICK_CASES=page

prepare() {
    random 5000000 file
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=server -keyout key.pem -out cert.pem
}

server() {
    exec $SERVER openssl s_server -accept "$ADDRESS:$PORT" -cert cert.pem -key key.pem -WWW -quiet
}

get() {
    printf 'GET /%s HTTP/1.0\r\n\r\n' "$1" |
        $CLIENT openssl s_client -connect "$ADDRESS:$PORT" -CAfile cert.pem -verify_return_error \
            -quiet -ign_eof 2> said > answer
    # The header ends with an empty line.
    sed '1,/^\r$/d' answer > got
}

page() { for i in $(seq 5); do get cert.pem; same got cert.pem || return; done; }
file() { get file; same got file; }
