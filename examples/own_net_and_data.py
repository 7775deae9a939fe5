"""Arrays with a hospital per row and a net of your own: python examples/own_net_and_data.py"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

import fedframe

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20

x, y = load_breast_cancer(return_X_y=True)
hospital = np.argsort(np.argsort(x[:, 0])) * 4 // len(x)  # four hospitals whose patients differ in the first column

# A net gives features; the method adds the classifier.
net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 32), torch.nn.ReLU())

data = {"x_train": x, "y_train": y, "user_train": hospital}
result = fedframe.run("fedavg", data=data, model=net, rounds=rounds, lr=0.05, progress=False)
for name in ("generic", "client", "personal"):
    print(f"{name:9} {result.scores[name]['final']:.3f}  {result.summary['definitions'][name]}")

print("shared model:     ", result.model.predict(x[:5]))
print("hospital 0's own: ", result.personal(0).predict(x[:5]))
