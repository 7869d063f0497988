"""Every operation in one table. The HTTP router, the OpenAPI document and the NATS services are built from it, so none
can have an operation that the table does not have. Each names the verb that a token needs for it. The original protocol
checks verbs by command. NATS has no tokens: a client that may publish to a service may call all of it."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from actors.batch.desk import BatchDesk
from actors.batch.rules.obstacles import BatchWhy
from actors.batch.rules.row_looks import FirstLook
from actors.fetch.look_desk import LookView
from actors.fetch.overview import SourceWhy
from actors.fetch.slice_why import SliceWhy
from actors.fetch.source_import import Imported
from actors.flow.desk import FlowDesk, FlowView
from actors.flow.rates_desk import RateChanged, RatesView
from actors.flow.rules.obstacles import RowWhy
from actors.jobs.rules.obstacles import JobWhy
from actors.jobs.rules.schedule_views import ScheduleChanged, ScheduleRemoved, ScheduleView, Triggered
from actors.zone.rules.changes import RoutingChange
from actors.zone.rules.report import MoveReport
from actors.zone.views import ChangeView, MapView, ZoneShards, ZoneShown
from penstock.api.forms import batch, flows, jobs, rates, schedules, sources, zones
from penstock.api.forms.pages import PageQuery
from penstock.api.forms.reading import RequestForm
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall
from penstock.api.http.replies import Reply
from penstock.api.http.routes import batches as http_batches
from penstock.api.http.routes import flows as http_flows
from penstock.api.http.routes import health, push, queue_protocol, receipts, topics
from penstock.api.http.routes import jobs as http_jobs
from penstock.api.http.routes import rates as http_rates
from penstock.api.http.routes import schedules as http_schedules
from penstock.api.http.routes import sources as http_sources
from penstock.api.http.routes import zones as http_zones
from penstock.api.http.routes.health import Health
from penstock.api.http.tokens import Verb
from penstock.api.http.uploads import FORM, SHEETS
from penstock.api.service import batch as nats_batch
from penstock.api.service import flows as nats_flows
from penstock.api.service import jobs as nats_jobs
from penstock.api.service import rates as nats_rates
from penstock.api.service import schedules as nats_schedules
from penstock.api.service import sources as nats_sources
from penstock.api.service import zones as nats_zones
from penstock.api.service.calls import MOST_WAITING, DeskEndpoint
from streams.messages.batch import NewBatch

Do = Callable[[GatewayState, HttpCall], Awaitable[HttpAnswer]]

IN_BODY = (400, 413, 415, 422)
"""The statuses of a wrong body."""


class Operation(NamedTuple):
    """One operation. `gives`: the answer's type by status. `problems`: statuses besides those that any call may
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
    query: type = RequestForm
    problems: tuple[int, ...] = ()
    is_public: bool = False
    files: tuple[str, ...] = ()
    """Media types that it accepts in place of JSON."""
    takes_key: bool = False
    """Whether it uses `Idempotency-Key`."""
    endpoint: DeskEndpoint | None = None
    """The endpoint of the same operation over NATS."""


T, J, R = "/v1/topics", "/v1/topics/{topic}/jobs", "/v1/receipts"
F, Q = "/v1/flows", "/v1/rates"
Z, M = "/v1/zones", "/v1/routing"
B, ONE, K = "/v1/batches", "/v1/batches/{batch_id}", "/v1/tasks"
S = "/v1/topics/{topic}/schedules"

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "POST", "/queue", "command", "Carry out a command of the original protocol", None,
        {200: Reply}, queue_protocol.carry_out, queue_protocol.Command, problems=(400, 413, 415),
        takes_key=True,
    ),
    Operation(
        "POST", J, "addJobs", "Add a job, or a list of jobs", "add",
        {200: (jobs.JobAdded, jobs.JobsAdded), 201: jobs.JobAdded}, http_jobs.add,
        jobs.JobToAdd | list[jobs.JobToAdd], problems=(*IN_BODY, 409, 507), takes_key=True,
        endpoint=DeskEndpoint("jobs", "add", None, nats_jobs.add),
    ),
    Operation(
        "GET", J, "listJobs", "List a topic's jobs of one state", "read",
        {200: jobs.JobsShown}, http_jobs.list_jobs, query=jobs.ListQuery, problems=(400, 422),
        endpoint=DeskEndpoint("jobs", "list", jobs.ListAsk, nats_jobs.list_jobs),
    ),
    Operation(
        "GET", J + "/{job_id}", "showJob", "Show a job", "read",
        {200: jobs.JobShown}, http_jobs.show, problems=(400, 404, 422),
        endpoint=DeskEndpoint("jobs", "peek", jobs.PeekAsk, nats_jobs.peek),
    ),
    Operation(
        "GET", J + "/{job_id}/why", "whyJob", "Say why a job is not running", "read",
        {200: JobWhy}, http_jobs.why, problems=(400, 404, 422),
        endpoint=DeskEndpoint("jobs", "why", jobs.WhyAsk, nats_jobs.why),
    ),
    Operation(
        "DELETE", J + "/{job_id}", "deleteJob", "Delete a job in any state", "delete",
        {200: jobs.JobChanged}, http_jobs.delete, problems=(400, 404, 422), takes_key=True,
        endpoint=DeskEndpoint("jobs", "delete", jobs.DeleteAsk, nats_jobs.delete),
    ),
    Operation(
        "POST", J + "/{job_id}/kick", "kickJob", "Make a delayed job due now", "admin",
        {200: jobs.JobChanged}, http_jobs.kick, problems=(400, 404, 415, 422), takes_key=True,
        endpoint=DeskEndpoint("jobs", "kick", jobs.KickAsk, nats_jobs.kick),
    ),
    Operation(
        "POST", T + "/{topic}/reserve", "reserveJobs", "Reserve ready jobs, or wait for the first", "reserve",
        {200: jobs.Reservations}, http_jobs.reserve, jobs.ToReserve, may_be_empty=True, problems=IN_BODY,
        endpoint=DeskEndpoint("jobs", "reserve", jobs.ReserveAsk, nats_jobs.reserve, MOST_WAITING, is_undone=True),
    ),
    Operation(
        "POST", T + "/{topic}/reservations", "pushReservations", "Have reservations pushed, as server-sent events",
        "reserve", {200: "text/event-stream"}, push.push, query=jobs.PushQuery, problems=(400, 413, 415, 422),
    ),
    Operation(
        "POST", R + "/finish", "finish", "Finish reserved jobs", "settle",
        {200: jobs.AllSettled}, receipts.finish, jobs.ToFinish, problems=IN_BODY,
        endpoint=DeskEndpoint("jobs", "finish", jobs.FinishAsk, nats_jobs.finish),
    ),
    Operation(
        "POST", R + "/touch", "touch", "Hold reserved jobs longer", "settle",
        {200: jobs.AllSettled}, receipts.touch, jobs.ToTouch, problems=IN_BODY,
        endpoint=DeskEndpoint("jobs", "touch", jobs.TouchAsk, nats_jobs.settles("touch")),
    ),
    Operation(
        "POST", R + "/release", "release", "Give reserved jobs back", "settle",
        {200: jobs.AllSettled}, receipts.release, jobs.ToRelease, problems=IN_BODY,
        endpoint=DeskEndpoint("jobs", "release", jobs.ReleaseAsk, nats_jobs.settles("release")),
    ),
    Operation(
        "POST", R + "/bury", "bury", "Set reserved jobs aside, as dead letters", "settle",
        {200: jobs.AllSettled}, receipts.bury, jobs.ToBury, problems=IN_BODY,
        endpoint=DeskEndpoint("jobs", "bury", jobs.BuryAsk, nats_jobs.settles("bury")),
    ),
    Operation(
        "GET", T, "listTopics", "List topics and how many jobs they have", "read",
        {200: jobs.TopicsShown}, topics.list_topics, query=jobs.TopicsQuery, problems=(400, 422),
        endpoint=DeskEndpoint("jobs", "topics", jobs.TopicsAsk, nats_jobs.topics),
    ),
    Operation(
        "GET", T + "/{topic}", "showTopic", "Show a topic's settings and counts", "read",
        {200: jobs.TopicShown}, topics.show, problems=(422,),
        endpoint=DeskEndpoint("jobs", "count", jobs.CountAsk, nats_jobs.count),
    ),
    Operation(
        "PATCH", T + "/{topic}", "changeTopic", "Change a topic's settings", "admin",
        {200: jobs.TopicShown}, topics.change, jobs.TopicChanges, problems=IN_BODY,
        takes_key=True, endpoint=DeskEndpoint("jobs", "topic", jobs.TopicAsk, nats_jobs.topic),
    ),
    Operation(
        "POST", S, "addSchedule", "Add a schedule", "admin",
        {200: ScheduleChanged, 201: ScheduleChanged}, http_schedules.add, schedules.ScheduleToAdd,
        problems=(*IN_BODY, 409, 507), takes_key=True,
        endpoint=DeskEndpoint("schedules", "add", schedules.AddScheduleAsk, nats_schedules.add),
    ),
    Operation(
        "GET", "/v1/schedules", "listSchedules", "List your schedules", "read",
        {200: schedules.SchedulesShown}, http_schedules.list_schedules, query=schedules.SchedulesQuery,
        problems=(400, 422),
        endpoint=DeskEndpoint("schedules", "list", schedules.SchedulesAsk, nats_schedules.list_schedules),
    ),
    Operation(
        "GET", S + "/{schedule}", "showSchedule", "Show a schedule and its latest runs", "read",
        {200: ScheduleView}, http_schedules.show, query=schedules.ScheduleQuery, problems=(400, 404, 422),
        endpoint=DeskEndpoint("schedules", "show", schedules.ScheduleShowAsk, nats_schedules.show),
    ),
    Operation(
        "POST", S + "/{schedule}/pause", "pauseSchedule", "Add no more jobs of a schedule", "admin",
        {200: ScheduleChanged}, http_schedules.pause, problems=(400, 404, 409, 415, 422), takes_key=True,
        endpoint=DeskEndpoint("schedules", "pause", schedules.ScheduleAsk, nats_schedules.pause),
    ),
    Operation(
        "POST", S + "/{schedule}/resume", "resumeSchedule", "Go on with a schedule", "admin",
        {200: ScheduleChanged}, http_schedules.resume, problems=(400, 404, 409, 415, 422), takes_key=True,
        endpoint=DeskEndpoint("schedules", "resume", schedules.ScheduleAsk, nats_schedules.resume),
    ),
    Operation(
        "POST", S + "/{schedule}/trigger", "triggerSchedule", "Add a job of a schedule now", "admin",
        {200: Triggered}, http_schedules.trigger, schedules.ToTrigger, may_be_empty=True, takes_key=True,
        problems=(*IN_BODY, 404, 409),
        endpoint=DeskEndpoint("schedules", "trigger", schedules.TriggerAsk, nats_schedules.trigger),
    ),
    Operation(
        "POST", S + "/{schedule}/backfill", "backfillSchedule", "Add the jobs of a past range", "admin",
        {200: ScheduleChanged}, http_schedules.backfill, schedules.ToBackfill, problems=(*IN_BODY, 404, 409),
        takes_key=True,
        endpoint=DeskEndpoint("schedules", "backfill", schedules.BackfillAsk, nats_schedules.backfill),
    ),
    Operation(
        "DELETE", S + "/{schedule}", "removeSchedule", "Remove a schedule", "admin",
        {200: ScheduleRemoved}, http_schedules.remove, problems=(400, 404, 409, 422), takes_key=True,
        endpoint=DeskEndpoint("schedules", "remove", schedules.ScheduleAsk, nats_schedules.remove),
    ),
    Operation(
        "POST", B + "/{task}", "submitBatch", "Run a task on a file or an input", "add",
        {201: batch.BatchShown}, http_batches.submit, Any, may_be_empty=True, query=batch.SubmitQuery,
        takes_key=True, problems=(*IN_BODY, 404, 409, 507), files=(*SHEETS, FORM),
        endpoint=DeskEndpoint("batch", "submit", NewBatch, nats_batch.submit),
    ),
    Operation(
        "POST", B, "submitForm", "Run the task that a form names on its file", "add",
        {201: batch.BatchShown}, http_batches.submit, query=batch.SubmitQuery,
        takes_key=True, problems=(*IN_BODY, 404, 409, 507), files=(FORM,),
    ),
    Operation(
        "POST", B + "/{task}/check", "checkBatch", "Look at a file or an input, and make no batch", "add",
        {200: FirstLook}, http_batches.check, Any, may_be_empty=True, query=batch.SubmitQuery,
        problems=(*IN_BODY, 404), files=(*SHEETS, FORM),
        endpoint=DeskEndpoint("batch", "check", batch.CheckAsk, nats_batch.check),
    ),
    Operation(
        "GET", B, "listBatches", "List your batches, the newest first", "read",
        {200: batch.BatchesShown}, http_batches.list_batches, query=batch.BatchesQuery, problems=(400, 422),
        endpoint=DeskEndpoint("batch", "list", batch.InstancesAsk, nats_batch.list_batches),
    ),
    Operation(
        "GET", ONE, "showBatch", "Show how a batch stands", "read",
        {200: batch.BatchShown}, http_batches.show, problems=(400, 404, 422),
        endpoint=DeskEndpoint("batch", "show", batch.InstanceAsk, nats_batch.show),
    ),
    Operation(
        "DELETE", ONE, "deleteBatch", "Delete a batch that is over", "delete",
        {200: batch.BatchShown}, http_batches.delete, takes_key=True, problems=(400, 404, 409, 422),
        endpoint=DeskEndpoint("batch", "delete", batch.ChangeAsk, nats_batch.change(BatchDesk.delete)),
    ),
    Operation(
        "GET", ONE + "/why", "whyBatch", "Say why a batch, or an item of it, is not running", "read",
        {200: BatchWhy}, http_batches.why, query=batch.WhyQuery, problems=(400, 404, 422),
        endpoint=DeskEndpoint("batch", "why", batch.BatchWhyAsk, nats_batch.why),
    ),
    Operation(
        "GET", ONE + "/items", "listItems", "List a batch's items, and how each ended", "read",
        {200: batch.ItemsShown}, http_batches.list_items, query=batch.ItemsQuery, problems=(400, 404, 422),
        endpoint=DeskEndpoint("batch", "items", batch.ItemsAsk, nats_batch.items),
    ),
    Operation(
        "GET", ONE + "/sheet", "downloadSheet", "Download a sheet of the items of a batch that is over", "read",
        {200: "application/octet-stream"}, http_batches.sheet, query=batch.SheetQuery, problems=(400, 404, 409, 422),
        endpoint=DeskEndpoint("batch", "sheet", batch.SheetAsk, nats_batch.sheet),
    ),
    Operation(
        "GET", ONE + "/result", "downloadResult", "Download a file of the result", "read",
        {200: "application/octet-stream"}, http_batches.result, query=batch.ResultQuery, problems=(400, 404, 422),
    ),
    Operation(
        "POST", ONE + "/start", "startBatch", "Begin a batch now that waits for its time or for another one", "add",
        {200: batch.BatchShown}, http_batches.start, takes_key=True, problems=(400, 404, 409, 415, 422),
        endpoint=DeskEndpoint("batch", "start", batch.ChangeAsk, nats_batch.change(BatchDesk.start)),
    ),
    Operation(
        "POST", ONE + "/pause", "pauseBatch", "Start nothing more of a batch", "add",
        {200: batch.BatchShown}, http_batches.pause, takes_key=True, problems=(400, 404, 415, 422),
        endpoint=DeskEndpoint("batch", "pause", batch.ChangeAsk, nats_batch.change(BatchDesk.pause)),
    ),
    Operation(
        "POST", ONE + "/resume", "resumeBatch", "Go on with a batch", "add",
        {200: batch.BatchShown}, http_batches.resume, takes_key=True, problems=(400, 404, 415, 422),
        endpoint=DeskEndpoint("batch", "resume", batch.ChangeAsk, nats_batch.change(BatchDesk.resume)),
    ),
    Operation(
        "POST", ONE + "/cancel", "cancelBatch", "End a batch", "add",
        {200: batch.BatchShown}, http_batches.cancel, takes_key=True, problems=(400, 404, 415, 422),
        endpoint=DeskEndpoint("batch", "cancel", batch.ChangeAsk, nats_batch.change(BatchDesk.cancel)),
    ),
    Operation(
        "POST", ONE + "/retry", "retryBatch", "Run what failed again", "add",
        {200: batch.BatchShown}, http_batches.retry, batch.ToRetry, may_be_empty=True,
        takes_key=True, problems=(*IN_BODY, 404, 409),
        endpoint=DeskEndpoint("batch", "retry", batch.RetryAsk, nats_batch.retry),
    ),
    Operation(
        "GET", K, "listTasks", "List the tasks that you may run", "read",
        {200: batch.TasksShown}, http_batches.list_tasks, query=batch.TasksQuery, problems=(400, 422),
        endpoint=DeskEndpoint("batch", "tasks", batch.TasksAsk, nats_batch.tasks),
    ),
    Operation(
        "PATCH", K + "/{task}", "changeTask", "Change a task's limits", "admin",
        {200: batch.TaskShown}, http_batches.change_task, batch.TaskChanges, problems=(*IN_BODY, 404),
        takes_key=True, endpoint=DeskEndpoint("batch", "limit", batch.LimitAsk, nats_batch.limit),
    ),
    Operation(
        "GET", F, "listFlows", "List the flows, each with its last round", "read",
        {200: flows.FlowsShown}, http_flows.list_flows, query=PageQuery, problems=(400, 422),
        endpoint=DeskEndpoint("flow", "list", PageQuery, nats_flows.list_flows),
    ),
    Operation(
        "GET", F + "/{flow}", "showFlow", "Show a flow with its latest rounds", "read",
        {200: FlowView}, http_flows.show, problems=(404, 422),
        endpoint=DeskEndpoint("flow", "show", flows.FlowAsk, nats_flows.of_flow(FlowDesk.show)),
    ),
    Operation(
        "GET", F + "/{flow}/why", "whyRow", "Say why a row of a flow is not executed", "read",
        {200: RowWhy}, http_flows.why, query=flows.RowQuery, problems=(400, 404, 422),
        endpoint=DeskEndpoint("flow", "why", flows.RowAsk, nats_flows.why),
    ),
    Operation(
        "PATCH", F + "/{flow}", "changeFlow", "Change a flow's settings", "admin",
        {200: FlowView}, http_flows.change, flows.FlowChanges, problems=(*IN_BODY, 404),
        takes_key=True, endpoint=DeskEndpoint("flow", "set", flows.FlowSetAsk, nats_flows.set_flow),
    ),
    Operation(
        "POST", F + "/{flow}/pause", "pauseFlow", "Load and execute nothing more", "admin",
        {200: FlowView}, http_flows.pause, problems=(400, 404, 415, 422),
        takes_key=True, endpoint=DeskEndpoint("flow", "pause", flows.FlowAsk, nats_flows.of_flow(FlowDesk.pause)),
    ),
    Operation(
        "POST", F + "/{flow}/resume", "resumeFlow", "Go on with a flow", "admin",
        {200: FlowView}, http_flows.resume, problems=(400, 404, 415, 422),
        takes_key=True, endpoint=DeskEndpoint("flow", "resume", flows.FlowAsk, nats_flows.of_flow(FlowDesk.resume)),
    ),
    Operation(
        "POST", F + "/{flow}/run", "runFlow", "Have a round now", "admin",
        {200: FlowView}, http_flows.run, problems=(400, 404, 415, 422),
        endpoint=DeskEndpoint("flow", "run", flows.FlowAsk, nats_flows.of_flow(FlowDesk.run)),
    ),
    Operation(
        "GET", Q, "listRates", "List the rates, and what is begun under each", "read",
        {200: RatesView}, http_rates.list_rates, query=rates.RatesQuery, problems=(400, 422),
        endpoint=DeskEndpoint("rates", "list", rates.RatesQuery, nats_rates.list_rates),
    ),
    Operation(
        "GET", Q + "/{kind}/{name}", "showRate", "Show a rate, and each of its last seconds", "read",
        {200: RatesView}, http_rates.show, query=rates.RateQuery, problems=(400, 404, 422),
        endpoint=DeskEndpoint("rates", "show", rates.RateAsk, nats_rates.show),
    ),
    Operation(
        "PATCH", Q + "/{kind}/{name}", "changeRate", "Change a rate", "admin",
        {200: RateChanged}, http_rates.change, rates.RateChange, problems=(*IN_BODY, 404),
        takes_key=True, endpoint=DeskEndpoint("rates", "set", rates.RateSetAsk, nats_rates.set_rate),
    ),
    Operation(
        "GET", "/v1/sources", "listSources", "List the sources, and how far each is read", "read",
        {200: sources.SourcesShown}, http_sources.list_sources, query=sources.SourcesQuery, problems=(400, 422),
        endpoint=DeskEndpoint("sources", "list", sources.SourcesQuery, nats_sources.list_sources),
    ),
    Operation(
        "GET", "/v1/sources/export", "exportSources", "List the sources as they are imported", "read",
        {200: sources.SourceRows}, http_sources.export, query=sources.SourcesQuery, problems=(400, 422),
        endpoint=DeskEndpoint("sources", "export", sources.SourcesQuery, nats_sources.export),
    ),
    Operation(
        "POST", "/v1/sources", "importSources", "Add many sources, checked whole", "admin",
        {200: Imported}, http_sources.import_sources, sources.Rows, query=sources.ImportQuery, problems=IN_BODY,
        endpoint=DeskEndpoint("sources", "import", sources.ImportAsk, nats_sources.import_sources),
    ),
    Operation(
        "GET", "/v1/sources/{platform}/{source}/why", "whySource", "Say why a source, or a slice of it, is not read",
        "read", {200: (SourceWhy, SliceWhy)}, http_sources.why, query=sources.SourceWhyQuery, problems=(400, 404, 422),
        endpoint=DeskEndpoint("sources", "why", sources.SourceWhyAsk, nats_sources.why),
    ),
    Operation(
        "POST", "/v1/sources/{platform}/{source}/look", "lookAtSource", "Have a source looked at now, as a hint",
        "look", {202: LookView}, http_sources.look, Any, may_be_empty=True, query=sources.LookQuery,
        problems=(400, 404, 409, 413, 415, 422),
        endpoint=DeskEndpoint("sources", "look", sources.LookAsk, nats_sources.look),
    ),
    Operation(
        "GET", Z, "listZones", "List the zones, with their shards and live nodes", "read",
        {200: zones.ZonesShown}, http_zones.list_zones, query=PageQuery, problems=(400, 422),
        endpoint=DeskEndpoint("zones", "list", PageQuery, nats_zones.list_zones),
    ),
    Operation(
        "GET", Z + "/{zone}", "showZone", "Show a zone with its jobs, and how its shards came", "read",
        {200: ZoneShown}, http_zones.show, problems=(404, 422),
        endpoint=DeskEndpoint("zones", "show", zones.ZoneAsk, nats_zones.show),
    ),
    Operation(
        "GET", Z + "/{zone}/shards", "shardsOfZone", "Say which shards a zone owns, and wait for a change", "read",
        {200: ZoneShards}, http_zones.shards, query=zones.ShardsQuery, problems=(400, 422),
        endpoint=DeskEndpoint("zones", "shards", zones.ShardsAsk, nats_zones.shards),
    ),
    Operation(
        "POST", Z + "/{zone}/drain", "drainZone", "Deal a zone's shards to the others", "admin",
        {200: ChangeView}, http_zones.drain, zones.ZoneSteer, may_be_empty=True, problems=(*IN_BODY, 404),
        takes_key=True, endpoint=DeskEndpoint("zones", "drain", zones.ZoneChangeAsk, nats_zones.drain),
    ),
    Operation(
        "POST", Z + "/{zone}/restore", "restoreZone", "Give a drained zone its shards back", "admin",
        {200: ChangeView}, http_zones.restore, zones.ZoneSteer, may_be_empty=True, problems=(*IN_BODY, 404),
        takes_key=True, endpoint=DeskEndpoint("zones", "restore", zones.ZoneChangeAsk, nats_zones.restore),
    ),
    Operation(
        "GET", M, "showRouting", "Show the shard map in force", "read",
        {200: MapView}, http_zones.routing, problems=(422,),
        endpoint=DeskEndpoint("zones", "routing", RequestForm, nats_zones.routing),
    ),
    Operation(
        "POST", M + "/plan", "planRouting", "Say what a change of the shard map would do", "read",
        {200: ChangeView}, http_zones.plan, RoutingChange, problems=IN_BODY,
        endpoint=DeskEndpoint("zones", "plan", RoutingChange, nats_zones.plan),
    ),
    Operation(
        "PATCH", M, "changeRouting", "Change the shard map", "admin",
        {200: ChangeView}, http_zones.change, RoutingChange, problems=IN_BODY,
        takes_key=True, endpoint=DeskEndpoint("zones", "apply", zones.RoutingApplyAsk, nats_zones.apply),
    ),
    Operation(
        "GET", M + "/history", "listRoutings", "List the kept shard maps, the newest first", "read",
        {200: zones.MapsShown}, http_zones.history, query=zones.MapsQuery, problems=(400, 422),
        endpoint=DeskEndpoint("zones", "history", zones.MapsQuery, nats_zones.history),
    ),
    Operation(
        "GET", M + "/report", "reportRouting", "Say how a change of the shard map went", "read",
        {200: MoveReport}, http_zones.report, query=zones.ReportAsk, problems=(400, 422),
        endpoint=DeskEndpoint("zones", "report", zones.ReportAsk, nats_zones.report),
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
