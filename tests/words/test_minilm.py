"""MiniLM in torch's own layers, against the library it comes from."""

import numpy as np
import torch

from fewtag.words.minilm import Encoder, load_minilm
from fewtag.words.vectors import WordVectors, load_words


def test_the_encoder_agrees_with_the_transformers_library() -> None:
    from transformers import BertConfig, BertModel

    from fewtag.words.minilm import HEADS, INNER, LAYERS, WIDTH, rename

    torch.manual_seed(0)
    theirs = BertModel(
        BertConfig(
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            num_hidden_layers=LAYERS,
            intermediate_size=INNER,
            attn_implementation="eager",
        )
    ).eval()
    ours = Encoder().eval()
    ours.load_state_dict(rename(theirs.state_dict()))
    tokens = torch.randint(0, 30_522, (2, 7))
    with torch.inference_mode():
        expected = theirs(input_ids=tokens).last_hidden_state.mean(dim=1)
        torch.testing.assert_close(ours(tokens), expected, rtol=1e-4, atol=1e-5)


def test_phrases_get_vectors_that_know_their_meaning_in_any_company() -> None:
    minilm = load_minilm()
    dog, puppy, truck, phrase = minilm.vectors(["dog", "puppy", "truck", "a very small young dog"])
    assert torch.cosine_similarity(dog, puppy, dim=0) > torch.cosine_similarity(dog, truck, dim=0)
    assert torch.cosine_similarity(phrase, puppy, dim=0) > torch.cosine_similarity(phrase, truck, dim=0)
    torch.testing.assert_close(minilm.vectors(["puppy"])[0], puppy, rtol=1e-4, atol=1e-5)


def test_joined_words_stand_side_by_side_as_unit_vectors() -> None:
    joined = load_words("glove-50+minilm")
    assert isinstance(joined, WordVectors)
    assert (joined.name, joined.dimensions) == ("glove-50+minilm", 434)
    first, second = np.split(joined.vector("potted plant"), [50])
    glove = load_words("glove-50").vector("potted plant")
    np.testing.assert_allclose(first, glove / np.linalg.norm(glove), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(second), 1.0, rtol=1e-5)
