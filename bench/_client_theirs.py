"""Bare nats-py: a program whose callback notes each message that it gets.

`python -m bench._client_theirs URL SUBJECT STREAM`
"""

import asyncio
import sys

import msgspec
import nats
import uvloop
from nats.aio.msg import Msg

from bench._drain_app import Note, write_down


async def listen(url: str, subject: str, stream: str) -> None:
    client = await nats.connect(url)
    decode = msgspec.json.Decoder(Note).decode

    async def note(message: Msg) -> None:
        write_down(decode(message.data))
        await message.ack()

    await client.jetstream().subscribe(subject, stream=stream, queue="notes", cb=note, manual_ack=True)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(listen(*sys.argv[1:]))
