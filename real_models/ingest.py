"""Make a trace of rows that were computed elsewhere: from arrays, or from what servers tell.

    python -m real_models.ingest arrays rows.npz --kind probabilities --out traces/mine
    python -m real_models.ingest responses --draft draft.json --verifier verifier.json \\
        --vocabulary 49152 --out traces/served
    python -m real_models.ingest servers --draft http://one:8000/v1 --verifier http://two:8000/v1 \\
        --texts prompts.jsonl --vocabulary 49152 --out traces/served

measure and calibrate take the trace as one that was recorded. Servers tell the likeliest tokens of
each position; what is missing is kept as a rest, and settings that the list decides, as top-k 20 of
the 20 likeliest, are exact.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.options.command_line import at_least, run
from real_models.options.recording import CODE
from real_models.prompts import Prompt, read_prompts
from real_models.served.apis import APIS
from real_models.served.asking import Asking, ask_servers
from real_models.served.client import Manners
from real_models.served.pairing import PairedText, pair_texts
from real_models.served.reading.forms import FORMS
from real_models.served.reading.saved import read_saved
from real_models.served.reading.texts import ServedText
from real_models.served.writing import write_served
from real_models.traces.array_files import SUFFIXES, read_arrays
from real_models.traces.arrays import KINDS, write_trace
from real_models.traces.decided import listed_everywhere
from real_models.traces.reader import Trace
from sim.checks import require_between
from sim.commandline import Parser
from sim.jobs.files import json_text, write_json
from sim.jobs.folder_lock import owned
from sim.jobs.manifest import make_manifest

__all__ = ["main"]

_LARGEST_VOCABULARY = 2**24  # sixty times the largest that is in use
_DEFAULTS: dict[str, dict[str, Any]] = {
    "arrays": {"kind": "logits", "name": "arrays"},
    "responses": {"form": "auto", "vocabulary": None, "texts": None},
    "servers": {
        "vocabulary": None, "texts": None, "api": "vllm", "top": 20, "new_tokens": 0,
        "temperature": 1.0, "top_k": None, "top_p": None, "seed": 0, "draft_model": "",
        "verifier_model": "", "concurrency": 4, "timeout": 120.0, "retries": 4,
        "key_variable": None,
    },
}  # fmt: skip
"""Which options each source has, and what they are where they are not given."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0, 2 for mistakes, 130 if interrupted."""
    return run(_parser, _main, arguments, interrupted="answers that came are kept")


def _main(options: argparse.Namespace) -> int:
    """Check what is cheap, own the folder, make the trace, and tell what is in it."""
    _complete(options)
    work = _SOURCES[options.source](options)
    started = time.perf_counter()
    with owned(options.out, command="real_models.ingest"):
        trace = work()
        known = ("out", "json", "imports")
        asked = {key: str(value) for key, value in vars(options).items() if key not in known}
        seconds = time.perf_counter() - started
        manifest = make_manifest("real_models.ingest", asked, seconds, CODE)
        write_json(options.out / "manifest.json", manifest)
    _tell(trace, options.json)
    return 0


def _complete(options: argparse.Namespace) -> None:
    """Fill in the defaults of the source; UserError for an option that it does not have."""
    own = _DEFAULTS[options.source]
    for name in dict.fromkeys(name for names in _DEFAULTS.values() for name in names):
        given, option = getattr(options, name), f"--{name.replace('_', '-')}"
        if given is not None and name not in own:
            raise UserError(f"{option} does not go with {options.source!r}")
        if given is None and name in own:
            setattr(options, name, own[name])
    if options.source != "arrays":
        if options.files:
            raise UserError(f"{options.source} takes no files beside its options, got "
                            f"{options.files[0]}")  # fmt: skip
        for name in ("draft", "verifier", "vocabulary"):
            if not getattr(options, name):
                raise UserError(f"{options.source} needs --{name}")
        at_least(options, vocabulary=1)
        if options.vocabulary > _LARGEST_VOCABULARY:
            raise UserError(f"--vocabulary must be at most {_LARGEST_VOCABULARY:,}, got "
                            f"{options.vocabulary:,}: a row of all tokens is laid out by what "
                            "reads the trace")  # fmt: skip


def _from_arrays(options: argparse.Namespace) -> Callable[[], Trace]:
    singles = {}
    for role in ("draft", "verifier"):
        given = getattr(options, role) or []
        if len(given) > 1:
            raise UserError(f"--{role}: one file is needed, got {len(given)}")
        singles[role] = Path(given[0]) if given else None
    arrays = read_arrays(options.files, **singles)
    return lambda: write_trace(options.out, kind=options.kind, name=options.name, **arrays)


def _from_responses(options: argparse.Namespace) -> Callable[[], Trace]:
    prompts = read_prompts(options.texts)[0] if options.texts else None
    texts = {
        role: read_saved([Path(file) for file in getattr(options, role)], options.form)
        for role in ("draft", "verifier")
    }
    paired = pair_texts(texts["draft"], texts["verifier"], prompts and [p.id for p in prompts])
    return lambda: _write(options, paired, texts, prompts)


def _from_servers(options: argparse.Namespace) -> Callable[[], Trace]:
    at_least(options, new_tokens=0, seed=0, concurrency=1, retries=0)
    if options.top < 1 and options.top != -1:
        raise UserError(f"--top must be at least 1, or -1 for all tokens, got {options.top}")
    if options.texts is None:
        raise UserError("servers needs --texts")
    prompts, _ = read_prompts(options.texts)
    sampling = _sampling(options)
    asking = Asking(
        {role: _url(options, role) for role in ("draft", "verifier")},
        {"draft": options.draft_model, "verifier": options.verifier_model},
        options.api, options.top, options.new_tokens, sampling, options.seed,
    )  # fmt: skip
    manners = Manners(options.concurrency, options.timeout, options.retries, key=_key(options))

    def work() -> Trace:
        asked = ask_servers(prompts, options.out / "answers", asking, manners)
        texts = {"draft": read_saved(asked.draft), "verifier": read_saved(asked.verifier)}
        paired = pair_texts(texts["draft"], texts["verifier"], [p.id for p in prompts])
        if asked.written is None:
            return _write(options, paired, texts, prompts)
        paired = [text.between(*places) for text, places in zip(paired, asked.written)]
        facts = {"contexts": "verifier", "sampling": sampling.filters, "seed": options.seed}
        return _write(options, paired, texts, prompts, **facts)

    return work


def _sampling(options: argparse.Namespace) -> SamplingSettings:
    try:
        require_between("--timeout", options.timeout, 0.0, 1e6, open_low=True)
        return SamplingSettings(options.temperature, options.top_k, options.top_p)
    except ValueError as error:
        text = str(error)
        raise UserError(text if text[0] == "-" else f"--{text.replace('_', '-', 1)}") from None


def _url(options: argparse.Namespace, role: str) -> str:
    """The root of a server's API; with an address alone that of its OpenAI-compatible one."""
    given = getattr(options, role)
    parts = urlsplit(given[0])
    if len(given) > 1 or parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"--{role}: one address like http://localhost:8000/v1 is needed, got "
                        f"{' '.join(given)!r}")  # fmt: skip
    bare = parts.path in ("", "/") and APIS[options.api].has_names
    return given[0].rstrip("/") + ("/v1" if bare else "")


def _key(options: argparse.Namespace) -> str:
    name = options.key_variable
    if name is not None and name not in os.environ:
        raise UserError(f"--key-variable: the environment has no {name}")
    return os.environ[name] if name else ""


def _write(
    options: argparse.Namespace,
    paired: Sequence[PairedText],
    texts: dict[str, list[ServedText]],
    prompts: Sequence[Prompt] | None,
    **facts: Any,
) -> Trace:
    models = {role: told[0].model for role, told in texts.items()}
    domains = prompts and [prompt.domain for prompt in prompts]
    return write_served(options.out, paired, options.vocabulary, models, domains, **facts)


_SOURCES = {"arrays": _from_arrays, "responses": _from_responses, "servers": _from_servers}


def _tell(trace: Trace, as_json: bool) -> None:
    """What the trace holds, and which settings it decides."""
    header = trace.header
    facts: dict[str, Any] = {
        "trace": str(trace.folder),
        "texts": len(trace.chunks),
        "positions": trace.positions,
        "vocabulary": header.vocabulary,
        "listed": header.listed,
    }
    if header.listed is not None:
        facts["exact_top_k"] = listed_everywhere(trace)
        facts["rest"] = {role: _rest(trace, role) for role in ("draft", "verifier")}
    if as_json:
        print(json_text(facts))
        return
    texts = "prompts" if header.listed is None else "texts"
    print(f"{trace.folder}: {facts['positions']} positions of {facts['texts']} {texts}, "
          f"{header.vocabulary:,} tokens")  # fmt: skip
    if header.listed is None:
        print("  whole rows: every setting is exact")
        return
    for role, rest in facts["rest"].items():
        print(f"  the {role} lists the {header.listed} likeliest tokens; the others have "
              f"{rest['mean']:.3g} in the mean, {rest['largest']:.3g} at most")  # fmt: skip
    exact = facts["exact_top_k"]
    print(f"  exact with top-k {exact} or less, as in --settings 'T=1 top-k {exact}'")


def _rest(trace: Trace, role: str) -> dict[str, float]:
    rests = np.concatenate([chunk.listed(role).rest for chunk in trace.chunks])
    return {"mean": float(rests.mean()), "largest": float(rests.max())}


def _parser() -> Parser:
    parser = Parser(
        "real_models.ingest",
        usage="python -m real_models.ingest {arrays,responses,servers} [FILE …] [options]",
        description=__doc__,
    )
    add = parser.add_argument
    add("source", choices=_SOURCES, help="where the rows come from")
    add("files", nargs="*", type=Path, metavar="FILE",
        help=f"arrays: files with draft and verifier ({' '.join(SUFFIXES)})")  # fmt: skip
    add("--draft", nargs="+", metavar="FILE|URL",
        help="arrays: a file with its rows; responses: files; servers: an address")  # fmt: skip
    add("--verifier", nargs="+", metavar="FILE|URL", help="the same of the verifier")
    add("--out", required=True, type=Path, help="folder of the trace")
    add("--json", action="store_true", help="print one JSON document and nothing else")
    group = parser.add_argument_group("arrays").add_argument
    group("--kind", choices=KINDS, help="what the entries are (default: logits)")
    group("--name", help="what the tables call the pair (default: arrays)")
    group = parser.add_argument_group("responses and servers").add_argument
    group("--vocabulary", type=int, metavar="V", help="the number of tokens of both models")
    group("--texts", type=Path, metavar="FILE",
        help="JSON lines of prompts: what servers are asked about, names of responses")  # fmt: skip
    group("--form", choices=["auto", *FORMS], help="of the responses (default: auto)")
    _add_server_options(parser)
    return parser


def _add_server_options(parser: Parser) -> None:
    add = parser.add_argument_group("servers").add_argument
    add("--api", choices=APIS, help="what the servers understand (default: vllm)")
    add("--top", type=int, metavar="K",
        help="likeliest tokens of each position; -1 for all (default: 20)")  # fmt: skip
    add("--draft-model", metavar="NAME", help="(default: the first that the server has)")
    add("--verifier-model", metavar="NAME", help="(default: the first that the server has)")
    add("--new-tokens", type=int, metavar="N",
        help="let the verifier write so many behind each prompt, and ask about those "
        "(default: 0, the prompts are the texts)")  # fmt: skip
    add("--temperature", type=float, help="of what it writes (default: 1)")
    add("--top-k", type=int, help="of what it writes")
    add("--top-p", type=float, help="of what it writes")
    add("--seed", type=int, help="of what it writes (default: 0)")
    add("--concurrency", type=int, help="requests to a server at a time (default: 4)")
    add("--timeout", type=float, help="seconds for an answer (default: 120)")
    add("--retries", type=int, help="more tries after the first (default: 4)")
    add("--key-variable", metavar="NAME", help="environment variable with the API's key")


if __name__ == "__main__":
    sys.exit(main())
