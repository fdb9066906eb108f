"""Tiny random models with a tokenizer, without weights from anywhere; a small trace, measured."""

import json
import os
from pathlib import Path

import pytest
import torch
from measured_traces import SMALL, record
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from real_models import measure
from real_models.models.pair import make_pair
from sim.tables.summary import summarise

WORDS = 40
TEMPLATE = "{% for m in messages %}<user> {{ m['content'] }} {% endfor %}<bot>"


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """The models are tiny and tests run side by side: more threads only wait for each other."""
    # The commands, in processes of their own too, leave the number to the environment.
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_tokenizer():
    """A word-level tokenizer: <end> <pad> <user> <bot> w4 w5 …, `size` entries."""

    def build(size=WORDS, prefix="w", template=TEMPLATE, **special):
        words = ["<end>", "<pad>", "<user>", "<bot>", *(f"{prefix}{i}" for i in range(4, size))]
        model = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>")
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        special = {"eos_token": "<end>", "pad_token": "<pad>"} | special
        built = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
        built.chat_template = template
        return built

    return build


@pytest.fixture(scope="session")
def make_model():
    """A random Llama; weights are decided by the seed."""

    def build(seed=0, layers=2, vocab=WORDS, eos=0, **config):
        torch.manual_seed(seed)
        settings = {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 128,
            # Large weights make distributions that differ visibly between positions and models.
            "initializer_range": 0.6,
        }
        ids = {"bos_token_id": None, "eos_token_id": eos, "pad_token_id": 1}
        configuration = LlamaConfig(
            vocab_size=vocab, num_hidden_layers=layers, **settings, **ids, **config
        )
        return LlamaForCausalLM(configuration).eval()

    return build


@pytest.fixture(scope="session")
def tiny_pair(make_model, make_tokenizer):
    """Verifier and draft of different weights over 40 words."""
    return make_pair(make_model(seed=0), make_model(seed=1), make_tokenizer(), name="tiny")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory, make_model, make_tokenizer) -> Path:
    """A model folder with safetensors, as `--verifier` takes it."""
    folder = tmp_path_factory.mktemp("tiny-model")
    make_model(seed=0).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_prompts(tmp_path_factory) -> Path:
    """Five prompts in the words of the tiny tokenizer."""
    lines = [
        {"prompt": "w4 w5 w6", "id": "a", "domain": "letters", "chat": False},
        {"prompt": "w7 w8", "id": "b", "domain": "letters", "chat": False},
        {"prompt": "w9 w4", "id": "c", "domain": "numbers", "chat": True},
        {"prompt": "w10 w11 w12 w13", "domain": "numbers", "chat": False},
        {"prompt": "w14 w15", "chat": False},
    ]
    path = tmp_path_factory.mktemp("prompts") / "tiny.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="session")
def trace(tmp_path_factory):
    """A recording of fifteen positions in four prompts."""
    return record(tmp_path_factory.mktemp("trace"))


@pytest.fixture(scope="session")
def finished(trace, tmp_path_factory):
    """The folder of an uninterrupted measurement of it."""
    out = tmp_path_factory.mktemp("measured")
    assert measure.main([str(trace), *SMALL, "--out", str(out)]) == 0
    return out


@pytest.fixture
def tables_only(monkeypatch):
    """Leave out the pictures and the report, which take most of the time on a tiny trace."""

    def write(out, table, frontier, manifest, title, more=()):
        table.to_parquet(out / "tradeoff.parquet", index=False)
        frontier.to_parquet(out / "frontier.parquet", index=False)
        return {}, summarise(table, frontier)

    monkeypatch.setattr(measure, "write_outputs", write)
