// Cases of an HTTP client, by name; the exit status says whether one went well.
const fs = require("fs");
const http = require("http");
const [host, port, name, ...words] = process.argv.slice(2);

// What an event loop that nothing stops has to stay below: the close in the middle, in milliseconds.
const CLOSE_MS_MAX = 500;

function get(agent, path, take) {
  return new Promise((done, failed) => {
    const request = http.get({ host, port, path, agent }, (response) => {
      response.on("end", done);
      response.on("error", failed);
      take(response);
    });
    request.on("error", failed);
  });
}

// Each of `clients` connections asks `requests` times.
async function keepAlive(clients, requests) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: Number(clients) });
  const one = async () => {
    for (let i = 0; i < Number(requests); i++) {
      await get(agent, "/", (response) => response.resume());
    }
  };
  await Promise.all(Array.from({ length: Number(clients) }, one));
  agent.destroy();
}

async function download(file) {
  await get(undefined, "/file", (response) => response.pipe(fs.createWriteStream(file)));
}

// A new connection for each request; the time from the last byte to the socket's end.
async function closes(count) {
  const times = [];
  for (let i = 0; i < Number(count); i++) {
    const agent = new http.Agent({ keepAlive: false });
    const start = process.hrtime.bigint();
    await get(agent, "/", (response) => response.resume());
    await new Promise((next) => setImmediate(next));
    times.push(Number(process.hrtime.bigint() - start) / 1e6);
  }
  const median = times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
  if (median > CLOSE_MS_MAX) {
    throw new Error(`half of the requests took ${median.toFixed(0)} ms or more with their close`);
  }
}

const cases = { "keep-alive": keepAlive, download, closes };
cases[name](...words).catch((error) => {
  console.error(`${error}`);
  process.exit(1);
});
