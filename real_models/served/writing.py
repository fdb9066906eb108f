"""The trace of paired texts: whole rows where all tokens were told, lists where they were not."""

import hashlib
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from real_models.errors import UserError
from real_models.served.pairing import PairedText
from real_models.served.reading.texts import Key, Row
from real_models.traces.format import TraceHeader
from real_models.traces.listing import Listed, check_listed
from real_models.traces.reader import Trace, open_trace
from real_models.traces.writer import TraceWriter
from sim.jobs.files import json_text, write_json

__all__ = ["TOKENS_FILE", "write_served"]

TOKENS_FILE = "tokens.json"
"""The texts of tokens in the order of their ids, where the servers told no ids."""

_MANY = 8  # positions
_NOTHING = 1e-6  # of a sum of single precision


def write_served(
    folder: Path,
    texts: Sequence[PairedText],
    vocabulary: int,
    models: Mapping[str, str],
    domains: Sequence[str] | None = None,
    **facts: Any,
) -> Trace:
    """Write paired texts as a trace; every row is looked at before anything is written.

    models     : what the servers call the `draft` and the `verifier`, as far as they do.
    vocabulary : V, the number of tokens. Tokens that are told by their texts get ids in the order
                 of those, and the list goes to TOKENS_FILE.
    facts      : other fields of the header, as `contexts`, `sampling` and `seed` of texts that the
                 verifier wrote.

    Raises UserError naming text, position and value for an id outside the vocabulary, a row whose
    probabilities exceed 1 or leave more than the other tokens can hold, for lists that leave
    nothing anywhere, as behind a filter, and for a folder that holds another trace.
    """
    ids = _ids(texts, vocabulary)
    told = list(_rows(texts, ids, vocabulary))
    digests = [_digest([both[model] for both in told]) for model in range(2)]
    whole = all(int(rows.known.min()) == vocabulary for both in told for rows in both)
    if not whole:
        _refuse_filtered(told)
    names = {role: models.get(role) or role for role in ("draft", "verifier")}
    header = TraceHeader(
        pair=f"{names['draft']} for {names['verifier']}",
        verifier=names["verifier"],
        verifier_revision=f"sha256:{digests[1]}",
        draft=names["draft"],
        draft_revision=f"sha256:{digests[0]}",
        tokenizer_hash="" if ids is None else hashlib.sha256(json_text(ids).encode()).hexdigest(),
        positions=max(len(text.draft) for text in texts),
        prompts=len(texts),
        prompts_sha256=_digest_of_texts(texts),
        vocabulary=vocabulary,
        logit_widths=dict.fromkeys(("draft", "verifier"), vocabulary),
        end_tokens=[],
        dtype="float64" if not whole or _needs_doubles(told) else "float32",
        versions={name: importlib.metadata.version(name) for name in ("numpy", "torch")},
        listed=None if whole else told[0][0].tokens.shape[1] - 1,
        **{"contexts": "given", "sampling": None, "seed": 0, **facts},
    )
    writer = TraceWriter(folder, header)
    if ids is not None:
        write_json(Path(folder) / TOKENS_FILE, list(ids))
    for chunk, (text, both) in enumerate(zip(texts, told)):
        if writer.finished(chunk) is None:
            domain = domains[chunk] if domains else "all"
            _append(writer, chunk, text, domain, _context(text, ids), both)
    return open_trace(folder, verify=False)


def _refuse_filtered(told: Sequence[tuple[Listed, Listed]]) -> None:
    """Raise UserError where a model's lists are all of its mass at each of many positions.

    No model is so sure everywhere: what was told are probabilities behind a filter, renormalised,
    and laws at other settings would be wrong without a sign of it.
    """
    for model, role in enumerate(("draft", "verifier")):
        missing = np.concatenate([np.abs(1.0 - both[model].mass) for both in told])
        if missing.size >= _MANY and missing.max() <= _NOTHING:
            raise UserError(
                f"the {role}'s lists sum to 1 within {missing.max():.1g} at all {missing.size} "
                "positions: these are probabilities behind a filter; ask for log-probabilities "
                "before any (vLLM: --logprobs-mode raw_logprobs), or bring such rows as arrays"
            )


def _append(
    writer: TraceWriter,
    chunk: int,
    text: PairedText,
    domain: str,
    context: np.ndarray,
    both: tuple[Listed, Listed],
) -> None:
    headless = len(context) == len(text.draft)
    if writer.header.listed is not None:
        writer.append_listed(chunk, text.name, domain, context, *both, headless=headless)
        return
    draft, verifier = (rows.logits_of_the_list() for rows in both)
    writer.append(chunk, text.name, domain, context, draft, verifier, headless=headless)


def _ids(texts: Sequence[PairedText], vocabulary: int) -> dict[Key, int] | None:
    """The ids of tokens that are told by their texts; None where they are told by ids."""
    rows = [row for text in texts for row in (*text.draft, *text.verifier)]
    numbered = [row for row in rows if isinstance(row.keys, np.ndarray)]
    if len(numbered) == len(rows):
        return None
    if numbered:
        raise UserError(
            f"some tokens are told by ids, as {numbered[0].keys[0]}, and some by their texts; ask "
            "both servers for token ids"
        )
    keys = {key for row in rows for key in row.keys} | {row.token for row in rows}
    named = sorted(keys | {key for text in texts for key in text.tokens})
    if len(named) > vocabulary:
        raise UserError(f"{len(named)} tokens are told, more than the vocabulary of {vocabulary}")
    return {key: number for number, key in enumerate(named)}


def _rows(
    texts: Sequence[PairedText], ids: dict[Key, int] | None, vocabulary: int
) -> Iterator[tuple[Listed, Listed]]:
    """The checked rows of each text, of one width.

    A server that ranks the text's own token tells of one more than it was asked for where that is
    the next. It is no likeliest token there either, so that all rows list as many.
    """
    everyone = [row for text in texts for row in (*text.draft, *text.verifier)]
    least = min(len(row.keys) for row in everyone)
    width = max(len(row.narrowed(least).keys) for row in everyone)
    for text in texts:
        _check_tokens(text, vocabulary)
        both = []
        for model, rows in (("draft", text.draft), ("verifier", text.verifier)):
            listed = _listed([row.narrowed(least) for row in rows], ids, width, vocabulary)
            check_listed(
                listed,
                lambda row, text=text, model=model: (
                    f"text {text.name!r}, position {text.position + row}: the {model}"
                ),
            )
            both.append(listed)
        yield both[0], both[1]


def _check_tokens(text: PairedText, vocabulary: int) -> None:
    """Raise UserError for a token of the text that is outside the vocabulary."""
    start = text.position + len(text.draft) - len(text.tokens)
    for place, key in enumerate(text.tokens, start=start):
        if isinstance(key, int) and key >= vocabulary:
            raise UserError(
                f"text {text.name!r}, position {place}: token id {key} is outside the vocabulary "
                f"of {vocabulary}"
            )


def _listed(rows: Sequence[Row], ids: dict[Key, int] | None, width: int, vocabulary: int) -> Listed:
    tokens = np.full((len(rows), width + 1), -1, dtype=np.int64)
    logprobs = np.full((len(rows), width + 1), -np.inf)
    for place, row in enumerate(rows):
        count = len(row.keys)
        tokens[place, :count] = row.keys if ids is None else [ids[key] for key in row.keys]
        logprobs[place, :count] = row.logprobs
        if row.outside is not None:
            tokens[place, -1] = row.token if ids is None else ids[row.token]
            logprobs[place, -1] = row.outside
    return Listed(tokens, logprobs, vocabulary)


def _context(text: PairedText, ids: dict[Key, int] | None) -> np.ndarray:
    return np.array(text.tokens if ids is None else [ids[key] for key in text.tokens])


def _needs_doubles(told: Sequence[tuple[Listed, Listed]]) -> bool:
    """Whether single precision would change a value: most servers compute in it."""
    with np.errstate(over="ignore"):
        return any(
            bool((rows.logprobs.astype(np.float32) != rows.logprobs).any())
            for both in told
            for rows in both
        )


def _digest(told: Sequence[Listed]) -> str:
    digest = hashlib.sha256()
    for rows in told:
        digest.update(rows.tokens.tobytes() + rows.logprobs.tobytes())
    return digest.hexdigest()


def _digest_of_texts(texts: Sequence[PairedText]) -> str:
    told = [[text.name, list(text.tokens)] for text in texts]
    return hashlib.sha256(json_text(told).encode()).hexdigest()
