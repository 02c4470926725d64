// An HTTP server: / answers "hello", /file sends a file.
const fs = require("fs");
const http = require("http");
const [address, port, file] = process.argv.slice(2);

const server = http.createServer((request, response) => {
  if (request.url === "/file") {
    fs.createReadStream(file).pipe(response);
  } else {
    response.end("hello");
  }
});
server.listen(Number(port), address);
process.on("SIGTERM", () => process.exit(0));
