"""Loading models and refusing pairs that cannot be compared."""

import json
import pickle

import pytest
import torch
from transformers import AutoModelForCausalLM

from real_models.errors import UserError
from real_models.models import pair as models
from real_models.models.compatibility import tokenizer_hash
from real_models.models.loading import LoadOptions, load_model, resolve_device
from real_models.models.pair import PAIRS, load_pair, make_pair, register_pair


def test_a_pair_of_folders(tiny_folder):
    pair = load_pair(verifier=str(tiny_folder), draft=str(tiny_folder))
    assert pair.vocabulary == 40
    assert pair.end_tokens == (0,)
    assert pair.verifier is not pair.draft
    assert pair.verifier_revision == pair.draft_revision
    assert pair.verifier_revision.startswith("sha256:")
    assert pair.tokenizer_hash == tokenizer_hash(pair.tokenizer)
    assert pair.verifier.dtype == torch.float32
    assert not pair.verifier.training
    assert pair.device == resolve_device("auto")


def test_a_skip_draft_of_any_verifier(tiny_folder):
    pair = load_pair(verifier=str(tiny_folder), draft="skip:0", options=LoadOptions("cpu"))
    assert pair.draft_name == f"{tiny_folder} skip:0"
    assert pair.draft.config.num_hidden_layers == 1
    assert pair.draft.lm_head.weight is pair.verifier.lm_head.weight
    assert pair.logit_widths == {"draft": 40, "verifier": 40}


def test_a_revision_changes_with_the_weights(tiny_folder, tmp_path, make_model, make_tokenizer):
    make_model(seed=5).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    first = load_model(str(tiny_folder), "verifier", LoadOptions("cpu")).revision
    assert load_model(str(tmp_path), "verifier", LoadOptions("cpu")).revision != first


def test_dtype_and_device_map(tiny_folder):
    options = LoadOptions("cpu", device_map="auto", dtype="bfloat16")
    loaded = load_model(str(tiny_folder), "verifier", options)
    assert loaded.model.dtype == torch.bfloat16
    with pytest.raises(UserError, match="dtype must be one of float32"):
        LoadOptions(dtype="int8")


@pytest.mark.parametrize("name", ["gpu", "mps", "cuda:99", "cpu:x"])
def test_unknown_devices(name):
    with pytest.raises(UserError, match="device"):
        resolve_device(name)


def test_different_widths_name_both_and_the_way_out(make_model, make_tokenizer):
    wide, narrow, tokenizer = make_model(vocab=48), make_model(vocab=44), make_tokenizer(size=40)
    names = {"names": ("big", "small")}
    with pytest.raises(UserError, match=r"'big' and draft 'small' .*48 and 44.*allow-padded"):
        make_pair(wide, narrow, tokenizer, **names)
    pair = make_pair(wide, narrow, tokenizer, allow_padded_vocab=True, **names)
    assert pair.vocabulary == 40
    assert pair.logit_widths == {"draft": 44, "verifier": 48}


def test_equal_widths_are_taken_whole(make_model, make_tokenizer):
    pair = make_pair(make_model(vocab=44), make_model(vocab=44), make_tokenizer(size=40))
    assert pair.vocabulary == 44


def test_a_tokenizer_larger_than_the_logits(make_model, make_tokenizer):
    with pytest.raises(UserError, match="40 and 40 logits, but the tokenizer has 41 ids"):
        make_pair(make_model(), make_model(), make_tokenizer(size=41))


def test_different_tokenizers_name_an_example(make_model, make_tokenizer):
    other = make_tokenizer(prefix="x")
    with pytest.raises(
        UserError, match=r"verifier 'verifier' and draft 'draft' .*72 entries .*'w10'"
    ):
        make_pair(make_model(), make_model(), make_tokenizer(), draft_tokenizer=other)
    with pytest.raises(UserError, match="different tokenizers"):
        make_pair(
            make_model(), make_model(), make_tokenizer(), draft_tokenizer=other,
            allow_padded_vocab=True,
        )  # fmt: skip
    make_pair(make_model(), make_model(), make_tokenizer(), draft_tokenizer=make_tokenizer())


def test_different_devices_name_both(make_model, make_tokenizer):
    with pytest.raises(UserError, match="different devices: cpu and meta"):
        make_pair(make_model(), make_model().to("meta"), make_tokenizer())


def test_end_and_pad_tokens(make_model, make_tokenizer):
    endless = make_tokenizer(eos_token=None)
    with pytest.raises(UserError, match=r"verifier 'verifier' and draft 'draft'.*end-of-text"):
        make_pair(make_model(eos=None), make_model(), endless)
    assert make_pair(make_model(eos=0), make_model(), endless).end_tokens == (0,)
    assert make_pair(make_model(eos=[7, 3]), make_model(), make_tokenizer()).end_tokens == (0, 3, 7)
    padless = make_tokenizer(pad_token=None)
    with pytest.raises(UserError, match=r"no pad token; name one with --pad-token.*<end>"):
        make_pair(make_model(), make_model(), padless)
    with pytest.raises(UserError, match="'nope' is not in the vocabulary"):
        make_pair(make_model(), make_model(), padless, pad_token="nope")
    assert (
        make_pair(make_model(), make_model(), padless, pad_token="<end>").tokenizer.pad_token_id
        == 0
    )


def test_unknown_pairs_get_a_suggestion():
    with pytest.raises(UserError, match="did you mean 'smollm2-skip3'"):
        load_pair("smollm2-skp3")
    with pytest.raises(UserError, match="known are smollm2-skip1"):
        load_pair("zzz")


def test_pairs_register_once(monkeypatch):
    monkeypatch.setattr(models, "PAIRS", dict(PAIRS))
    register_pair("mine", "a", "b")
    with pytest.raises(ValueError, match="'mine' is registered already"):
        register_pair("mine", "a", "c")


def test_registered_layer_skips():
    drops = {name: draft for name, (_, draft) in PAIRS.items() if draft.startswith("skip:")}
    assert drops["smollm2-skip3"] == "skip:14,16,17"
    assert drops["smollm2-skip8"] == "skip:13,14,15,16,17,18,25,26"
    assert all(f"skip{draft.count(',') + 1}" in name for name, draft in drops.items())


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"verifier": "x"},
        {"draft": "x"},
        {"name": "smollm2-skip1", "verifier": "x", "draft": "y"},
    ],
)
def test_a_pair_is_named_in_one_way(arguments):
    with pytest.raises(UserError, match="verifier"):
        load_pair(**arguments)


def test_the_missing_one_of_a_pair_is_named():
    with pytest.raises(UserError, match="go together; the draft is missing"):
        load_pair(verifier="x")
    with pytest.raises(UserError, match="go together; the verifier is missing"):
        load_pair(draft="x")


def test_missing_models_are_named(tmp_path):
    for spec in ("./nothing", "~/nothing/at-all", str(tmp_path / "nothing")):
        with pytest.raises(UserError, match=r"draft '.*nothing.*': there is no such folder"):
            load_model(spec, "draft", LoadOptions("cpu"))
    with pytest.raises(UserError, match="there is no such GGUF file"):
        load_model("nothing.gguf", "draft", LoadOptions("cpu"))
    with pytest.raises(UserError, match=r"no config\.json"):
        load_model(str(tmp_path), "verifier", LoadOptions("cpu"))


class Bomb:
    """Unpickling this would be noticed."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_pickled_weights_are_never_loaded(tmp_path, make_model, make_tokenizer):
    make_model().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="has no weights"):
        load_model(str(tmp_path), "verifier", LoadOptions("cpu"))
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        load_model(str(tmp_path), "verifier", LoadOptions("cpu"))


def test_code_of_a_model_is_not_run(tiny_folder, tmp_path):
    for file in tiny_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "homemade",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('remote code ran')")
    with pytest.raises(UserError, match=r"verifier .*cannot be loaded"):
        load_model(str(tmp_path), "verifier", LoadOptions("cpu"))
    with pytest.raises(SystemExit, match="remote code ran"):
        load_model(str(tmp_path), "verifier", LoadOptions("cpu", trust_remote_code=True))


def test_damaged_weights_are_one_line(tiny_folder, tmp_path):
    for file in tiny_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:500])
    with pytest.raises(UserError, match=r"draft .* cannot be loaded: \S") as caught:
        load_model(str(tmp_path), "draft", LoadOptions("cpu"))
    assert "\n" not in str(caught.value)


def test_weights_round_trip(tiny_folder, make_model):
    loaded = load_model(str(tiny_folder), "verifier", LoadOptions("cpu")).model
    ids = torch.tensor([[4, 5, 6]])
    with torch.inference_mode():
        assert torch.equal(loaded(ids).logits, make_model(seed=0)(ids).logits)
    assert isinstance(loaded, AutoModelForCausalLM._model_mapping[type(loaded.config)])
