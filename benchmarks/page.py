"""The speeds as a page: what was measured beside what was promised."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from research import TRAINING_FREE

Line = tuple[str, str, str]
Found = Mapping[str, Any]


def page(about: Mapping[str, str], found: Found, *, plot: Path, on_gpu: Found | None) -> str:
    """Markdown."""
    parts = [
        f"# Speed on {about['device']}\n",
        f"`{about['command']}`, commit {about['commit']}, torch {about['torch']}, Python {about['python']}.\n",
        "## Tagging\n",
        *table(tagging_lines(found)),
        "\n## Episodes on cached features\n",
        *table(episode_lines(found)),
        "\n## How it grows\n",
        "Seconds of the tagger's own work, without the network; the exponent is fitted over the upper half.\n",
        *table(growth_lines(found)),
        f"\n![Seconds by labels, pictures and shots]({plot.as_posix()})\n",
    ]
    if on_gpu is not None:
        parts += [
            f"## On {on_gpu['device']}\n",
            f"`{on_gpu['command']}`, commit {on_gpu['commit']}, torch {on_gpu['torch']}.\n",
            *table(gpu_lines(on_gpu)),
            "",
        ]
    return "\n".join(parts)


def table(lines: Iterator[Line]) -> Iterator[str]:
    yield "| what | measured | promised |"
    yield "|---|---|---|"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def tagging_lines(found: Found) -> Iterator[Line]:
    count = f"{found['folder_pictures']:,.0f}"
    yield (
        f"tagging {count} pictures against the bare network on decoded batches",
        f"{found['folder_images_a_second']:.1f} / {found['folder_bare_images_a_second']:.1f} images/s "
        f"= {found['folder_ratio']:.2f}",
        "≥ 0.9",
    )
    yield (
        "the same again, from the cache",
        f"{found['folder_cached_images_a_second']:.0f} images/s, {found['folder_cached_ratio']:.0f} × faster",
        "≥ 20 ×",
    )
    yield (
        f"decoding and squashing them on one core, {found['folder_kilobytes_a_picture']:.0f} KB each",
        f"{found['folder_decoded_a_second_a_core']:.0f} images/s",
        "reported",
    )
    yield "start-up and imports, not counted above", f"{found['folder_startup_seconds']:.1f} s", "reported"
    yield (
        f"peak memory of 400 and of {count} pictures",
        f"{found['folder_peak_mib_few']:.0f} and {found['folder_peak_mib']:.0f} MiB",
        "< 2 GB",
    )
    yield (
        "Ray with two workers against the local engine, once they are up",
        f"{found['ray_images_a_second']:.1f} / {found['ray_local_images_a_second']:.1f} images/s "
        f"= {found['ray_ratio']:.2f}",
        "≥ 0.85",
    )
    yield "until the first worker is up", f"{found['ray_startup_seconds']:.1f} s", "reported"
    yield "tagging 12-megapixel JPEGs against the bare network", f"{found['tag_12_megapixels_ratio']:.2f}", "reported"
    extra = 100 * (found["tag_1000_labels_to_10"] - 1)
    yield "time a picture, 1,000 labels instead of 10", f"{extra:+.1f} %", "≤ + 10 %"
    beyond = found["learn_5_examples_beyond_passes_ms"]
    yield "a label from five pictures, beyond five passes of the network", f"{beyond:.0f} ms", "< 20 ms"
    yield "loading a bank of 1,000 labels × 5 examples", f"{found['load_1000_labels_seconds']:.2f} s", "< 1 s"
    yield "its size", f"{found['bank_kilobytes_a_label']:.0f} KB a label", "≤ 200 KB"
    naive = found["rivals_naive_scoring_ratio"]
    yield "scoring 32 pictures for 100 labels against a loop over both", f"{naive:.0f} × faster", "reported"


def episode_lines(found: Found) -> Iterator[Line]:
    yield (
        "200 ProtoNet episodes from pooled features against easyfsl's PrototypicalNetworks",
        f"{found['rivals_protonet_seconds']:.3f} s, {found['rivals_easyfsl_ratio']:.1f} × faster",
        "≥ 5 ×",
    )
    yield (
        "the same with the eight metrics of each",
        f"{found['rivals_protonet_with_metrics_seconds']:.2f} s, "
        f"{found['rivals_easyfsl_with_metrics_ratio']:.1f} × faster",
        "reported",
    )
    yield (
        "the closed form from 7 × 7 maps beside it",
        f"{found['rivals_closed_form_seconds']:.2f} s with the metrics",
        "reported",
    )
    yield (
        "200 episodes of logistic regression against scikit-learn's one-vs-rest, fitted on the same support",
        f"{found['rivals_logistic_regression_seconds']:.1f} s, {found['rivals_scikit_learn_ratio']:.1f} × faster",
        "reported",
    )
    yield (
        "ProtoNet against a loop over episodes, labels and pictures",
        f"{found['rivals_naive_ratio']:.0f} × faster",
        "reported",
    )
    seconds = found["evaluate_200_episodes_seconds"]
    yield "200 COCO-sized episodes of the paper's model", f"{seconds:.1f} s", "< 60 s on 2 cores"
    small, large = found["evaluate_peak_mib_400_pictures"], found["evaluate_peak_mib_2000_pictures"]
    yield "peak memory of that with 400 and with 2,000 pictures", f"{small:.0f} and {large:.0f} MiB", "the same"
    for name in TRAINING_FREE:
        yield f"200 such episodes of `{name}`", f"{found[f'200_episodes_seconds_{name}']:.1f} s", "< 10 s on 2 cores"
    yield (
        "evaluating every frozen run of recipes/paper.toml, features cached and base stages trained",
        f"{found['frozen_table_minutes']:.0f} min",
        "< 40 min on 2 cores",
    )
    yield (
        "training end to end against a bare loop of the same small network",
        rate(found, "training_"),
        "≥ 0.9 on a GPU",
    )


def growth_lines(found: Found) -> Iterator[Line]:
    for name, what in (
        ("labels", "scoring 32 pictures, by labels"),
        ("pictures", "scoring for 100 labels, by pictures"),
        ("shots", "learning a label, by pictures of it"),
        ("known", "learning one label more, by labels known"),
    ):
        marks = sorted(
            (int(key.rpartition("_")[2]), seconds)
            for key, seconds in found.items()
            if key.startswith(f"growth_{name}_seconds_at_")
        )
        ends = " → ".join(f"{size:,}: {1000 * seconds:.1f} ms" for size, seconds in marks)
        yield what, f"{ends}; exponent {found[f'growth_{name}_exponent']:.2f}", "reported"


def gpu_lines(found: Found) -> Iterator[Line]:
    yield "extraction of ResNet-50 at 224 pixels, decoded pictures to maps", rate(found, "gpu_extraction_"), "≥ 0.9"
    tagger = f"{found['gpu_tagger_images_a_second']:,.0f} images/s"
    yield "the tagger's network in full precision, decoded pictures to maps, `--batch 256`", tagger, "reported"
    yield "end-to-end training of the paper's model on it", rate(found, "gpu_training_"), "≥ 0.9"
    yield "the same with `--compile`", rate(found, "gpu_compiled_training_"), "reported"


def rate(found: Found, prefix: str) -> str:
    """Ours, the bare loop's, and their ratio."""
    ours, bare, ratio = (found[f"{prefix}{name}"] for name in ("ours", "bare", "ratio"))
    return f"{ours:,.0f} / {bare:,.0f} images/s = {ratio:.2f}"
