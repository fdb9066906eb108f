"""Two servers asked about the same texts: those of a file, or those the verifier writes first."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.prompts import Prompt
from real_models.served.apis import APIS, Writing
from real_models.served.client import Job, Manners, Server
from real_models.served.reading.forms import read_texts
from real_models.served.reading.saved import read_answer

__all__ = ["Asked", "Asking", "ask_servers"]


_PLAIN = SamplingSettings()


@dataclass(frozen=True)
class Asking:
    """What is asked of both servers.

    urls, models : of draft and verifier; a model that is not named is the first that is served.
    api          : one of APIS.
    top          : how many of the likeliest tokens at each position; −1 for all.
    new_tokens   : how many tokens the verifier writes behind each prompt first, under `sampling`
                   and `seed`; with 0 the prompts are the texts.
    """

    urls: dict[str, str]
    models: dict[str, str]
    api: str = "vllm"
    top: int = 20
    new_tokens: int = 0
    sampling: SamplingSettings = _PLAIN
    seed: int = 0


@dataclass(frozen=True)
class Asked:
    """The files of the answers by role, in the order of the texts.

    written : of each text, the places [start, stop) that the verifier wrote; None where it did not.
    """

    draft: list[Path]
    verifier: list[Path]
    written: list[tuple[int, int]] | None


def ask_servers(prompts: Sequence[Prompt], folder: Path, asking: Asking, manners: Manners) -> Asked:
    """Ask both servers about every text; the answers are kept in `folder`.

    Raises UserError as `Server.ask` does, and where the API does not tell the ids of what it
    writes, or a prompt is a chat whose template only a server knows.
    """
    _check(prompts, asking)
    names = [prompt.id for prompt in prompts]
    texts: list[Any] = [prompt.prompt for prompt in prompts]
    places = None
    writing = APIS[asking.api].writing
    if asking.new_tokens and writing is not None:
        written = _write(prompts, folder, asking, manners, writing)
        texts = [ids for ids, _ in written]
        places = [(len(ids) - new, len(ids)) for ids, new in written]
    files = {
        role: _score(role, texts, names, folder, asking, manners) for role in ("verifier", "draft")
    }
    return Asked(files["draft"], files["verifier"], places)


def _check(prompts: Sequence[Prompt], asking: Asking) -> None:
    if asking.new_tokens and APIS[asking.api].writing is None:
        raise UserError(f"--new-tokens: the API {asking.api!r} does not tell the ids of what it "
                        "writes")  # fmt: skip
    for prompt in prompts:
        if prompt.chat and (not asking.new_tokens or asking.api != "vllm"):
            raise UserError(
                f"prompt {prompt.id!r} is a chat, whose template the server knows: with --api vllm "
                "and --new-tokens it writes the answer, else give the whole text"
            )


def _write(
    prompts: Sequence[Prompt], folder: Path, asking: Asking, manners: Manners, writing: Writing
) -> list[tuple[list[int], int]]:
    """The ids of each text as the verifier has written it, and how many are new."""
    server = Server("verifier", asking.urls["verifier"], manners)
    model = _model("verifier", server, asking)
    jobs = [
        Job(
            writing.ask(prompt, model, asking.new_tokens, asking.sampling, asking.seed + number),
            folder / f"text-{number:05d}.json",
            f"text {prompt.id!r}",
            writing.read,
        )
        for number, prompt in enumerate(prompts)
    ]
    server.ask(jobs)
    return [writing.read(read_answer(job.file)) for job in jobs]


def _score(
    role: str,
    texts: Sequence[Any],
    names: Sequence[str],
    folder: Path,
    asking: Asking,
    manners: Manners,
) -> list[Path]:
    """The files with what one server tells of every text."""
    server = Server(role, asking.urls[role], manners)
    model = _model(role, server, asking)
    jobs = [
        Job(
            APIS[asking.api].score(text, model, asking.top),
            folder / f"{role}-{number:05d}.json",
            f"text {name!r}",
            read_texts,
        )
        for number, (text, name) in enumerate(zip(texts, names))
    ]
    server.ask(jobs)
    return [job.file for job in jobs]


def _model(role: str, server: Server, asking: Asking) -> str:
    """The model to ask for: the one that is named, or the first that the server has."""
    named = asking.models.get(role, "")
    return named or (server.model() if APIS[asking.api].has_names else "")
