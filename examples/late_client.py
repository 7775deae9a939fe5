"""A personal model for a client that was not in the training: python examples/late_client.py"""

import sys

import numpy as np
from sklearn.datasets import load_digits

import fedframe

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20

x, y = load_digits(return_X_y=True)
late = (y < 3) & (np.arange(len(y)) % 4 == 0)  # sees 0, 1 and 2 only, and is not in the training

result = fedframe.run("fedavg", data=(x[~late], y[~late]), clients=10, rounds=rounds, progress=False)

north = result.personalise((x[late], y[late]), name="north")
print(
    f"on north's held-out digits: shared model {north.scores['client']:.3f}, north's own {north.scores['personal']:.3f}"
)
print("predicted:", north.model.predict(x[late][:8]), "true:", y[late][:8])
