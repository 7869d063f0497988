<?php
// A shop in PHP: each order gets a job that closes it, and half of the customers pay in time.
//
//     php shop.php

declare(strict_types=1);

require __DIR__ . '/queue.php';

const PAY_WITHIN_S = 3; // thirty minutes, turned into three seconds for trying
const ORDERS = 6;

for ($number = 0; $number < ORDERS; $number++) {
    $orders[] = $order = 'php-' . date('His') . "-$number";
    // Here the order goes into your database, as unpaid.
    queue([
        'command' => 'add',
        'topic' => 'close-order-php',
        'id' => $order,
        'delay' => PAY_WITHIN_S,
        'ttr' => 10,
        'body' => json_encode(['order' => $order]),
    ]);
    echo "made $order\n";
}

foreach ($orders as $number => $order) {
    if ($number % 2 === 0) {
        // UPDATE orders SET state = 'paid' WHERE id = … AND state = 'unpaid'
        queue(['command' => 'delete', 'id' => $order]);
        echo "paid $order\n";
    }
}
