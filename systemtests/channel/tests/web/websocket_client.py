"""A WebSocket client of an echo server, for tests/websocket.rs: websocket_client.py ws://ADDRESS/"""

import asyncio
import sys

import websockets


async def echoed(socket, message, expected=None):
    await socket.send(message)
    answer = await socket.recv()
    assert answer == (message if expected is None else expected), len(answer)


async def main(address):
    async with websockets.connect(address, max_size=None) as socket:
        for text in ["", "text", "Grüße, 世界"]:
            await echoed(socket, text)
        for size in [0, 1, 125, 126, 65_535, 65_536, 1 << 20]:
            await echoed(socket, bytes(index % 251 for index in range(size)))
        # A list is sent as fragments of one message.
        await echoed(socket, ["one ", "two ", "three"], "one two three")
        await echoed(socket, [b"a" * 70_000, b"", b"b"], b"a" * 70_000 + b"b")
        pong = await socket.ping(b"are you there")
        await pong
        await socket.close(code=4321, reason="done")
        assert (socket.close_code, socket.close_reason) == (4321, "done"), socket.close_code


asyncio.run(main(sys.argv[1]))
print("done")
