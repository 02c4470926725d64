import com.sun.net.httpserver.HttpServer;
import java.io.DataInputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.Executors;

/** A server (HTTP at the port, an echo with a selector at the next one) and its clients. */
public class Peer {
    private static final byte[] LARGE = new byte[20_000_000];

    public static void main(String[] words) throws Exception {
        new Random(7).nextBytes(LARGE);
        String host = words[1];
        int port = Integer.parseInt(words[2]);
        switch (words[0]) {
            case "serve" -> serve(host, port);
            case "http" -> http(host, port, "/", 100);
            case "large" -> http(host, port, "/large", 3);
            case "echo" -> echo(host, port + 1);
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static void serve(String host, int port) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(host, port + 1)).configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        HttpServer server = HttpServer.create(new InetSocketAddress(host, port), 0);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", exchange -> {
            boolean large = exchange.getRequestURI().getPath().equals("/large");
            byte[] body = large ? LARGE : "hello".getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
        ByteBuffer buffer = ByteBuffer.allocateDirect(65536);
        while (selector.select() >= 0) {
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel accepted = listener.accept();
                    accepted.configureBlocking(false).register(selector, SelectionKey.OP_READ);
                } else {
                    answer((SocketChannel) key.channel(), buffer.clear());
                }
            }
            selector.selectedKeys().clear();
        }
    }

    private static void answer(SocketChannel channel, ByteBuffer buffer) throws Exception {
        if (channel.read(buffer) < 0) {
            channel.close();
            return;
        }
        buffer.flip();
        while (buffer.hasRemaining()) {
            channel.write(buffer);
        }
    }

    private static void http(String host, int port, String path, int times) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        URI uri = URI.create("http://" + host + ":" + port + path);
        byte[] expected = path.equals("/large") ? LARGE : "hello".getBytes();
        for (int i = 0; i < times; i++) {
            HttpRequest request = HttpRequest.newBuilder(uri).build();
            byte[] body = client.send(request, HttpResponse.BodyHandlers.ofByteArray()).body();
            check(body, expected);
        }
    }

    private static void echo(String host, int port) throws Exception {
        for (int i = 0; i < 20; i++) {
            try (Socket socket = new Socket(host, port)) {
                byte[] sent = Arrays.copyOfRange(LARGE, i * 1000, i * 1000 + 30_000);
                socket.getOutputStream().write(sent);
                socket.shutdownOutput();
                check(new DataInputStream(socket.getInputStream()).readAllBytes(), sent);
            }
        }
    }

    private static void check(byte[] got, byte[] expected) {
        if (!Arrays.equals(got, expected)) {
            throw new IllegalStateException(got.length + " bytes, or wrong ones");
        }
    }
}
