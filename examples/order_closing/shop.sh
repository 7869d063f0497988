#!/bin/sh
# The whole story in the four commands of the original protocol: add, delete, pop, finish.
#
#     sh shop.sh

set -eu

queue() {
    curl -sS --fail-with-body "${QUEUE:-http://127.0.0.1:7070}/queue" \
        -H 'content-type: application/json' ${QUEUE_TOKEN:+-H "authorization: Bearer $QUEUE_TOKEN"} -d "$1"
    echo
}

order=sh-$(date +%H%M%S)

# Two orders, to be closed in three seconds (thirty minutes, but for trying).
for number in 0 1; do
    queue '{"command": "add", "topic": "close-order-sh", "id": "'"$order-$number"'", "delay": 3, "ttr": 10, "body": "{}"}'
    echo "made $order-$number"
done

# The first one is paid in time.
queue '{"command": "delete", "id": "'"$order-0"'"}'
echo "paid $order-0"

# The second one is not: its job comes when it is due. `timeout` makes the pop wait.
popped=$(queue '{"command": "pop", "topic": "close-order-sh", "timeout": 20}')
echo "$popped"
id=$(echo "$popped" | sed 's/.*"id":"\([^"]*\)".*/\1/')
echo "closed $id"
queue '{"command": "finish", "id": "'"$id"'"}'
