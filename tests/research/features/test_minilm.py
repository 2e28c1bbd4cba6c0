"""MiniLM in torch's own layers, against the library it comes from."""

import torch

from fewtag.research.features.words import Encoder, load_minilm


def test_the_encoder_agrees_with_the_transformers_library() -> None:
    from transformers import BertConfig, BertModel

    from fewtag.research.features.words import HEADS, INNER, LAYERS, WIDTH, rename

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
    dog, puppy, truck, phrase = torch.from_numpy(minilm.vectors(["dog", "puppy", "truck", "a very small young dog"]))
    assert torch.cosine_similarity(dog, puppy, dim=0) > torch.cosine_similarity(dog, truck, dim=0)
    assert torch.cosine_similarity(phrase, puppy, dim=0) > torch.cosine_similarity(phrase, truck, dim=0)
    torch.testing.assert_close(torch.from_numpy(minilm.vector("puppy")), puppy, rtol=1e-4, atol=1e-5)
