# uvicorn, an asyncio server, with ab and curl.
NEEDS="curl ab"
CASES="body closes keep_alive"
QUICK_CASES=body
STOP=INT

/usr/bin/python3 -c "import uvicorn" 2> /dev/null || NEEDS="uvicorn $NEEDS"

prepare() {
    cat > app.py <<PYTHON
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [
        (b"content-length", str(len(body) or 5).encode())]})
    await send({"type": "http.response.body", "body": body or b"hello"})
PYTHON
    random 10000000 data
}

server() {
    exec $SERVER /usr/bin/python3 -m uvicorn --host "$ADDRESS" --port "$PORT" \
        --log-level warning app:app
}

load() {
    $CLIENT ab -q "$@" "http://$ADDRESS:$PORT/" > report && grep -q "Failed requests: *0$" report
}

body() { $CLIENT curl -sf --data-binary @data -o got "http://$ADDRESS:$PORT/" && same got data; }
closes() { load -n 500 -c 10; }
keep_alive() { load -k -n 1000 -c 20; }
