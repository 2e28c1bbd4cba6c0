"""Encodes the COCO packs with a network, on a GPU if there is one, for `make_models.py` and for studies.

    python scripts/encode_packs.py --data DIR --network NAME --weights FILE --name coco52 --sizes 126 224 --out DIR

For each size and phase it writes `pooled-NAME-SIZE-PHASE.npy` (images × channels, the mean over places) and, for phases
named by `--places`, `codes-…` and `scales-…` (images × places × channels in a byte a number, and a scale a place).
`ids.npz` names the rows, and `chances-PHASE.npy` has the probabilities of a classifier's classes.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from packs import CALIBRATION, NETWORK, PHASES, SIZE, Packs, packs_parser
from torch import Tensor

from fewtag.pictures.decode import squash
from fewtag.pictures.files import Picture, open_image
from fewtag.pictures.prefetch import batches, prefetch
from fewtag.research.data.images import LabelledImages
from fewtag.research.features.backbone import Backbone, create_backbone, create_classifier
from fewtag.research.features.graph import SIDE

BATCH = 128
EVERY = (*PHASES, "crowded")


def squares(images: LabelledImages, size: int, device: torch.device) -> Iterator[Tensor]:
    """Batches of uint8 pixels, in the order of the images."""

    def read(picture: Picture) -> np.ndarray:
        return squash(open_image(picture), size)

    for batch in batches(prefetch(read, iter(images.pictures), 2 * BATCH), BATCH):
        yield torch.from_numpy(np.stack(batch)).to(device)


@torch.inference_mode()
def write(out: Path, name: str, backbone: Backbone, images: LabelledImages, phase: str, *, places: bool) -> None:
    """Maps as the product's graph has them: at most 8 × 8 places."""
    pooled, codes, scales = [], [], []
    for pixels in squares(images, backbone.size, backbone.mean.device):
        maps = backbone(pixels).float()
        found = F.adaptive_avg_pool2d(maps, min(SIDE, maps.shape[-1])).flatten(2).transpose(1, 2)
        pooled.append(found.mean(dim=1).half().cpu().numpy())
        if places:
            scale = found.abs().amax(dim=2) / 127
            codes.append((found / scale[..., None]).round().to(torch.int8).cpu().numpy())
            scales.append(scale.half().cpu().numpy())
    what = f"{name}-{backbone.size}-{phase}.npy"
    np.save(out / f"pooled-{what}", np.concatenate(pooled))
    if places:
        np.save(out / f"codes-{what}", np.concatenate(codes))
        np.save(out / f"scales-{what}", np.concatenate(scales))


def main() -> None:
    parser = packs_parser(__doc__)
    parser.add_argument("--network", required=True, help="timm's name of it")
    parser.add_argument("--weights", help="a source of weights, as in a recipe")
    parser.add_argument("--name", required=True, help="what the files are called by")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224])
    parser.add_argument("--phases", nargs="+", choices=EVERY, default=EVERY)
    parser.add_argument("--places", nargs="*", choices=EVERY, default=[*CALIBRATION, "test", "mixed"])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    packs = Packs(arguments.data, arguments.cache)
    arguments.out.mkdir(parents=True, exist_ok=True)
    ids = {phase: np.array(packs.images(phase).ids) for phase in arguments.phases}
    np.savez(arguments.out / "ids.npz", **ids)  # type: ignore[arg-type]  # numpy takes one name for a flag
    classifier = create_classifier(NETWORK).to(device)
    with torch.inference_mode():
        for phase in [phase for phase in PHASES if phase in arguments.phases]:
            chances = [classifier(pixels).half().cpu() for pixels in squares(packs.images(phase), SIZE, device)]
            np.save(arguments.out / f"chances-{phase}.npy", torch.cat(chances).numpy())
    for size in arguments.sizes:
        backbone = create_backbone(arguments.network, weights=arguments.weights, size=size).to(device)
        for phase in arguments.phases:
            places = phase in arguments.places
            write(arguments.out, arguments.name, backbone, packs.images(phase), phase, places=places)
            print(arguments.name, size, phase, flush=True)


if __name__ == "__main__":
    main()
