<?php
// A worker in PHP: waits for jobs, closes their orders, and says that they are finished.
//
//     php worker.php

declare(strict_types=1);

require __DIR__ . '/queue.php';

while (true) {
    try {
        // A long poll: answered when a job is ready, or after twenty seconds without one.
        $reply = ask('POST', '/v1/topics/close-order-php/reserve', ['most' => 10, 'wait_ms' => 20_000]);
        foreach ($reply['jobs'] as $job) {
            // UPDATE orders SET state = 'closed' WHERE id = … AND state = 'unpaid'
            echo "closed {$job['body']['order']} due {$job['due_ms']} at ", (int) (microtime(true) * 1000), "\n";
        }
        if ($reply['jobs']) {
            ask('POST', '/v1/receipts/finish', ['receipts' => array_column($reply['jobs'], 'receipt')]);
        }
    } catch (RuntimeException $error) {
        fwrite(STDERR, "{$error->getMessage()}\n");
        sleep(1); // what was not finished comes again when its time to run is over
    }
}
