"""A fresh nonce is known to nobody else: not to another add, not to another process."""

import os

from actors.jobs.rules.job_rules import make_job
from actors.jobs.rules.topic_settings import TopicSettings
from streams.messages.jobs import NewJob, body_of
from streams.messages.nonces import fresh_nonce


def test_each_is_another() -> None:
    nonces = [fresh_nonce() for _ in range(1_000)]
    assert len(set(nonces)) == 1_000
    new = NewJob(topic="mail", body=body_of(1))
    assert make_job(new, TopicSettings(), now_ms=1, fresh_id="1", fresh_nonce=nonces[0]).nonce == nonces[0]


def test_a_forked_process_has_others() -> None:
    ours = fresh_nonce()
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.write(writes, fresh_nonce().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reads, 100).decode()
    assert theirs[:13] != ours[:13]
