"""Puts questions to servers, side by side, and keeps every answer as it came.

    OUT/draft-00000.json      {"request": …, "response": …}, whole or not there

A question whose answer is there is not put again, so that an interrupted run goes on where it was.
A server that is down, slow or busy (429, 5xx) is asked again after a pause that doubles; one that
refuses (4xx) is not.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from real_models.errors import UserError
from real_models.served.apis import Question
from real_models.served.reading.saved import parse_json
from real_models.served.reading.texts import Fault
from sim.checks import shorten
from sim.jobs.files import make_folder, write_whole
from sim.jobs.progress import Progress

__all__ = ["Job", "Manners", "Server"]

_LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Manners:
    """How servers are asked.

    concurrency : requests to one server at a time.
    timeout     : seconds until an answer counts as lost.
    retries     : more tries after the first; pause: seconds before the second.
    key         : of the API, or nothing.
    """

    concurrency: int = 4
    timeout: float = 120.0
    retries: int = 4
    pause: float = 0.5
    key: str = field(default="", repr=False)


class Job(NamedTuple):
    """A question, the file of its answer, and a look at the answer that raises Fault."""

    question: Question
    file: Path
    where: str
    look: Callable[[Any], object]


class Server:
    """One server: `role` is what errors call it, `url` the root of its API."""

    def __init__(self, role: str, url: str, manners: Manners) -> None:
        self.role, self.url, self._manners = role, url.rstrip("/"), manners

    def model(self) -> str:
        """The first model that the server says it serves; UserError where it does not."""
        try:
            content = asyncio.run(self._alone("GET", f"{self.url}/models"))
        except UserError as error:
            if "status 404" not in str(error):
                raise
            hint = f"name what it serves with --{self.role}-model"
            raise UserError(f"{error} (asked for /models; {hint})") from None
        try:
            return str(parse_json(content, self._name)["data"][0]["id"])
        except (LookupError, TypeError):
            raise UserError(
                f"{self._name} does not say what it serves; name it with --{self.role}-model"
            ) from None

    def ask(self, jobs: Sequence[Job]) -> int:
        """Put every question whose answer is not kept, and keep the answers; how many are new.

        The first failure ends all: UserError with server, address and text for a server that
        cannot be reached, does not answer in time, refuses, or answers with something else.
        """
        waiting = [job for job in jobs if not _kept(job)]
        done = len(jobs) - len(waiting)
        with Progress(len(jobs), f"ask the {self.role}", "text", done) as progress:
            try:
                asyncio.run(self._ask(waiting, progress))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None
        return len(waiting)

    @property
    def _name(self) -> str:
        return f"the {self.role} at {self.url}"

    def _client(self) -> httpx.AsyncClient:
        """A client with so many connections and no more; who waits for one has not asked yet."""
        key = self._manners.key
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=self._manners.concurrency),
            timeout=httpx.Timeout(self._manners.timeout, pool=None),
        )

    async def _alone(self, method: str, url: str) -> bytes:
        async with self._client() as client:
            return await self._request(client, method, url, None, self._name)

    async def _ask(self, jobs: Sequence[Job], progress: Progress) -> None:
        async with self._client() as client, asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(self._put(client, job, progress))

    async def _put(self, client: httpx.AsyncClient, job: Job, progress: Progress) -> None:
        """Put one question, look at its answer, and keep it."""
        (path, body), where = job.question, f"{self._name}, {job.where}"
        content = await self._request(client, "POST", self.url + path, body, where)
        try:
            job.look(parse_json(content, where))
        except Fault as fault:
            at = "" if fault.position is None else f", position {fault.position}"
            raise UserError(f"{where}{at}: {fault}") from None
        make_folder(job.file.parent)
        # The very bytes of the answer: numbers keep their digits, and repeated keys are still seen.
        asked = json.dumps(body, sort_keys=True).encode()
        whole = b'{"request": ' + asked + b', "response": ' + content.strip() + b"}\n"
        write_whole(job.file, lambda file: file.write(whole))
        progress.update()

    async def _request(
        self, client: httpx.AsyncClient, method: str, url: str, body: Any, where: str
    ) -> bytes:
        """The bytes of an answer, after as many tries as it takes or is allowed."""
        manners = self._manners
        for attempt in range(manners.retries + 1):
            pause = min(manners.pause * 2**attempt, _LONGEST_PAUSE)
            try:
                answer = await client.request(method, url, json=body)
            except httpx.TimeoutException:
                reason = f"no answer within {manners.timeout:g} s"
            except (httpx.TransportError, httpx.InvalidURL) as error:
                reason = f"cannot be reached ({error or type(error).__name__})"
            else:
                if answer.is_success:
                    return answer.content
                reason = f"status {answer.status_code}: {_short(answer)}"
                if answer.status_code != 429 and answer.status_code < 500:
                    raise UserError(f"{where}: {reason}")
                pause = max(pause, _asked_pause(answer))
            if attempt < manners.retries:
                await asyncio.sleep(pause)
        raise UserError(f"{where}: {reason}; tried {_times(manners.retries + 1)}")


def _kept(job: Job) -> bool:
    """Whether the answer to this very question is there."""
    try:
        return bool(json.loads(job.file.read_bytes())["request"] == job.question.body)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _short(answer: httpx.Response) -> str:
    """The beginning of what a server says is wrong."""
    return shorten(" ".join(answer.text.split()), 200) or answer.reason_phrase


def _asked_pause(answer: httpx.Response) -> float:
    """The seconds that the server asks to be left alone for, within bounds."""
    text = answer.headers.get("retry-after", "")
    return min(float(text), _LONGEST_PAUSE) if text.isascii() and text.isdigit() else 0.0


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
