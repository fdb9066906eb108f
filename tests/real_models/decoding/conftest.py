"""The pair on which laws of decoded texts are enumerated."""

import pytest
from round_laws import VOCABULARY

from real_models.models.pair import make_pair


@pytest.fixture(scope="session")
def pair(make_model, make_tokenizer):
    """Two models of ten tokens that disagree."""
    models = (make_model(seed=seed, vocab=VOCABULARY) for seed in (3, 4))
    return make_pair(*models, make_tokenizer(size=VOCABULARY), name="tiny")
