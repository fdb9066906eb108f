"""Decode prompts with any acceptance rule: the loop around the rounds of `speculation`.

    pair = load_pair("smollm2-skip3")
    run = decode(pair, read_prompts()[0], make_rule("cactus", delta=0.5), draft_tokens=10)
    print(run.texts[0].text, summary(run)["accepted_length"])

The random numbers of a text are decided by the seed and the prompt's id, round by round, whether
they are used or not: neither the batch nor the order changes a text, up to the rounding of the
models' logits. A round takes fresh numbers even for places that the round before had drafted: those
it used to reject a token are no longer uniform.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np

from real_models.decoding.drafters import Drafter, ModelDrafter, NoDrafter, PromptLookup
from real_models.decoding.numbers import Numbers
from real_models.decoding.observation import Observation
from real_models.decoding.speculation import Round, Speculation
from real_models.decoding.verifying.by_block import VERIFICATIONS
from real_models.decoding.verifying.placed_rules import PlacedRules
from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.laws.settings_laws import Laws, SettingsLaws
from real_models.models.cached_model import CachedModel
from real_models.models.logits import CutMass, naming
from real_models.models.pair import ModelPair
from real_models.prompts import Prompt, encode_prompt
from real_models.traces.contexts import text_stream
from sim.checks import shorten
from sim.jobs.progress import track
from theory import Rule, make_rule

__all__ = [
    "DecodedText",
    "Decoding",
    "Request",
    "check_verification",
    "decode",
    "model_drafter",
    "prompt_lookup",
    "run_batch",
    "whole_number",
]

_MOST_DRAFTS = 1 << 16  # a round draws random numbers for each, used or not

DrafterMaker = Callable[[ModelPair, Laws, Rule | PlacedRules], Drafter]


@dataclass(frozen=True)
class DecodedText:
    """One decoded text.

    tokens            : the new ones, an end token included; ended : there is one.
    drafted, accepted : drafts per round and how many of them were kept, without the token that the
                        verifier adds in every round. The last round counts whole, even where the
                        text was cut at its longest length.
    observed          : exact quantities per new token; None unless measured.
    """

    prompt: Prompt
    text: str
    tokens: tuple[int, ...]
    ended: bool
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    observed: Observation | None


@dataclass(frozen=True)
class Decoding:
    """A run: its texts, and the seconds by part of `speculation.PARTS`.

    alone_seconds, alone_tokens : of the verifier decoding the same prompts by itself, batch by
        batch in turn with the run; 0 where it was not asked for.
    cut : by model, the mass on columns that were cut off; empty where the widths are alike.
    """

    rule: PlacedRules
    draft_tokens: int
    settings: SamplingSettings
    texts: list[DecodedText]
    seconds: dict[str, float]
    alone_seconds: float = 0.0
    alone_tokens: int = 0
    cut: dict[str, CutMass] = field(default_factory=dict)
    verification: str = "token"
    candidates: int = 1


@dataclass
class Request:
    """A text while it grows; `stop` says of its ids whether it is finished.

    longest : how many ids it has at most. Drafts that could not be kept are not made: a model with
        a table of positions has none for them. None is no limit.
    """

    ids: list[int]
    stream: np.random.Generator
    stop: Callable[[list[int]], bool]
    emit: Callable[[int], None] = lambda token: None
    prompt_length: int = 0
    finished: bool = False
    name: str = ""
    longest: int | None = None
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)

    def take(self, found: Round) -> None:
        """Append the tokens of a round up to the one that finishes the text."""
        self.rounds.append(found)
        for token in found.tokens:
            self.ids.append(token)
            self.emit(token)
            if self.stop(self.ids):
                self.finished = True
                break

    def observed(self) -> Observation | None:
        """The observations of the new tokens, without those that were cut."""
        parts = [found.observed for found in self.rounds if found.observed is not None]
        return Observation.join(parts).first(len(self.ids) - self.prompt_length) if parts else None


def decode(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    rule: Rule | Sequence[Rule] | PlacedRules,
    *,
    draft_tokens: int = 5,
    new_tokens: int = 64,
    settings: SamplingSettings | None = None,
    drafter: DrafterMaker | None = None,
    batch_size: int = 1,
    seed: int = 0,
    measure: bool = True,
    compare: bool = True,
    verification: str = "token",
    candidates: int = 1,
) -> Decoding:
    """Decode up to `new_tokens` tokens behind every prompt with a rule of theory.RULES.

    rule         : one for all places of a draft, or one for each of the first places, the last of
        them also for those behind; they differ in their values alone.
    draft_tokens : m ≥ 0, the longest draft of a round; 0 is the verifier alone.
    settings     : temperature and filters of both models, and whether drafts are greedy (T = 1).
    drafter      : `model_drafter` (the pair's draft) or `prompt_lookup(longest)`.
    batch_size   : texts that are decoded side by side.
    measure      : observe exact divergences and likelihoods, at the cost of a sort per place.
    compare      : let the verifier decode the same prompts alone, for the speed-up.
    verification : "token" tests the drafts one after another, "block" a whole draft at once; the
        law of each visited place is the same, and more drafts are accepted. "scaled" is a block
        of `frontier_corpus` for KL that clips at what was over-supplied before (`by_block`).
    candidates   : K tokens are drawn for each place and one is chosen to be tested (see `trees`);
        a round drafts K + K² + … Kᵐ tokens, at most 1,024.

    The law of every round is exact for p and q as computed; in float32 they depend on batch and
    cache by rounding only, in bfloat16 by a percent of total variation.

    Raises UserError naming the argument or the prompt, before anything is decoded: a number out of
    range, a prompt without tokens, a text that would leave the models' range of positions.
    """
    settings = settings or SamplingSettings()
    for name, value, least in (
        ("draft_tokens", draft_tokens, 0),
        ("new_tokens", new_tokens, 1),
        ("batch_size", batch_size, 1),
        ("seed", seed, 0),
        ("candidates", candidates, 1),
    ):
        whole_number(name, value, least)
    rule = PlacedRules.of(rule)
    check_verification(verification)
    if not prompts:
        raise UserError("there is no prompt to decode")
    texts = [(p, _encoded(pair, p, new_tokens + draft_tokens)) for p in prompts]
    run = _Run(pair, settings, new_tokens, seed, verification, candidates)
    maker = (drafter or model_drafter) if draft_tokens else _no_drafter
    engine = run.engine(rule, maker, measure=measure)
    engine.check_texts(min(batch_size, len(texts)))
    engine.check_drafts(draft_tokens)
    decoded, seconds, alone, alone_tokens = [], {}, 0.0, 0
    for start in track(range(0, len(texts), batch_size), "decode", "batch"):
        batch = texts[start : start + batch_size]
        if compare:
            found, spent = run.batch(batch, _ALONE, _no_drafter, 0, measure=False)
            alone += sum(spent.values())
            alone_tokens += sum(len(text.tokens) for text in found)
        found, spent = run.batch(batch, rule, maker, draft_tokens, measure=measure)
        decoded += found
        seconds = {part: seconds.get(part, 0.0) + spent[part] for part in spent}
    return Decoding(
        rule,
        draft_tokens,
        settings,
        decoded,
        seconds,
        alone,
        alone_tokens,
        run.cut,
        verification,
        candidates,
    )


def model_drafter(pair: ModelPair, laws: Laws, rule: Rule | PlacedRules) -> Drafter:
    """The pair's own draft model."""
    model = CachedModel(pair.draft, pair.vocabulary, "draft")
    return ModelDrafter(model, laws, pair.end_tokens, raw=rule.reads_raw)


def prompt_lookup(longest: int = 3) -> DrafterMaker:
    """Drafts that are looked up in the text; the pair's draft model is not used."""
    return lambda pair, laws, rule: PromptLookup(
        pair.vocabulary, pair.device, pair.end_tokens, longest
    )


def run_batch(engine: Speculation, requests: Iterable[Request], draft_tokens: int) -> None:
    """Let every request of a batch grow until it is finished.

    Raises UserError naming model, prompt and position where logits are no distribution.
    """
    going = list(requests)
    with naming([request.name for request in going]):
        engine.prefill([request.ids for request in going])
    while going:
        streams = [request.stream for request in going]
        numbers = Numbers.draw(streams, draft_tokens, engine.candidates)
        with naming([request.name for request in going]):
            count = min([draft_tokens, *map(_room, going)])
            rounds = engine.round([request.ids for request in going], numbers.first(count))
        for request, found in zip(going, rounds):
            request.take(found)
        staying = [i for i, request in enumerate(going) if not request.finished]
        if staying and len(staying) < len(going):
            engine.keep_rows(staying)
        going = [going[i] for i in staying]


def _room(request: Request) -> int:
    """How many drafts may stand before the last token of a text."""
    if request.longest is None:
        return _MOST_DRAFTS
    return max(0, request.longest - len(request.ids) - 1)


@dataclass(frozen=True)
class _Run:
    """What the batches of one run share."""

    pair: ModelPair
    settings: SamplingSettings
    new_tokens: int
    seed: int
    verification: str = "token"
    candidates: int = 1
    cut: dict[str, CutMass] = field(default_factory=dict)

    def batch(
        self,
        texts: Sequence[tuple[Prompt, list[int]]],
        rule: PlacedRules,
        maker: DrafterMaker,
        draft_tokens: int,
        *,
        measure: bool,
    ) -> tuple[list[DecodedText], dict[str, float]]:
        """The decoded texts of a batch, and the seconds that its parts took."""
        engine = self.engine(rule, maker, measure=measure)
        requests = [self._request(prompt, ids) for prompt, ids in texts]
        run_batch(engine, requests, draft_tokens)
        for role, mass in engine.cut().items():
            self.cut.setdefault(role, CutMass()).add(mass)
        decoded = [self._decoded(p, r) for (p, _), r in zip(texts, requests)]
        return decoded, engine.watch.seconds

    def engine(self, rule: PlacedRules, maker: DrafterMaker, *, measure: bool) -> Speculation:
        """The models with empty caches; UserError where one cannot be rolled back."""
        laws = SettingsLaws(self.settings)
        verifier = CachedModel(self.pair.verifier, self.pair.vocabulary, "verifier")
        drafter = maker(self.pair, laws, rule)
        return Speculation(
            verifier,
            drafter,
            rule,
            laws,
            measure=measure,
            verification=self.verification,
            candidates=1 if isinstance(drafter, NoDrafter) else self.candidates,
        )

    def _request(self, prompt: Prompt, ids: list[int]) -> Request:
        longest, ends = len(ids) + self.new_tokens, self.pair.end_tokens
        return Request(
            list(ids),
            text_stream(self.seed, prompt.id),
            stop=lambda text: len(text) >= longest or text[-1] in ends,
            name=prompt.id,
        )

    def _decoded(self, prompt: Prompt, request: Request) -> DecodedText:
        tokens = request.ids[request.prompt_length :]
        return DecodedText(
            prompt=prompt,
            text=self.pair.tokenizer.decode(tokens, skip_special_tokens=True),
            tokens=tuple(tokens),
            ended=tokens[-1] in self.pair.end_tokens,
            drafted=tuple(found.drafted for found in request.rounds),
            accepted=tuple(found.accepted for found in request.rounds),
            observed=request.observed(),
        )


_ALONE = PlacedRules.of(make_rule("sps"))


def _no_drafter(pair: ModelPair, laws: Laws, rule: Rule | PlacedRules) -> Drafter:
    return NoDrafter(pair.vocabulary, pair.device)


def check_verification(name: object) -> None:
    """Raise UserError for what is no name of a verification."""
    if name not in VERIFICATIONS:
        known = f"{', '.join(VERIFICATIONS[:-1])} or {VERIFICATIONS[-1]}"
        raise UserError(f"verification must be {known}, got {shorten(repr(name))}")


def whole_number(name: str, value: object, least: int) -> int:
    """An integer of any library as Python's own; a draft is no longer than 65,536 tokens.

    Raises UserError naming the argument that is no integer, below `least`, or above what is used.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        got = shorten(repr(value))
        raise UserError(f"{name} must be an integer of at least {least}, got {got}")
    if name == "draft_tokens" and value > _MOST_DRAFTS:
        got = shorten(str(value))
        raise UserError(f"draft_tokens must be at most {_MOST_DRAFTS}, got {got}")
    return int(value)


def _encoded(pair: ModelPair, prompt: Prompt, more: int) -> list[int]:
    """The tokens of a prompt, or a UserError where `more` behind them would be too many."""
    ids = encode_prompt(prompt, pair.tokenizer)
    limit = pair.position_limit
    if limit is not None and len(ids) + more > limit:
        raise UserError(
            f"prompt {prompt.id!r}: {len(ids)} tokens and {more} new ones, drafts included, "
            f"exceed the models' limit of {limit}"
        )
    return ids
