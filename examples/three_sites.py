"""Three sites with secure aggregation, as real processes over TLS on this machine: python examples/three_sites.py

Needs the extra flower. Among real sites, use the command: fedframe federation new (docs/tutorials/three-hospitals.md).
"""

import csv
import sys
from pathlib import Path

import numpy as np

import fedframe

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
draw = np.random.default_rng(0)
with Path("patients.csv").open("w", newline="") as file:  # or your own table, with a column that names the site
    table = csv.writer(file)
    table.writerow(["site", "age", "crp", "lactate", "outcome"])
    for site, rows in {"north": 300, "south": 200, "west": 120}.items():
        for _ in range(rows):
            ill = int(draw.random() < 0.3)
            crp, lactate = round(draw.gamma(2, 12) + 35 * ill, 1), round(draw.gamma(4, 0.35) + 1.1 * ill, 2)
            table.writerow([site, draw.integers(20, 90), crp, lactate, ["no sepsis", "sepsis"][ill]])

result = fedframe.run(
    "fedavg", data="csv:patients.csv", label="outcome", client_column="site", partition="user", model="mlp:16",
    engine="flower", nodes=3, secure=True, rounds=rounds, lr=0.05, out="runs/three-sites", progress=False,
)  # fmt: skip
for name, score in (("shared", "client"), ("personal", "personal")):
    print(f"{name} model, mean over the sites' own test data: {100 * result.scores[score]['final']:.1f} % right")
print("north's own model, for use without Fedframe:", result.export("torch", client="north"))
