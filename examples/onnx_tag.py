"""By onnxruntime, numpy and Pillow alone: python onnx_tag.py pets-onnx/tagger.onnx garden.jpg street.jpg"""

import json
import os
import sys
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime reports to its maker, unless it is told before its import

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

graph, *paths = map(Path, sys.argv[1:])
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.x64quantprecision", "1")  # int8 products overflow on x86 without VNNI
session = onnxruntime.InferenceSession(graph, options)
labels = np.load(graph.parent / "labels.npz")
inputs = {name: labels[name] for name in ("prototypes", "whole", "focused", "slopes", "offsets")}
if session.get_modelmeta().custom_metadata_map["fewtag-graph"] != labels["graph"]:
    sys.exit(f"{graph} and labels.npz are of different models; run fewtag export again")

for path in paths:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    image = image.resize((int(labels["size"]),) * 2, Image.Resampling.BILINEAR)
    inputs["pixels"] = np.array(image).transpose(2, 0, 1)[None]
    (probabilities,) = session.run(["probabilities"], inputs)[0]
    order = [column for column in np.argsort(-probabilities) if probabilities[column] >= labels["thresholds"][column]]
    tags = {str(labels["names"][column]): round(float(probabilities[column]), 6) for column in order}
    print(json.dumps({"image": str(path), "tags": tags}))
