"""In several streams each topic has its own, and programs that count otherwise find none."""

import pytest

from streams.subjects import Namespace
from streams.topology.differences import compare_stream, job_streams_in, missing_truth
from streams.topology.specs import job_consumer, wanted

ONE, THREE = Namespace("shop"), Namespace("shop", 3)
TOPICS = [f"topic-{n}" for n in range(300)]


def test_one_stream_is_named_as_ever() -> None:
    assert ONE.jobs_streams() == ("SHOP_JOBS",)
    assert {ONE.jobs_stream(topic) for topic in TOPICS} == {"SHOP_JOBS"}
    assert ONE.job("ready", "mail", "1") == "shop.jobs.ready.mail.1"
    assert ONE.jobs_patterns("delayed", ">") == {"SHOP_JOBS": "shop.jobs.delayed.>"}


def test_each_topic_is_in_one_of_several_streams() -> None:
    by_stream = {name: [topic for topic in TOPICS if THREE.jobs_stream(topic) == name] for name in THREE.jobs_streams()}
    assert THREE.jobs_streams() == ("SHOP_JOBS", "SHOP_JOBS_1", "SHOP_JOBS_2")
    assert all(len(topics) > 60 for topics in by_stream.values())
    assert sum(map(len, by_stream.values())) == len(TOPICS)


@pytest.mark.parametrize("topic", TOPICS[:20])
def test_the_subjects_of_a_topic_are_those_of_its_stream(topic: str) -> None:
    stream = THREE.jobs_stream(topic)
    specs = {spec.name: spec for spec in wanted(THREE).streams}
    first = f"shop.{THREE.jobs_first(topic)}"
    assert specs[stream].subjects == (f"{first}.>",)
    assert THREE.job("ready", topic, "1") == f"{first}.ready.{topic}.1"
    for subject in (THREE.job_in_any_state(topic, "1"), THREE.jobs_in("*", topic)):
        assert subject.startswith(first)
        assert THREE.jobs_stream_of(subject) == stream
    consumer = job_consumer(THREE, topic, "low")
    assert (consumer.stream, consumer.filter_subject) == (stream, f"{first}.ready-low.{topic}.*")


def test_a_program_that_counts_otherwise_uses_no_subject_of_these_streams() -> None:
    firsts = [{name.jobs_first(topic) for topic in TOPICS} for name in (ONE, THREE, Namespace("shop", 4))]
    assert [len(each) for each in firsts] == [1, 3, 4]
    assert len(set[str]().union(*firsts)) == 8


def test_all_but_several_streams_of_jobs_are_as_before() -> None:
    one, three = wanted(ONE), wanted(THREE)
    assert three.buckets == one.buckets
    assert [spec for spec in three.streams if spec.job_streams == 1] == [
        spec for spec in one.streams if spec.name != "SHOP_JOBS"
    ]
    jobs = [spec for spec in three.streams if spec.job_streams == 3]
    assert [spec.name for spec in jobs] == list(THREE.jobs_streams())
    assert {tuple(sorted(spec.metadata().items())) for spec in jobs} == {
        (("penstock_job_streams", "3"), ("penstock_topology", "2"))
    }


def test_another_number_of_streams_is_refused_and_no_init_changes_it() -> None:
    one, three = ({spec.name: spec for spec in wanted(each).streams}["SHOP_JOBS"] for each in (ONE, THREE))
    assert (job_streams_in(one.config()), job_streams_in(three.config()), job_streams_in({})) == (1, 3, 1)
    assert compare_stream(one, one.config()) == compare_stream(three, three.config()) == []
    for wants, has in ((one, three), (three, one)):
        difference, *_ = compare_stream(wants, has.config())
        assert difference.setting == "job_streams"
        assert (difference.is_blocking, difference.is_fixable) == (True, False)
        assert "delete all streams of jobs" in str(difference)


def test_a_stream_of_jobs_that_was_deleted_is_missed() -> None:
    topology = wanted(THREE)
    there = {spec.name for spec in topology.all_streams()} - {"SHOP_JOBS_1"}
    assert [each.where for each in missing_truth(topology, there)] == ["stream SHOP_JOBS_1"]
