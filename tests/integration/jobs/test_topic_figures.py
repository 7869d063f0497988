"""The figures count the topics of which something came or went, and no others."""

from penstock.node.jobs.topic_figures import TopicFigures
from tests.support.jobs import TOPIC, Jobs

OTHER = "figured-too"


async def test_topics_are_counted_when_something_of_them_came_or_went(jobs: Jobs) -> None:
    names = [TOPIC, OTHER]
    figures = TopicFigures(jobs.connection, jobs.store)
    for name in names:
        await jobs.add("1", topic=name)
    assert await figures.look(names) == 2
    assert [figures.counts[name].ready for name in names] == [1, 1]
    assert figures.since_ms[TOPIC] > 0
    assert await figures.look(names) == 0
    await jobs.add("2", topic=OTHER, delay_ms=60_000)
    assert await figures.look(names) == 1
    assert (figures.counts[OTHER].delayed, figures.counts[OTHER].ready) == (1, 1)
    assert await figures.look(names) == 0
    [delivery] = await jobs.pull(1)
    await delivery.ack_sync()
    assert await figures.look(names) == 1
    assert (figures.counts[TOPIC].ready, figures.since_ms[TOPIC]) == (0, 0)
    await jobs.add("2", topic=TOPIC)
    assert await figures.look(names) == 1
    await jobs.reserve()  # as many messages as before
    assert await figures.look(names) == 1
    assert (figures.counts[TOPIC].ready, figures.counts[TOPIC].reserved) == (0, 1)
    assert await figures.look([OTHER]) == 0
    assert list(figures.counts) == [OTHER]
