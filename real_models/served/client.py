"""Puts questions to servers, side by side, and keeps every answer as it came.

    OUT/draft-00000.json      {"request": …, "response": …}, whole or not there

A question whose answer is there is not put again, so that an interrupted run goes on where it was.
A server that is down, slow or busy (429, 5xx) is asked again after a pause that doubles; one that
refuses (4xx) is not.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

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
    """One server, as a context: `role` is what errors call it, `url` the root of its API."""

    def __init__(self, role: str, url: str, manners: Manners) -> None:
        self.role, self.url, self._manners = role, url.rstrip("/"), manners
        self._stop = threading.Event()
        headers = {"Authorization": f"Bearer {manners.key}"} if manners.key else {}
        self._client = httpx.Client(
            headers=headers,
            limits=httpx.Limits(max_connections=manners.concurrency),
            timeout=httpx.Timeout(manners.timeout, pool=None),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def model(self) -> str:
        """The first model that the server says it serves; UserError where it does not."""
        content = self._request("GET", f"{self.url}/models", None, self._name)
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
        pool = ThreadPoolExecutor(self._manners.concurrency)
        with Progress(len(jobs), f"ask the {self.role}", "text", len(jobs) - len(waiting)) as told:

            def put(job: Job) -> None:
                self._put(job)
                told.update()

            try:
                futures: list[Future[None]] = [pool.submit(put, job) for job in waiting]
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            finally:
                self._stop.set()  # those that wait for a server that is down need not
                pool.shutdown(cancel_futures=True)
                self._stop.clear()
        return len(waiting)

    @property
    def _name(self) -> str:
        return f"the {self.role} at {self.url}"

    def _put(self, job: Job) -> None:
        """Put one question, look at its answer, and keep it."""
        where = f"{self._name}, {job.where}"
        content = self._request("POST", self.url + job.question.path, job.question.body, where)
        try:
            job.look(parse_json(content, where))
        except Fault as fault:
            at = "" if fault.position is None else f", position {fault.position}"
            raise UserError(f"{where}{at}: {fault}") from None
        make_folder(job.file.parent)
        # The very bytes of the answer: numbers keep their digits, and repeated keys are still seen.
        asked = json.dumps(job.question.body, sort_keys=True).encode()
        whole = b'{"request": ' + asked + b', "response": ' + content.strip() + b"}\n"
        write_whole(job.file, lambda file: file.write(whole))

    def _request(self, method: str, url: str, body: Mapping[str, Any] | None, where: str) -> bytes:
        """The bytes of an answer, after as many tries as it takes or is allowed."""
        manners = self._manners
        for attempt in range(manners.retries + 1):
            pause = min(manners.pause * 2**attempt, _LONGEST_PAUSE)
            try:
                answer = self._client.request(method, url, json=body)
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
            if attempt == manners.retries or self._stop.wait(pause):
                break
        raise UserError(f"{where}: {reason}; tried {_times(attempt + 1)}")


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
