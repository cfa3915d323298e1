// BullMQ on Node: `consume`, or `produce <count>`.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

// Packages lie in a folder of their own, outside the repository.
const { Queue, Worker } = createRequire(process.env.BENCH_NODE_FOLDER + "/")("bullmq");
const connection = { path: process.env.BENCH_URL.replace("unix://", ""), maxRetriesPerRequest: null };
const [role, count] = process.argv.slice(2);
const callers = 100;

if (role === "consume") {
  new Worker("orders", async () => {}, { connection, concurrency: 300, removeOnComplete: { count: 0 } });
} else {
  const order = JSON.parse(readFileSync(new URL("order.json", import.meta.url)));
  const queue = new Queue("orders", { connection });
  await queue.waitUntilReady();
  const each = Math.floor(Number(count) / callers);
  const started = performance.now();
  await Promise.all(
    Array.from({ length: callers }, async () => {
      for (let sent = 0; sent < each; sent++) {
        await queue.add("order", order, { removeOnComplete: true });
      }
    }),
  );
  console.log(JSON.stringify({ rate: (each * callers * 1000) / (performance.now() - started) }));
  await queue.close();
}
