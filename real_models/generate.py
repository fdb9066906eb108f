"""Any acceptance rule inside transformers' own `generate`.

    from real_models.generate import CUSTOM_GENERATE

    model.generate(
        **inputs,
        custom_generate=CUSTOM_GENERATE,
        trust_remote_code=True,  # the folder is this package's own
        assistant_model=draft,
        rule="cactus",
        rule_parameters={"delta": 0.5},
        draft_tokens=8,
        do_sample=True,
    )

Everything that `generate` prepares keeps its meaning: generation settings, logits processors (for
draft and verifier alike), stopping criteria, streamers, batches padded on the left (these with
temperature, top-k and top-p alone: other processors take one text at a time). The folder form
of `custom_generate` is used because transformers hands neither `assistant_model` nor `streamer` to
a function given in its place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import GenerateDecoderOnlyOutput

from real_models.decoding.drafters import Drafter, ModelDrafter, PromptLookup
from real_models.decoding.loop import Request, check_verification, run_batch, whole_number
from real_models.decoding.speculation import Speculation
from real_models.decoding.verifying.placed_rules import PlacedRules
from real_models.errors import UserError
from real_models.laws.processor_laws import ProcessorLaws, processor_laws
from real_models.laws.settings_laws import Laws
from real_models.models.cached_model import CachedModel
from real_models.models.compatibility import check_devices, logit_width
from theory import Rule

__all__ = ["CUSTOM_GENERATE", "SpeculationOutput", "SpeculationReport", "generate"]

CUSTOM_GENERATE = str(Path(__file__).with_name("transformers_generate"))
"""The folder to give to transformers as `custom_generate`."""

_UNSUPPORTED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def generate(
    model: PreTrainedModel,
    *,
    assistant_model: PreTrainedModel | None = None,
    streamer: Any = None,
    rule: str | Rule | Sequence[Rule] = "sps",
    rule_parameters: Mapping[str, Any] | None = None,
    draft_tokens: int = 5,
    greedy_draft: bool = False,
    prompt_lookup: int | None = None,
    verification: str = "token",
    candidates: int = 1,
    **arguments: Any,
) -> Any:
    """`model.generate(**arguments)` by draft-and-verify; see the module for the way to call it.

    rule, rule_parameters : a name of theory.RULES with its parameters, or a rule. A parameter that
                            is a list has one value for each place of a draft; so has a list of
                            rules.
    draft_tokens          : m, the longest draft of a round.
    greedy_draft          : the draft proposes its likeliest token, so that p is one-hot.
    prompt_lookup         : look drafts up in the text (sequences of up to so many tokens) instead
                            of asking an assistant model.
    verification          : "token", "block" for all drafts of a round at once, or "scaled".
    candidates            : tokens drawn for each place, of which one is chosen and tested.

    Random numbers come from torch's global generator: `torch.manual_seed` makes a call repeatable.
    Returns what `generate` returns; scores, logits, attentions and hidden states are refused. With
    `return_dict_in_generate=True` the returned object has `speculation`, a `SpeculationReport` for
    each row, with the exact divergence of what was written.

    Raises UserError for a bad rule, a missing or doubled draft, logits of different width, models
    on different devices, beams, or an output that is not there.
    """
    chosen = _rule(rule, rule_parameters or {})
    draft_tokens = whole_number("draft_tokens", draft_tokens, 1)
    check_verification(verification)
    if (assistant_model is None) == (prompt_lookup is None):
        raise UserError("give either an assistant_model or prompt_lookup")
    if assistant_model is not None:
        _check_pair(model, assistant_model)
    else:
        prompt_lookup = whole_number("prompt_lookup", prompt_lookup, 1)
    _place_stop_strings(arguments)
    plan = _Plan(
        assistant_model,
        streamer,
        chosen,
        draft_tokens,
        greedy_draft,
        prompt_lookup,
        verification,
        whole_number("candidates", candidates, 1),
    )
    return GenerationMixin.generate(model, custom_generate=plan.decoding_method(), **arguments)


@dataclass(frozen=True)
class SpeculationReport:
    """How one text came about, and how far its law was from the model's.

    drafted, accepted : drafts in all rounds and how many were kept; rounds : of draft and verify.
    acceptance        : mean exact Σ p b over the drafted places that were visited; nan of none.
    kl_per_token      : exact KL(output‖q) in nats, the mean over the new tokens; q is the model's
                        law after temperature, filters and processors. kl : their sum, an unbiased
                        estimate of an upper bound of KL(texts‖the model's texts).
    """

    drafted: int
    accepted: int
    rounds: int
    tokens: int
    acceptance: float
    kl: float

    @property
    def kl_per_token(self) -> float:
        """The mean divergence of a new token's law from the model's, in nats."""
        return self.kl / self.tokens

    @classmethod
    def of(cls, request: Request) -> "SpeculationReport":
        """The report on a finished text that was measured."""
        seen = request.observed()
        visited = seen.acceptance[np.isfinite(seen.acceptance)]
        return cls(
            drafted=sum(found.drafted for found in request.rounds),
            accepted=sum(found.accepted for found in request.rounds),
            rounds=len(request.rounds),
            tokens=len(request.ids) - request.prompt_length,
            acceptance=float(visited.mean()) if visited.size else float("nan"),
            kl=float(seen.divergence.sum()),
        )


@dataclass
class SpeculationOutput(GenerateDecoderOnlyOutput):
    """What transformers returns, with a report for each row."""

    speculation: tuple[SpeculationReport, ...] | None = None


@dataclass(frozen=True)
class _Plan:
    """A call of `generate`, as far as transformers has no part in it."""

    assistant: PreTrainedModel | None
    streamer: Any
    rule: PlacedRules
    draft_tokens: int
    greedy_draft: bool
    prompt_lookup: int | None  # None exactly where there is an assistant
    verification: str
    candidates: int

    def decoding_method(self):
        """The function that transformers calls when everything is prepared."""

        def method(
            model, input_ids, logits_processor, stopping_criteria, generation_config, **more
        ):
            _check_outputs(generation_config)
            return self._decode(
                model, input_ids, logits_processor, stopping_criteria, generation_config, more
            )

        return method

    def _decode(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: Any,
        more: dict[str, Any],
    ) -> Any:
        if input_ids.shape[-1] == 0:
            raise UserError("draft-and-verify needs input_ids with at least one token per text")
        if self.streamer is not None and len(input_ids) > 1:
            raise UserError("a streamer takes one text at a time")
        laws = processor_laws(processors, config.do_sample, self.greedy_draft)
        mask = more.get("attention_mask")
        if isinstance(laws, ProcessorLaws) and (len(input_ids) > 1 or mask is not None):
            raise UserError(
                "logits processors other than temperature, top-k and top-p take one text at a "
                f"time, without padding: got {[type(p).__name__ for p in processors]}"
            )
        ends = _end_tokens(config)
        engine = Speculation(
            CachedModel(model, logit_width(model), "verifier"),
            self._drafter(model, laws, ends),
            self.rule,
            laws,
            measure=config.return_dict_in_generate,
            verification=self.verification,
            candidates=self.candidates,
        )
        engine.check_texts(len(input_ids))
        engine.check_drafts(self.draft_tokens)
        requests = self._requests(input_ids, mask, criteria, config.max_length)
        if self.streamer is not None:
            self.streamer.put(input_ids.cpu())
        run_batch(engine, requests, self.draft_tokens)
        if self.streamer is not None:
            self.streamer.end()
        sequences = _padded(input_ids, requests, config)
        if config.return_dict_in_generate:
            return SpeculationOutput(
                sequences=sequences, speculation=tuple(map(SpeculationReport.of, requests))
            )
        return sequences

    def _drafter(self, model: PreTrainedModel, laws: Laws, ends: list[int]) -> Drafter:
        if self.assistant is None:
            return PromptLookup(logit_width(model), model.device, ends, self.prompt_lookup)
        draft = CachedModel(self.assistant, logit_width(model), "draft")
        return ModelDrafter(draft, laws, ends, raw=self.rule.reads_raw)

    def _requests(
        self,
        input_ids: torch.Tensor,
        mask: torch.Tensor | None,
        criteria: StoppingCriteriaList,
        longest: int | None,
    ) -> list[Request]:
        """One request per row, without the padding on its left."""
        seed = int(torch.randint(2**62, ()))
        streams = np.random.SeedSequence(seed).spawn(len(input_ids))
        requests = []
        for row, (ids, stream) in enumerate(zip(input_ids.tolist(), streams)):
            pads = 0 if mask is None else _padding(mask[row], row)
            requests.append(
                Request(
                    ids[pads:],
                    np.random.default_rng(stream),
                    stop=_stop(criteria, ids[:pads], input_ids.device),
                    emit=self._emit,
                    name=f"row {row} of input_ids",
                    longest=None if longest is None else longest - pads,
                )
            )
        return requests

    def _emit(self, token: int) -> None:
        if self.streamer is not None:
            self.streamer.put(torch.tensor([token]))


def _place_stop_strings(arguments: dict[str, Any]) -> None:
    """Turn `stop_strings` with its `tokenizer` into a stopping criterion.

    transformers does not look for the tokenizer where a function takes the place of its own loop.
    """
    strings, tokenizer = arguments.pop("stop_strings", None), arguments.pop("tokenizer", None)
    if strings is None:
        return
    if tokenizer is None:
        raise UserError("stop_strings need the model's tokenizer: give tokenizer=…")
    criteria = StoppingCriteriaList(arguments.pop("stopping_criteria", None) or [])
    criteria.append(StopStringCriteria(tokenizer, strings))
    arguments["stopping_criteria"] = criteria


def _rule(rule: str | Rule | Sequence[Rule], parameters: Mapping[str, Any]) -> PlacedRules:
    if not isinstance(rule, str):
        if parameters:
            raise UserError(f"rule_parameters go with the name of a rule, not with {rule}")
        return PlacedRules.of(rule)
    try:
        return PlacedRules.make(rule, parameters)
    except (ValueError, TypeError) as error:
        raise UserError(str(error)) from None


def _check_pair(model: PreTrainedModel, assistant: PreTrainedModel) -> None:
    check_devices(model, assistant, "the model and its assistant")
    widths = logit_width(model), logit_width(assistant)
    if widths[0] != widths[1]:
        raise UserError(
            f"the model has {widths[0]} logits and its assistant {widths[1]}: they need one "
            "vocabulary"
        )


def _check_outputs(config: Any) -> None:
    asked = [name for name in _UNSUPPORTED if getattr(config, name, False)]
    if asked:
        raise UserError(f"{asked[0]} is not available from draft-and-verify")
    if (config.num_beams or 1) > 1:
        raise UserError(f"draft-and-verify has no beams, got num_beams = {config.num_beams}")


def _padding(mask: torch.Tensor, row: int) -> int:
    """How many pad tokens stand before a prompt; a UserError where there are some elsewhere."""
    pads = int((mask == 0).sum())
    if bool((mask[:pads] != 0).any()) or pads == len(mask):
        raise UserError(f"attention_mask row {row} must be zeros, then ones: pad on the left")
    return pads


def _stop(
    criteria: StoppingCriteriaList, pads: list[int], device: torch.device
) -> Callable[[list[int]], bool]:
    """Whether transformers' criteria end a text; they count the padding in front of it."""

    def stop(ids: list[int]) -> bool:
        return bool(criteria(torch.tensor([[*pads, *ids]], device=device), None).all())

    return stop


def _end_tokens(config: Any) -> list[int]:
    named = config.eos_token_id
    if named is None:
        return []
    return [int(t) for t in named] if isinstance(named, list | tuple) else [int(named)]


def _padded(input_ids: torch.Tensor, requests: list[Request], config: Any) -> torch.Tensor:
    """Prompts as they came, new tokens behind them, pad tokens up to the longest text."""
    news = [request.ids[request.prompt_length :] for request in requests]
    longest = max(map(len, news))
    pad = config.pad_token_id if config.pad_token_id is not None else [*_end_tokens(config), 0][0]
    behind = [[*new, *[pad] * (longest - len(new))] for new in news]
    return torch.cat([input_ids, torch.tensor(behind, device=input_ids.device)], dim=-1)
