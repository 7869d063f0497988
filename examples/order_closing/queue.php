<?php
// How PHP speaks to the gateway: JSON over HTTP.

declare(strict_types=1);

function ask(string $method, string $path, array $body): array
{
    $headers = ['Content-Type: application/json'];
    if (getenv('QUEUE_TOKEN')) {
        $headers[] = 'Authorization: Bearer ' . getenv('QUEUE_TOKEN');
    }
    $curl = curl_init((getenv('QUEUE') ?: 'http://127.0.0.1:7070') . $path);
    curl_setopt_array($curl, [
        CURLOPT_CUSTOMREQUEST => $method,
        CURLOPT_HTTPHEADER => $headers,
        CURLOPT_POSTFIELDS => json_encode($body, JSON_THROW_ON_ERROR),
        CURLOPT_RETURNTRANSFER => true,
        CURLOPT_TIMEOUT => 60, // longer than any long poll
    ]);
    $text = curl_exec($curl);
    if ($text === false) {
        throw new RuntimeException(curl_error($curl));
    }
    if (curl_getinfo($curl, CURLINFO_RESPONSE_CODE) >= 400) {
        throw new RuntimeException("$method $path: $text");
    }
    return json_decode($text, true, flags: JSON_THROW_ON_ERROR);
}

// A command of the original protocol: add, pop, finish, delete.
function queue(array $command): array
{
    $reply = ask('POST', '/queue', $command);
    if (!$reply['success']) {
        throw new RuntimeException("{$command['command']}: {$reply['error']}");
    }
    return $reply;
}
