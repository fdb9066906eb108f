"""A pass over a tree gives behind each node the logits that its path gives as a text."""

import random
from functools import wraps

import pytest
import torch
import transformers

from real_models.models.branches import depths, path_to, tree_mask, tree_size
from real_models.models.cached_model import CachedModel
from real_models.models.rollback import takes_trees

SHAPE = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "initializer_range": 0.6,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip
OLDER = {"n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 256, "n_inner": 24}
TREES = {
    "Llama": {}, "Qwen2": {}, "Qwen3": {}, "GPT2": OLDER, "Phi": {},
    "GPTNeoX": {"num_key_value_heads": 2}, "Olmo2": {}, "Gemma": {},
}  # fmt: skip
PATHS = {"Mistral": {"sliding_window": 8}, "Bloom": {"n_head": 2, "n_layer": 2}}


def build(kind, seed=0, attention="sdpa"):
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(
        **SHAPE | (TREES | PATHS)[kind],
        attn_implementation="eager" if kind == "Bloom" else attention,
    )
    name = f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    return getattr(transformers, name)(config).eval()


def expected(model, text, nodes, children, count):
    rows = []
    for node in range(len(nodes) - count, len(nodes)):
        path = [nodes[place] for place in path_to(node, children)] if node >= 0 else []
        with torch.no_grad():
            rows.append(model(torch.tensor([text + path]), use_cache=False).logits[0, -1])
    return torch.stack(rows)


def drawn(chance, children, depth):
    return [chance.randrange(40) for _ in range(tree_size(children, depth))]


def worst_of_walk(model, texts, steps, seed=0):
    """Grow and cut texts; read trees whole, or level by level as a draft does."""
    chance, cached, worst = random.Random(seed), CachedModel(model, 40), 0.0
    for step in range(steps):
        children, depth = chance.randrange(1, 4), chance.randrange(1, 4)
        nodes = [drawn(chance, children, depth) for _ in texts]
        levels = range(depth + 1) if step % 2 else [depth]
        for level in levels:
            known = [tree[: tree_size(children, level)] for tree in nodes]
            count = children**level if step % 2 else 1 + len(known[0])
            found = cached.branch(texts, known, children, count)
            for text, tree, rows in zip(texts, known, found):
                off = rows - expected(model, text, tree, children, count)
                worst = max(worst, float(off.abs().max()))
        for text, tree in zip(texts, nodes):
            kept = path_to(chance.randrange(len(tree)), children)
            del text[len(text) - chance.randrange(min(3, len(text))) :]
            text += [tree[node] for node in kept[: chance.randrange(len(kept) + 1)]]
            text += [chance.randrange(40)] * chance.randrange(2)
        if step == steps // 2 and len(texts) > 1:
            cached.keep_rows([1, 0])
            texts[:] = [texts[1], texts[0]]
    return worst


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", TREES)
def test_one_pass_reads_a_tree(kind, attention):
    model = build(kind, attention=attention)
    assert takes_trees(model, "verifier")
    assert worst_of_walk(model, [[5, 6, 7]], 8) < 2e-4


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_texts_of_different_length_have_trees_side_by_side(kind):
    assert worst_of_walk(build(kind), [[3], [4, 5, 6, 7, 8, 9, 10]], 12, seed=1) < 2e-4


@pytest.mark.parametrize("kind", PATHS)
def test_other_models_read_path_by_path(kind):
    model = build(kind)
    assert not takes_trees(model, "verifier")
    assert worst_of_walk(model, [[5, 6, 7]], 8) < 2e-4


def test_a_draft_computes_every_node_once(monkeypatch):
    model, widths = build("Llama"), []
    forward = model.forward

    @wraps(forward)
    def counted(input_ids=None, **more):
        widths.append(input_ids.shape[-1])
        return forward(input_ids=input_ids, **more)

    monkeypatch.setattr(model, "forward", counted)
    cached, nodes = CachedModel(model, 40), drawn(random.Random(2), 2, 3)
    for level in range(4):
        cached.branch([[3, 4, 5]], [nodes[: tree_size(2, level)]], 2, 2**level)
    assert widths == [3, 2, 4, 8]


def test_the_shape_of_a_tree():
    assert [tree_size(3, depth) for depth in range(4)] == [0, 3, 12, 39]
    assert path_to(11, 3) == [2, 11]
    assert path_to(-1, 3) == []
    assert depths(7, 2).tolist() == [0, 0, 1, 1, 1, 1, 2]
    assert [path_to(node, 1) for node in range(3)] == [[0], [0, 1], [0, 1, 2]]


def test_a_node_sees_its_text_and_its_own_path():
    """A cache of 3 columns with one hole, one new token, two children and one grandchild."""
    mask = tree_mask([[0, 2]], 3, [0], 1, (0, 3), 2)[0]
    text, first, second, below = mask
    assert text.tolist() == [True, False, True, True, False, False, False]
    assert first.tolist() == [True, False, True, True, True, False, False]
    assert second.tolist() == [True, False, True, True, False, True, False]
    assert below.tolist() == [True, False, True, True, True, False, True]
