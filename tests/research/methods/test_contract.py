"""One contract, tested once, for every member of METHODS: a new method is found here by its line in the dictionary."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.methods import METHODS, Base, Episode, Method, Support, create_method
from fewtag.research.methods.closed_form import WordOnly

CHANNELS, DIMENSIONS = 6, 5
LABELS = ("dog", "cat", "sofa", "zebra")
# each label has one, two or three support images, and most images show more than one
SHOWN = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 0]], dtype=torch.bool)

SMALL = {"joint": 16, "embedding": 16, "finetune_epochs": 8}
SEED = torch.Generator()
every_method = pytest.mark.parametrize("name", METHODS)


def build(name: str, seed: int = 0) -> Method:
    """Small where the method has a size to choose, its own defaults otherwise."""
    torch.manual_seed(seed)
    usual = {option: each.default for option, each in inspect.signature(METHODS[name]).parameters.items()}
    options: dict[str, object] = {option: size for option, size in SMALL.items() if usual.get(option, 0) > size}
    method = create_method(name, channels=CHANNELS, dimensions=DIMENSIONS, options=options).eval()
    words, shown = random(len(LABELS), DIMENSIONS, seed=23), random(30, len(LABELS), seed=24) > 0
    method.prepare(Base(LABELS, words, shown, random(30, CHANNELS, seed=20)))
    return method


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_support(targets: Tensor = SHOWN, labels: tuple[str, ...] = LABELS, seed: int = 0) -> Support:
    words = random(len(labels), DIMENSIONS, seed=seed)
    return Support(labels, words, random(len(targets), CHANNELS, 3, 2, seed=seed + 1), targets)


def query(count: int = 7, seed: int = 9) -> Tensor:
    return random(count, CHANNELS, 3, 2, seed=seed)


def assert_same(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


@every_method
def test_every_query_is_scored_for_every_label(name: str) -> None:
    logits = build(name).adapt(make_support())(query())
    assert logits.shape == (7, 4)
    assert logits.isfinite().all()
    assert logits.std(dim=0).min() > 0, "every image gets the same score"
    assert logits.std(dim=1).min() > 0, "every label gets the same score"


@every_method
@pytest.mark.parametrize("training", [True, False])
def test_adapt_changes_nothing_in_the_method(name: str, training: bool) -> None:
    method = build(name).train(training)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    buffers = [buffer.clone() for buffer in method.buffers()]
    attributes = {key: value for key, value in vars(method).items() if not key.startswith("_")}
    method.adapt(make_support())(query())
    assert method.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())
    assert all(torch.equal(new, old) for new, old in zip(method.buffers(), buffers, strict=True))
    assert {key: value for key, value in vars(method).items() if not key.startswith("_")} == attributes
    assert method.training is training


@every_method
def test_adapt_leaves_the_support_as_it_was(name: str) -> None:
    support, kept = make_support(), make_support()
    build(name).adapt(support)(query())
    assert all(torch.equal(given, old) for given, old in zip(support[1:], kept[1:], strict=True))


@every_method
def test_label_order_does_not_matter(name: str) -> None:
    method, support, order = build(name), make_support(), [2, 0, 3, 1]
    turned = Support(
        tuple(LABELS[column] for column in order), support.words[order], support.maps, support.targets[:, order]
    )
    assert_same(method.adapt(turned)(query()), method.adapt(support)(query())[:, order])


@every_method
def test_support_image_order_does_not_matter(name: str) -> None:
    method, support, order = build(name), make_support(), [3, 1, 4, 0, 2]
    turned = support._replace(maps=support.maps[order], targets=support.targets[order])
    assert_same(method.adapt(turned)(query()), method.adapt(support)(query()))


@every_method
def test_support_image_order_does_not_matter_among_a_hundred(name: str) -> None:
    targets = torch.cat([SHOWN, random(95, len(LABELS), seed=5) > 1.2])
    method, support, order = build(name), make_support(targets), torch.randperm(100, generator=SEED.manual_seed(0))
    turned = support._replace(maps=support.maps[order], targets=support.targets[order])
    assert_same(method.adapt(turned)(query()), method.adapt(support)(query()))


@every_method
def test_the_support_images_decide_the_scores_of_all_methods_but_words_alone(name: str) -> None:
    method, support = build(name), make_support()
    other = support._replace(maps=random(*support.maps.shape, seed=77))
    change = (method.adapt(other)(query()) - method.adapt(support)(query())).abs().max()
    assert change == 0 if isinstance(method, WordOnly) else change > 1e-3


@every_method
@pytest.mark.parametrize("labels", [LABELS, ("dog",)])
def test_one_image_a_label_is_enough(name: str, labels: tuple[str, ...]) -> None:
    support = make_support(torch.eye(len(labels), dtype=torch.bool), labels)
    logits = build(name).adapt(support)(query(1))
    assert logits.shape == (1, len(labels))
    assert logits.isfinite().all()


@every_method
def test_a_label_without_image_is_refused_by_name_or_served_from_its_word(name: str) -> None:
    method, targets = build(name), SHOWN.clone()
    targets[:, LABELS.index("sofa")] = False
    support = make_support(targets)
    if method.serves_words_alone:
        logits = method.adapt(support)(query())
        assert logits.isfinite().all()
        assert logits[:, LABELS.index("sofa")].std() > 0
        words = support.words.clone()
        words[LABELS.index("sofa")] *= -1
        changed = (method.adapt(support._replace(words=words))(query()) - logits).abs().amax(dim=0) > 1e-3
        assert changed.tolist() == [label == "sofa" for label in LABELS], "its word decides its score, and no other"
    else:
        with pytest.raises(InputError, match="'sofa' has no support image"):
            method.adapt(support)


@every_method
def test_the_labels_with_images_do_not_care_about_one_without(name: str) -> None:
    method, targets = build(name), SHOWN.clone()
    if not method.serves_words_alone:
        pytest.skip("this method refuses a label without image")
    targets[:, 2] = False
    others = [0, 1, 3]
    whole = make_support(targets)
    alone = Support(tuple(LABELS[column] for column in others), whole.words[others], whole.maps, targets[:, others])
    assert_same(method.adapt(whole)(query())[:, others], method.adapt(alone)(query()))


@every_method
def test_the_same_seed_gives_the_same_scores(name: str) -> None:
    first, second = (build(name, seed=3).adapt(make_support())(query()) for _ in range(2))
    assert torch.equal(first, second)


@every_method
def test_a_classifier_does_not_look_at_other_query_images(name: str) -> None:
    classifier = build(name).adapt(make_support())
    assert_same(classifier(query()), torch.cat([classifier(image[None]) for image in query()]))


@every_method
def test_a_second_label_set_leaves_the_first_classifier_unchanged(name: str) -> None:
    method = build(name)
    first = method.adapt(make_support())
    before = first(query())
    second = method.adapt(make_support(torch.eye(2, dtype=torch.bool), ("boat", "bus"), seed=40))
    assert second(query()).shape == (7, 2)
    assert torch.equal(first(query()), before)


@every_method
def test_the_loss_is_a_finite_number_and_teaches_every_parameter(name: str) -> None:
    method = build(name).train()
    targets = torch.arange(7)[:, None] % 4 == torch.arange(4)
    loss = method.loss(Episode(make_support(), query(), targets))
    assert loss.shape == ()
    assert loss.isfinite()
    parameters = dict(method.named_parameters())
    if parameters:
        loss.backward()
    for key, parameter in parameters.items():
        # a bias may cancel out by design (a softmax does not see what is added to all its scores), a weight may not
        if (name, key) == ("word-attention-reference", "key.bias"):
            continue
        assert parameter.grad is not None, f"{key} is not used"
        assert parameter.grad.isfinite().all(), key
        assert parameter.ndim < 2 or parameter.grad.abs().max() > 0, f"{key} learns nothing"


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch's, on switching oneDNN off
@every_method
@pytest.mark.parametrize("frozen", [True, False])
def test_half_precision_around_training_leaves_the_loss_nearly_the_same(name: str, frozen: bool) -> None:
    if not list((method := build(name)).parameters()):
        pytest.skip("this method trains nothing")
    targets, support = torch.arange(7)[:, None] % 4 == torch.arange(4), make_support()
    expected = method.loss(Episode(support, query(), targets))
    # a network that is trained along gives its maps in half precision
    kind = torch.float32 if frozen else torch.bfloat16
    halves = Episode(support._replace(maps=support.maps.to(kind)), query().to(kind), targets)
    # without oneDNN, whose half precision asks for instructions that not every machine has
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        found = method.loss(halves)
    found.backward()
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=0.05)
    assert all(parameter.grad.isfinite().all() for parameter in method.parameters() if parameter.grad is not None)


@every_method
def test_the_loss_depends_on_the_query_targets(name: str) -> None:
    method, targets = build(name), torch.arange(7)[:, None] % 4 == torch.arange(4)
    one, other = (method.loss(Episode(make_support(), query(), shown)) for shown in (targets, ~targets))
    assert (one - other).abs() > 1e-3


@every_method
def test_a_label_without_image_does_not_spoil_the_gradients(name: str) -> None:
    method, shown = build(name), SHOWN.clone()
    if not method.serves_words_alone:
        pytest.skip("this method refuses a label without image")
    if not list(method.parameters()):
        pytest.skip("this method has no gradients")
    shown[:, 2] = False
    targets = torch.arange(7)[:, None] % 4 == torch.arange(4)
    method.loss(Episode(make_support(shown), query(), targets)).backward()
    assert all(parameter.grad.isfinite().all() for parameter in method.parameters() if parameter.grad is not None)


@every_method
def test_a_base_stage_is_declared_where_there_is_one(name: str) -> None:
    kind = METHODS[name]
    assert (kind.base_stage is None) == (kind.prepare is Method.prepare)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.base_stage == "labels"])
def test_a_base_stage_of_labels_looks_at_no_feature(name: str) -> None:
    method = create_method(name, channels=CHANNELS, dimensions=DIMENSIONS)
    shown = random(30, len(LABELS), seed=24) > 0
    method.prepare(Base(LABELS, random(len(LABELS), DIMENSIONS, seed=23), shown))
    assert method.state_dict()


def test_importing_the_methods_does_not_import_scipy() -> None:
    """It takes longer than they do, and one alone needs it, when it is trained."""
    files = list(Path(inspect.getfile(Method)).parent.glob("*.py"))
    assert "from scipy" in "".join(file.read_text() for file in files)
    assert not [file for file in files if re.search(r"^(from|import) scipy", file.read_text(), re.MULTILINE)]
