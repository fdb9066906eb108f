"""The hook for SGLang, on plain tensors with the arguments and buffers of its kernel."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from engine_rounds import FALSE_FAIL, K, P, Q, V, p_value

import speculative_lab_sglang as hook
from theory import make_rule

BONUS_Q = np.full(V, 1 / V)


def emitted(kernel, tokens, p, q, seed=1, **options):
    """Rows of output [requests, K + 1], read from the kernel's buffers; slots are interleaved."""
    requests, slots = q.shape[:2]
    index = torch.arange(requests * slots).reshape(slots, requests).T
    predicts = torch.full((requests * slots,), -1, dtype=torch.int32)
    accept_index = torch.full((requests, slots), -1, dtype=torch.int32)
    accepted = torch.empty(requests, dtype=torch.int32)
    generator = torch.Generator().manual_seed(seed)
    coins = torch.rand((requests, slots), generator=generator)
    last = torch.rand(requests, generator=generator)
    root = torch.zeros_like(tokens[:, :1])
    kernel(
        predicts=predicts, accept_index=accept_index, accept_token_num=accepted,
        candidates=torch.cat([root, tokens], dim=1), retrive_index=index,
        retrive_next_token=None, retrive_next_sibling=None, uniform_samples=coins,
        uniform_samples_for_final_sampling=last, target_probs=q, draft_probs=p,
        threshold_single=1.0, threshold_acc=1.0, deterministic=True, **options,
    )  # fmt: skip
    kept = accept_index >= 0
    assert (kept.sum(-1) == accepted + 1).all()
    return torch.where(kept, predicts[accept_index.clamp(min=0)], -1).numpy()


def rounds(rule, count, q=Q):
    draws = np.random.default_rng(3)
    tokens = np.stack([draws.choice(V, size=count, p=row) for row in P], axis=1)
    rows = torch.tensor(np.concatenate([q, BONUS_Q[None]]), dtype=torch.float32)
    p = torch.tensor(P, dtype=torch.float32).expand(count, K, V)
    return emitted(hook.rule_kernel(rule), torch.tensor(tokens), p, rows.expand(count, -1, V))


def law_with_bonus(rule):
    """The exact law of `engine_rounds`, with the bonus token drawn instead of given."""
    from engine_rounds import exact

    law = {}
    for row, mass in exact(rule).items():
        if row[-1] < 0:
            law[row] = mass
        else:
            law |= {(*row[:-1], token): mass * BONUS_Q[token] for token in range(V)}
    return law


@pytest.mark.parametrize(
    "rule", [make_rule("sps"), make_rule("cactus", delta=0.3), make_rule("typical")], ids=str
)
def test_what_is_emitted_follows_the_exact_law(rule):
    """False-fail rate 1e-6 a rule; the draws are the same at every run."""
    assert p_value(rounds(rule, 10_000), law_with_bonus(rule)) > FALSE_FAIL


def test_another_law_is_told_apart():
    found = rounds(make_rule("cactus", delta=0.3), 10_000)
    assert p_value(found, law_with_bonus(make_rule("sps"))) < 1e-12


def test_a_request_whose_rows_are_certain_is_verified_strictly():
    """`ears` accepts what the verifier cannot emit; a greedy request wants none of it."""
    q = torch.eye(V)[torch.tensor([[2, 3, 4]] * 50)]
    p = torch.full((50, K, V), 1 / V)
    tokens = torch.tensor([[2, 3], [2, 1], [0, 3], [1, 1], [2, 3]] * 10)
    found = emitted(hook.rule_kernel(make_rule("ears", tau=1.0)), tokens, p, q)
    wanted = {(2, 3): [2, 3, 4], (2, 1): [2, 3, -1], (0, 3): [2, -1, -1], (1, 1): [2, -1, -1]}
    assert found.tolist() == [wanted[tuple(drafted)] for drafted in tokens.tolist()]


def test_block_verification_is_refused():
    q = torch.eye(V)[torch.tensor([[2, 3, 4]])]
    with pytest.raises(ValueError, match="token by token, not by block verification"):
        emitted(hook.rule_kernel(make_rule("sps")), torch.tensor([[2, 3]]), q[:, :2], q,
                block_verification=True)  # fmt: skip


@pytest.fixture
def server(monkeypatch):
    """A stand-in for the names of SGLang that the hook touches; gives the hooks registered."""
    hooks = []
    registry = SimpleNamespace(register=lambda *arguments: hooks.append(arguments))
    contents = {
        "sglang": {"__version__": hook.TESTED},
        "sglang.srt": {},
        "sglang.srt.plugins": {},
        "sglang.srt.plugins.hook_registry": {"HookRegistry": registry,
                                             "HookType": SimpleNamespace(REPLACE="replace")},
    }  # fmt: skip
    for name, values in contents.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("SPECULATIVE_LAB_RULE", raising=False)
    return hooks


def test_the_kernel_is_replaced_where_a_rule_was_chosen(server, monkeypatch):
    hook.register()
    assert not server
    monkeypatch.setenv("SPECULATIVE_LAB_RULE", "cactus:delta=0.1")
    hook.register()
    ((target, kernel, kind),) = server
    assert (target, kind) == (hook.TARGET, "replace")
    assert callable(kernel)


@pytest.mark.parametrize(
    ("variables", "version", "told"),
    [
        ({"RULE": "sps"}, "0.5.99", "written for sglang 0.5.23, this is 0.5.99: no rule runs"),
        ({"RULE": "cactsu"}, hook.TESTED, "did you mean 'cactus'"),
        ({"RULE": "sps", "REPORT": "x"}, hook.TESTED, "a report needs the names of requests"),
    ],
)
def test_a_mistake_ends_the_server(server, monkeypatch, variables, version, told):
    monkeypatch.setattr(sys.modules["sglang"], "__version__", version)
    for name, value in variables.items():
        monkeypatch.setenv(f"SPECULATIVE_LAB_{name}", value)
    with pytest.raises(SystemExit, match=told):
        hook.register()
    assert not server
