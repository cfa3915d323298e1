// BullMQ on Node, sending: `offer <one by one> <in bulk> <from 100 callers>`.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { Queue } = createRequire(process.env.BENCH_NODE_FOLDER + "/")("bullmq");
const connection = { path: process.env.BENCH_URL.replace("unix://", ""), maxRetriesPerRequest: null };
const [alone, inBulk, atOnce] = process.argv.slice(-3).map(Number);
const callers = 100;
const order = JSON.parse(readFileSync(new URL("order.json", import.meta.url)));
const opts = { removeOnComplete: true, attempts: 3 };
const bulk = Array.from({ length: 500 }, () => ({ name: "order", data: order, opts }));

const queue = new Queue("orders", { connection });
await queue.waitUntilReady();
const told = {};
if (alone) {
  const started = performance.now();
  for (let sent = 0; sent < alone; sent++) await queue.add("order", order, opts);
  told.alone = (alone * 1000) / (performance.now() - started);
}
if (inBulk) {
  const started = performance.now();
  let sent = 0;
  for (; sent < inBulk; sent += bulk.length) await queue.addBulk(bulk);
  told["in bulk"] = (sent * 1000) / (performance.now() - started);
}
if (atOnce) {
  const each = Math.ceil(atOnce / callers);
  const started = performance.now();
  await Promise.all(
    Array.from({ length: callers }, async () => {
      for (let sent = 0; sent < each; sent++) await queue.add("order", order, opts);
    }),
  );
  told["at once"] = (each * callers * 1000) / (performance.now() - started);
}
console.log(JSON.stringify(told));
await queue.close();
