"""A length of time is spelled alike at every door, and other spellings hear which one is right."""

import msgspec
import pytest

import penstock
from actors.runtime.rules.setting_values import BadSetting
from actors.runtime.rules.spellings import decode_spelled, told
from penstock.api.forms.jobs import ReserveAsk, TopicChanges, read_jobs
from penstock.api.forms.reading import Malformed, read_ask
from streams.messages.jobs import NewJob

decode = msgspec.json.Decoder(NewJob).decode


def test_texts_with_units_are_taken_beside_milliseconds() -> None:
    job = decode_spelled(decode, b'{"topic":"t","delay":"1h30m","ttr":"90s","expires_in":"2d","body":{"delay":"30s"}}')
    assert (job.delay_ms, job.ttr_ms, job.expires_in_ms) == (5_400_000, 90_000, 172_800_000)
    assert bytes(job.body) == b'{"delay":"30s"}'
    assert decode_spelled(decode, b'{"topic":"t","delay_ms":7}').delay_ms == 7
    assert read_ask(b'{"topic":"t","wait":"5s"}', ReserveAsk).wait_ms == 5_000
    jobs, _ = read_jobs(b'[{"topic":"t","delay":"1s"},{"topic":"t","delay":1}]')
    assert isinstance(jobs[0], NewJob)
    assert jobs[0].delay_ms == 1_000
    assert not isinstance(jobs[1], NewJob)
    assert 'job 1 of the list: delay: 1 has no unit; write a text with its unit, as "delay": "30s"' in jobs[1].reason


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (b'"delay":30', 'delay: 30 has no unit; write a text with its unit, as "delay": "30s", or milliseconds, as'),
        (b'"delay":"30"', "delay: '30' has no unit"),
        (
            b'"delay_ms":"30s"',
            'delay_ms: a text is not a number of milliseconds; write it as "delay": "30s", or as digits',
        ),
        (b'"ttr":null', "ttr: None is not a duration"),
        (b'"delay":"30s","delay_ms":1', "delay: '30s' is beside delay_ms; give one of them"),
        (b'"delay_s":30', 'delay_s: is no field; write a text with its unit, as "delay": "30s", or milliseconds, as'),
        (b'"delaySeconds":30', 'delaySeconds: is no field; write a text with its unit, as "delay": "30s"'),
        (b'"delayMs":30', 'delayMs: is no field; write a text with its unit, as "delay": "30s"'),
        (b'"TTR":30', 'TTR: is no field; write a text with its unit, as "ttr": "30s"'),
        (b'"expires_in_seconds":30', "expires_in_seconds: is no field"),
    ],
)
def test_other_spellings_hear_the_right_one(fields: bytes, said: str) -> None:
    with pytest.raises(BadSetting) as refused:
        decode_spelled(decode, b'{"topic":"t",%b}' % fields)
    assert said in told(refused.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (b'"ttr":30', 'ttr: a number has no unit; write a text with its unit, as "ttr": "30s"'),
        (b'"ttr_ms":30', 'ttr_ms: is no field; write a text with its unit, as "ttr": "30s"'),
        (
            b'"backoffCap_s":30',
            'backoffCap_s: is no field; write a text with its unit, as "backoff_cap": "30s"',
        ),
    ],
)
def test_settings_of_a_topic_hear_the_right_one(fields: bytes, said: str) -> None:
    with pytest.raises(BadSetting) as refused:
        decode_spelled(msgspec.json.Decoder(TopicChanges).decode, b"{%b}" % fields)
    assert told(refused.value) == said


def test_other_unknown_fields_are_refused_as_before() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `dealy`"):
        decode_spelled(decode, b'{"topic":"t","dealy":"30s"}')
    with pytest.raises(Malformed, match="unknown field `wait_ms`"):
        read_ask(b'{"topic":"t","wait":"5s"}', NewJob)
    with pytest.raises(Malformed, match="unknown field `wait_s`"):
        read_ask(b'{"topic":"t","wait_s":5}', NewJob)


def test_programs_hear_the_right_option() -> None:
    with pytest.raises(TypeError, match="a job has no option 'delay_ms'; write delay=\"30s\", a number of seconds"):
        penstock.new_job("t", delay_ms=30)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="a job has no option 'dealy'; did you mean delay"):
        penstock.new_job("t", dealy="30s")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="a handler has no option 'ttr_ms'; write ttr=\"30s\", a number of seconds"):
        penstock.job("t", ttr_ms=30)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="a flow has no option 'every_s'; write every=\"30s\""):
        penstock.flow("t", every_s=30)  # type: ignore[call-arg]
