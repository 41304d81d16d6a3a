"""The client: one method per thing that can be asked of Signalbox. Synchronous, safe to share between threads.

Reads that follow a write of the same client see it (`min_seq`). Must not print, and must not read the terminal.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

from signalbox import profile as profiles
from signalbox.errors import SignalboxError
from signalbox.feed import Feed
from signalbox.frame import frame
from signalbox.logs import Log
from signalbox.shapes import Event, Job, Submission, rows
from signalbox.transport import Transport, transient

PATIENCE_S = 30.0
"""How long a request is tried again before it counts as failed."""
WAIT_PATIENCE_S = 900.0
"""How long `wait`, followed logs and feeds outlast an API that cannot be reached."""
PAGE_MAX = 1000
"""Rows that a page may have."""
ACTIVE = frozenset({"STARTING", "RUNNING", "PREEMPTING", "CANCELLING"})
"""States in which the job's present attempt holds GPUs."""
POLL_FIRST_S = 0.2
POLL_MAX_S = 2.0


def connect(
    profile: str | None = None,
    address: str | None = None,
    token: str | None = None,
    *,
    patience_s: float = PATIENCE_S,
    on_no_answer: Callable[[str], None] | None = None,
) -> Client:
    """A client for the profile in force (see signalbox.profile). Opens no connection yet. Raises NoProfile.

    `on_no_answer` is called, with the address, when the first request finds nobody there and is to be tried again.
    """
    return Client(profiles.load(profile, address, token), patience_s=patience_s, on_no_answer=on_no_answer)


class Client:
    """Everything that can be asked of one installation. Raises SignalboxError, with the API's own words."""

    def __init__(
        self,
        profile: profiles.Profile,
        *,
        patience_s: float = PATIENCE_S,
        on_no_answer: Callable[[str], None] | None = None,
    ) -> None:
        self.profile = profile
        self._transport = Transport(profile.address, profile.token, patience_s, on_no_answer)
        self._written: dict[str, int] = {}
        self._unseen: set[str] = set()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def submit(self, spec: Mapping[str, Any], idempotency_key: str | None = None) -> Submission:
        """Submit a job, given as the body of POST /v1/jobs; the profile fills in team, gpu_type and max_runtime.

        Without a key one is made. Every try of this call goes under the same key, so that the job exists once however
        often it was sent; after Unreachable, call again with a key of your own to be sure of the same.
        """
        key = idempotency_key or str(uuid.uuid4())
        body = profiles.with_defaults(spec, self.profile)
        answer = Submission.from_wire(self._write("POST", "/v1/jobs", body, key), key)
        if answer.seq is not None:
            self._written[answer.id] = answer.seq
        else:
            self._unseen.add(answer.id)
        return answer

    def job(self, id: str) -> Job:
        """One job as it stands."""
        found = Job.from_wire(self._get(_job(id), min_seq=self._written.get(id)))
        self._unseen.discard(id)
        return found

    def jobs(
        self,
        *,
        team: str | None = None,
        state: str | Sequence[str] | None = None,
        label: str | Sequence[str] | None = None,
        held: bool | None = None,
        dependent: bool | None = None,
        array: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Jobs, newest first, page by page as they are taken; at most `limit`. `label` is "name=value"; `dependent`:
        those that wait for other jobs; `array`: the elements of that array that were granted.
        """
        asked = {"team": team, "state": state, "label": label, "held": held, "dependent": dependent, "array": array}
        for count, row in enumerate(self._pages("/v1/jobs", "jobs", limit=page_size(limit), **asked), start=1):
            yield Job.from_wire(row)
            if count == limit:
                return

    def cancel(self, id: str) -> dict[str, Any]:
        """Cancel a job: CANCELLED at once where it waits, CANCELLING where it runs."""
        return self._write_job(id, "DELETE", "")

    def hold(self, id: str) -> dict[str, Any]:
        """Keep a waiting job from starting."""
        return self._write_job(id, "POST", ":hold")

    def release(self, id: str) -> dict[str, Any]:
        """End a hold."""
        return self._write_job(id, "POST", ":release")

    def extend(self, id: str, by: str) -> dict[str, Any]:
        """More run time: `by` is a duration ("4h"). Refused where a reservation depends on the job's end."""
        return self._write_job(id, "POST", ":extend", {"by": by})

    def requeue(self, id: str) -> dict[str, Any]:
        """Stop the running attempt, and queue the job again."""
        return self._write_job(id, "POST", ":requeue")

    def change(
        self, id: str, *, priority_class: str | None = None, labels: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Another class or other labels for a job that waits; what is None stays."""
        asked: dict[str, Any] = {
            "priority_class": priority_class,
            "labels": dict(labels) if labels is not None else None,
        }
        return self._write_job(id, "PATCH", "", {name: value for name, value in asked.items() if value is not None})

    def why(self, id: str) -> dict[str, Any]:
        """All that keeps a job from starting, with figures, and its estimated start."""
        return dict(self._get(f"{_job(id)}/why", min_seq=self._written.get(id)))

    def job_events(self, id: str) -> list[dict[str, Any]]:
        """A job's events, oldest first."""
        return list(self._pages(f"{_job(id)}/events", "events", min_seq=self._written.get(id), limit=PAGE_MAX))

    def attempts(self, id: str) -> list[dict[str, Any]]:
        """A job's attempts, oldest first: where each ran, how it ended, and for whom it was stopped."""
        return list(self._pages(f"{_job(id)}/attempts", "attempts", min_seq=self._written.get(id)))

    def checkpoints(self, id: str) -> list[dict[str, Any]]:
        """A job's accepted checkpoints."""
        return list(self._pages(f"{_job(id)}/checkpoints", "checkpoints"))

    def wait(self, id: str, on_change: Callable[[Job], None] | None = None) -> Job:
        """The job once it has ended. `on_change` is called first with the job as it is, then whenever its state,
        attempt, hold, place in the queue or reason to wait has changed. Outlasts an API that is away for 15 minutes.
        """
        shown: tuple[object, ...] | None = None
        away_since: float | None = None
        pause_s = POLL_FIRST_S
        while True:
            try:
                job = self.job(id)
            except SignalboxError as error:
                away_since = away_since or time.monotonic()
                coming = error.status == 404 and id in self._unseen  # taken, and not decided yet
                if not (coming or transient(error)) or time.monotonic() - away_since > WAIT_PATIENCE_S:
                    raise
                time.sleep(POLL_MAX_S)
                continue
            away_since = None
            current = (job.state, job.attempt, job.held, job.queue_position, job.waits_for)
            if current != shown:
                shown, pause_s = current, POLL_FIRST_S
                if on_change is not None:
                    on_change(job)
            if job.ended:
                return job
            time.sleep(pause_s)
            pause_s = min(POLL_MAX_S, pause_s * 1.3)

    def logs(
        self, id: str, rank: int | None = None, follow: bool = False, attempt: int | None = None
    ) -> Iterator[bytes]:
        """A rank's output, in pieces as they come. With `follow` until the attempt has ended; a connection that breaks
        is opened again where it broke off. Default: rank 0 of the newest attempt that was started.
        """
        patience_s = WAIT_PATIENCE_S if follow else self._transport.patience_s
        path = f"{_job(id)}/logs"
        if not follow:
            return Log(self._transport, path, {"rank": rank, "attempt": attempt}, patience_s).read()
        seen = self.job(id)
        followed = attempt or (seen.attempt if seen.state in ACTIVE else None)

        def over() -> bool:
            now = self.job(id)
            return now.state not in ACTIVE or now.attempt != followed

        return Log(self._transport, path, {"rank": rank, "attempt": followed}, patience_s).follow(over)

    # -- the feed -----------------------------------------------------------------------------------------------------

    def events(
        self,
        after: int = 0,
        type: str | None = None,
        team: str | None = None,
        job: str | None = None,
        follow: bool = True,
    ) -> Iterator[Event]:
        """The event feed above the position `after` (an event's `seq`). With `follow` it goes on for ever, over broken
        connections and restarts of the API, and gives every event once. Keep the last `seq` to go on another day.
        """
        filters = {"type": type, "team": team, "job": job}
        patience_s = WAIT_PATIENCE_S if follow else self._transport.patience_s
        return iter(Feed(self._transport, after=after, follow=follow, filters=filters, patience_s=patience_s))

    def events_frame(
        self, after: int = 0, type: str | None = None, team: str | None = None, job: str | None = None
    ) -> Any:
        """The events there are up to now as a pandas DataFrame, a column per field, indexed by seq.

        Raises ImportError where pandas is not installed.
        """
        return frame(self.events(after, type, team, job, follow=False))

    # -- the fleet ----------------------------------------------------------------------------------------------------

    def nodes(self, *, block: str | None = None, state: str | Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Nodes with their GPUs, by block and state."""
        return list(self._pages("/v1/nodes", "nodes", block=block, state=state))

    def node(self, id: str) -> dict[str, Any]:
        """One node."""
        return dict(self._get(_node(id)))

    def drain(self, id: str, reason: str, now: bool = False) -> dict[str, Any]:
        """(operator) No new work for a node; with `now` its jobs are stopped with grace and queued again."""
        body: dict[str, Any] = {"reason": reason, "now": True} if now else {"reason": reason}
        return dict(self._write("POST", f"{_node(id)}:drain", body) or {})

    def undrain(self, id: str) -> dict[str, Any]:
        """(operator) Put a node back in service."""
        return dict(self._write("POST", f"{_node(id)}:undrain", None) or {})

    def queue(self, *, team: str | None = None) -> list[dict[str, Any]]:
        """The waiting jobs in their order; with `team`, only that team's, at their places among all. Held jobs and
        those that wait for others have no place, and are not among them (`held`, `dependent`).
        """
        return [row for row in self._pages("/v1/queue", "queue") if team in (None, row.get("team"))]

    def held(self, *, team: str | None = None) -> list[dict[str, Any]]:
        """The waiting jobs that are held, oldest first."""
        return [dict(job.raw) for job in self.jobs(team=team, state="QUEUED", held=True) if job.held][::-1]

    def dependent(self, *, team: str | None = None) -> list[dict[str, Any]]:
        """The waiting jobs that wait for other jobs, oldest first: they are in the queue once those have ended."""
        found = self.jobs(team=team, state="QUEUED", held=False, dependent=True)
        return [dict(job.raw) for job in found if job.follows and not job.held][::-1]

    def cluster(self) -> dict[str, Any]:
        """The cluster at a glance: GPUs by type, in use, free, out of service."""
        return dict(self._get("/v1/cluster"))

    # -- rules --------------------------------------------------------------------------------------------------------

    def quota(self, team: str) -> dict[str, Any]:
        """A team's quota by GPU type: guaranteed, borrow_limit, in_use, borrowed."""
        return dict(self._get(_quota(team)))

    def shares(self, team: str | None = None) -> list[dict[str, Any]]:
        """How the teams stand, or one of them, by team and GPU type: guaranteed, in_use, covered, borrowed, waiting,
        entitled, used_gpu_hours, share."""
        return rows(self._get("/v1/shares", team=team), "shares")

    def set_quota(
        self,
        team: str,
        lines: Mapping[str, Mapping[str, int]],
        *,
        classes: Sequence[str] | None = None,
        reason: str = "",
    ) -> dict[str, Any]:
        """(admin) Set a team's quota: {"h100": {"guaranteed": 3072, "borrow_limit": 1024}}; other types stay. Either
        figure may be in percent of the registered GPUs instead: {"guaranteed_percent": 25}.

        `classes`: the priority classes that the team may use; None leaves them.
        """
        body: dict[str, Any] = {name: dict(line) for name, line in lines.items()}
        body |= {"classes": list(classes)} if classes is not None else {}
        body |= {"reason": reason} if reason else {}
        return dict(self._write("PUT", _quota(team), body) or {})

    def policy(self, version: int | None = None) -> dict[str, Any]:
        """The policy in force, or a version of it: every parameter, who set it and why; and what each version
        changed.
        """
        return dict(self._get("/v1/policy", version=version))

    def set_policy(self, policy: Mapping[str, Any], *, reason: str = "") -> dict[str, Any]:
        """(admin) Put a policy in force: the whole of it, a parameter that is absent gets its default."""
        body = dict(policy)
        if reason:
            body = {**(body if "policy" in body else {"policy": body}), "reason": reason}
        return dict(self._write("PUT", "/v1/policy", body) or {})

    def audit(self, *, limit: int | None = None, **filters: str | None) -> Iterator[dict[str, Any]]:
        """(auditor) Who did what: filters are actor, job, node, gpu, team, type, from, to."""
        pages = self._pages("/v1/audit", "events", limit=page_size(limit), **filters)
        for count, row in enumerate(pages, start=1):
            yield row
            if count == limit:
                return

    # -- inside -------------------------------------------------------------------------------------------------------

    def _get(self, path: str, **params: Any) -> Any:
        return self._transport.call("GET", path, params=params)

    def _write(self, method: str, path: str, body: Any, key: str | None = None) -> Any:
        return self._transport.call(method, path, body=body, key=key or str(uuid.uuid4()))

    def _write_job(self, id: str, method: str, verb: str, body: Any = None) -> dict[str, Any]:
        answer: dict[str, Any] = dict(self._write(method, f"{_job(id)}{verb}", body) or {})
        if isinstance(answer.get("seq"), int):
            self._written[id] = answer["seq"]
        return answer

    def _pages(self, path: str, name: str, **params: Any) -> Iterator[dict[str, Any]]:
        """The rows of all pages; a page is asked for when the one before it is used up."""
        cursor = None
        while True:
            page = self._get(path, cursor=cursor, **params)
            yield from rows(page, name)
            cursor = page.get("cursor") if isinstance(page, Mapping) else None
            if not cursor:
                return


def page_size(limit: int | None) -> int | None:
    """How many rows to ask for at once, where `limit` are wanted in all."""
    return None if limit is None else min(limit, PAGE_MAX)


def _job(id: str) -> str:
    return f"/v1/jobs/{quote(id, safe='')}"


def _node(id: str) -> str:
    return f"/v1/nodes/{quote(id, safe='')}"


def _quota(team: str) -> str:
    return f"/v1/teams/{quote(team, safe='')}/quota"
