// A worker in Node: waits for jobs, closes their orders, and says that they are finished.
//
//     node worker.mjs

import { setTimeout } from "node:timers/promises";
import { ask } from "./queue.mjs";

for (;;) {
  try {
    // A long poll: answered when a job is ready, or after twenty seconds without one.
    const { jobs } = await ask("POST", "/v1/topics/close-order-node/reserve", { most: 10, wait_ms: 20_000 });
    for (const job of jobs) {
      // UPDATE orders SET state = 'closed' WHERE id = … AND state = 'unpaid'
      console.log(`closed ${job.body.order} due ${job.due_ms} at ${Date.now()}`);
    }
    if (jobs.length) await ask("POST", "/v1/receipts/finish", { receipts: jobs.map((job) => job.receipt) });
  } catch (error) {
    console.error(error.message);
    await setTimeout(1000); // what was not finished comes again when its time to run is over
  }
}
