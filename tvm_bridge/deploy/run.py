"""Runs the model of this folder once and prints how its outputs begin: python3 run.py"""

import array
import math
import random
import sys
from pathlib import Path

from mufuser_model import BYTES
from mufuser_model import Model
from mufuser_model import ModelError

try:
    model = Model(Path(__file__).parent)
except ModelError as error:
    sys.exit(f"error: {error}")
inputs = []
for spec in model.at(model.about["inputs"]):  # open sizes: the largest
    size = math.prod(spec["shape"])
    if spec["dtype"] == "float32":
        data = array.array("f", [random.gauss(0, 1) for _ in range(size)]).tobytes()
    else:
        data = bytes(size * BYTES[spec["dtype"]])  # zeros
    inputs.append(model.tensor(spec, data))
for spec, y in zip(model.at(model.about["outputs"]), model(*inputs), strict=True):
    print(spec["name"], spec["shape"], spec["dtype"], model.data(y)[:16].hex())
