"""Tagging two thousand pictures: beside the bare network, from the cache, in how much memory, and on Ray."""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from fewtag.apps.folders import find_pictures

from fewtag.pictures.decode import stack
from fewtag.pictures.files import Picture
from fewtag.research.features.backbone import create_backbone
from tagging import BATCH, bare_seconds, folder_seconds, make_bank, write_jpegs

COUNT = 2000
FEW = 400
BARE = 512
RAY = 1024
WORKERS = 2


def folders(source: Path | None = None) -> dict[str, float]:
    """Of pictures that lie in `source`, or else of drawn ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pictures = gather(source, folder / "many")
        bank = folder / "bank.fewtag"
        make_bank(bank, labels=10)
        found = from_the_cache(folder, bank, pictures)
        return found | beside_ray(folder, bank, pictures)


def gather(source: Path | None, folder: Path) -> list[Picture]:
    """`COUNT` pictures in a folder, and the first `FEW` of them in `<folder>-few`."""
    if source is None:
        write_jpegs(folder, COUNT, (500, 375))
    else:
        folder.mkdir()
        for picture in find_pictures(source)[:COUNT]:
            shutil.copy(picture.path, folder / str(picture).replace("/", "-"))
    pictures = find_pictures(folder)
    copy(pictures[:FEW], folder.with_name(f"{folder.name}-few"))
    return pictures


def copy(pictures: list[Picture], folder: Path) -> Path:
    folder.mkdir()
    for picture in pictures:
        shutil.copy(picture.path, folder)
    return folder


def from_the_cache(folder: Path, bank: Path, pictures: list[Picture]) -> dict[str, float]:
    """Without a cache, into it and out of it, each in a process of its own; the bare network before and after."""
    network = create_backbone()
    since = time.perf_counter()
    pixels = stack([picture.pixels(network.size) for picture in pictures[:BARE]])
    decoding = time.perf_counter() - since
    bare_seconds(network, pixels[:BATCH])
    before = bare_seconds(network, pixels)
    few = apart(bank, folder / "many-few", folder / "cache-few")
    cold = apart(bank, folder / "many", folder / "cache")
    warm = min((apart(bank, folder / "many", folder / "cache") for _ in range(3)), key=lambda run: run["seconds"])
    bare = len(pixels) / min(before, bare_seconds(network, pixels))
    return {
        "folder_pictures": len(pictures),
        "folder_kilobytes_a_picture": sum(picture.path.stat().st_size for picture in pictures) / len(pictures) / 1000,
        "folder_decoded_a_second_a_core": len(pixels) / decoding,
        "folder_bare_images_a_second": bare,
        "folder_images_a_second": len(pictures) / cold["seconds"],
        "folder_ratio": len(pictures) / cold["seconds"] / bare,
        "folder_cached_images_a_second": len(pictures) / warm["seconds"],
        "folder_cached_ratio": cold["seconds"] / warm["seconds"],
        "folder_startup_seconds": warm["startup_seconds"],
        "folder_peak_mib": cold["peak_mib"],
        "folder_peak_mib_few": few["peak_mib"],
    }


def apart(bank: Path, folder: Path, cache: Path) -> dict[str, float]:
    """`fewtag tag` in a process of its own, so that its memory and its start are its own."""
    command = [sys.executable, __file__, str(bank), str(folder), str(cache)]
    since = time.perf_counter()
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found | {"startup_seconds": time.perf_counter() - since - found["seconds"]}


def beside_ray(folder: Path, bank: Path, pictures: list[Picture]) -> dict[str, float]:
    """Two workers beside the local engine, in turns, once they are up."""
    from fewtag.apps.bulk.manifest import Options
    from fewtag.apps.bulk.run import tag_archive

    from fewtag.cli.terminal import Bars

    source, local, ray, startup = copy(pictures[:RAY], folder / "ray"), [], [], []
    for turn in range(2):
        local.append(folder_seconds(source, bank))
        with Bars(shown=False) as bars:
            done = tag_archive(bank, str(source), str(folder / f"shards-{turn}"), Options(), workers=WORKERS, bars=bars)
        ray.append(done.seconds)
        startup.append(done.startup_seconds)
    return {
        "ray_images_a_second": RAY / min(ray),
        "ray_local_images_a_second": RAY / min(local),
        "ray_ratio": min(local) / min(ray),
        "ray_startup_seconds": min(startup),
    }


if __name__ == "__main__":
    bank, folder, cache = map(Path, sys.argv[1:])
    found = {"seconds": folder_seconds(folder, bank, cache), "threads": torch.get_num_threads()}
    print(json.dumps(found | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
