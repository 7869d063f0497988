"""Every operation in one table: the router and the OpenAPI document are both made of it, so neither can know one that
the other does not. Each has the verb that a token needs for it; the original protocol checks its own, by command."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from penstock.api.forms.batch import (
    BatchesQuery,
    BatchesShown,
    BatchShown,
    ItemsQuery,
    ItemsShown,
    ResultQuery,
    SubmitQuery,
    TaskChanges,
    TaskShown,
    TasksShown,
    ToRetry,
)
from penstock.api.forms.jobs import (
    AllSettled,
    JobAdded,
    JobChanged,
    JobsAdded,
    JobShown,
    JobsShown,
    JobToAdd,
    ListQuery,
    PushQuery,
    Reservations,
    ToBury,
    ToFinish,
    TopicChanges,
    TopicShown,
    TopicsQuery,
    TopicsShown,
    ToRelease,
    ToReserve,
    ToTouch,
)
from penstock.api.forms.reading import Asked
from penstock.api.http import batches, health, jobs, push, queue_protocol, receipts, topics
from penstock.api.http.calls import Answer, Call, Shared
from penstock.api.http.health import Health
from penstock.api.http.replies import Reply
from penstock.api.http.tokens import Verb
from penstock.api.http.uploads import SHEETS

Do = Callable[[Shared, Call], Awaitable[Answer]]

IN_BODY = (400, 413, 415, 422)
"""What is wrong with a body."""


class Operation(NamedTuple):
    """One way to call. `gives`: the answer's type by status; `problems`: statuses besides those that any call may
    have."""

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    name: str
    summary: str
    verb: Verb | None
    gives: dict[int, Any]
    do: Do
    takes: Any = None
    may_be_empty: bool = False
    query: type = Asked
    problems: tuple[int, ...] = ()
    is_public: bool = False
    files: tuple[str, ...] = ()
    """Media types that may come in place of JSON."""
    takes_key: bool = False
    """Whether it heeds `Idempotency-Key`."""


T, J, R = "/v1/topics", "/v1/topics/{topic}/jobs", "/v1/receipts"
B, ONE, K = "/v1/batches", "/v1/batches/{batch_id}", "/v1/tasks"

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "POST", "/queue", "command", "Carry out a command of the original protocol", None,
        {200: Reply}, queue_protocol.carry_out, queue_protocol.Command, problems=(400, 413, 415),
        takes_key=True,
    ),
    Operation(
        "POST", J, "addJobs", "Add a job, or a list of jobs", "add",
        {200: (JobAdded, JobsAdded), 201: JobAdded}, jobs.add, JobToAdd | list[JobToAdd], problems=(*IN_BODY, 409, 507),
        takes_key=True,
    ),
    Operation(
        "GET", J, "listJobs", "List a topic's jobs of one state", "read",
        {200: JobsShown}, jobs.list_jobs, query=ListQuery, problems=(400, 422),
    ),
    Operation(
        "GET", J + "/{job_id}", "showJob", "Show a job", "read",
        {200: JobShown}, jobs.show, problems=(400, 404, 422),
    ),
    Operation(
        "DELETE", J + "/{job_id}", "deleteJob", "Delete a job in any state", "delete",
        {200: JobChanged}, jobs.delete, problems=(400, 404, 422), takes_key=True,
    ),
    Operation(
        "POST", J + "/{job_id}/kick", "kickJob", "Make a delayed job due now", "admin",
        {200: JobChanged}, jobs.kick, problems=(400, 404, 415, 422),
    ),
    Operation(
        "POST", T + "/{topic}/reserve", "reserveJobs", "Reserve ready jobs, or wait for the first", "reserve",
        {200: Reservations}, jobs.reserve, ToReserve, may_be_empty=True, problems=IN_BODY,
    ),
    Operation(
        "POST", T + "/{topic}/reservations", "pushReservations", "Have reservations pushed, as server-sent events",
        "reserve", {200: "text/event-stream"}, push.push, query=PushQuery, problems=(400, 413, 415, 422),
    ),
    Operation(
        "POST", R + "/finish", "finish", "Finish reserved jobs", "settle",
        {200: AllSettled}, receipts.finish, ToFinish, problems=IN_BODY,
    ),
    Operation(
        "POST", R + "/touch", "touch", "Hold reserved jobs longer", "settle",
        {200: AllSettled}, receipts.touch, ToTouch, problems=IN_BODY,
    ),
    Operation(
        "POST", R + "/release", "release", "Give reserved jobs back", "settle",
        {200: AllSettled}, receipts.release, ToRelease, problems=IN_BODY,
    ),
    Operation(
        "POST", R + "/bury", "bury", "Set reserved jobs aside, as dead letters", "settle",
        {200: AllSettled}, receipts.bury, ToBury, problems=IN_BODY,
    ),
    Operation(
        "GET", T, "listTopics", "List topics and how many jobs they have", "read",
        {200: TopicsShown}, topics.list_topics, query=TopicsQuery, problems=(400, 422),
    ),
    Operation(
        "GET", T + "/{topic}", "showTopic", "Show a topic's settings and counts", "read",
        {200: TopicShown}, topics.show, problems=(422,),
    ),
    Operation(
        "PATCH", T + "/{topic}", "changeTopic", "Change a topic's settings", "admin",
        {200: TopicShown}, topics.change, TopicChanges, problems=IN_BODY,
    ),
    Operation(
        "POST", B + "/{task}", "submitBatch", "Run a task on a file or an input", "add",
        {201: BatchShown}, batches.submit, Any, may_be_empty=True, query=SubmitQuery,
        problems=(*IN_BODY, 404, 409, 507), files=SHEETS,
    ),
    Operation(
        "GET", B, "listBatches", "List your batches, the newest first", "read",
        {200: BatchesShown}, batches.list_batches, query=BatchesQuery, problems=(400, 422),
    ),
    Operation(
        "GET", ONE, "showBatch", "Show how a batch stands", "read",
        {200: BatchShown}, batches.show, problems=(400, 404, 422),
    ),
    Operation(
        "GET", ONE + "/items", "listItems", "List a batch's items, and how each ended", "read",
        {200: ItemsShown}, batches.list_items, query=ItemsQuery, problems=(400, 404, 422),
    ),
    Operation(
        "GET", ONE + "/result", "downloadResult", "Download a file of the result", "read",
        {200: "application/octet-stream"}, batches.result, query=ResultQuery, problems=(400, 404, 422),
    ),
    Operation(
        "POST", ONE + "/pause", "pauseBatch", "Start nothing more of a batch", "add",
        {200: BatchShown}, batches.pause, problems=(400, 404, 415, 422),
    ),
    Operation(
        "POST", ONE + "/resume", "resumeBatch", "Go on with a batch", "add",
        {200: BatchShown}, batches.resume, problems=(400, 404, 415, 422),
    ),
    Operation(
        "POST", ONE + "/cancel", "cancelBatch", "End a batch", "add",
        {200: BatchShown}, batches.cancel, problems=(400, 404, 415, 422),
    ),
    Operation(
        "POST", ONE + "/retry", "retryBatch", "Run what failed again", "add",
        {200: BatchShown}, batches.retry, ToRetry, may_be_empty=True,
        problems=(*IN_BODY, 404, 409),
    ),
    Operation(
        "GET", K, "listTasks", "List the tasks that you may run", "read",
        {200: TasksShown}, batches.list_tasks, problems=(400, 422),
    ),
    Operation(
        "PATCH", K + "/{task}", "changeTask", "Change a task's limits", "admin",
        {200: TaskShown}, batches.change_task, TaskChanges, problems=(*IN_BODY, 404),
    ),
    Operation(
        "GET", "/health", "health", "Say whether the gateway answers", None, {200: Health}, health.health,
        is_public=True,
    ),
    Operation(
        "GET", "/ready", "ready", "Say whether jobs can be taken and handed out", None, {200: Health}, health.ready,
        is_public=True,
    ),
)  # fmt: skip
