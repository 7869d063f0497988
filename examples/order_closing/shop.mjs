// A shop in Node: each order gets a job that closes it, and half of the customers pay in time.
//
//     node shop.mjs

import { ask } from "./queue.mjs";

const PAY_WITHIN_MS = 3000; // thirty minutes, turned into three seconds for trying
const jobs = "/v1/topics/close-order-node/jobs";

const time = new Date().toTimeString().slice(0, 8).replaceAll(":", "");
const orders = Array.from({ length: 6 }, (_, number) => `node-${time}-${number}`);

// Here the orders go into your database, as unpaid.
const { answers } = await ask(
  "POST",
  jobs,
  orders.map((order) => ({ id: order, body: { order }, delay_ms: PAY_WITHIN_MS, ttr_ms: 10_000 })),
);
for (const job of answers) {
  if (job.status >= 400) throw new Error(job.detail); // each job of a list has its own answer
  console.log(`made ${job.id} due ${job.due_ms}`);
}

for (const order of orders.filter((_, number) => number % 2 === 0)) {
  // UPDATE orders SET state = 'paid' WHERE id = … AND state = 'unpaid'
  await ask("DELETE", `${jobs}/${encodeURIComponent(order)}`);
  console.log(`paid ${order}`);
}
